"""Hierarchical tuples of integers, which make up shapes, strides and coordinates.

A leaf is anything with ``+ - * // %``: an ``int``, an integer array, a value of a kernel that is
being traced. Tuples are Python tuples. Orders are colexicographic: the first mode runs fastest.
In place of a shape, functions also accept a layout, a tensor, or a string in layout notation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from .errors import LayoutTypeError, LayoutValueError, shortly, text, too_deep, wrong_argument
from .late import late
from .numbers import is_no_integer
from .plain_leaves import IntTuple as IntTuple
from .plain_leaves import compact, digits_offset, is_plain, plain_offset
from .plain_leaves import paired_leaves as paired_leaves
from .values import Immutable, Shaped


def flatten(t: IntTuple) -> tuple[Any, ...]:
    """Return the leaves of ``t``, first mode first.

    >>> flatten((4, (2, 3)))
    (4, 2, 3)
    >>> flatten(5)
    (5,)
    """
    if not isinstance(t, tuple):
        return (t,)
    leaves: list[Any] = []
    for mode in t:
        if isinstance(mode, tuple):
            leaves += flatten(mode)
        else:
            leaves.append(mode)
    return tuple(leaves)


def unflatten(leaves: Iterator[Any], profile: IntTuple) -> IntTuple:
    """Arrange the next ``leaves`` in the profile of ``profile``: the inverse of ``flatten``.

    >>> unflatten(iter("abc"), (4, (2, 3)))
    ('a', ('b', 'c'))
    """
    if isinstance(profile, tuple):
        return tuple([unflatten(leaves, mode) for mode in profile])
    return next(leaves)


def shape_of(name: str, x: Any) -> IntTuple:
    """Return the shape that ``x`` stands for: of a layout or a tensor, or of a layout in text.

    ``name`` is the operation, for the error. A possible leaf is returned as it is.

    >>> shape_of("rank", "(4,8):(8,1)")
    (4, 8)
    """
    if isinstance(x, (tuple, int)) and type(x) is not bool:  # a union takes twice as long
        if type(x) is tuple:
            for leaf in x:
                try:
                    if type(leaf) is not int and expect_leaves(name, leaf):
                        return late("plain_shape")(x)
                except RecursionError:
                    raise too_deep(name) from None
        return x
    if isinstance(x, Shaped):
        return x.shape
    if isinstance(x, str):
        return shape_of(name, late("parse")(x))
    if x is None or hasattr(x, "can_merge"):  # an open mode of a coordinate, or a stride
        return x
    if is_no_integer(x):
        hint = "; write it as a tuple" if isinstance(x, list) else ""
        raise LayoutTypeError(f"{name}: {shortly(x)} is not a shape{hint}")
    return late("plain_shape")(x)


def expect_leaves(name: str, t: IntTuple) -> bool:
    """Refuse a tuple with a leaf that is not an integer: a bool, a float, text. None is allowed.

    Tell if some leaf is not an ``int`` either, and so may be a number of NumPy or sympy.

    >>> expect_leaves("size", (4, (True, 2)))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: size: the leaf True is not an integer
    """
    if isinstance(t, tuple):
        others = [leaf for leaf in t if type(leaf) is not int and expect_leaves(name, leaf)]
        return bool(others)
    if t is None or isinstance(t, Immutable):
        return False
    if is_no_integer(t):
        if hasattr(t, "__rdivmod__") and not hasattr(t, "__mul__"):
            return False  # a kernel's divisor
        hint = "; write it as a tuple" if isinstance(t, list) else ""
        raise LayoutTypeError(f"{name}: the leaf {shortly(t)} is not an integer{hint}")
    return not isinstance(t, int)


def refuse_other_profile(name: str, a: IntTuple, b: IntTuple) -> None:
    """Refuse ``b`` unless each tuple in ``a`` has a matching tuple of the same length in ``b``."""
    if isinstance(a, tuple):
        if not isinstance(b, tuple) or len(a) != len(b):
            raise LayoutTypeError(f"{name}: {text(b)} does not have the profile of {text(a)}")
        for x, y in zip(a, b, strict=True):
            refuse_other_profile(name, x, y)


def product(t: IntTuple) -> Any:
    """Return the product of the leaves of ``t``; 1 for the empty tuple. A layout gives its size.

    >>> product((4, (2, 3)))
    24
    """
    if not isinstance(t, tuple):
        return t if type(t) is int else _product_of(shape_of("product", t))
    result: Any = 1
    for mode in t:
        if type(mode) is int:
            result *= mode
            continue
        if mode is None:
            raise LayoutTypeError(f"product: {text(t)} leaves a mode open")
        if isinstance(mode, tuple | Shaped):
            mode = product(mode)
        elif expect_leaves("product", mode):
            mode = late("plain_shape")(mode)
        result = result * mode
    return result


def _product_of(shape: IntTuple) -> Any:
    if shape is None:
        raise LayoutTypeError("product: None, a mode that is open, has no size")
    return product(shape) if isinstance(shape, tuple) else shape


def path_of(name: str, mode: Any) -> tuple[int, ...]:
    """Return a mode as a path: an index, or a sequence of indices from the outside in.

    >>> path_of("get", None), path_of("get", 1), path_of("get", [1, 0])
    ((), (1,), (1, 0))
    """
    if type(mode) is int:
        return (mode,)
    if mode is None:
        return ()
    path = tuple(mode) if type(mode) is list or isinstance(mode, Sequence) else (mode,)
    if any(type(i) is not int for i in path):
        path = late("plain_shape")(path)
        if any(type(i) is not int for i in path):
            raise wrong_argument(name, "mode", "an index or a sequence of them", mode)
    return path


def at_mode(name: str, shape: IntTuple, mode: Any) -> IntTuple:
    """Return the part of a shape at a mode, which is an index or a path from the outside in."""
    for i in path_of(name, mode):
        if not isinstance(shape, tuple) or not -len(shape) <= i < len(shape):
            raise LayoutTypeError(f"{name}: the shape {text(shape)} has no mode {i}")
        shape = shape[i]
    return shape


def rank(t: IntTuple, mode: Any = None) -> int:
    """Return the number of top-level modes of ``t``, or of one of its modes; 1 for an integer.

    >>> rank((4, (2, 3))), rank(24), rank("(4,8):(8,1)"), rank((4, (2, 3, 5)), mode=[1])
    (2, 1, 2, 3)
    """
    t = shape_of("rank", t)
    if mode is not None:
        t = at_mode("rank", t, mode)
    return len(t) if isinstance(t, tuple) else 1


def depth(t: IntTuple, mode: Any = None) -> int:
    """Return the levels of nesting of ``t``, or of one of its modes; 0 for an integer.

    >>> depth((4, (2, 3))), depth(24), depth((4, (2, 3)), mode=1)
    (2, 0, 1)
    """
    t = shape_of("depth", t)
    if mode is not None:
        t = at_mode("depth", t, mode)
    return 1 + max(map(depth, t), default=0) if isinstance(t, tuple) else 0


def congruent(a: IntTuple, b: IntTuple) -> bool:
    """Tell if ``a`` and ``b`` have the same profile.

    >>> congruent((4, (2, 3)), (1, (4, 8)))
    True
    >>> congruent((4, 2, 3), (1, (4, 8)))
    False
    """
    if type(a) is int and type(b) is int:
        return True
    a, b = shape_of("congruent", a), shape_of("congruent", b)
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(congruent, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def compatible(a: IntTuple, b: IntTuple) -> bool:
    """Tell if every coordinate of shape ``a`` is one of shape ``b``: ``b`` refines ``a``.

    >>> compatible((4, 6), (4, (2, 3))), compatible(24, (4, 6)), compatible((4, 6), 24)
    (True, True, False)
    """
    if type(a) is int and type(b) is int:
        return a == b
    a, b = shape_of("compatible", a), shape_of("compatible", b)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(map(compatible, a, b))
    if a is None:
        raise LayoutTypeError("compatible: None, a mode that is open, has no size")
    return bool(a == product(b))


def map_leaves(fn: Any, *ts: IntTuple) -> IntTuple:
    """Apply ``fn`` to matching leaves of congruent tuples, and keep their profile.

    >>> map_leaves(lambda s, d: s * d, (4, (2, 3)), (1, (4, 8)))
    (4, (8, 24))
    """
    if not isinstance(ts[0], tuple):
        return fn(*ts)
    if len(ts) == 1:
        return tuple([map_leaves(fn, t) if isinstance(t, tuple) else fn(t) for t in ts[0]])
    return tuple([map_leaves(fn, *modes) for modes in zip(*ts, strict=True)])


def compact_stride(shape: IntTuple, first: Any = 1) -> IntTuple:
    """Return for each leaf the product of all leaves before it: compact colexicographic strides.

    >>> compact_stride((4, (2, 3)))
    (1, (4, 8))
    """
    current = first

    def take(extent: Any) -> Any:
        nonlocal current
        before, current = current, current * extent
        return before

    return map_leaves(take, shape)


def divmod_leaf(c: Any, s: Any) -> tuple[Any, Any]:
    """Return ``(c // s, c % s)``; an extent with its own ``__rdivmod__`` (a kernel's divisor) does
    the division itself.
    """
    if not isinstance(s, int) and hasattr(s, "__rdivmod__"):
        both: tuple[Any, Any] = divmod(c, s)
        return both
    try:
        return c // s, c % s
    except ZeroDivisionError:
        raise LayoutValueError("an extent of 0 has no coordinates") from None


def crd2idx(crd: IntTuple, shape: IntTuple, stride: IntTuple = None) -> Any:
    """Return the inner product of strides and a coordinate, which takes the profile of ``shape``.

    An integer coordinate of a hierarchical mode is split colexicographically; the last leaf is
    unbounded, as in CuTe (Cecka, *CuTe Layout Representation and Algebra*, 2026). ``stride`` is
    compact by default; a layout, or that of a tensor, brings its own. Arrays are evaluated in
    a type that holds the offsets. An arithmetic tuple that is shorter than ``shape``, and a scaled
    basis, are padded with zeros.

    Raises :class:`LayoutTypeError` if the profile of a coordinate or a stride differs.

    >>> crd2idx((1, 5), (4, (2, 3)), (1, (4, 8)))
    21
    >>> crd2idx(5, (4, (2, 3))), crd2idx((1, 2), "(4,8):(8,1)")
    (5, 10)
    """
    if type(shape) is not tuple and type(shape) is not int:
        layout = late("parse")(shape) if isinstance(shape, str) else shape
        if stride is None and isinstance(layout, Shaped):
            layout = getattr(layout, "layout", layout)  # of a tensor
            return layout(crd)
        shape = shape_of("crd2idx", layout)
    else:
        steps, plain = compact(shape, 1) if stride is None else (stride, is_plain(shape, stride))
        if plain and (found := _plain_offset(crd, shape, steps)) is not None:
            return found
    if stride is None:
        if expect_leaves("crd2idx", shape):
            shape = late("plain_shape")(shape)
        stride = compact_stride(shape)
    else:
        if expect_leaves("crd2idx", stride) | expect_leaves("crd2idx", shape):
            shape, stride = late("plain_shape")((shape, stride))
        _expect_strides(shape, stride)
    if type(crd) is not int and _has_array(crd):
        crd = late("fitted")(crd, shape, stride)
    return offset_at(crd, shape, stride)


def _plain_offset(crd: Any, shape: IntTuple, stride: IntTuple) -> int | None:
    """Return the offset if the coordinate and the strides are plain integers, else None."""
    if type(crd) is int:
        return digits_offset(crd, shape, stride)
    return plain_offset(crd, shape, stride) if type(crd) is tuple else None


def _expect_strides(shape: IntTuple, stride: IntTuple) -> None:
    """Refuse strides of another profile, as Python would repeat a tuple instead of multiplying it,
    and functions of the coordinate, which are no strides.
    """
    for d in flatten(stride):
        if callable(d) and not hasattr(d, "__rmul__"):
            hint = "a function of the coordinate is one as CustomStride(function, stride)"
            raise LayoutTypeError(f"crd2idx: {shortly(d)} is not a stride; {hint}")
    refuse_other_profile("crd2idx", shape, stride)
    for s, d in paired_leaves(shape, stride):
        if type(d) is tuple:
            refuse_other_profile("crd2idx", d, s)


def _has_array(crd: IntTuple) -> bool:
    if isinstance(crd, tuple):
        return any(map(_has_array, crd))
    return hasattr(crd, "dtype") and hasattr(crd, "ndim")


def offset_at(crd: IntTuple, shape: IntTuple, stride: IntTuple) -> Any:
    """Evaluate :func:`crd2idx`, with arrays whose type already holds the offsets."""
    if isinstance(crd, tuple):
        if not isinstance(shape, tuple) or (
            len(crd) != len(shape) and (type(crd) is tuple or len(crd) > len(shape))
        ):
            raise LayoutTypeError(
                f"crd2idx: the coordinate {text(crd)} does not have the profile of "
                f"the shape {text(shape)}"
            )
        if not isinstance(stride, tuple):  # a set, for one, has no order
            refuse_other_profile("crd2idx", shape, stride)
        if len(crd) < len(shape):  # pad with zeros, where a custom stride need not give 0
            crd = (*crd, *[0] * (len(shape) - len(crd)))
        terms = [offset_at(c, s, d) for c, s, d in zip(crd, shape, stride, strict=True)]
        return sum_of(terms)
    if type(crd) is not int and hasattr(crd, "can_merge") and hasattr(crd, "as_tuple"):
        return offset_at(crd.as_tuple(), shape, stride)
    if type(crd) is not int and (crd is None or is_no_integer(crd)):
        raise LayoutTypeError(
            f"crd2idx: the coordinate {shortly(crd)} of the shape {text(shape)} is not an integer"
            + ("; `layout[...]` and slice_ take None" if crd is None else "")
        )
    if not isinstance(shape, tuple):
        return crd * stride
    return split_and_sum(crd, paired_leaves(shape, stride))


def split_and_sum(crd: Any, leaves: Any) -> Any:
    """Split ``crd`` over ``leaves``, pairs (extent, stride), and add up; the last is unbounded."""
    if not leaves:
        return 0
    terms = []
    for s, d in leaves[:-1]:
        crd, low = divmod_leaf(crd, s)
        terms.append(low * d)
    terms.append(crd * leaves[-1][1])
    return sum_of(terms)


def sum_of(terms: list[Any]) -> Any:
    """Add up terms, starting from the first one, so that no zero is traced."""
    if not terms:
        return 0
    result = terms[0]
    for term in terms[1:]:
        result = result + term
    return result


def idx2crd(idx: IntTuple, shape: IntTuple) -> IntTuple:
    """Return the coordinate of ``shape`` at the colexicographic position ``idx``.

    The last leaf is unbounded, so ``crd2idx(idx2crd(i, shape), shape) == i`` for every integer
    ``i``, also outside the shape, as in CuTe (pycute wraps around there). A tuple ``idx`` is taken
    mode by mode; a shorter arithmetic tuple is padded with zeros. A layout stands for its shape.

    >>> idx2crd(21, (4, (2, 3)))
    (1, (1, 2))
    >>> idx2crd(27, (4, (2, 3))), idx2crd((3, 5), (4, (2, 3)))
    ((3, (0, 3)), (3, (1, 2)))
    """
    if type(shape) is not int:
        shape = shape_of("idx2crd", shape)
        if shape is None:
            raise LayoutTypeError("idx2crd: None is not a shape")
    if type(idx) is not int and hasattr(idx, "can_merge") and hasattr(idx, "as_tuple"):
        idx = idx.as_tuple()
    if isinstance(idx, tuple):
        if type(idx) is not tuple and isinstance(shape, tuple):
            idx = (*idx, *[0] * (len(shape) - len(idx)))
        if not isinstance(shape, tuple) or len(idx) != len(shape):
            raise LayoutTypeError(
                f"idx2crd: {text(idx)} does not have the profile of the shape {text(shape)}"
            )
        return tuple([idx2crd(i, s) for i, s in zip(idx, shape, strict=True)])
    if type(idx) is not int and (idx is None or is_no_integer(idx)):
        raise LayoutTypeError(f"idx2crd: the position {idx!r} of {text(shape)} is not an integer")
    if not isinstance(shape, tuple):
        return idx
    extents = flatten(shape)
    if not extents:
        return shape
    if type(idx) is not int and _has_array(idx):
        idx = late("dividing")(idx, extents)
    digits = []
    for extent in extents[:-1]:
        idx, low = divmod_leaf(idx, extent)
        digits.append(low)
    digits.append(idx)
    return unflatten(iter(digits), shape)


def crd2crd(crd: IntTuple, dst_shape: IntTuple, src_shape: IntTuple = None) -> IntTuple:
    """Return the coordinate of ``dst_shape`` at the same colexicographic position as ``crd``.

    If ``crd`` and ``dst_shape`` are tuples, this goes mode by mode, as in CuTe; an entry outside
    its mode is refused. ``src_shape``, the shape of ``crd``, is needed only to turn a tuple into an
    integer. pycute has the arguments in this order, CuTe C++ the source first.

    >>> crd2crd((1, 5), (4, (2, 3)))
    (1, (1, 2))
    >>> crd2crd((1, (1, 2)), (4, 6), (4, (2, 3)))
    (1, 5)
    >>> crd2crd((1, 2), (4, 8), (8, 4)), crd2crd((3, 5), 24, (4, 6))
    ((1, 2), 23)
    """
    dst = shape_of("crd2crd", dst_shape)
    src = None if src_shape is None else shape_of("crd2crd", src_shape)
    if not isinstance(crd, tuple):
        crd = crd if type(crd) is int else late("plain")(crd)
        if isinstance(dst, int) and isinstance(crd, int) and not 0 <= crd < dst:
            raise LayoutValueError(f"crd2crd: {crd} is not a coordinate of the mode {dst}")
        return idx2crd(crd, dst)
    if src is not None and (not isinstance(src, tuple) or len(src) != len(crd)):
        raise LayoutTypeError(f"crd2crd: {text(crd)} does not have the profile of {text(src)}")
    if isinstance(dst, tuple):
        if len(dst) != len(crd):
            raise LayoutTypeError(f"crd2crd: {text(crd)} does not have the profile of {text(dst)}")
        sources = (None,) * len(crd) if src is None else src
        return tuple([crd2crd(c, d, s) for c, d, s in zip(crd, dst, sources, strict=True)])
    if src is None:
        raise LayoutTypeError(
            f"crd2crd: {text(crd)} does not have the profile of {text(dst)}; "
            "pass the shape that it is a coordinate of as src_shape"
        )
    if product(src) != product(dst):
        raise LayoutValueError(f"crd2crd: the shapes {text(src)} and {text(dst)} differ in size")
    return crd2idx(crd, src)


def has_none(t: IntTuple) -> bool:
    """Tell if a coordinate leaves a mode open."""
    return any(map(has_none, t)) if isinstance(t, tuple) else t is None
