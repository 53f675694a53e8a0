"""``Layout``: a shape and a stride, which define a function from coordinates to offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .arrays import at_array, checked_arrays, fitting, has_array, is_array
from .checks import as_integer, checked_shape, checked_stride
from .composed import ComposedLayout
from .errors import LayoutTypeError, shortly, text, too_deep
from .int_tuple import (
    IntTuple,
    compact_stride,
    has_none,
    map_leaves,
    offset_at,
    product,
    rank,
    split_and_sum,
)
from .late import late
from .like import LayoutLike
from .numbers import is_no_integer
from .plain_leaves import compact, is_plain, paired_leaves, plain_offset
from .protocol import is_integer, is_zero, map_integers, zero_of
from .relations import Relation
from .stride import ScaledBasis, finished, stride_text
from .symbols import same

Leaf = tuple[Any, Any]  # an extent and its stride


class Layout(LayoutLike):
    """A function from coordinates to offsets: the inner product with ``stride`` on ``shape``.

    ``shape`` is an integer >= 1 or a nested tuple of them; ``stride`` has the same profile and
    defaults to compact strides, the first mode fastest. A leaf is an ``int``, a symbolic integer or
    a value of a kernel that is being traced; a stride leaf may also be a scaled basis, :class:`F2`,
    a custom stride or any other :class:`Stride`. A coordinate is an integer (split
    colexicographically; the last leaf is unbounded), a tuple in the profile of ``shape``, or arrays
    in place of either. A runtime extent (:class:`SymInt`) may be 0.

    Raises :class:`LayoutTypeError` if the profiles differ or a leaf is not an integer, and
    :class:`LayoutValueError` for an extent below 1. CUTLASS: cute/layout.hpp.

    >>> L = Layout((4, (2, 3)), (1, (4, 8)))
    >>> print(L, L(1, 5), L(23), L[1])
    (4,(2,3)):(1,(4,8)) 21 23 (2,3):(4,8)
    """

    __slots__ = ("_assumed", "_flat", "_normal", "_plain", "shape", "stride")

    shape: IntTuple
    stride: IntTuple
    _plain: bool  # every leaf is exactly an int
    _flat: list[Leaf]  # the leaves of shape, each with its stride; set on first use
    _normal: list[Leaf]  # the normal form of .normal.normal_form; set on first use
    _assumed: tuple[Relation, ...]

    def __init__(self, shape: IntTuple, stride: IntTuple = None) -> None:
        try:
            if stride is None:
                stride, last = compact(shape, 1)
                plain = last > 0
            else:
                plain = is_plain(shape, stride)
            if not plain:
                shape = checked_shape(shape)
                stride = compact_stride(shape) if stride is None else checked_stride(stride, shape)
                plain = is_plain(shape, stride)
        except RecursionError:
            raise too_deep("Layout") from None
        _SHAPE(self, shape)
        _STRIDE(self, stride)
        _PLAIN(self, plain)

    @property
    def _leaves(self) -> list[Leaf]:
        try:
            return self._flat
        except AttributeError:  # the slot is not set yet
            leaves = paired_leaves(self.shape, self.stride)
            FLAT(self, leaves)
            return leaves

    def __reduce__(self) -> Any:
        if self._plain:
            return Layout, (self.shape, self.stride)
        return _restored, (self.shape, self.stride, self.assumptions)

    def __call__(self, *crd: Any) -> Any:
        """Return the offset of a coordinate: ``L(i)``, ``L(i, j)``, ``L((i, (j, k)))``, or arrays.

        Arrays are evaluated in an integer type that holds the offsets.
        """
        c = crd[0] if len(crd) == 1 else crd
        if self._plain:
            if type(c) is int:
                try:
                    leaves = self._flat
                except AttributeError:
                    leaves = self._leaves
                offset = 0
                for s, d in leaves:
                    offset += c % s * d
                    c //= s
                if c:  # outside the shape: the last leaf is unbounded
                    offset += c * s * d if leaves else 0
                return offset
            if type(c) is tuple:
                at = plain_offset(c, self.shape, self.stride)
                if at is not None:
                    return at
        return finished(self.raw(c))

    def raw(self, c: IntTuple) -> Any:
        """Return the sum of strides at a coordinate, not yet an offset or a coordinate."""
        if type(c) is int:
            return split_and_sum(c, self._leaves)
        if has_array(c):
            c = checked_arrays(c)
            if has_array(c):
                c = fitting(c, self.shape, self.stride)
                if self._plain and is_array(c):
                    return at_array(c, self._leaves)
                if not self._plain:
                    return offset_at(c, self.shape, _with_zeros(self.shape, self.stride))
        if isinstance(c, tuple) or c is None or is_no_integer(c):
            return offset_at(c, self.shape, self.stride)
        return split_and_sum(c, self._leaves)

    def on_domain(self, operation: Callable[[Any], Any]) -> Any:
        """Apply ``operation`` to the layout, keeping its assumptions."""
        return operation(self) if self._plain else carried(operation(self), self)

    def map_integers(self, fn: Callable[[Any], Any]) -> Layout:
        """Return the layout with ``fn`` applied to every integer of its shape and strides."""
        stride = map_leaves(lambda _, d: map_integers(fn, d), self.shape, self.stride)
        return make(map_leaves(fn, self.shape), stride)

    def parts(self) -> tuple[Layout, ...]:
        """Return the layout itself, as its only part."""
        return (self,)

    @property
    def assumptions(self) -> tuple[Relation, ...]:
        """The relations that this result assumes of the symbols in it; ``()`` if there are none.

        >>> from layoutconv.algebra import SymInt, composition
        >>> W = SymInt(64, "W")
        >>> composition(Layout((W, 3), (3, 1)), 8).assumptions
        (W > 7,)
        """
        try:
            return self._assumed
        except AttributeError:
            return ()

    def assume(self, relations: tuple[Relation, ...]) -> None:
        """Record the assumptions of the operation that has just made this layout."""
        _ASSUMED(self, relations)

    def __getitem__(self, key: Any) -> Layout:
        """Mode ``key``; modes for a slice; for a coordinate, the modes with None (or ``:``)."""
        if isinstance(key, tuple):
            key = tuple([None if k == slice(None) else k for k in key])
            if not has_none(key):
                raise LayoutTypeError(
                    f"Layout: the coordinate {text(key)} leaves no mode of {self} open; "
                    "call the layout for the offset there"
                )
            sliced: Layout = late("slice_")(key, self)
            return sliced
        one = not isinstance(self.shape, tuple)
        shape, stride = ((self.shape,), (self.stride,)) if one else (self.shape, self.stride)
        try:
            if type(key) is bool:
                raise TypeError
            found: Layout = make(shape[key], stride[key])
        except (TypeError, RuntimeError):
            wanted = "a mode, a slice of modes or a coordinate with None"
            raise LayoutTypeError(f"Layout: expected {wanted}, got {shortly(key)}") from None
        except IndexError:
            wanted = f"one of the {len(shape)} modes of {self}"
            raise IndexError(f"Layout: expected {wanted}, got {key}") from None
        return self if one and not isinstance(key, slice) else carried(found, self)

    def __len__(self) -> int:
        return rank(self.shape)

    def __iter__(self) -> Iterator[Layout]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        if self._plain and other._plain:
            return bool(self.shape == other.shape and self.stride == other.stride)
        return same(self.shape, other.shape) and same(self.stride, other.stride)

    def __hash__(self) -> int:
        return hash((self.shape, self.stride))

    def __str__(self) -> str:
        return f"{text(self.shape)}:{_strides_text(self.shape, self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"

    def size(self) -> Any:
        """Return the number of coordinates in the domain."""
        if self._plain:
            result = 1
            try:
                leaves = self._flat
            except AttributeError:
                leaves = self._leaves
            for s, _ in leaves:
                result *= s
            return result
        return product(self.shape)

    def cosize(self) -> Any:
        """Return the largest offset minus the smallest, plus 1: the memory that the layout spans.

        If values are coordinates, it is the product over their modes.

        >>> Layout((4, 2), (1, 8)).cosize(), Layout(4, -1).cosize()
        (12, 4)
        """
        if self._plain:
            result = 1
            for s, d in self._leaves:
                result += (s - 1) * (d if d > 0 else -d)
            return result
        return product(late("coshape")(self))

    def compose(self, other: Any) -> Layout | ComposedLayout:
        """Return ``composition(self, other)``: the function ``c -> self(other(c))`` as a layout."""
        result: Layout | ComposedLayout = late("composition")(self, other)
        return result

    def coalesce(self, profile: Any = None) -> Layout:
        """Return ``coalesce(self, profile)``: the same function with as few modes as possible."""
        result: Layout = late("coalesce")(self, profile)
        return result

    def offsets(self) -> Any:
        """Return all offsets: nested lists, ``offsets()[i][j] == self(i, j)``, one level per mode.

        A hierarchical mode is one level. An integer shape gives a flat list.

        >>> Layout((2, 3), (3, 1)).offsets()
        [[0, 1, 2], [3, 4, 5]]
        >>> Layout(4, 2).offsets()
        [0, 2, 4, 6]
        """
        return late("nested_offsets")(self)


def _strides_text(shape: IntTuple, stride: IntTuple) -> str:
    if isinstance(shape, tuple):
        return "(" + ",".join(map(_strides_text, shape, stride)) + ")"
    return stride_text(stride)


_SETTERS: Any = vars(Layout)  # the slot descriptors: twice as fast as object.__setattr__
_SHAPE = _SETTERS["shape"].__set__
_STRIDE = _SETTERS["stride"].__set__
FLAT = _SETTERS["_flat"].__set__
_PLAIN = _SETTERS["_plain"].__set__
_ASSUMED = _SETTERS["_assumed"].__set__
NORMAL = _SETTERS["_normal"].__set__
_NEW = Layout.__new__


def make(shape: IntTuple, stride: IntTuple) -> Layout:
    """Make a layout of leaves that are known to be valid: no checks, for results of operations."""
    self = _NEW(Layout)
    _SHAPE(self, shape)
    _STRIDE(self, stride)
    _PLAIN(self, is_plain(shape, stride))
    return self


def carried(result: Any, *parts: Layout) -> Any:
    """Return the result of an operation on layouts, with the assumptions of its operands."""
    if not isinstance(result, Layout) or result._plain:
        return result
    relations = [r for part in (result, *parts) for r in part.assumptions]
    if relations:
        result = make(result.shape, result.stride)  # a copy: it may share an operand
        result.assume(tuple(dict.fromkeys(relations)))
    return result


def _restored(shape: IntTuple, stride: IntTuple, assumptions: tuple[Relation, ...]) -> Layout:
    """Restore a pickled layout, whose extents may be valid under its assumptions only."""
    result = make(shape, stride)
    if assumptions:
        result.assume(assumptions)
    return result


def make_plain(shape: IntTuple, stride: IntTuple, leaves: list[tuple[int, int]]) -> Layout:
    """Make a layout of plain integers whose leaves are already known."""
    self = _NEW(Layout)
    _SHAPE(self, shape)
    _STRIDE(self, stride)
    FLAT(self, leaves)
    _PLAIN(self, True)
    return self


def make_all_plain(shape: IntTuple, stride: IntTuple) -> Layout:
    """Make a layout of plain integers, whose leaves are collected on first use."""
    self = _NEW(Layout)
    _SHAPE(self, shape)
    _STRIDE(self, stride)
    _PLAIN(self, True)
    return self


def make_layout(*modes: Any, stride: Any = None) -> Layout:
    """Make a layout from a shape and strides, or with the given layouts as its modes.

    A shape alone is compact, the first mode fastest; ``LayoutRight`` in place of strides makes the
    last mode fastest. ``stride`` may be a keyword, as in the CuTe DSL. Layouts may also come as one
    iterable, in which an integer or a string stands for a layout. CUTLASS: cute/layout.hpp.

    >>> print(make_layout((4, 8), (8, 1)), make_layout(4, stride=2), make_layout((4, (2, 3))))
    (4,8):(8,1) 4:2 (4,(2,3)):(1,(4,8))
    >>> print(make_layout(Layout(4, 1), Layout((2, 3), (4, 8))), make_layout(["4:2", 3]))
    (4,(2,3)):(1,(4,8)) (4,3):(2,1)
    """
    if stride is None and modes and all(type(m) is Layout and m._plain for m in modes):
        return make_all_plain(tuple([m.shape for m in modes]), tuple([m.stride for m in modes]))
    if stride is not None and not (modes and _is_shape(modes[0])):
        raise LayoutTypeError("make_layout: stride= goes with a shape; layouts have strides")
    if modes and _is_shape(modes[0]):
        return _of_shape(*modes) if stride is None else _of_shape(modes[0], stride, *modes[1:])
    if (
        len(modes) == 1
        and isinstance(modes[0], Iterable)
        and not isinstance(modes[0], Layout | str)
    ):
        modes = tuple(modes[0])
    if not all(type(mode) is Layout for mode in modes):
        modes = tuple([as_layout(f"make_layout: mode {i}", mode) for i, mode in enumerate(modes)])
    shape, strides = tuple([m.shape for m in modes]), tuple([m.stride for m in modes])
    made: Layout = carried(make(shape, strides), *modes)
    return made


def _is_shape(x: Any) -> bool:
    """Tell if an operand is a shape: an integer or a tuple whose leaves are all integers."""
    if isinstance(x, tuple):
        return all(map(_is_shape, x))
    return is_integer(as_integer(x))


def _of_shape(shape: IntTuple, stride: Any = None, *rest: Any) -> Layout:
    if rest or isinstance(stride, LayoutLike | str):
        shown = ", ".join(map(text, (shape, stride, *rest)))
        raise LayoutTypeError(f"make_layout({shown}): expected a shape and a stride, or layouts")
    if callable(getattr(stride, "strides", None)):  # an array's ``strides`` is a tuple
        stride = stride.strides(shape)
    return Layout(shape, stride)


def as_like(name: str, x: Any) -> Any:
    """Return ``x`` as a layout, a composed layout or a tensor; a shape becomes a compact layout.

    Raises :class:`LayoutTypeError` for anything else; ``name`` is the operation in the error.
    """
    if isinstance(x, LayoutLike):
        return x
    if isinstance(x, str):
        return as_like(name, late("parse")(x))
    if isinstance(x, tuple) or is_integer(x) or is_integer(as_integer(x)):
        return Layout(x)
    as_layout_like = getattr(x, "as_layout_like", None)
    if callable(as_layout_like) and not isinstance(x, type):
        return as_layout_like()
    raise LayoutTypeError(f"{name}: {shortly(x)} is not a layout")


def innermost(name: str, x: Any) -> Layout:
    """Return the plain layout of the domain: the inner one, or that of a tensor."""
    found = as_like(name, x)
    while not isinstance(found, Layout):
        found = found.inner if hasattr(found, "inner") else found.layout
    return found


def as_layout(name: str, x: Any) -> Layout:
    """Return ``x`` as a plain layout; refuse a composed layout and a tensor."""
    found = as_like(name, x)
    if not isinstance(found, Layout):
        raise LayoutTypeError(f"{name}: {found} is a {type(found).__name__}, not a plain layout")
    return found


def _with_zeros(shape: IntTuple, stride: IntTuple) -> IntTuple:
    """Replace every stride 0 by the zero of the others' kind, which an array of zeros hides."""
    leaves = [d for _, d in paired_leaves(shape, stride)]
    zeros = [zero_of(d) for d in leaves if not is_zero(d)] or list(map(zero_of, leaves))
    zero = next((z for z in zeros if not isinstance(z, int)), 0)
    of_path = {z.path: z for z in zeros if isinstance(z, ScaledBasis)}

    def filled(_: Any, d: Any) -> Any:
        if isinstance(d, ScaledBasis) and is_zero(d):
            return of_path.get(d.path, d)
        return zero if is_zero(d) and type(zero_of(d)) is not type(zero) else d

    return map_leaves(filled, shape, stride)


IDENTITY = Layout(1, 1)  # n -> n: the last leaf is unbounded
