"""Checks of divisions, products, and the tiles and partitions that kernels take from a tensor.

A division is ``a`` at the positions ``tile(i) + start(r)``; its starts place copies of the tile
that cover every position once. A product is ``a(i) + start(tile(j))``; its starts place disjoint
copies of ``a``, as many in each gap between its modes as fit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..algebra import Layout
from .compare import (
    added,
    at_modes,
    distinct,
    every,
    has_rank,
    layout_of,
    modes_of,
    peeled,
    said_of,
    same_values,
    starts_of_copies,
    starts_of_tiles,
    wrong_unless,
)
from .oracle import (
    components,
    hashable,
    leaves,
    nested,
    plus,
    refines,
    spread,
    table,
    value,
    volume,
)


def check_logical_divide(a: Any, tiler: Any, result: Any) -> None:
    """Check that mode 0 runs in a tile and mode 1 over tiles; a tuple of tiles works by mode.

    >>> check_logical_divide(Layout(24), Layout(4, 2), Layout((4, (2, 3)), (2, (1, 8))))
    >>> check_logical_divide(Layout(8), 4, Layout((4, 2), (1, 1)))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: logical_divide(8:1, 4) = (4,2):(1,1): \
at (0,1) it is 1, not 4
    """
    alone = isinstance(tiler, tuple) and len(modes_of(layout_of(a).shape)) == 1
    pair = alone and len(modes_of(layout_of(result).shape)) == 2  # the only mode, not nested
    place = _by_mode if isinstance(tiler, tuple) and not pair else _in_two_modes
    _check_divide("logical_divide", a, tiler, result, place)


def check_zipped_divide(a: Any, tiler: Any, result: Any) -> None:
    """Check that mode 0 has the modes of the tiles, and mode 1 the modes of the rests.

    >>> check_zipped_divide(Layout((8, 24)), (4, 8), Layout(((4, 8), (2, 3)), ((1, 8), (4, 64))))
    """
    _check_divide("zipped_divide", a, tiler, result, _in_two_modes)


def check_tiled_divide(a: Any, tiler: Any, result: Any) -> None:
    """Check that mode 0 has the modes of the tiles, and that each rest is a mode.

    >>> check_tiled_divide(Layout((8, 24)), (4, 8), Layout(((4, 8), 2, 3), ((1, 8), 4, 64)))
    """
    _check_divide("tiled_divide", a, tiler, result, _linear)


def check_flat_divide(a: Any, tiler: Any, result: Any) -> None:
    """Check that each tile and then each rest is a mode.

    >>> check_flat_divide(Layout((8, 24)), (4, 8), Layout((4, 8, 2, 3), (1, 8, 4, 64)))
    """
    _check_divide("flat_divide", a, tiler, result, _linear)


Digits = Sequence[tuple[int, int]]  # a digit and its extent, per mode
Place = Callable[[Digits, Digits], tuple[int, ...]]  # their coordinate in the result


def _one(digit: tuple[int, int]) -> int:
    return digit[0]


def _all(digits: Digits) -> int:
    """Combine the digits of several modes into one."""
    total, place = 0, 1
    for x, s in digits:
        total, place = total + x * place, place * s
    return total


def _in_two_modes(first: Digits, second: Digits) -> tuple[int, ...]:
    return _all(first), _all(second)


def _linear(first: Digits, second: Digits) -> tuple[int, ...]:
    """Return a linear position: a mode that needs several leaves may have become several modes."""
    return (_all([*first, *second]),)


def _by_mode(first: Digits, second: Digits) -> tuple[int, ...]:
    pairs = [_all(pair) for pair in zip(first, second, strict=False)]
    return (*pairs, *map(_one, second[len(first) :]))


def _at(said: str, result: Any, crd: tuple[int, ...], place: Place) -> Any:
    if place is _linear:
        return value(result, crd[0])
    has_rank(said, result, len(crd))
    return at_modes(result, crd)


def _check_divide(name: str, a: Any, tiler: Any, result: Any, place: Place) -> None:
    a, result = layout_of(a), layout_of(result)
    said = said_of(name, a, tiler, result)
    by_mode = isinstance(tiler, tuple)
    extents = modes_of(a.shape) if by_mode else (volume(a.shape),)
    tiles, starts = [], []
    for extent, t in zip(extents, tiler if by_mode else (tiler,), strict=False):
        tile = layout_of(1 if t is None else t)
        rest = starts_of_tiles(tile, extent)
        wrong_unless(rest, said, f"copies of {tile} leave positions out, or meet")
        tiles.append(table(tile))
        starts.append(rest or [0])
    starts += [list(range(extent)) for extent in extents[len(tiles) :]]
    sizes, counts = [len(t) for t in tiles], [len(s) for s in starts]
    have, need = volume(result.shape), volume((*sizes, *counts))
    wrong_unless(have == need, said, f"it has {have} elements, not {need}")
    for c in every((*sizes, *counts)):
        i, r = c[: len(sizes)], c[len(sizes) :]
        crd = place(list(zip(i, sizes, strict=True)), list(zip(r, counts, strict=True)))
        at = [t[x] for t, x in zip(tiles, i, strict=True)] + [0] * (len(starts) - len(tiles))
        at = [x + s[y] for x, s, y in zip(at, starts, r, strict=True)]
        wanted = at_modes(a, tuple(at)) if by_mode else value(a, at[0])
        same_values(said, [(crd, _at(said, result, crd, place), wanted)])


def check_logical_product(a: Any, tile: Any, result: Any) -> None:
    """Check that mode 0 is ``a``, and that mode 1 makes disjoint copies in the order of the tile.

    >>> check_logical_product(Layout(4), 3, Layout((4, 3), (1, 3)))
    Traceback (most recent call last):
        ...
    layoutconv.testing.compare.WrongResultError: logical_product(4:1, 3:1) = (4,3):(1,3): \
