"""Products: repeat a layout at the positions that another layout gives."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

from .basis import ScaledBasis
from .complement import ascending, by_path, endless_gaps, gaps, sorted_modes
from .composed import ComposedLayout
from .composition import compose
from .construct import make_ordered_layout
from .divide import as_tile, tile_unzip, unpacked, unzipped
from .errors import LayoutError, LayoutTypeError, LayoutValueError, text, under, whole
from .extent import cosize, extremes
from .f2 import as_f2, complement_f2
from .int_tuple import IntTuple, map_leaves, product, shape_of
from .layout import Layout, as_like, make, make_all_plain, make_layout
from .like import at_present, symbolically
from .normal import (
    Arithmetic,
    arithmetic,
    by_mode,
    from_plain,
    like_shape,
    modes_for,
    require_known,
)
from .of_one_kind import added, by_xor, expect_one_codomain, in_one_kind
from .over_coordinates import lift
from .protocol import terms, xor
from .symbols import ceil_div


def logical_product(a: Any, tiler: Any) -> Any:
    """Compute ``(a, complement of a o tiler)``: mode 0 is ``a``, mode 1 runs over its copies.

    ``tiler`` is a layout of the copies, an integer (``n:1``), None (``a`` itself), or a tuple of
    these that repeats mode by mode; modes beyond the tuple are kept. Copies never overlap: those
    that do not fit into the gaps of ``a`` come after it. A composed layout or a tensor is repeated
    in its domain. CUTLASS: cute/layout.hpp.

    If no stride leads to the copies (an index buffer orders them, or XOR strides that carry), the
    result is a composed layout: ``(a, complement of a)`` over coordinates in it.

    Raises :class:`LayoutValueError` if ``a`` has no complement or the composition is inexact.

    >>> print(logical_product(Layout((2, 2), (4, 1)), Layout(6, 1)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_product(Layout((8, 64), (72, 1)), 3))
    ((8,64),3):((72,1),576)
    >>> from layoutconv.algebra import F2
    >>> print(logical_product(Layout(3, 2), Layout((2, 2), (F2(1), F2(5)))))
    (3,(2,3)):(2,(1,6)) o 0 o (3,(2,2)):(1@0,(f1@1,f5@1))
    """
    if type(a) is not Layout:
        like = as_like("logical_product", a)
        return like.on_domain(lambda inner: logical_product(inner, tiler))
    return _logical_product(a, tiler) if a._plain else symbolically(_logical_product, a, tiler)


def _logical_product(a: Layout, tiler: Any) -> Any:
    if tiler is None:
        return a
    if isinstance(tiler, tuple):
        try:
            made = by_mode(logical_product, "logical_product", a, tiler)
            if arithmetic(a) is Arithmetic.XOR:
                return by_xor("logical_product", made)
            return in_one_kind("logical_product", made)
        except LayoutTypeError:
            if arithmetic(a) is Arithmetic.OPAQUE and any(xor(d) for _, d in a._leaves):
                raise
            return _composed(a, tiler)
    tile = as_tile("logical_product", tiler)
    try:
        copies = compose(_starts(a, tile, (a, tiler)), tile, "logical_product", (a, tiler))
    except LayoutValueError as error:
        if error.operation:
            raise
        under("logical_product", (a, tiler), error)  # a scaled basis of a mode that ``a`` lacks
    if not isinstance(copies, Layout):
        if arithmetic(tile) is Arithmetic.COORDINATE:
            raise LayoutTypeError(f"logical_product: {tiler} is not a layout of copies")
        return _composed(a, tile)
    if a._plain and copies._plain:
        return make_all_plain((a.shape, copies.shape), (a.stride, copies.stride))
    first = a
    try:
        if arithmetic(a) is Arithmetic.XOR:
            copies = by_xor("logical_product", copies)
        else:
            first, copies = added("logical_product", [a, copies])
    except LayoutTypeError:  # one adds by XOR, the other with carries
        return _composed(a, tile)
    return make((a.shape, copies.shape), (first.stride, copies.stride))


def _composed(a: Layout, tiler: Any) -> ComposedLayout:
    """Build the product if the copies have no strides that go with those of ``a``."""
    found = _over_copies(a, tiler)
    if arithmetic(a) is Arithmetic.XOR:
        return ComposedLayout(as_f2(found.outer), 0, found.inner)  # copies of stride 0 are n:1
    expect_one_codomain("logical_product", list(found.outer))
    return found


def _over_copies(a: Layout, tiler: Any) -> ComposedLayout:
    """Return ``a`` and its copies, mode by mode, over the coordinates of the copies in use."""
    if tiler is None:
        return ComposedLayout(a, 0, Layout(a.shape))
    if isinstance(tiler, tuple):
        modes = modes_for("logical_product", a, tiler)
        made = [_over_copies(mode, t) for mode, t in zip_longest(modes, tiler)]
        return ComposedLayout(
            make_layout([mode.outer for mode in made]), 0, _axes([mode.inner for mode in made])
        )
    tile = as_tile("logical_product", tiler)
    starts = _starts(a, tile, (a, tiler))
    *leaves, (_, last) = starts._leaves
    taken = ceil_div(extremes(tile)[1] + 1, product(tuple([s for s, _ in leaves])))
    copies = like_shape(starts, [*leaves, (taken, last)])
    return ComposedLayout(make_layout(a, copies), 0, _axes([Layout(a.shape), tile]))


def _axes(modes: list[Layout]) -> Layout:
    """Turn layouts of positions into one layout of coordinates, with an axis for each."""
    found: list[Layout] = []
    for i, mode in enumerate(modes):
        lifted = lift(mode, i)
        if lifted is None:
            raise LayoutTypeError(f"logical_product: {mode} is not a layout of copies")
        found.append(lifted)
    return make_layout(found)


def _starts(a: Layout, tile: Layout, operands: tuple[Any, ...]) -> Layout:
    """Return the starts of copies of ``a``, without a bound on their number."""
    if a._plain:
        leaves, current = gaps(operands, sorted_modes(a), "logical_product")
        leaves.append((2, current))  # any extent: the last leaf is unbounded
        return from_plain(leaves)
    require_known("logical_product", a)
    kind = arithmetic(a)
    if kind is Arithmetic.INTEGER:
        leaves = endless_gaps("logical_product", operands, ascending(a))
        return make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))
    if kind is Arithmetic.COORDINATE:
        found = by_path(a, [path for _, d in a._leaves for path, _ in terms(d) or ()])
        modes = [
            [
                (s, ScaledBasis(d, path))
                for s, d in endless_gaps("logical_product", operands, ordered)
            ]
            for path, ordered in found.items()
        ]
        return make(*(tuple([tuple([leaf[i] for leaf in mode]) for mode in modes]) for i in (0, 1)))
    if kind is Arithmetic.XOR:
        a = at_present("logical_product", a)
        reach = max(int(cosize(a)) - 1, 1).bit_length()
        return complement_f2(a, whole("logical_product", cosize(tile)) << reach)
    raise LayoutTypeError(f"logical_product: {a} has strides that cannot be repeated")


def zipped_product(a: Any, tiler: Any) -> Any:
    """Return ``((a, ...), (copies, ...))``: the product mode by mode, with the halves gathered.

    >>> print(zipped_product(Layout((2, 3), (1, 1)), (4, 5)))
    ((2,3),(4,5)):((1,1),(2,3))
    """
    if type(a) is not Layout:
        return as_like("zipped_product", a).on_domain(lambda inner: zipped_product(inner, tiler))
    return _zipped_product(a, tiler) if a._plain else symbolically(_zipped_product, a, tiler)


def _zipped_product(a: Layout, tiler: Any) -> Any:
    if arithmetic(a) is not Arithmetic.XOR or not isinstance(tiler, tuple):
        try:
            return unzipped(logical_product, "zipped_product", a, tiler)
        except LayoutTypeError:  # the modes add up only over coordinates
            if not isinstance(tiler, tuple):
                raise
    return logical_product(a, tiler).on_domain(lambda inner: tile_unzip(inner, tiler))


def tiled_product(a: Any, tiler: Any) -> Any:
    """Repeat as :func:`zipped_product`, the copies as top-level modes: ``((a, ...), copies, ...)``.

    >>> print(tiled_product(Layout((2, 3), (1, 1)), (4, 5)))
    ((2,3),4,5):((1,1),2,3)
    """
    return unpacked(zipped_product(a, tiler), (False, True))


def flat_product(a: Any, tiler: Any) -> Any:
    """Repeat as :func:`zipped_product`, all modes top-level: ``(a, ..., copies, ...)``.

    >>> print(flat_product(Layout((2, 3), (1, 1)), (4, 5)))
    (2,3,4,5):(1,1,2,3)
    """
    return unpacked(zipped_product(a, tiler), (True, True))


def blocked_product(block: Any, tiler: Any) -> Any:
    """Repeat ``block`` over ``tiler`` mode by mode, with each block contiguous in each mode.

    The rank is the larger of the two; mode i is ``(block mode i, copies of mode i)``. CUTLASS:
    cute/layout.hpp.

    >>> print(blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))))
    ((2,3),(5,4)):((5,10),(1,30))
    """
    return _ranked("blocked_product", block, tiler, raked=False)


def raked_product(block: Any, tiler: Any) -> Any:
    """Repeat ``block`` over ``tiler`` mode by mode, with the blocks interleaved.

    Mode i is ``(copies of mode i, block mode i)``. CUTLASS: cute/layout.hpp.

    >>> print(raked_product(Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))))
    ((3,2),(4,5)):((10,5),(30,1))
    """
    return _ranked("raked_product", block, tiler, raked=True)


def _ranked(name: str, block: Any, tiler: Any, *, raked: bool) -> Any:
    if type(block) is not Layout:
        like = as_like(name, block)
        return like.on_domain(lambda inner: _ranked(name, inner, tiler, raked=raked))
    tile = as_like(name, tiler)
    if not isinstance(tile, Layout):
        raise LayoutTypeError(f"{name}: {tiler!r} is not a layout of copies")
    try:
        if block._plain and tile._plain:
            return _by_rank(block, tile, raked)
        return symbolically(_by_rank, block, tile, raked, name=name, shown=(block, tile))
    except LayoutError as error:
        under(name, (block, tile), error)


def _by_rank(block: Layout, tiler: Layout, raked: bool) -> Any:
    rank = max(block.rank, tiler.rank)

    def paired(both: Layout) -> Layout:
        first, second = (both[1], both[0]) if raked else (both[0], both[1])
        return make_layout([make_layout(x, y) for x, y in zip(first, second, strict=True)])

    return logical_product(_appended(block, rank), _appended(tiler, rank)).on_domain(paired)


def _appended(layout: Layout, rank: int) -> Layout:
    """Pad ``layout`` with modes ``1:0`` up to ``rank``."""
    modes = list(layout)
    return make_layout(modes + [make(1, 0)] * (rank - len(modes)))


def tile_to_shape(block: Any, shape: IntTuple, order: IntTuple = None) -> Any:
    """Repeat ``block`` to fill ``shape``; the copies run over its modes in ``order``.

    ``shape`` has at least the rank of ``block``, and each of its modes is a multiple of the
    block's. The default order is colexicographic. A composed layout (such as a swizzled block of
    shared memory) and a tensor are repeated in their domain. CUTLASS: cute/layout.hpp.

    >>> print(tile_to_shape(Layout((2, 2), (1, 2)), (4, 8), (1, 0)))
    ((2,2),(2,4)):((1,16),(2,4))
    >>> print(tile_to_shape("S<3,3,3> o 0 o (8,64):(64,1)", (128, 64, 3)))
    S<3,3,3> o 0 o ((8,16),(64,1),(1,3)):((64,512),(1,0),(0,8192))
    """
    if type(block) is not Layout:
        like = as_like("tile_to_shape", block)
        return like.on_domain(lambda inner: tile_to_shape(inner, shape, order))
    target = shape_of("tile_to_shape", shape)
    target = target if isinstance(target, tuple) else (target,)
    if order is None:
        order = tuple(range(len(target)))
    if block._plain:
        return _tile_to_shape(block, target, order)
    return symbolically(_tile_to_shape, block, target, order)


def _tile_to_shape(block: Layout, target: tuple[Any, ...], order: IntTuple) -> Layout:
    if block.rank > len(target):
        raise LayoutValueError(f"tile_to_shape: {block} has more modes than {text(target)}")
    padded = _appended(block, len(target))
    copies = []
    for i, (mode, extents) in enumerate(zip(padded, target, strict=True)):
        extent, total = product(mode.shape), product(extents)
        if total % extent:
            raise LayoutValueError(
                f"tile_to_shape: mode {i} of {text(target)} is {total}, not a multiple of the "
                f"{extent} of {block}"
            )
        copies.append(total // extent)
    ordered = make_ordered_layout(tuple(copies), order)
    steps = map_leaves(
        lambda s, d: 0 if type(s) is int and s == 1 else d, ordered.shape, ordered.stride
    )
    try:
        result: Layout = _by_rank(padded, make(ordered.shape, steps), raked=False)
    except LayoutError as error:
        under("tile_to_shape", (block, target), error)
    return result
