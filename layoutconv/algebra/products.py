"""Products: a layout repeated as another one says."""

from __future__ import annotations

from typing import Any

from .coalesce import by_mode
from .complement import complement
from .composition import compose
from .construct import make_ordered_layout
from .divide import _unpacked, as_tile, unzipped
from .errors import LayoutTypeError, LayoutValueError, text
from .int_tuple import IntTuple, product
from .layout import Layout, make, make_layout


def logical_product(a: Layout, tiler: Any) -> Layout:
    """``(a, complement of a o tiler)``: mode 0 is ``a``, mode 1 runs over its copies.

    ``tiler`` is a layout of the copies, an integer (``n:1``), None (``a`` as it is), or a tuple of
    these that repeats mode by mode; modes after the tuple are kept. CUTLASS: cute/layout.hpp.

    Raises :class:`LayoutValueError` if ``a`` has no complement or the composition is inexact.

    >>> print(logical_product(Layout((2, 2), (4, 1)), Layout(6, 1)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_product(Layout(4), 3))
    (4,3):(1,4)
    """
    if not isinstance(a, Layout):
        raise LayoutTypeError(f"logical_product: {a!r} is not a layout")
    if tiler is None:
        return a
    if isinstance(tiler, tuple):
        return by_mode(logical_product, "logical_product", a, tiler)
    tile = as_tile("logical_product", tiler)
    rest = complement(a, a.size() * tile.cosize())
    copies = compose(rest, tile, "logical_product", (a, tiler))
    return make((a.shape, copies.shape), (a.stride, copies.stride))


def zipped_product(a: Layout, tiler: Any) -> Layout:
    """``((a, ...), (copies, ...))``: the product of each mode, the halves gathered.

    >>> print(zipped_product(Layout((2, 3), (1, 1)), (4, 5)))
    ((2,3),(4,5)):((1,1),(2,3))
    """
    return unzipped(logical_product, "zipped_product", a, tiler)


def tiled_product(a: Layout, tiler: Any) -> Layout:
    """As :func:`zipped_product`, the copies as modes of their own: ``((a, ...), copies, ...)``.

    >>> print(tiled_product(Layout((2, 3), (1, 1)), (4, 5)))
    ((2,3),4,5):((1,1),2,3)
    """
    return _unpacked(zipped_product(a, tiler), (False, True))


def flat_product(a: Layout, tiler: Any) -> Layout:
    """As :func:`zipped_product`, everything as modes of their own: ``(a, ..., copies, ...)``.

    >>> print(flat_product(Layout((2, 3), (1, 1)), (4, 5)))
    (2,3,4,5):(1,1,2,3)
    """
    return _unpacked(zipped_product(a, tiler), (True, True))


def blocked_product(block: Layout, tiler: Layout) -> Layout:
    """``block`` repeated over ``tiler``, mode by mode, a block being contiguous in each mode.

    The rank is the larger of the two; mode i is ``(block mode i, copies of mode i)``. CUTLASS:
    cute/layout.hpp.

    >>> print(blocked_product(Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))))
    ((2,3),(5,4)):((5,10),(1,30))
    """
    return _zipped_modes(*_product_by_rank("blocked_product", block, tiler))


def raked_product(block: Layout, tiler: Layout) -> Layout:
    """``block`` repeated over ``tiler``, mode by mode, the blocks interleaved.

    Mode i is ``(copies of mode i, block mode i)``. CUTLASS: cute/layout.hpp.

    >>> print(raked_product(Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))))
    ((3,2),(4,5)):((10,5),(30,1))
    """
    blocks, copies = _product_by_rank("raked_product", block, tiler)
    return _zipped_modes(copies, blocks)


def _product_by_rank(name: str, block: Any, tiler: Any) -> tuple[Layout, Layout]:
    for x in (block, tiler):
        if not isinstance(x, Layout):
            raise LayoutTypeError(f"{name}: {x!r} is not a layout")
    rank = max(block.rank, tiler.rank)
    both = logical_product(_appended(block, rank), _appended(tiler, rank))
    return both[0], both[1]


def _appended(layout: Layout, rank: int) -> Layout:
    """``layout`` with modes ``1:0`` up to ``rank``."""
    modes = list(layout)
    return make_layout(modes + [make(1, 0)] * (rank - len(modes)))


def _zipped_modes(first: Layout, second: Layout) -> Layout:
    return make_layout([make_layout(x, y) for x, y in zip(first, second, strict=True)])


def tile_to_shape(block: Layout, shape: IntTuple, order: IntTuple = None) -> Layout:
    """``block`` repeated to fill ``shape``; the copies run over its modes in ``order``.

    ``shape`` has at least the rank of ``block``, and each of its modes is a multiple of the
    block's. The default order is colexicographic. CUTLASS: cute/layout.hpp.

    >>> print(tile_to_shape(Layout((2, 2), (1, 2)), (4, 8), (1, 0)))
    ((2,2),(2,4)):((1,16),(2,4))
    """
    target = shape if isinstance(shape, tuple) else (shape,)
    if not isinstance(block, Layout):
        raise LayoutTypeError(f"tile_to_shape: {block!r} is not a layout")
    if block.rank > len(target):
        raise LayoutValueError(f"tile_to_shape: {block} has more modes than {text(shape)}")
    padded = _appended(block, len(target))
    extents = [product(m.shape) for m in padded]
    wanted = [product(s) for s in target]
    for i, (extent, total) in enumerate(zip(extents, wanted, strict=True)):
        if total % extent:
            raise LayoutValueError(
                f"tile_to_shape: mode {i} of {text(shape)} is {total}, not a multiple of the "
                f"{extent} of {block}"
            )
    copies = tuple([total // extent for extent, total in zip(extents, wanted, strict=True)])
    if order is None:
        order = tuple(range(len(target)))
    return blocked_product(padded, make_ordered_layout(copies, order))
