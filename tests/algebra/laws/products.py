"""Complement, products and tile_to_shape: copies that do not meet."""

from __future__ import annotations

import itertools

import layoutconv.algebra as lc
from layoutconv.algebra import Layout
from layoutconv.testing.oracle import (
    components,
    composition_exists,
    coordinates,
    flat_strides,
    forced_complement,
    hashable,
    image,
    kind_of,
    leaves,
    plain,
    plus,
    refines,
    split,
    table,
    value,
    volume,
    xor,
)
from layoutconv.testing.random_layouts import STRIDES, domain, operand, random_layout

from .running import as_function, gives_coordinates, holds, nest, required, run, same


def offsets_without_zeros(layout):
    """The distinct offsets, and if those are all that modes of other strides than 0 make."""
    values = table(layout)
    zeros = [
        s
        for s, d in zip(
            leaves(layout.shape), flat_strides(layout.shape, layout.stride), strict=True
        )
        if not components(plain_stride(d))
    ]
    return sorted(set(values)), len(values) // volume(tuple(zeros) or 1) == len(set(values))


def plain_stride(d):
    return d if isinstance(d, int) else value(Layout(2, d), 1)


def in_order(layout):
    """The positive strides and extents, ascending; None if a mode steps into those below it."""
    modes = sorted(
        (abs(plain_stride(d)), s)
        for s, d in zip(
            leaves(layout.shape), flat_strides(layout.shape, layout.stride), strict=True
        )
        if s > 1 and plain_stride(d)
    )
    fine = all(d * s <= e for (d, s), (e, _) in itertools.pairwise(modes))
    return modes if fine else None


def law_complement(rng, kind, strides):
    x = operand(rng, kind, strides)
    inner = domain(as_function(x))
    bound = rng.randint(1, 60)
    result, error = run(lc.complement, x, bound)
    if strides == "F2" and any(kind_of(d) == "F2" and d.value for d in leaves(inner.stride)):
        holds(error is None, f"refused: {error}", lc.complement, (x, bound))
        starts, own = table(result), set(table(inner))
        holds(starts == sorted(set(starts)), "order", lc.complement, (x, bound), result)
        copies = [o ^ s for o in own for s in starts]
        holds(len(set(copies)) == len(copies), "copies meet", lc.complement, (x, bound), result)
        return "exact"
    if strides in ("gather", "user") or gives_coordinates(inner):
        return check_complement_elsewhere(x, inner, strides, result, error)
    modes = in_order(inner)
    if error is not None:
        holds(modes is None, "refused", lc.complement, (x, bound), error)
        return "refused"
    holds(modes is not None, "modes interleave", lc.complement, (x, bound), result)
    starts, own = table(result), offsets_without_zeros(inner)[0]
    copies = [o - own[0] + s for o in own for s in starts]
    holds(starts == sorted(set(starts)), "order", lc.complement, (x, bound), result)
    holds(len(set(copies)) == len(copies), "copies meet", lc.complement, (x, bound), result)
    last = modes[-1][0] * modes[-1][1] if modes else 1
    holds(starts[-1] + last >= bound, "too few", lc.complement, (x, bound), result)
    for i, start in enumerate(starts[1:], 1):  # as many copies as fit, below the next stride
        room = [n for n in range(starts[i - 1] + 1, start) if fits(n, starts[:i], own, modes)]
        holds(not room, f"room at {room[:1]}", lc.complement, (x, bound), result)
    forced = forced_complement(own, bound)
    holds(not forced or starts[: len(forced)] == forced, "a gap", lc.complement, (x, bound), result)
    return "exact"


def fits(n, starts, own, modes):
    """Tell if one more copy in a gap between the modes would still lie in its own gap."""
    current = 1
    for d, s in modes:
        if n < d:
            return n % current == 0 and n + current <= d and n not in starts
        current = d * s
    return n % current == 0


def check_complement_elsewhere(x, inner, strides, result, error):
    if error is not None:
        return "refused"
    starts, own = table(result), table(inner)
    copies = [hashable(plus(o, s)) for o in {hashable(v): v for v in own}.values() for s in starts]
    holds(len(set(copies)) == len(copies), "copies meet", lc.complement, (x,), result)
    return "exact"


def law_logical_product(rng, kind, strides):
    x = operand(rng, kind, strides, 32)
    f = as_function(x)
    tile = random_layout(rng, 2, STRIDES)
    result, error = run(lc.logical_product, x, tile)
    inner = domain(f)
    xored = any(kind_of(d) == "F2" and d.value for d in leaves(inner.stride))
    if strides in ("gather", "user"):
        return "exact" if error is None else "refused"
    if strides == "basis" or xored:
        if error is None:
            check_copies(x, f, tile, result, xor if xored else plus)
        return "exact" if error is None else "refused"
    modes = in_order(inner)
    if modes is None:
        holds(error is not None, "modes interleave", lc.logical_product, (x, tile), result)
        return "refused"
    starts = endless(modes, max(table(tile)) + 1)
    function = [starts[v] for v in table(tile)]
    if error is not None:
        holds(
            not composition_exists(lambda c: starts[value(tile, nest(c, tile.shape))], tile.shape),
            "refused",
            lc.logical_product,
            (x, tile),
            error,
        )
        return "refused"
    copies = domain(result)[1]
    holds(
        [value(copies, nest(c, tile.shape)) for c in coordinates(tile.shape)] == function,
        "wrong",
        lc.logical_product,
        (x, tile),
        result,
    )
    check_copies(x, f, tile, result, plus)
    return "exact"


