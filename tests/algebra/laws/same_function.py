"""The same function with other modes: coalesce, filter, flatten, group, with_shape."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.algebra import Layout
from layoutconv.testing.oracle import (
    exists,
    factorizations,
    flat_strides,
    image,
    leaves,
    refines,
    sums_up,
    times,
    value,
    volume,
)
from layoutconv.testing.random_layouts import domain, operand

from .running import LawError, as_function, has_xor, holds, required, run, same, shown


def law_coalesce(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    result = required(lc.coalesce, x)
    holds(
        volume(result.shape) == volume(f.shape) and same(result, f),
        "wrong",
        lc.coalesce,
        (x,),
        result,
    )
    holds(result.depth <= 1, "deep", lc.coalesce, (x,), result)
    by_mode = required(lc.coalesce, x, (1,) * lc.rank(x)) if isinstance(f.shape, tuple) else result
    holds(same(by_mode, f), "wrong by mode", lc.coalesce, (x,), by_mode)
    if strides in ("int", "basis", "strided") and kind == "layout" and volume(f.shape) <= 24:
        fewest = shortest([value(f, i) for i in range(volume(f.shape))])
        holds(
            volume(f.shape) == 1 or result.rank == fewest,
            "not the fewest",
            lc.coalesce,
            (x,),
            result,
        )
    return "exact"


def shortest(values):
    """The fewest modes of a layout with this table."""
    zero = times(0, values[0])
    return next(
        len(e) for e in sorted(factorizations(len(values)), key=len) if sums_up(values, e, zero)
    )


def law_coalesce_x(rng, kind, strides):
    x = operand(rng, kind, strides)
    f, result = as_function(x), required(lc.coalesce_x, x)
    numbers = range(-20 if strides not in ("gather", "F2") else 0, 150)
    if strides == "gather":
        numbers = range(volume(f.shape))
    holds(
        all(value(result, i) == value(f, i) for i in numbers), "wrong", lc.coalesce_x, (x,), result
    )
    return "exact"


def law_filter(rng, kind, strides):
    x = operand(rng, kind, strides)
    f, result = as_function(x), required(lc.filter, x)
    holds(image(result) == image(f), "another image", lc.filter, (x,), result)
    inner = domain(result)
    zero = [d for d in flat_strides(inner.shape, inner.stride) if isinstance(d, int) and d == 0]
    holds(not zero or inner == Layout(1, 0), "a stride of 0", lc.filter, (x,), result)
    return "exact"


def law_flatten(rng, kind, strides):
    x = operand(rng, kind, strides)
    f, result = as_function(x), required(lc.flatten_layout, x)
    if kind == "shape":
        result = Layout(result) if isinstance(result, tuple) else as_function(result)
    holds(same(result, f) and result.depth <= 1, "wrong", lc.flatten_layout, (x,), result)
    return "exact"


def law_group_modes(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    rank = len(f.shape) if isinstance(f.shape, tuple) else 0
    begin = rng.randint(0, max(rank - 1, 0))
    end = rng.randint(begin + 1, max(rank, begin + 1))
    result, error = run(lc.group_modes, x, begin, end)
    if rank == 0:
        holds(error is not None, "no modes", lc.group_modes, (x, begin, end), result)
        return "refused"
    holds(error is None, f"refused: {error}", lc.group_modes, (x, begin, end))
    shape = result if isinstance(result, tuple) else result.shape
    wanted = (*f.shape[:begin], f.shape[begin:end], *f.shape[end:])
    holds(
        shape == wanted and (kind == "shape" or same(result, f)),
        "wrong",
        lc.group_modes,
        (x,),
        result,
    )
    return "exact"


def law_with_shape(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    n = volume(f.shape)
    first = rng.choice([d for d in range(1, n + 1) if n % d == 0])
    shape = rng.choice([(first, n // first), n, (n // first, first)])
    result, error = run(lc.with_shape, x, shape)
    inner = domain(f)
    if error is not None:
        if strides in ("gather", "user"):
            raise LawError(f"refused: {shown(lc.with_shape, (x, shape))}: {error}")
        function = reshaped(inner, shape)
        values = [value(inner, i) for i in range(n)]
        holds(
            not exists(function, shape, values, has_xor(inner)),
            "refused",
            lc.with_shape,
            (x, shape),
            error,
        )
        return "refused"
    holds(
        refines(shape, result.shape) and same(result, f), "wrong", lc.with_shape, (x, shape), result
    )
    return "exact"


def reshaped(f, shape):
    def function(c):
        n, place = 0, 1
        for x, s in zip(c, leaves(shape), strict=True):
            n, place = n + x * place, place * s
        return value(f, n)

    return function
