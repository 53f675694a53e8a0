"""Checks of a shape and a stride: the slow part of constructing a layout, with full errors.

``Layout`` takes nested tuples of plain ``int`` on a fast path of its own. This module handles
everything else: it converts scalars of NumPy and torch, accepts symbolic integers, scaled bases and
values of a kernel that is being traced, and refuses others with a message that points at them.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

from .basis import ArithmeticTuple, basis_terms
from .errors import LayoutTypeError, LayoutValueError, point_at, shortly, text, too_deep
from .int_tuple import IntTuple
from .protocol import is_stride
from .symbols import Symbolic, from_sympy
from .symint import SymInt
from .values import Immutable


def checked_shape(shape: IntTuple, whole: IntTuple = None, path: tuple[int, ...] = ()) -> IntTuple:
    """Return ``shape`` with plain leaves; raise an error that points at a wrong one."""
    whole = shape if whole is None else whole
    if isinstance(shape, tuple):
        return tuple(
            [
                s if type(s) is SymInt and s > 0 else checked_shape(s, whole, (*path, i))
                for i, s in enumerate(shape)
            ]
        )
    leaf = as_integer(shape)
    if leaf is None:
        hint = "; write it as a tuple" if isinstance(shape, list) else _hint_of_array(shape)
        raise LayoutTypeError(
            f"Layout: the extent {shortly(shape)} is {_a(shape)}, not an integer{hint}\n"
            + point_at(whole, path)
        )
    empty_allowed = isinstance(leaf, SymInt) and leaf.runtime  # an empty batch is a valid problem
    if isinstance(leaf, Symbolic):
        _known_positive(leaf, whole, path)
    elif isinstance(leaf, int) and leaf < (0 if empty_allowed else 1):
        raise LayoutValueError(
            f"Layout: the extent {leaf} is not positive\n" + point_at(whole, path)
        )
    return leaf


def _hint_of_array(x: Any) -> str:
    """Return how to write the layout of an array or a tensor; its values are no extents."""
    if not getattr(x, "ndim", 0):
        return ""
    if callable(getattr(x, "stride", None)):
        return "; the layout of a tensor t is Layout(t.shape, t.stride())"
    return "; the layout of an array is Layout(x.shape, tuple(s // x.itemsize for s in x.strides))"


def _known_positive(leaf: Symbolic, whole: IntTuple, path: tuple[int, ...]) -> None:
    try:
        positive = bool(leaf >= 1)
    except LayoutValueError as error:
        raise LayoutValueError(
            f"Layout: the extent {leaf}: {error}\n" + point_at(whole, path), unknown=error.unknown
        ) from None
    if not positive:
        raise LayoutValueError(
            f"Layout: the extent {leaf} is not positive\n" + point_at(whole, path)
        )


def checked_stride(
    stride: IntTuple, shape: IntTuple, whole: IntTuple = None, path: tuple[int, ...] = ()
) -> IntTuple:
    """Return ``stride`` with plain leaves in the profile of ``shape``; raise if it has another."""
    whole = stride if whole is None else whole
    if isinstance(shape, tuple):
        if not isinstance(stride, tuple) or len(stride) != len(shape):
            where = f" at {list(path)}" if path else ""
            base = as_integer(stride) is not None or is_stride(stride)
            hint = f"; compact strides from {text(stride)} on are prefix_product" if base else ""
            hint += f"({text(shape)}, {text(stride)})" if base else ""
            raise LayoutTypeError(
                f"Layout: the shape and the stride have different profiles{where}: "
                f"{text(shape)} and {text(stride)}{hint}\n" + point_at(whole, path)
            )
        return tuple(
            [
                d
                if type(d) is SymInt and not isinstance(s, tuple)
                else checked_stride(d, s, whole, (*path, i))
                for i, (d, s) in enumerate(zip(stride, shape, strict=True))
            ]
        )
    if isinstance(stride, ArithmeticTuple):
        terms = basis_terms(stride)
        return terms[0] if len(terms) == 1 else stride if terms else 0
    if is_stride(stride):
        return stride
    leaf = as_integer(stride)
    if leaf is None:
        if isinstance(stride, tuple):
            raise LayoutTypeError(
                "Layout: the shape and the stride have different profiles: the extent "
                f"{text(shape)} has the stride {text(stride)}\n" + point_at(whole, path)
            )
        hint = "; a function of the coordinate is one as CustomStride(function, stride)"
        raise LayoutTypeError(
            f"Layout: the stride {shortly(stride)} is {_a(stride)}, neither an integer nor "
            f"a stride{hint if callable(stride) else ''}\n" + point_at(whole, path)
        )
    return leaf


def as_integer(x: Any) -> Any:
    """Return ``x`` as an integer leaf: an ``int`` or a value that computes like one, else None.

    >>> import numpy as np
    >>> as_integer(np.int64(3)), as_integer(2.0), as_integer(True)
    (3, None, None)
    """
    if isinstance(x, bool | float | complex | str | bytes | list | tuple | dict) or x is None:
        return None
    if isinstance(x, int):
        return x if isinstance(x, SymInt) else int(x)
    if isinstance(x, Integral):  # a NumPy integer
        return int(x)
    if isinstance(x, Symbolic):
        return x
    if is_stride(x):
        return None
    if type(x).__module__.partition(".")[0] == "sympy":
        return from_sympy(x)
    if hasattr(x, "item") and hasattr(x, "ndim"):  # an array or tensor: only an integer scalar
        return _item(x) if x.ndim == 0 else None
    duck = all(hasattr(x, op) for op in ("__add__", "__mul__", "__floordiv__", "__mod__"))
    divisor = hasattr(x, "__rdivmod__")  # a kernel's extent that implements division by it
    return x if (duck or divisor) and not hasattr(x, "as_integer_ratio") else None


def is_leaf(x: Any) -> bool:
    """Tell if a value is a leaf: an integer (NumPy's and symbols included) or a stride.

    >>> import numpy as np
    >>> is_leaf(np.int64(3)), is_leaf((3,)), is_leaf(True), is_leaf("4:1")
    (True, False, False, False)
    """
    return is_stride(x) or isinstance(x, Symbolic) or as_integer(x) is not None


def _item(x: Any) -> int | None:
    """Return the integer of an array or tensor of one element; None if it is not one or unknown."""
    try:
        value = x.item()
    except Exception:  # torch's meta device, or a graph that is being traced
        return None
    return value if type(value) is int else None


def plain(x: Any) -> Any:
    """Convert numbers of NumPy and sympy, alone or in tuples, to plain ones.

    NumPy's types would wrap around if they do not hold a result. Arrays, tensors, strides, layouts,
    None and values of a kernel stay unchanged.

    >>> import numpy as np
    >>> plain((np.int8(100), (None, 2)))
    (100, (None, 2))
    """
    if type(x) is tuple:
        return tuple([leaf if type(leaf) is int else plain(leaf) for leaf in x])
    if x is None or isinstance(x, int | tuple | Immutable):
        return x
    if hasattr(x, "ndim") and not hasattr(getattr(x, "dtype", None), "kind"):
        return x  # a tensor, whose value may become known later
    return _number(x)


def plain_shape(x: Any) -> Any:
    """Convert a shape, a count or a tuple of them as :func:`plain` does, tensor scalars included.

    >>> import torch
    >>> plain_shape((torch.tensor(100, dtype=torch.int8), (None, 2)))
    (100, (None, 2))
    """
    if type(x) is tuple:
        try:
            return tuple([leaf if type(leaf) is int else plain_shape(leaf) for leaf in x])
        except RecursionError:
            raise too_deep("shape") from None
    return x if x is None or isinstance(x, int | tuple | Immutable) else _number(x)


def _number(x: Any) -> Any:
    found = as_integer(x)
    if found is None and type(x).__module__.partition(".")[0] == "sympy":
        raise LayoutTypeError(f"{x} is not known to be an integer")
    return x if found is None else found


def _a(x: Any) -> str:
    name = type(x).__name__
    return f"an {name}" if name[0] in "aeiou" else f"a {name}"