def endless(modes, count):
    """The starts of the first ``count`` copies: in the gaps, then after the whole."""
    starts, current = [0], 1
    for d, s in modes:
        gap = d // current
        starts = [r + k * current for k in range(gap) for r in starts]
        current = d * s
    return [r + k * current for k in range(-(-count // len(starts))) for r in starts][:count]


def repeated(f, result):
    """The product of the domain of ``f``, which may be a composed layout itself."""
    if kind_of(f) == "ComposedLayout":
        return repeated(f.inner, result.inner)
    return result.layout if kind_of(f) == "Tensor" else result


def check_copies(x, f, tile, result, add):
    """Mode 0 is the block; copies at different places of the tile do not meet."""
    inner, both = domain(f), repeated(f, result)
    holds(
        volume(both[1].shape) == volume(tile.shape) and same(both[0], inner),
        "block",
        lc.logical_product,
        (x, tile),
        result,
    )
    own = {hashable(v): v for v in table(inner)}.values()
    starts = {hashable(v): v for v in table(both[1])}.values()
    holds(len(starts) == len(set(table(tile))), "places", lc.logical_product, (x, tile), result)
    copies = [hashable(add(o, s)) for o in own for s in starts]
    holds(len(set(copies)) == len(copies), "copies meet", lc.logical_product, (x, tile), result)
    for i in range(volume(inner.shape)):  # and both add as the values of the block do
        for j in range(0, volume(tile.shape), 3):
            wanted = add(value(both, (i, 0)), value(both, (0, j)))
            got = value(both, (i, j))
            holds(got == wanted, f"at {i, j}", lc.logical_product, (x, tile), result)
            holds(
                hashable(plain(both(i, j))) == hashable(got), "call", lc.logical_product, (x, tile)
            )


def law_other_products(rng, kind, strides):
    """zipped, tiled, flat, blocked and raked products: the modes of logical_product."""
    x = operand(rng, kind, strides, 24)
    f = as_function(x)
    tile = random_layout(rng, 2, [1, 2, 3, 4])
    logical, error = run(lc.logical_product, x, tile)
    _zipped, other = run(lc.zipped_product, x, tile)
    holds((error is None) == (other is None), "one is refused", lc.zipped_product, (x, tile), other)
    if error is None:
        for operation in (lc.zipped_product, lc.tiled_product, lc.flat_product):
            same_modes = required(operation, x, tile)
            holds(same(same_modes, logical), "wrong", operation, (x, tile), same_modes)
    rank = max(lc.rank(f.shape), lc.rank(tile.shape))
    ranked = appended(tile, rank)
    block = f.on_domain(lambda inner: appended(inner, rank))
    logical, error = run(lc.logical_product, block, ranked)
    for operation, first in ((lc.blocked_product, 0), (lc.raked_product, 1)):
        result, other = run(operation, x, tile)
        holds((error is None) == (other is None), "one is refused", operation, (x, tile), other)
        if error is None:
            parts, modes = domain(logical), domain(result)
            for i in range(rank):
                pair = (parts[first][i], parts[1 - first][i])
                holds(tuple(modes[i]) == pair, f"mode {i}", operation, (x, tile), result)
    return "exact" if error is None else "refused"


def appended(layout, rank):
    modes = list(layout) if isinstance(layout.shape, tuple) else [layout]
    return lc.make_layout([*modes, *[Layout(1, 0)] * (rank - len(modes))])


def law_tile_to_shape(rng, kind, strides):
    x = operand(rng, kind, strides, 24)
    f = as_function(x)
    extents = [volume(s) for s in f.shape] if isinstance(f.shape, tuple) else [volume(f.shape)]
    target = tuple([s * rng.randint(1, 3) for s in extents])
    order = tuple(rng.sample(range(len(target)), len(target)))
    result, error = run(lc.tile_to_shape, x, target, order)
    inner = domain(f)
    xored = any(kind_of(d) == "F2" and d.value for d in leaves(inner.stride))
    if strides in ("gather", "user", "basis") or xored:
        if error is not None:
            return "refused"
    elif in_order(inner) is None:
        holds(error is not None, "modes interleave", lc.tile_to_shape, (x, target, order), result)
        return "refused"
    if error is not None:
        copies = lc.make_ordered_layout(
            tuple([t // e for t, e in zip(target, extents, strict=True)]), order
        )
        starts = endless(in_order(inner), max(table(copies)) + 1)
        holds(
            not composition_exists(lambda c: starts[value(copies, tuple(c))], copies.shape),
            "refused",
            lc.tile_to_shape,
            (x, target, order),
            error,
        )
        return "refused"
    holds(refines(target, result.shape), "shape", lc.tile_to_shape, (x, target, order), result)
    for i in range(volume(f.shape)):
        crd = split(i, tuple(extents))
        holds(
            value(result, tuple(crd)) == value(f, tuple(crd) if isinstance(f.shape, tuple) else i),
            "block",
            lc.tile_to_shape,
            (x, target, order),
            result,
        )
    distinct = len(image(inner))
    if not xored and len(set(map(hashable, table(inner)))) == volume(inner.shape):
        holds(
            len(image(domain(result))) == distinct * volume(target) // volume(inner.shape),
            "copies meet",
            lc.tile_to_shape,
            (x, target, order),
            result,
        )
    return "exact"
