"""``Layout``: a shape and a stride, and the function of coordinates that they are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from .checks import checked_shape, checked_stride
from .display import Drawable
from .errors import LayoutTypeError, text
from .int_tuple import (
    IntTuple,
    compact_stride,
    crd2idx,
    depth,
    has_none,
    is_no_integer,
    paired_leaves,
    product,
    rank,
    slice_tuple,
    split_and_sum,
)
from .stride import F2, ScaledBasis, stride_text

if TYPE_CHECKING:
    from .composed import ComposedLayout


class Layout(Drawable):
    """A function from coordinates to offsets: the inner product with ``stride`` on ``shape``.

    ``shape`` is an integer >= 1 or a nested tuple of them, ``stride`` has the same profile and is
    by default compact, the first mode fastest. Leaves may be ``int``, symbolic integers, values of
    a kernel that is being traced; stride leaves also scaled bases, :class:`F2`, custom strides.
    A coordinate is an integer (taken colexicographically, the last leaf unbounded), a tuple of the
    profile of ``shape``, or arrays of either. A runtime extent (:class:`SymInt`) may be 0.

    Raises :class:`LayoutTypeError` for a different profile or a leaf that is no integer and
    :class:`LayoutValueError` for an extent below 1. CUTLASS: cute/layout.hpp.

    >>> L = Layout((4, (2, 3)), (1, (4, 8)))
    >>> print(L, L(1, 5), L(23), L[1])
    (4,(2,3)):(1,(4,8)) 21 23 (2,3):(4,8)
    """

    __slots__ = ("_leaves", "_normal", "_plain", "shape", "stride")

    shape: IntTuple
    stride: IntTuple
    _plain: bool  # every leaf is exactly an int
    _leaves: Any  # the leaves of shape, each with its stride
    _normal: Any  # the normal form of .coalesce.normal_form, made when first asked for

    def __init__(self, shape: IntTuple, stride: IntTuple = None) -> None:
        leaves: list[tuple[Any, Any]] = []
        if stride is None:
            stride, last = _compact(shape, 1, leaves)
            plain = last > 0
        else:
            plain = _walk(shape, stride, leaves)
        if not plain:
            shape = checked_shape(shape)
            stride = compact_stride(shape) if stride is None else checked_stride(stride, shape)
            leaves = paired_leaves(shape, stride)
            plain = all(type(s) is int and type(d) is int for s, d in leaves)
        _SHAPE(self, shape)
        _STRIDE(self, stride)
        _LEAVES(self, leaves)
        _PLAIN(self, plain)
        _NORMAL(self, None)

    def __reduce__(self) -> Any:
        return Layout, (self.shape, self.stride)

    def __call__(self, *crd: Any) -> Any:
        """The offset of a coordinate: ``L(i)``, ``L(i, j)``, ``L((i, (j, k)))``, or of arrays."""
        c = crd[0] if len(crd) == 1 else crd
        if self._plain:
            if type(c) is int:
                leaves = self._leaves
                offset = 0
                for s, d in leaves:
                    offset += c % s * d
                    c //= s
                if c:  # outside the shape: the last leaf is not bounded
                    offset += c * s * d if leaves else 0
                return offset
            if type(c) is tuple:
                at = _plain_offset(c, self.shape, self.stride)
                return crd2idx(c, self.shape, self.stride) if at is None else at
        return _value(
            crd2idx(c, self.shape, self.stride)
            if isinstance(c, tuple) or c is None or is_no_integer(c)
            else split_and_sum(c, self._leaves)
        )

    def __getitem__(self, key: Any) -> Layout:
        """Mode ``key``; modes for a slice; what a coordinate with None (or ``:``) leaves open."""
        if isinstance(key, tuple):
            key = tuple([None if k == slice(None) else k for k in key])
            if not has_none(key):
                raise LayoutTypeError(
                    f"Layout: the coordinate {text(key)} leaves no mode of {self} open; "
                    "call the layout for the offset there"
                )
            return slice_(key, self)
        if not isinstance(self.shape, tuple):
            if isinstance(key, int) and key in (0, -1):
                return self
            raise IndexError(f"Layout {self} has no mode {key}")
        try:
            shape, stride = self.shape[key], self.stride[key]
        except IndexError:
            raise IndexError(f"Layout {self} has no mode {key}") from None
        return make(shape, stride)

    def __len__(self) -> int:
        return rank(self.shape)

    def __iter__(self) -> Iterator[Layout]:
        return (self[i] for i in range(len(self)))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Layout):
            return NotImplemented
        return bool(self.shape == other.shape and self.stride == other.stride)

    def __hash__(self) -> int:
        return hash((self.shape, self.stride))

    def __str__(self) -> str:
        return f"{text(self.shape)}:{_strides_text(self.shape, self.stride)}"

    def __repr__(self) -> str:
        return f"Layout({self.shape!r}, {self.stride!r})"

    def __matmul__(self, other: Any) -> Any:
        """``a @ b`` is ``composition(a, b)``."""
        return self.compose(other)

    @property
    def rank(self) -> int:
        """How many top-level modes there are."""
        return rank(self.shape)

    @property
    def depth(self) -> int:
        """How deep the shape nests; an integer has depth 0."""
        return depth(self.shape)

    def size(self) -> Any:
        """How many coordinates the domain has."""
        if self._plain:
            result = 1
            for s, _ in self._leaves:
                result *= s
            return result
        return product(self.shape)

    def cosize(self) -> Any:
        """How long a memory is that holds every offset: the largest less the smallest, plus 1.

        For coordinates the product over their modes.

        >>> Layout((4, 2), (1, 8)).cosize(), Layout(4, -1).cosize()
        (12, 4)
        """
        if self._plain:
            result = 1
            for s, d in self._leaves:
                result += (s - 1) * (d if d > 0 else -d)
            return result
        from .analysis import coshape

        return product(coshape(self))

    def compose(self, other: Any) -> Layout | ComposedLayout:
        """``composition(self, other)``: the function ``c -> self(other(c))`` as a layout."""
        from .composition import composition

        return composition(self, other)

    def coalesce(self, profile: Any = None) -> Layout:
        """``coalesce(self, profile)``: the same function with as few modes as possible."""
        from .coalesce import coalesce

        return coalesce(self, profile)

    def offsets(self) -> Any:
        """The whole table: nested lists with ``offsets()[i][j] == self(i, j)``, one level a mode.

        A hierarchical mode is one level. An integer shape gives one list.

        >>> Layout((2, 3), (3, 1)).offsets()
        [[0, 1, 2], [3, 4, 5]]
        >>> Layout(4, 2).offsets()
        [0, 2, 4, 6]
        """
        columns = [_column(mode) for mode in self]
        return _outer_sum(columns) if columns else 0


def _plain_offset(crd: IntTuple, shape: IntTuple, stride: IntTuple) -> int | None:
    """The offset of a coordinate of plain integers; None for any other and for wrong profiles."""
    if type(shape) is not tuple or len(crd) != len(shape):
        return None
    offset = 0
    for c, s, d in zip(crd, shape, stride):  # noqa: B905
        if type(c) is int:
            if type(s) is int:
                offset += c * d
                continue
            leaf, step = 1, 0
            for leaf, step in paired_leaves(s, d):
                offset += c % leaf * step
                c //= leaf
            offset += c * leaf * step
        elif type(c) is tuple:
            inner = _plain_offset(c, s, d)
            if inner is None:
                return None
            offset += inner
        else:
            return None
    return offset


def _column(mode: Layout) -> list[Any] | range:
    """The offsets of one mode, in the order of its linear coordinate."""
    if not mode._plain:
        return [mode(i) for i in range(mode.size())]
    from .coalesce import merge

    column: list[int] | range = range(1)
    for s, d in merge(mode._leaves):
        if len(column) == 1:
            column = range(0, s * d, d) if d else [0] * s
        else:
            column = [offset for i in range(s) for offset in _moved(column, i * d)]
    return column


def _moved(column: list[Any] | range, offset: Any) -> list[Any] | range:
    if type(offset) is not int:
        return [offset + x for x in column]
    if type(column) is range:  # which needs no additions
        return range(column.start + offset, column.stop + offset, column.step)
    return list(map(offset.__add__, column))


def _outer_sum(columns: list[list[Any] | range]) -> Any:
    first, *rest = columns
    if not rest:
        return list(first)
    if len(rest) == 1:
        if type(first) is range and type(rest[0]) is not range:
            return [list(row) for row in zip(*[_moved(first, b) for b in rest[0]])]  # noqa: B905
        return [list(_moved(rest[0], a)) for a in first]
    inner = _outer_sum(rest)
    return [_shifted(inner, a) for a in first]


def _shifted(table: Any, offset: Any) -> Any:
    if isinstance(table, list):
        return [_shifted(row, offset) for row in table]
    return offset + table


def _walk(shape: IntTuple, stride: IntTuple, leaves: list[tuple[Any, Any]]) -> bool:
    """Collect the leaves; False if anything is not a plain integer or the profiles differ."""
    if type(shape) is int:
        if type(stride) is not int or shape < 1:
            return False
        leaves.append((shape, stride))
        return True
    if type(shape) is not tuple or type(stride) is not tuple or len(shape) != len(stride):
        return False
    for s, d in zip(shape, stride):  # noqa: B905
        if type(s) is int and type(d) is int:
            if s < 1:
                return False
            leaves.append((s, d))
        elif not _walk(s, d, leaves):
            return False
    return True


def _compact(shape: IntTuple, current: int, leaves: list[tuple[Any, Any]]) -> tuple[IntTuple, int]:
    """Compact strides from ``current`` on, and what comes next; (None, 0) if not all plain."""
    if type(shape) is not tuple:
        if type(shape) is not int or shape < 1:
            return None, 0
        leaves.append((shape, current))
        return current, current * shape
    strides = []
    for s in shape:
        if type(s) is int and s > 0:
            leaves.append((s, current))
            strides.append(current)
            current *= s
        else:
            stride, current = _compact(s, current, leaves)
            if not current:
                return None, 0
            strides.append(stride)
    return tuple(strides), current


def _value(result: Any) -> Any:
    """A sum of strides as the coordinate or the offset that it stands for."""
    if isinstance(result, ScaledBasis):
        return result.as_tuple()
    return result.value if isinstance(result, F2) else result


def _strides_text(shape: IntTuple, stride: IntTuple) -> str:
    if isinstance(shape, tuple):
        return "(" + ",".join(map(_strides_text, shape, stride)) + ")"
    return stride_text(stride)


_SETTERS: Any = vars(Layout)  # the slots themselves: twice as fast as object.__setattr__
_SHAPE = _SETTERS["shape"].__set__
_STRIDE = _SETTERS["stride"].__set__
_LEAVES = _SETTERS["_leaves"].__set__
_PLAIN = _SETTERS["_plain"].__set__
_NORMAL = _SETTERS["_normal"].__set__
_NEW = Layout.__new__


def make(shape: IntTuple, stride: IntTuple) -> Layout:
    """A layout of leaves that are known to be good: no check, for results of operations."""
    leaves: list[tuple[Any, Any]] = []
    if _walk(shape, stride, leaves):
        return make_plain(shape, stride, leaves)
    self = make_plain(shape, stride, paired_leaves(shape, stride))
    _PLAIN(self, False)
    return self


def make_plain(shape: IntTuple, stride: IntTuple, leaves: list[tuple[int, int]]) -> Layout:
    """A layout of plain integers whose leaves are at hand already."""
    self = _NEW(Layout)
    _SHAPE(self, shape)
    _STRIDE(self, stride)
    _LEAVES(self, leaves)
    _PLAIN(self, True)
    _NORMAL(self, None)
    return self


def make_layout(*modes: Layout | Iterable[Layout]) -> Layout:
    """A layout with the given layouts as its modes; one iterable of layouts works too.

    >>> print(make_layout(Layout(4, 1), Layout((2, 3), (4, 8))))
    (4,(2,3)):(1,(4,8))
    """
    if len(modes) == 1 and not isinstance(modes[0], Layout):
        modes = tuple(modes[0])
    for i, mode in enumerate(modes):
        if not isinstance(mode, Layout):
            raise LayoutTypeError(f"make_layout: mode {i} is {mode!r}, not a Layout")
    return make(tuple([m.shape for m in modes]), tuple([m.stride for m in modes]))  # type: ignore[union-attr]


def slice_(crd: IntTuple, target: Any) -> Any:
    """The modes that ``crd`` leaves open with None, as CuTe does: *without* the offset of the rest.

    ``target`` is a layout, a composed layout (whose slice does have the offset) or a tuple.
    :func:`slice_and_offset` gives both parts.

    >>> print(slice_((None, 2), Layout((4, (2, 3)), (1, (4, 8)))))
    (4):(1)
    >>> print(slice_((1, (None, None)), Layout((4, (2, 3)), (1, (4, 8)))))
    (2,3):(4,8)
    """
    if crd is None:
        return target
    if isinstance(target, Layout):
        return make(slice_tuple(crd, target.shape), slice_tuple(crd, target.stride))
    if hasattr(target, "sliced"):
        return target.sliced(crd)
    return slice_tuple(crd, target)


def slice_and_offset(crd: IntTuple, layout: Layout) -> tuple[Layout, Any]:
    """The modes that ``crd`` leaves open, and the offset of the coordinate at which it is fixed.

    ``layout(c) == offset + rest(open modes of c)`` for every ``c`` that agrees with ``crd``.

    >>> rest, offset = slice_and_offset((None, 3), Layout((4, 8), (8, 1)))
    >>> print(rest, offset)
    (4):(8) 3
    """
    return slice_(crd, layout), layout(_closed(crd))


def _closed(crd: IntTuple) -> IntTuple:
    if isinstance(crd, tuple):
        return tuple([_closed(c) for c in crd])
    return 0 if crd is None else crd
