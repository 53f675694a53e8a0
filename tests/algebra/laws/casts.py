"""Casts between element types, sums, and construction."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.algebra import Layout
from layoutconv.testing.oracle import (
    carryless,
    coordinates,
    factorizations,
    flat_strides,
    image,
    is_layout,
    kind_of,
    leaves,
    plus,
    table,
    times,
    value,
    volume,
    xor,
)
from layoutconv.testing.random_layouts import (
    SIGNED,
    STRIDES,
    domain,
    of_kind,
    operand,
    random_layout,
)

from .products import plain_stride
from .running import VOID, as_function, gives_coordinates, holds, nest, run


def law_upcast(rng, kind, strides):
    x = operand(rng, kind, strides)
    f, n = as_function(x), rng.choice([1, 2, 4, 8, 3])
    result, error = run(lc.upcast, x, n)
    inner = domain(f)
    if strides in ("gather", "user", "basis") or kind in ("swizzled", "offset", "tensor"):
        if error is not None:
            return "refused"
        if kind in ("swizzled", "offset") and strides in ("int", "symbolic", "strided"):
            check_units(x, f, inner, n, result)
        elif kind != "tensor" and not gives_coordinates(f):
            holds(image(result) == {v // n for v in image(f)}, "units", lc.upcast, (x, n), result)
        return "exact"
    steps = [
        abs(plain_stride(d)) if kind_of(d) != "F2" else None
        for d in flat_strides(inner.shape, inner.stride)
    ]
    if None in steps or strides == "F2":
        return check_xor_units(x, f, n, result, error)
    best = error.best if error is not None else result
    right = True
    for c in coordinates(inner.shape):
        units = [a // (-(-n // d)) if d else a for a, d in zip(c, steps, strict=True)]
        right = right and value(best, nest(units, best.shape)) == value(f, nest(c, f.shape)) // n
    holds(
        right == (error is None), "wrong" if error is None else "refused", lc.upcast, (x, n), best
    )
    return "exact" if error is None else "refused"


def check_units(x, f, inner, n, result):
    if kind_of(f.outer) != "Swizzle":
        units = {v // n for v in image(f)}
        holds(image(result) == units, "units", lc.upcast, (x, n), result)
        return
    steps = [abs(plain_stride(d)) for d in flat_strides(inner.shape, inner.stride)]
    for c in coordinates(inner.shape):
        units = [a // (-(-n // d)) if d else a for a, d in zip(c, steps, strict=True)]
        wanted = value(f, nest(c, f.shape)) // n
        holds(
            value(result, nest(units, result.shape)) == wanted, f"at {c}", lc.upcast, (x, n), result
        )


def check_xor_units(x, f, n, result, error):
    if error is not None:
        return "refused"
    shares = []
    for s, t in zip(leaves(f.shape), leaves(result.shape), strict=True):
        share = next(k for k in range(1, s + 1) if -(-s // k) == t and (k & (k - 1) == 0 or k == s))
        shares.append(share)
    for c in coordinates(f.shape):
        fits = [value(result, nest([a // k for a, k in zip(c, shares, strict=True)], result.shape))]
        holds(
            value(f, nest(c, f.shape)) // n in fits or 1 in leaves(result.shape),
            f"at {c}",
            lc.upcast,
            (x, n),
            result,
        )
    return "exact"


def law_downcast(rng, kind, strides):
    x = operand(rng, kind, strides)
    f, n = as_function(x), rng.choice([1, 2, 4, 8, 3])
    result, error = run(lc.downcast, x, n)
    if strides in ("gather", "user", "basis", "F2") or kind in ("swizzled", "offset", "tensor"):
        if error is None and not gives_coordinates(f) and kind != "tensor":
            wanted = sorted(n * v + r for v in table(f) for r in range(n))
            holds(sorted(table(result)) == wanted, "wrong", lc.downcast, (x, n), result)
        return "exact" if error is None else "refused"
    wanted = sorted(n * v + r for v in table(f) for r in range(n))
    holds(
        error is None and sorted(table(result)) == wanted,
        "wrong",
        lc.downcast,
        (x, n),
        result or error,
    )
    again, error = run(lc.recast, result, 8, 8 * n)
    holds(
        error is not None or sorted(set(table(again))) == sorted(set(table(f))),
        "recast",
        lc.recast,
        (x, n),
        again,
    )
    return "exact"


def law_layout_add(rng, kind, strides):
    a = of_kind(rng, strides, 3, 32)
    b = of_kind(rng, strides, 3, 32)
    if a.shape != b.shape or rng.random() < 0.5:
        extents = rng.choice(factorizations(volume(a.shape))) or (1,)
        b = random_layout(rng, 1, SIGNED)
        steps = {
            "F2": lambda: lc.F2(rng.choice(STRIDES)),
            "basis": lambda: rng.choice(SIGNED) * lc.E(0),
        }
        b = Layout(
            extents, tuple([steps.get(strides, lambda: rng.choice(SIGNED))() for _ in extents])
        )
    xored = any(kind_of(d) == "F2" and d.value for h in (a, b) for d in leaves(h.stride))
    if xored and any(isinstance(d, int) and d for h in (a, b) for d in leaves(h.stride)):
        return VOID
    add = xor if xored else plus
    values = [add(v, w) for v, w in zip(table(a), table(b), strict=True)]
    result, error = run(lc.layout_add, a, b)
    if error is not None:
        if strides in ("gather", "user"):
            return "refused"
        multiply = (lambda c, v: carryless(c, v)) if xored else times
        holds(not is_layout(values, add, multiply), "refused", lc.layout_add, (a, b), error)
        return "refused"
    holds(table(result) == values, "wrong", lc.layout_add, (a, b), result)
    return "exact"


def how_far(d):
    """Along which modes a stride steps and how far, the last one first: [] for 0."""
    steps = d.items() if isinstance(d, dict) else [((), d)]
    return sorted(((path, abs(step)) for path, step in steps if step), reverse=True)


def law_make_layout_like(rng, kind, strides):
    x = operand(rng, kind, strides)
    inner = domain(as_function(x))
    result, error = run(lc.make_layout_like, x)
    steps = flat_strides(inner.shape, inner.stride)
    if error is not None:
        holds(
            strides in ("gather", "user", "basis"),
            "refused",
            lc.make_layout_like,
            (x,),
            error,
        )
        return "refused"
    moved = [how_far(plain_stride(d)) for d in steps]
    current, wanted = 1, [0] * len(steps)
    for i in sorted(range(len(steps)), key=moved.__getitem__):
        if moved[i]:
            wanted[i] = current
            current *= leaves(inner.shape)[i]
    holds(leaves(result.stride) == wanted, f"not {wanted}", lc.make_layout_like, (x,), result)
    return "exact"