at (0,1) it is 3, not 4
    """
    _check_product("logical_product", a, tile, result, _in_two_modes)


def check_zipped_product(a: Any, tile: Any, result: Any) -> None:
    """Check the values of :func:`logical_product <layoutconv.logical_product>`, in two modes.

    >>> check_zipped_product(Layout((2, 2)), 3, Layout(((2, 2), 3), ((1, 2), 4)))
    """
    _check_product("zipped_product", a, tile, result, _in_two_modes)


def check_tiled_product(a: Any, tile: Any, result: Any) -> None:
    """Check the values of the product, with the block in mode 0, then each mode of the tile.

    >>> check_tiled_product(Layout(2), Layout((2, 3)), Layout((2, 2, 3), (1, 2, 4)))
    """
    _check_product("tiled_product", a, tile, result, _linear)


def check_flat_product(a: Any, tile: Any, result: Any) -> None:
    """Check the values of the product, with each mode of the block and of the tile as a mode.

    >>> check_flat_product(Layout((2, 2)), 3, Layout((2, 2, 3), (1, 2, 4)))
    """
    _check_product("flat_product", a, tile, result, _linear)


def check_blocked_product(a: Any, tile: Any, result: Any) -> None:
    """Check that mode k runs through the block and then over the copies in that direction.

    >>> block, copies = Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))
    >>> check_blocked_product(block, copies, Layout(((2, 3), (5, 4)), ((5, 10), (1, 30))))
    """
    _check_product("blocked_product", a, tile, result, _by_mode, ranked=True)


def check_raked_product(a: Any, tile: Any, result: Any) -> None:
    """Check that mode k runs over the copies in that direction and then through the block.

    >>> block, copies = Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))
    >>> check_raked_product(block, copies, Layout(((3, 2), (4, 5)), ((10, 5), (30, 1))))
    """
    _check_product("raked_product", a, tile, result, lambda i, j: _by_mode(j, i), ranked=True)


def _check_product(
    name: str,
    a: Any,
    tile: Any,
    result: Any,
    place: Place,
    ranked: bool = False,
) -> None:
    a, tile, result = layout_of(a), layout_of(tile), layout_of(result)
    said = said_of(name, a, tile, result)
    block, whole = peeled(a, result)
    wrong_unless(isinstance(whole, Layout), said, "what is outside of the layout is another")
    extents, copies = list(modes_of(block.shape)), list(modes_of(tile.shape))
    rank = max(len(extents), len(copies)) if ranked else 0
    extents += [1] * (rank - len(extents))
    copies += [1] * (rank - len(copies))
    wrong_unless(
        volume(whole.shape) == volume((*extents, *copies)),
        said,
        f"it has {volume(whole.shape)} elements, not {volume((*extents, *copies))}",
    )
    starts = starts_of_copies(block, max(table(tile)) + 1)
    found, seen = [], set()
    for c in every((*extents, *copies)):
        i, j = c[: len(extents)], c[len(extents) :]
        crd = place(list(zip(i, extents, strict=True)), list(zip(j, copies, strict=True)))
        got = _at(said, whole, crd, place)
        own = at_modes(block, _of_rank(block, i))
        at = at_modes(tile, _of_rank(tile, j))
        if starts is not None:
            same_values(said, [(crd, got, own + starts[at])])
        elif not any(j):
            same_values(said, [(crd, got, own)])
        if (hashable(own), at) not in seen:
            seen.add((hashable(own), at))
            found.append(got)
    distinct(said, found)


def _of_rank(layout: Any, crd: tuple[int, ...]) -> tuple[int, ...]:
    return crd[: len(modes_of(layout.shape))]


def check_tile_to_shape(block: Any, shape: Any, order: Any, result: Any) -> None:
    """Check that the block is repeated along every mode until it fills ``shape``, in an order.

    ``order`` is None for the first mode fastest, or a permutation of the modes.

    >>> result = Layout(((2, 2), (4, 2)), ((1, 8), (2, 16)))
    >>> check_tile_to_shape(Layout((2, 4)), (4, 8), None, result)
    """
    block, result = layout_of(block), layout_of(result)
    said = said_of("tile_to_shape", block, shape, order, result)
    wrong_unless(refines(shape, result.shape), said, f"its shape does not refine {shape}")
    extents = modes_of(block.shape)
    extents = extents + (1,) * (len(shape) - len(extents))
    counts = [s // e for s, e in zip(shape, extents, strict=True)]
    place, places = 1, [0] * len(counts)
    for mode in sorted(range(len(counts)), key=lambda k: order[k] if order else k):
        places[mode] = place
        place *= counts[mode]
    inside, whole = peeled(block, result)
    wrong_unless(isinstance(whole, Layout), said, "what is outside of the layout is another")
    starts = starts_of_copies(inside, place)
    seen: dict[Any, Any] = {}
    for c in every((*extents, *counts)):
        i, j = c[: len(extents)], c[len(extents) :]
        crd = tuple([x + e * y for x, e, y in zip(i, extents, j, strict=True)])
        got, own = at_modes(whole, crd), at_modes(inside, _of_rank(inside, i))
        at = sum(y * p for y, p in zip(j, places, strict=True))
        if starts is not None:
            same_values(said, [(crd, got, own + starts[at])])
        elif at == 0:
            same_values(said, [(crd, got, own)])
        seen[hashable(own), at] = got
    distinct(said, seen.values())


def check_local_tile(a: Any, tiler: tuple[int, ...], crd: tuple[int, ...], result: Any) -> None:
    """Check that the result is the tile at ``crd``: ``a(tiler * crd + c)``, by mode.

    A plain layout cannot hold an offset, so its result is a pair of tile and offset.

    >>> check_local_tile(Layout((4, 8)), (2, 4), (1, 1), (Layout((2, 4), (1, 4)), 18))
    """

    def place(c: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([t * k + x for x, t, k in zip(c, tiler, crd, strict=True)])

    _check_part("local_tile", a, (tiler, crd), result, place)


def check_local_partition(a: Any, threads: Any, index: int, result: Any) -> None:
    """Check that the result is one thread's part: its element of each tile of threads.

    >>> check_local_partition(Layout((4, 8)), Layout((2, 4)), 3, (Layout((2, 2), (2, 16)), 5))
    """
    threads = layout_of(threads)
    extents = modes_of(threads.shape)
    own = next((c for c in every(extents) if at_modes(threads, c) == index), None)
    if own is None:
        raise ValueError(f"{threads} has no thread {index}")

    def place(c: tuple[int, ...]) -> tuple[int, ...]:
        return tuple([x + s * k for x, s, k in zip(own, extents, c, strict=True)])

    _check_part("local_partition", a, (threads, index), result, place)


def check_domain_offset(crd: tuple[int, ...], a: Any, result: Any) -> None:
    """Check that the result is ``a(crd + c)`` wherever the sums of digits are in bounds.

    >>> check_domain_offset((1, 2), Layout((4, 8)), (Layout((4, 8)), 9))
    """
    a = layout_of(a)
    origin, extents = spread(crd, a.shape), leaves(a.shape)

    def place(c: tuple[int, ...]) -> Any:
        moved = [x + y for x, y in zip(spread(c, a.shape), origin, strict=True)]
        if any(x >= s for x, s in zip(moved, extents, strict=True)):
            return None
        return nested(moved, a.shape)

    _check_part("domain_offset", a, (crd,), result, place)


def _check_part(name: str, a: Any, others: Any, result: Any, place: Callable[[Any], Any]) -> None:
    a = layout_of(a)
    part, offset = result if type(result) is tuple else (result, 0)
    part = layout_of(part)
    said = said_of(name, a, *others, (part, offset) if type(result) is tuple else part)
    offset = offset if isinstance(offset, int) else components(offset)
    add = added(part) if type(result) is tuple else plus
    for c in every(modes_of(part.shape)):
        at = place(c)
        if isinstance(at, tuple) and not isinstance(a.shape, tuple):
            (at,) = at
        if at is not None:
            same_values(said, [(c, add(at_modes(part, c), offset), value(a, at))])
