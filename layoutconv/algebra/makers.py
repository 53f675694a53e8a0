"""CuTe's maker functions for layouts and tensors: of bases, coordinates and fragments."""

from __future__ import annotations

from typing import Any

from .basis import ScaledBasis
from .checks import as_integer
from .composed import ComposedLayout
from .construct import make_identity_layout
from .entries import get
from .errors import LayoutTypeError, expect, whole
from .int_tuple import IntTuple, compact_stride, map_leaves, paired_leaves, product, unflatten
from .layout import IDENTITY, Layout, as_layout, as_like, carried, innermost, make, make_layout
from .like import symbolically
from .normal import by_stride, simplified
from .numbers import expect_numbers
from .protocol import is_zero
from .relations import known
from .swizzle import Swizzle
from .symbols import Symbolic, ceil_div
from .tensor import CoordinateEngine, Tensor


def make_tensor(engine: Any, layout: Any) -> Tensor:
    """Make a tensor: an engine, which holds values, and a layout of their positions.

    >>> make_tensor([10, 11, 12, 13], "(2,2):(2,1)")[1, 0]
    12
    """
    return Tensor(engine, layout)


def make_identity_tensor(shape: IntTuple) -> Tensor:
    """Make the tensor that holds its own coordinates, for predicates: C++'s ``make_coord_tensor``.

    Tile and partition it like the data: it then tells a thread which elements it has.

    >>> make_identity_tensor((4, 8))[1, 2]
    (1, 2)
    >>> make_identity_tensor((4, 8))[:, 0](3)
    (3, 0)
    """
    layout = make_identity_layout(shape)
    return Tensor(CoordinateEngine(layout.shape), layout)


def tiler_to_layout(tiler: Any) -> Layout:
    """Return the coordinates that a tiler picks, as a layout of scaled bases.

    >>> print(tiler_to_layout((4, 5)), tiler_to_layout((4, "2:3")))
    (4,5):(1@0,1@1) (4,2):(1@0,3@1)
    """
    if not isinstance(tiler, tuple):
        return as_layout("tiler_to_layout", tiler)
    modes = []
    for i, tile in enumerate(tiler):
        mode = tiler_to_layout(tile) if isinstance(tile, tuple) else as_layout("tiler", tile)
        strides = map_leaves(lambda _, d, i=i: _within(d, i), mode.shape, mode.stride)
        modes.append(make(mode.shape, strides))
    return make_layout(modes)


def _within(d: Any, i: int) -> Any:
    if isinstance(d, ScaledBasis):
        return ScaledBasis(d.value, (i, *d.path))
    return ScaledBasis(d, (i,))


def make_basis_like(profile: IntTuple) -> IntTuple:
    """Return the scaled basis of every leaf of ``profile``: the strides of an identity layout.

    >>> print(*make_basis_like((4, 8)))
    1@0 1@1
    """
    return make_identity_layout(profile).stride


def basis_get(basis: ScaledBasis | int, x: Any) -> Any:
    """Return the entry of ``x`` that a scaled basis points at; for an integer, all of ``x``.

    >>> from .stride import E
    >>> basis_get(E(1), (4, 8)), basis_get(E(1, 0), (4, (8, 2))), basis_get(E(), (4, 8))
    (8, 8, (4, 8))
    """
    if isinstance(basis, ScaledBasis):
        return get(x, basis.path)
    if as_integer(basis) is None:
        expect("basis_get", ScaledBasis, "a scaled basis", basis)
    return x


def basis_value(basis: Any) -> Any:
    """Return the factor of a scaled basis; for an integer, itself.

    >>> from .stride import E
    >>> basis_value(3 * E(1)), basis_value(3)
    (3, 3)
    """
    if isinstance(basis, ScaledBasis):
        return basis.value
    expect_numbers("basis_value", "basis", basis)
    return basis


def make_fragment_like(layout: Any) -> Layout:
    """Return the compact register layout of a partition: mode 0 first, the rest in stride order.

    Elements that mode 0 repeats with stride 0 share a register; all others have their own. Strides
    that are not integers are ordered by their modes.

    >>> print(make_fragment_like(Layout((4, (2, 3)), (6, (3, 0)))))
    (4,(2,3)):(1,(12,4))
    >>> print(make_fragment_like(Layout(((4, 2), 3), ((1, 0), 8))))
    ((4,2),3):((1,0),4)
    """
    result: Layout = symbolically(_make_fragment_like, innermost("make_fragment_like", layout))
    return result


def _make_fragment_like(layout: Layout) -> Layout:
    if layout.rank < 2 or not isinstance(layout.shape, tuple):
        return Layout(layout.shape)
    first, *rest = layout.shape
    repeated = map_leaves(lambda s, d: 1 if is_zero(d) else s, first, layout.stride[0])
    compact = compact_stride(repeated)
    of_first = map_leaves(lambda _, d, c: 0 if is_zero(d) else c, first, layout.stride[0], compact)
    leaves = paired_leaves(tuple(rest), simplified(layout).stride[1:])
    ordered = [(i, _rank_of(d, i)) for i, (_, d) in enumerate(leaves)]
    strides: list[Any] = [0] * len(leaves)
    current = product(repeated)
    for i, _ in by_stride(ordered):
        strides[i] = current
        current = current * leaves[i][0]
    return make(layout.shape, (of_first, *unflatten(iter(strides), tuple(rest))))


def _rank_of(d: Any, place: int) -> Any:
    """Return a stride's sort key: its magnitude, or its place if it is not an integer."""
    if isinstance(d, Symbolic):
        return d if d >= 0 else -d
    return abs(d) if isinstance(d, int) else place + 1


