"""Questions asked of a layout, and its values."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.testing.oracle import (
    components,
    hashable,
    image,
    kind_of,
    leaves,
    plus,
    refines,
    split,
    table,
    value,
    volume,
)
from layoutconv.testing.random_layouts import operand, random_layout

from .running import as_function, as_layout, gives_coordinates, holds, required, run


def law_questions(rng, kind, strides):
    """rank, depth, size, product, congruent, compatible, idx2crd, crd2idx, crd2crd, len."""
    x, y = operand(rng, kind, strides), random_layout(rng, 3, nested=True)
    shape = as_function(x).shape
    n = volume(shape)
    i = rng.randint(0, 2 * n)
    expected = {
        lc.rank: len(shape) if isinstance(shape, tuple) else 1,
        lc.depth: deep(shape),
        lc.size: n,
        lc.product: n,
    }
    for operation, wanted in expected.items():
        holds(required(operation, x) == wanted, f"not {wanted}", operation, (x,))
    holds(required(lc.congruent, x, y) == alike(shape, y.shape), "wrong", lc.congruent, (x, y))
    holds(required(lc.compatible, y, x) == refines(y.shape, shape), "wrong", lc.compatible, (y, x))
    holds(required(lc.compatible, n, x), "wrong", lc.compatible, (n, x))
    crd = required(lc.idx2crd, i, x)
    holds(leaves(crd) == split(i, shape), "wrong", lc.idx2crd, (i, x), crd)
    if kind in ("layout", "shape"):
        wanted = value(as_function(x), i % n) if kind == "layout" else i % n
        got = required(lc.crd2idx, lc.idx2crd(i % n, shape), x)
        holds(components(got) == components(wanted), "wrong", lc.crd2idx, (i % n, x), got)
    holds(
        leaves(required(lc.crd2crd, i % n, x)) == split(i % n, shape), "wrong", lc.crd2crd, (i, x)
    )
    return "exact"


def deep(shape):
    return 1 + max(map(deep, shape), default=0) if isinstance(shape, tuple) else 0


def alike(a, b):
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(alike, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple)


def law_call(rng, kind, strides):
    """Evaluation, at integers, coordinates and arrays; ``offsets()``; iteration."""
    import numpy as np

    f = operand(rng, kind, strides)
    n = volume(f.shape)
    for i in range(n):
        got, crd = required(f, i), lc.idx2crd(i, f.shape)
        holds(components(got) == components(value(f, i)), "wrong", f, (i,), got)
        holds(components(required(f, crd)) == components(got), "wrong", f, (crd,))
    if kind == "tensor":
        holds(list(f) == [value(f, i) for i in range(n)] and len(f) == n, "elements", f, ())
        holds(f(0) in f and -5 not in f, "contains", f, ())
        return "exact"
    flat = [value(f, i) for i in range(n)]
    rows = required(f.offsets)
    for _ in range(lc.rank(f.shape) - 1):
        rows = (
            [row for part in zip(*rows, strict=True) for row in part]
            if isinstance(rows[0], list) and not isinstance(rows[0][0], list)
            else rows
        )
    if lc.rank(f.shape) == 1:
        holds(
            [components(v) for v in rows] == [components(v) for v in flat], "wrong", f.offsets, (f,)
        )
    if strides in ("int", "symbolic", "F2", "strided", "gather") and kind == "layout":
        dtype = rng.choice([np.int8, np.uint8, np.int32, np.int64])
        got = required(f, np.arange(n, dtype=dtype))
        holds(np.asarray(got).tolist() == flat, f"wrong for {dtype}", f, (n,), got)
    return "exact"


def law_cosize(rng, kind, strides):
    x = operand(rng, kind, strides)
    result, error = run(lc.cosize, x)
    f = as_layout(x)
    values = table(f)
    extents = {}
    for v in values:
        for path in components(v):
            extents[path] = None
    wanted = 1
    for path in extents:
        parts = [components(v).get(path, 0) for v in values]
        wanted *= max(parts) - min(parts) + 1
    holds(error is None and result == wanted, f"not {wanted}", lc.cosize, (x,), result or error)
    return "exact"


def law_is_injective(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_layout(x)
    wanted = len(image(f)) == volume(f.shape)
    holds(required(lc.is_injective, x) == wanted, f"not {wanted}", lc.is_injective, (x,))
    return "exact"


def law_is_surjective(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_layout(x)
    values = set(map(hashable, table(f)))
    result, error = run(lc.is_surjective, x)
    if gives_coordinates(f):
        holds(error is not None, "coordinates", lc.is_surjective, (x,), result)
        return "refused"
    wanted = len(values) == max(values) - min(values) + 1
    holds(error is None and result == wanted, f"not {wanted}", lc.is_surjective, (x,), error)
    bound = rng.randint(1, 20)
    wanted = set(range(bound)) <= values
    holds(
        required(lc.is_surjective, x, bound) == wanted,
        f"not {wanted}",
        lc.is_surjective,
        (x, bound),
    )
    return "exact"


def law_overlaps(rng, kind, strides):
    x, y = operand(rng, kind, strides, 32), operand(rng, kind, strides, 32)
    f, g = as_function(x), as_function(y)
    f, g = (h.layout if kind_of(h) == "Tensor" else h for h in (f, g))
    shift = rng.choice([0, 0, 1, 5, 30])
    ours, theirs = table(f), table(g)
    if not all(isinstance(v, int) for v in (*ours, *theirs)):
        shift = 0
    wanted = bool({hashable(v) for v in ours} & {hashable(plus(v, shift)) for v in theirs})
    holds(required(lc.overlaps, x, y, shift) == wanted, f"not {wanted}", lc.overlaps, (x, y, shift))
    return "exact"


def law_contiguity(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_layout(x)
    values, n = table(f), 1
    while n < len(values) and isinstance(values[0], int) and values[n] == plus(values[0], n):
        n += 1
    result, error = run(lc.contiguity, x)
    holds(error is None and result == n, f"not {n}", lc.contiguity, (x,), result or error)
    return "exact"


def law_vector_width(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    result = required(lc.vector_width, x)
    if kind == "tensor":
        holds(f.offset % result == 0, "not aligned", lc.vector_width, (x,), result)
        f = f.layout
    values = set(map(hashable, table(f)))
    if not all(isinstance(v, int) for v in values):
        holds(result == 1, "coordinates", lc.vector_width, (x,), result)
        return "exact"
    blocks = all(v - v % result + k in values for v in values for k in range(result))
    holds(blocks, "no blocks", lc.vector_width, (x,), result)
    if kind == "layout":
        larger = [
            n
            for n in range(result + 1, len(values) + 1)
            if all(v - v % n + k in values for v in values for k in range(n))
        ]
        holds(not larger, f"{larger[:1]} is larger", lc.vector_width, (x,), result)
    return "exact"
