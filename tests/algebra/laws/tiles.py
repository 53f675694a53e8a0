"""Slices, tiles, partitions and divisions."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.algebra import Layout
from layoutconv.testing.oracle import (
    components,
    coordinates,
    kind_of,
    leaves,
    plus,
    split,
    table,
    value,
    volume,
)
from layoutconv.testing.random_layouts import STRIDES, domain, operand, random_layout

from .compositions import check_composition
from .running import VOID, as_function, holds, nest, required, run, same


def choose(rng, shape):
    """A coordinate of a shape with some of its modes open."""
    if isinstance(shape, tuple) and rng.random() < 0.5:
        return tuple([choose(rng, s) for s in shape])
    return None if rng.random() < 0.5 else rng.randint(0, volume(shape) - 1)


def filled(crd, shape, opened):
    """A slice's coordinate with digits in place of what it leaves open."""
    if crd is None:
        return [next(opened) for _ in leaves(shape)]
    if isinstance(crd, tuple):
        return [d for c, s in zip(crd, shape, strict=True) for d in filled(c, s, opened)]
    return split(crd, shape)


def law_slice(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    if not isinstance(f.shape, tuple):
        return VOID
    crd = tuple([choose(rng, s) for s in f.shape])
    if kind == "shape":
        required(lc.slice_, crd, x)
        return "exact"
    rest, offset = required(lc.slice_and_offset, crd, x)
    cut = required(lc.slice_, crd, x)
    by_xor = any(kind_of(d) == "F2" for d in leaves(domain(f).stride))
    for c in coordinates(rest.shape):
        digits = filled(crd, f.shape, iter(c))
        wanted = value(f, nest(digits, f.shape))
        got = value(rest, nest(c, rest.shape)) if rest.shape != () else value(rest, ())
        got = (
            got ^ offset
            if by_xor and isinstance(offset, int) and kind_of(rest) == "Layout"
            else plus(got, components(offset) if not isinstance(offset, int) else offset)
        )
        holds(got == wanted, f"at {c}", lc.slice_and_offset, (crd, x), (rest, offset))
    holds(kind_of(rest) == "Layout" or same(cut, rest), "slice_", lc.slice_, (crd, x), cut)
    return "exact"


def law_domain_offset(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    crd = lc.idx2crd(rng.randint(0, volume(f.shape) - 1), f.shape)
    result = required(lc.domain_offset, crd, x)
    moved, offset = result if isinstance(result, tuple) else (result, 0)
    origin = leaves(crd)
    for c in coordinates(f.shape):
        if any(a + b >= s for a, b, s in zip(c, origin, leaves(f.shape), strict=True)):
            continue
        wanted = value(f, nest([a + b for a, b in zip(c, origin, strict=True)], f.shape))
        got = plus(
            value(moved, nest(c, moved.shape)),
            offset if isinstance(offset, int) else components(offset),
        )
        holds(got == wanted, f"at {c}", lc.domain_offset, (crd, x), result)
    return "exact"


def law_local_tile(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    if not isinstance(f.shape, tuple) or not all(isinstance(s, int) for s in f.shape):
        return VOID
    tiler = tuple([rng.choice([d for d in range(1, s + 1) if s % d == 0]) for s in f.shape])
    at = tuple([rng.randrange(s // t) for s, t in zip(f.shape, tiler, strict=True)])
    for operation, operands, place in (
        (
            lc.local_tile,
            (x, tiler, at),
            lambda c: [t * k + i for i, t, k in zip(c, tiler, at, strict=True)],
        ),
        (
            lc.local_partition,
            (
                x,
                Layout(tiler),
                lc.crd2idx(tuple(a % t for a, t in zip(at, tiler, strict=True)), tiler),
            ),
            lambda c: [t * i + a % t for i, t, a in zip(c, tiler, at, strict=True)],
        ),
    ):
        result = required(operation, *operands)
        tile, offset = result if isinstance(result, tuple) else (result, 0)
        by_xor = any(kind_of(d) == "F2" for d in leaves(domain(tile).stride)) and isinstance(
            result, tuple
        )
        for c in coordinates(tuple(map(volume, tile.shape))):
            got = value(tile, tuple(c))
            got = (
                got ^ offset
                if by_xor
                else plus(got, offset if isinstance(offset, int) else components(offset))
            )
            holds(got == value(f, tuple(place(c))), f"at {c}", operation, operands, result)
    return "exact"


def law_logical_divide(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    tile = random_layout(rng, 2, STRIDES)
    result, error = run(lc.logical_divide, x, tile)
    n = volume(f.shape)
    rest, missing = run(lc.complement, tile, n)
    tiles = table(tile)
    if missing is None:
        reached = {t + r for t in tiles for r in table(rest)}
    if missing is not None or not set(range(n)) <= reached:
        holds(error is not None, "positions are lost", lc.logical_divide, (x, tile), result)
        return "refused"
    if strides == "gather" and max(reached) >= n:
        return VOID  # beyond the index there is nothing to compare
    whole = Layout((tile.shape, rest.shape), (tile.stride, rest.stride))
    check_composition(lc.logical_divide, (x, tile), f, whole, result, error)
    return "exact" if error is None else "refused"


def law_divides_by_mode(rng, kind, strides):
    """zipped, tiled and flat divides: the modes of logical_divide, in another order."""
    x = operand(rng, kind, strides)
    f = as_function(x)
    if not isinstance(f.shape, tuple):
        return VOID
    tiler = tuple([rng.choice([None, rng.randint(1, 4)]) for _ in f.shape])
    logical, error = run(lc.logical_divide, x, tiler)
    zipped, other = run(lc.zipped_divide, x, tiler)
    holds((error is None) == (other is None), "one is refused", lc.zipped_divide, (x, tiler), other)
    if error is not None:
        return "refused"
    inner, halves = domain(logical), domain(zipped)
    for i, t in enumerate(tiler):
        both = (Layout(1, 0), inner[i]) if t is None else tuple(inner[i])
        holds(
            (halves[0][i], halves[1][i]) == both, f"mode {i}", lc.zipped_divide, (x, tiler), zipped
        )
    n = volume(zipped.shape)
    if strides != "gather":
        for operation in (lc.tiled_divide, lc.flat_divide):
            other = required(operation, x, tiler)
            holds(same(other, zipped, n), "wrong", operation, (x, tiler), other)
    return "exact"
