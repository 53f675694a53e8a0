"""Inverses, nullspaces and common layouts."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.algebra import Layout
from layoutconv.testing.oracle import (
    components,
    flat_strides,
    hashable,
    interpolated,
    is_layout,
    leaves,
    plus,
    split,
    table,
    value,
    volume,
)
from layoutconv.testing.random_layouts import domain, operand

from .running import as_layout, gives_coordinates, holds, run


def law_right_inverse(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_layout(x)
    result, error = run(lc.right_inverse, x)
    values = table(f)
    integers = not gives_coordinates(f)
    if error is not None:
        holds(not integers or values[0] != 0, "refused", lc.right_inverse, (x,), error)
        return "refused"
    if not integers:
        return check_inverse_of_coordinates(x, f, result)
    n = volume(result.shape)
    for k in range(n):
        place = value(result, k)
        holds(
            isinstance(place, int) and 0 <= place < len(values) and values[place] == k,
            f"at {k}",
            lc.right_inverse,
            (x,),
            result,
        )
    if len(set(values)) == len(values) and kind in ("layout", "shape", "string", "tensor"):
        place = {v: i for i, v in enumerate(values)}
        known = next(k for k in range(len(values) + 1) if k not in place)
        longest = max(m for m in range(1, known + 1) if is_layout([place[k] for k in range(m)]))
        holds(n >= longest, f"{longest} is longer", lc.right_inverse, (x,), result)
    return "exact"


def check_inverse_of_coordinates(x, f, result):
    extents = (
        tuple(map(volume, result.shape))
        if isinstance(result.shape, tuple)
        else (volume(result.shape),)
    )
    for k in range(volume(result.shape)):
        crd = tuple(split(k, extents))
        place = value(result, crd if isinstance(result.shape, tuple) else crd[0])
        wanted = components(crd)
        holds(components(value(f, place)) == wanted, f"at {crd}", lc.right_inverse, (x,), result)
    return "exact"


def law_left_inverse(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_layout(x)
    result, error = run(lc.left_inverse, x)
    inner = domain(f)
    keep = [i for i in range(volume(f.shape)) if without_zeros(inner, i) == i]
    points = {}
    for i in keep:
        points.setdefault(hashable(value(f, i)), i)
    integers = all(isinstance(v, int) for v in points)
    if error is not None:
        if strides in ("gather", "user") or kind == "offset" or not integers:
            return "refused"
        if len(points) == len(keep) and max(points) - min(points) <= 10 and rng.random() < 0.3:
            holds(not interpolated(points), "refused", lc.left_inverse, (x,), error)
        if isinstance(error.witness, tuple) and len(error.witness) == 2 and len(points) < len(keep):
            i, j = error.witness
            holds(i != j and value(f, i) == value(f, j), "no witness", lc.left_inverse, (x,), error)
        return "refused"
    for i in keep:
        got = value(result, value(f, i))
        right = got == i or (kind == "offset" and value(f, got) == value(f, i))
        holds(
            right and (got == i or len(points) < len(keep)),
            f"at {i}",
            lc.left_inverse,
            (x,),
            result,
        )
    return "exact"


def without_zeros(layout, i):
    """The position with the digits of the modes of stride 0 set to 0."""
    result, place = 0, 1
    for s, d in zip(leaves(layout.shape), flat_strides(layout.shape, layout.stride), strict=True):
        moves = any(components(value(Layout(s, d), c)) for c in range(s))
        result += (i % s) * place * moves
        i, place = i // s, place * s
    return result


def law_nullspace(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_layout(x)
    values = table(f)
    result, error = run(lc.nullspace, x)
    starts = not components(values[0])
    if error is not None:
        holds(not starts, "refused", lc.nullspace, (x,), error)
        return "refused"
    places = table(result)
    holds(len(set(places)) == len(places), "twice", lc.nullspace, (x,), result)
    holds(all(not components(values[i]) for i in places), "not 0", lc.nullspace, (x,), result)
    zeros = [
        s
        for s, d in zip(
            leaves(domain(f).shape), flat_strides(domain(f).shape, domain(f).stride), strict=True
        )
        if not any(components(value(Layout(s, d), c)) for c in range(s))
    ]
    holds(
        len(places) >= volume(tuple(zeros) or 1) or strides in ("gather", "user"),
        "too few",
        lc.nullspace,
        (x,),
        result,
    )
    return "exact"


def law_max_common(rng, kind, strides):
    x, y = operand(rng, kind, strides, 32), operand(rng, rng.choice([kind, "layout"]), strides, 32)
    f, g = as_layout(x), as_layout(y)
    result, error = run(lc.max_common_layout, x, y)
    integers = not gives_coordinates(f) and not gives_coordinates(g)
    if error is not None:
        holds(not integers, "refused", lc.max_common_layout, (x, y), error)
        return "refused"
    holds(
        lc.max_common_vector(x, y) == volume(result.shape), "vector", lc.max_common_vector, (x, y)
    )
    for h in (f, g):
        first = value(h, 0)
        for i in range(volume(result.shape)):
            wanted = plus(first, i)
            holds(
                value(h, value(result, i)) == wanted,
                f"at {i}",
                lc.max_common_layout,
                (x, y),
                result,
            )
    return "exact"
