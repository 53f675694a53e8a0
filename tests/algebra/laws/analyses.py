"""Images, permutations, runs of offsets, and recast by both of its names."""

from __future__ import annotations

from math import gcd

import layoutconv.algebra as lc
from layoutconv.testing.oracle import (
    coordinates,
    hashable,
    image,
    leaves,
    plus,
    table,
    volume,
)
from layoutconv.testing.random_layouts import operand

from .running import (
    VOID,
    as_function,
    as_layout,
    gives_coordinates,
    holds,
    nest,
    required,
    run,
    same,
)


def law_image(rng, kind, strides):
    """image, offset_table, footprint, functionally_equal, is_bijective, is_contiguous."""
    x, y = operand(rng, kind, strides), operand(rng, kind, strides)
    f, g = as_layout(x), as_layout(y)
    values = table(f)
    for a, other in ((y, g), (x, f)):
        wanted = list(map(hashable, values)) == list(map(hashable, table(other)))
        got = required(lc.functionally_equal, x, a)
        holds(got == wanted, f"not {wanted}", lc.functionally_equal, (x, a), got)
    if gives_coordinates(f):
        for operation in (lc.image, lc.offset_table, lc.footprint, lc.is_contiguous):
            result, error = run(operation, x)
            holds(error is not None or result is False, "coordinates", operation, (x,), result)
        return "refused"
    n, distinct = len(values), sorted(set(values))
    holds(required(lc.image, x) == distinct, f"not {distinct}", lc.image, (x,))
    places = {}
    for v, c in zip(values, coordinates(f.shape), strict=True):
        places.setdefault(v, []).append(nest(c, f.shape))
    got = required(lc.offset_table, x)
    holds(got == places and list(got) == distinct, "wrong", lc.offset_table, (x,), got)
    found = required(lc.footprint, x)
    span = distinct[-1] - distinct[0] + 1
    fine = (found.first, found.last, found.span) == (distinct[0], distinct[-1], span)
    fine = fine and (found.distinct, found.holes) == (len(distinct), span - len(distinct))
    holds(fine and found.reuse == n / len(distinct), "wrong", lc.footprint, (x,), found)
    wanted = len(distinct) == n == span
    holds(required(lc.is_contiguous, x) == wanted, f"not {wanted}", lc.is_contiguous, (x,))
    wanted = wanted and distinct[0] == 0
    holds(required(lc.is_bijective, x) == wanted, f"not {wanted}", lc.is_bijective, (x,))
    return "exact"


def law_permutations(rng, kind, strides):
    """cycles, fixed_points, permutation_order and -parity, by following every position."""
    x = operand(rng, kind, strides, 24)
    f = as_layout(x)
    if gives_coordinates(f):
        return VOID
    values = table(f)
    fixed = [i for i, v in enumerate(values) if v == i]
    holds(required(lc.fixed_points, x) == fixed, f"not {fixed}", lc.fixed_points, (x,))
    if sorted(values) != list(range(len(values))):
        for operation in (lc.cycles, lc.permutation_order, lc.permutation_parity):
            result, error = run(operation, x)
            holds(error is not None, "no permutation", operation, (x,), result)
        return "refused"
    wanted, seen = [], set()
    for i in range(len(values)):
        cycle = []
        while i not in seen:
            seen.add(i)
            cycle.append(i)
            i = values[i]
        wanted += [cycle] if cycle else []
    holds(required(lc.cycles, x) == wanted, f"not {wanted}", lc.cycles, (x,))
    power, order = list(values), 1
    while power != list(range(len(values))):
        power, order = [values[v] for v in power], order + 1
    holds(required(lc.permutation_order, x) == order, f"not {order}", lc.permutation_order, (x,))
    inversions = sum(v > w for i, v in enumerate(values) for w in values[i:])
    got = required(lc.permutation_parity, x)
    holds(got in (inversions % 2, (-1) ** inversions), "wrong", lc.permutation_parity, (x,), got)
    return "exact"


def law_contiguity_of_parts(rng, kind, strides):
    """mode_contiguity and slice_contiguity: how far the offsets of a part count on."""
    x = operand(rng, kind, strides)
    f = as_layout(x)
    if not isinstance(f.shape, tuple):
        return VOID
    wanted = [counted(f, tuple([None if i == j else 0 for j in range(len(f.shape))]))
              for i in range(len(f.shape))]  # fmt: skip
    got = required(lc.mode_contiguity, x)
    holds(got == wanted, f"not {wanted}", lc.mode_contiguity, (x,), got)
    crd = tuple([None if rng.random() < 0.6 else rng.randrange(volume(s)) for s in f.shape])
    wanted, got = counted(f, crd), required(lc.slice_contiguity, x, crd)
    holds(got == wanted, f"not {wanted}", lc.slice_contiguity, (x, crd), got)
    return "exact"


def counted(f, crd):
    """For how many positions of a slice the offset is the first one and the position."""
    values = table(f)
    fixed = [leaves(lc.idx2crd(c, s)) if c is not None else [None] * len(leaves(s))
             for c, s in zip(crd, f.shape, strict=True)]  # fmt: skip
    flat = [digit for part in fixed for digit in part]
    run_of = [v for v, c in zip(values, coordinates(f.shape), strict=True)
              if all(a is None or a == b for a, b in zip(flat, c, strict=True))]  # fmt: skip
    n = 1
    while n < len(run_of) and isinstance(run_of[0], int) and run_of[n] == plus(run_of[0], n):
        n += 1
    return n


def law_recast(rng, kind, strides):
    """recast is an upcast and a downcast, and covers the memory; recast_layout is recast."""
    x = operand(rng, kind, strides)
    old, new = rng.choice([4, 6, 8, 16, 32]), rng.choice([4, 6, 8, 16, 32])
    result, error = run(lc.recast, x, old, new)
    again, other = run(lc.recast_layout, new, old, x)
    holds((error is None) == (other is None), "another", lc.recast_layout, (new, old, x), again)
    unit = gcd(old, new)
    steps, refused = run(lc.upcast, x, new // unit)
    if refused is None:
        steps, refused = run(lc.downcast, steps, old // unit)
    if error is not None:
        holds(refused is not None, "refused", lc.recast, (x, old, new), error)
        return "refused"
    fine = refused is None and same(as_function(result), as_function(steps))
    fine = fine and same(as_function(again), as_function(result))
    holds(fine, f"not {steps}", lc.recast, (x, old, new), result)
    if gives_coordinates(as_function(x)):
        return "exact"
    reached = image(as_function(result))
    bits = {v * old // new for v in image(as_function(x))}
    bits |= {(v * old + old - 1) // new for v in image(as_function(x))}
    holds(bits <= reached, f"{bits - reached} are lost", lc.recast, (x, old, new), result)
    return "exact"