def filter_zeros(layout: Any) -> Any:
    """Set the extent of every leaf of stride 0 to 1: each offset once, with the rank kept.

    >>> print(filter_zeros(Layout((2, 3), (0, 1))))
    (1,3):(0,1)
    """
    if type(layout) is not Layout:
        return as_like("filter_zeros", layout).on_domain(filter_zeros)
    shape = map_leaves(lambda s, d: 1 if is_zero(d) else s, layout.shape, layout.stride)
    return carried(make(shape, layout.stride), layout)


def sort(layout: Any) -> Any:
    """Return the leaves of a layout in one level, sorted by stride: the same offsets, reordered.

    Leaves of equal strides are sorted by extent.

    Raises :class:`LayoutTypeError` if the strides have no order, like index buffers.

    >>> print(sort(Layout((4, 8), (8, 1))), sort(Layout((5, 32, 16), (1, 5, 5))))
    (8,4):(1,8) (5,16,32):(1,5,5)
    """
    if type(layout) is not Layout:
        return as_like("sort", layout).on_domain(sort)
    try:
        return symbolically(_sorted, simplified(layout), name="sort")
    except TypeError as error:
        raise LayoutTypeError(f"sort: the strides of {layout} have no order") from error


def _sorted(layout: Layout) -> Layout:
    alike: list[list[Any]] = []  # groups of leaves with equal strides
    for leaf in by_stride(layout._leaves):
        if alike and known(alike[-1][0][1] == leaf[1]):
            alike[-1].append(leaf)
        else:
            alike.append([leaf])
    leaves = [leaf for group in alike for leaf in by_stride(group, 0)]
    return make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))


def leading_dim(shape: Any, stride: IntTuple = None) -> Any:
    """Return the mode of stride 1, or its path if modes are nested; None if there is none.

    A symbolic stride does not count, as in the DSL, though its value may be 1.

    >>> leading_dim((4, 8), (8, 1)), leading_dim(Layout((4, (2, 8)), (16, (8, 1))))
    (1, (1, 1))
    """
    layout = Layout(shape, stride) if stride is not None else as_layout("leading_dim", shape)
    path = _unit_path(layout.shape, layout.stride)
    return path[0] if path is not None and len(path) == 1 else path


def _unit_path(shape: IntTuple, stride: IntTuple) -> tuple[int, ...] | None:
    if not isinstance(shape, tuple):
        return () if type(stride) is int and stride == 1 else None
    for i, (s, d) in enumerate(zip(shape, stride, strict=True)):
        inner = _unit_path(s, d)
        if inner is not None:
            return (i, *inner)
    return None


def is_major(mode: int, layout: Any) -> bool:
    """Tell if the stride of a mode, or of its first leaf, is 1; a symbolic one does not count.

    >>> is_major(1, Layout((4, 8), (8, 1))), is_major(0, Layout((4, 8), (8, 1)))
    (True, False)
    """
    leaves = get(as_layout("is_major", layout), mode)._leaves
    return bool(leaves) and type(leaves[0][1]) is int and leaves[0][1] == 1


def make_swizzle(bits: int, base: int, shift: int) -> Swizzle:
    """Make ``Swizzle(bits, base, shift)``.

    >>> print(make_swizzle(3, 3, 3))
    S<3,3,3>
    """
    return Swizzle(bits, base, shift)


def make_composed_layout(last: Any, offset: Any, first: Any) -> ComposedLayout:
    """Make ``last o offset o first``: the layout, then the offset, then a swizzle or a layout.

    The DSL calls ``last`` the inner and ``first`` the outer layout.

    >>> print(make_composed_layout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    S<3,3,3> o 0 o (8,64):(64,1)
    """
    return ComposedLayout(last, offset, as_like("make_composed_layout", first))


def get_swizzle_portion(layout: Any) -> Swizzle:
    """Return the swizzle of a composed layout; for any other, the swizzle that moves nothing.

    >>> print(get_swizzle_portion("S<3,3,3> o 0 o (8,64):(64,1)"), get_swizzle_portion((8, 64)))
    S<3,3,3> S<0,4,3>
    """
    like = as_like("get_swizzle_portion", layout)
    like = like.layout if isinstance(like, Tensor) else like
    if isinstance(like, ComposedLayout) and isinstance(like.outer, Swizzle):
        return like.outer
    return Swizzle(0, 4, 3)


def get_nonswizzle_portion(layout: Any) -> Any:
    """Return a layout without its swizzle; the offset stays.

    >>> print(get_nonswizzle_portion("S<3,3,3> o 0 o (8,64):(64,1)"))
    (8,64):(64,1)
    """
    like = as_like("get_nonswizzle_portion", layout)
    if isinstance(like, Tensor):
        return Tensor(like.engine, get_nonswizzle_portion(like.layout), like.offset)
    if not isinstance(like, ComposedLayout) or not isinstance(like.outer, Swizzle):
        return like
    if type(like.offset) is int and like.offset == 0:
        return like.inner
    return ComposedLayout(IDENTITY, like.offset, like.inner)


def size_in_bytes(element_bits: int, layout: Any) -> Any:
    """Return the bytes from the first offset to the end of the last element, symbols included.

    >>> size_in_bytes(16, Layout((4, 8))), size_in_bytes(4, Layout(3))
    (64, 2)
    >>> size_in_bytes(16, "(H,W):(W,1)")
    2*H*W
    """
    like = as_like("size_in_bytes", layout)
    while not hasattr(like, "cosize"):
        like = like.layout
    if type(element_bits) is not int or element_bits < 1:
        raise LayoutTypeError(f"size_in_bytes: expected bits of an element, got {element_bits!r}")
    extent = like.cosize()
    if isinstance(extent, Symbolic):
        return ceil_div(extent * element_bits, 8)
    return -(-whole("size_in_bytes", extent) * element_bits // 8)
