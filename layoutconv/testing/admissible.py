"""Random operands for which an operation has an exact result, by construction.

The modes of a layout are factored into digits. Any choice of digits, in any order, gives a layout
of positions with which it composes, since their sums do not carry. Each function takes a
``random.Random``, so that a seed identifies a case; hypothesis strategies pass one that shrinks.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from ..algebra import E, Layout
from .compare import modes_of, moving
from .oracle import leaves, nested, volume
from .random_layouts import EXTENTS, domain, of_kind, operand, over, plain_shape

Operands = tuple[Any, ...]


def digits_of(rng: Random, shape: Any, pieces: int = 4) -> list[tuple[int, int]]:
    """Factor the modes of a shape into digits: extent and place value of each, places ascending."""
    found: list[tuple[int, int]] = []
    place = 1
    for extent in map(int, leaves(shape)):
        while extent > 1:
            divisors = [d for d in range(extent, 1, -1) if extent % d == 0]
            part = rng.choice(divisors) if len(found) < pieces else extent
            found.append((part, place))
            place, extent = place * part, extent // part
    return found


def positions(rng: Random, shape: Any, still: bool = True, max_rank: int = 3) -> Layout:
    """Return a layout of positions of ``shape``, with which every layout of that shape composes.

    No position occurs twice, except through a mode of stride 0 that ``still`` may add.
    """
    left = digits_of(rng, shape)
    chosen = rng.sample(left, rng.randint(min(1, len(left)), min(max_rank, len(left))))
    if still and rng.random() > 0.8:
        chosen.append((rng.choice(EXTENTS), 0))
    if not chosen:
        return Layout(1, 0)
    merged = [chosen[0]]
    for s, d in chosen[1:]:
        if d and d == merged[-1][0] * merged[-1][1]:
            merged[-1] = (merged[-1][0] * s, merged[-1][1])
        else:
            merged.append((s, d))
    if len(merged) == 1 and rng.random() < 0.5:
        return Layout(*merged[0])
    return Layout(tuple([s for s, _ in merged]), tuple([d for _, d in merged]))


def disjoint(rng: Random, strides: str = "int", max_size: int = 24, gaps: bool = True) -> Layout:
    """Return an injective layout: each mode steps over all smaller ones.

    ``gaps`` may leave gaps between modes: a stride is then a multiple of the span of the modes
    below.
    """
    extents = plain_shape(rng, 3, max_size)
    flat = leaves(extents)
    steps, current = [0] * len(flat), 1
    for i in rng.sample(range(len(flat)), len(flat)):
        current *= rng.choice([1, 1, 1, 2, 3]) if gaps else 1
        steps[i] = current
        current *= flat[i]
    if strides == "basis":
        return Layout(extents, nested([d * E(0) for d in steps], extents))
    return Layout(extents, nested(steps, extents))


def tile_by_mode(rng: Random, shape: Any, whole: bool = True) -> tuple[Any, ...]:
    """Return a tiler per mode: a divisor, None for the whole mode, or a layout of positions."""
    found: list[Any] = []
    for mode in shape if isinstance(shape, tuple) else (shape,):
        tile = positions(rng, mode, still=False, max_rank=2)
        divisor = divisor_of(rng, mode)
        found.append(rng.choice([divisor, tile, None] if whole else [divisor, tile]))
    return tuple(found)


def divisor_of(rng: Random, mode: Any) -> int:
    """Return an extent for a tile at the start of a mode: a place value of its digits."""
    places = [place for _, place in digits_of(rng, mode)]
    return int(rng.choice([*places, volume(mode)]))


def tile_of_copies(rng: Random, block: Layout) -> Layout:
    """Return the tile of a product: an order of copies that composes with their starts."""
    gaps, current = [], 1
    for d, s in moving(block):
        gaps.append(d // current)
        current = d * s
    if any(gap > 1 for gap in gaps):
        return positions(rng, (*gaps, 4), still=False, max_rank=2)
    return positions(rng, plain_shape(rng, 2, 12), still=False, max_rank=2)


def _one(rng: Random, kind: str, strides: str) -> Operands:
    return (operand(rng, kind, strides),)


def _modes(rng: Random, kind: str, strides: str) -> Any:
    """Return an operand whose shape is a tuple."""
    shape = plain_shape(rng, 3, 32)
    shape = shape if isinstance(shape, tuple) else (shape,)
    return over(rng, kind, of_kind(rng, strides, shape=shape))


def _composition(rng: Random, kind: str, strides: str) -> Operands:
    a = operand(rng, kind, strides)
    return a, positions(rng, domain(a).shape)


def _by_mode(rng: Random, kind: str, strides: str) -> Operands:
    a = _modes(rng, kind, strides)
    return a, tile_by_mode(rng, domain(a).shape, whole=False)


def _divide(rng: Random, kind: str, strides: str) -> Operands:
    a = operand(rng, kind, strides)
    return a, positions(rng, domain(a).shape, still=False)


def _divide_by_mode(rng: Random, kind: str, strides: str) -> Operands:
    a = _modes(rng, kind, strides)
    return a, tile_by_mode(rng, domain(a).shape)


def _complement(rng: Random, kind: str, strides: str) -> Operands:
    return over(rng, kind, disjoint(rng)), rng.randint(1, 60)


def _product(rng: Random, kind: str, strides: str) -> Operands:
    block = disjoint(rng)
    return over(rng, kind, block), tile_of_copies(rng, block)


def _tile_to_shape(rng: Random, kind: str, strides: str) -> Operands:
    block = disjoint(rng, gaps=False)
    shape = tuple([s * rng.randint(1, 3) for s in modes_of(block.shape)])
    return over(rng, kind, block), shape, tuple(rng.sample(range(len(shape)), len(shape)))


def _injective(rng: Random, kind: str, strides: str) -> Operands:
    return (over(rng, kind, disjoint(rng, "basis" if strides == "basis" else "int")),)


def _pair(rng: Random, kind: str, strides: str) -> Operands:
    return operand(rng, kind, strides), operand(rng, "layout", "int")


def _group(rng: Random, kind: str, strides: str) -> Operands:
    a = _modes(rng, kind, strides)
    begin = rng.randint(0, len(domain(a).shape) - 1)
    return a, begin, rng.randint(begin + 1, len(domain(a).shape))


def _reshaped(rng: Random, kind: str, strides: str) -> Operands:
    a = operand(rng, kind, strides)
    extents = [s for s, _ in digits_of(rng, domain(a).shape)]
    return a, tuple(extents) or (1,)


def _slice(rng: Random, kind: str, strides: str) -> Operands:
    a = _modes(rng, kind, strides)

    def at(shape: Any) -> Any:
        if isinstance(shape, tuple) and rng.random() > 0.5:
            return tuple(map(at, shape))
        return None if rng.random() > 0.5 else rng.randint(0, volume(shape) - 1)

    return tuple(map(at, domain(a).shape)), a


def _sum(rng: Random, kind: str, strides: str) -> Operands:
    a = operand(rng, "layout", strides)
    return a, of_kind(rng, strides, shape=a.shape)


def _cast(rng: Random, kind: str, strides: str) -> Operands:
    n = rng.choice([1, 2, 4])
    block = disjoint(rng)
    extents, steps = [n * rng.randint(1, 3), *leaves(block.shape)], leaves(block.stride)
    layout = Layout(tuple(extents), (1, *[extents[0] * d for d in steps]))
    return over(rng, kind, layout), n


def _recast(rng: Random, kind: str, strides: str) -> Operands:
    layout, n = _cast(rng, kind, strides)
    return (layout, 8, 8 * n) if rng.random() < 0.5 else (layout, 8 * n, 8)


def _divisors(rng: Random, a: Any) -> tuple[int, ...]:
    return tuple([divisor_of(rng, mode) for mode in domain(a).shape])


def _local_tile(rng: Random, kind: str, strides: str) -> Operands:
    a = _modes(rng, kind, strides)
    tiler = _divisors(rng, a)
    extents = modes_of(domain(a).shape)
    return a, tiler, tuple([rng.randrange(s // t) for s, t in zip(extents, tiler, strict=True)])


def _local_partition(rng: Random, kind: str, strides: str) -> Operands:
    a = _modes(rng, kind, strides)
    threads = Layout(_divisors(rng, a))
    return a, threads, rng.randrange(volume(threads.shape))


def _domain_offset(rng: Random, kind: str, strides: str) -> Operands:
    a = _modes(rng, kind, strides)
    return tuple([rng.randrange(s) for s in modes_of(domain(a).shape)]), a


ADMISSIBLE: dict[str, Callable[[Random, str, str], Operands]] = {
    "coalesce": _one,
    "coalesce_x": _one,
    "filter": _one,
    "filter_zeros": _one,
    "flatten": _one,
    "group_modes": _group,
    "with_shape": _reshaped,
    "slice_": _slice,
    "slice_and_offset": _slice,
    "composition": _composition,
    "composition by mode": _by_mode,
    "complement": _complement,
    "logical_divide": _divide,
    "logical_divide by mode": _divide_by_mode,
    "zipped_divide": _divide_by_mode,
    "tiled_divide": _divide_by_mode,
    "flat_divide": _divide_by_mode,
    "logical_product": _product,
    "zipped_product": _product,
    "tiled_product": _product,
    "flat_product": _product,
    "blocked_product": _product,
    "raked_product": _product,
    "tile_to_shape": _tile_to_shape,
    "local_tile": _local_tile,
    "local_partition": _local_partition,
    "domain_offset": _domain_offset,
    "right_inverse": _injective,
    "left_inverse": _injective,
    "nullspace": _one,
    "max_common_layout": _pair,
    "max_common_vector": _pair,
    "layout_add": _sum,
    "upcast": _cast,
    "downcast": _cast,
    "recast": _recast,
    "cosize": _one,
    "is_injective": _one,
    "is_surjective": _one,
}
