"""Composition, and the check that others are made of."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.algebra import Layout
from layoutconv.testing.oracle import (
    coordinates,
    exists,
    flat_strides,
    refines,
    split,
    table,
    value,
    volume,
)
from layoutconv.testing.random_layouts import STRIDES, domain, of_kind, operand, random_layout

from .running import (
    VOID,
    LawError,
    as_function,
    gives_coordinates,
    has_xor,
    holds,
    nest,
    run,
    shown,
)


def law_composition(rng, kind, strides, b_kind="int"):
    x = operand(rng, kind, strides)
    b = of_kind(rng, b_kind, 2, 48, STRIDES) if b_kind != "int" else random_layout(rng, 2)
    f = as_function(x)
    if strides == "gather":
        b = random_layout(rng, 2, [0, 1])
        if max(table(b)) >= volume(domain(f).shape):
            return VOID
    if gives_coordinates(b):
        return check_composition_of_coordinates(x, f, b)
    result, error = run(lc.composition, x, b)
    check_composition(lc.composition, (x, b), f, b, result, error)
    return "exact" if error is None else "refused"


def check_composition_of_coordinates(x, f, b):
    if not isinstance(f.shape, tuple) or len(f.shape) < 2:
        return VOID
    result, error = run(lc.composition, x, b)
    check_composition(lc.composition, (x, b), f, b, result, error)
    return "exact" if error is None else "refused"


def check_composition(operation, operands, f, b, result, error):
    """The result is ``f(b(c))`` on the shape of b; or no layout is, and the witness shows it."""
    steps = flat_strides(b.shape, b.stride)

    def function(c):
        return value(f, plain_of(c, steps, b))

    if error is not None:
        inner = domain(f)
        values = [value(inner, plain_of(c, steps, b)) for c in coordinates(b.shape)]

        def of_domain(c):
            return value(inner, plain_of(c, steps, b))

        by_xor = has_xor(inner) or has_xor(b)
        holds(not exists(of_domain, b.shape, values, by_xor), "refused", operation, operands, error)
        if error.best is not None and error.exact is not None:
            wrong = value(error.best, error.witness)
            holds(
                wrong != value(inner, value(b, error.witness)),
                "no witness",
                operation,
                operands,
                error,
            )
        return
    holds(refines(b.shape, result.shape), "shape", operation, operands, result)
    for c in coordinates(b.shape):
        crd = nest(c, b.shape)
        holds(value(result, crd) == function(c), f"at {c}", operation, operands, result)


def plain_of(c, steps, b):
    return value(b, nest(c, b.shape))


def law_composition_of_F2(rng, kind, strides):
    return law_composition(rng, kind, strides, "F2")


def law_composition_of_basis(rng, kind, strides):
    return law_composition(rng, kind, strides, "basis")


def law_composition_by_mode(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    if not isinstance(f.shape, tuple):
        return VOID
    tiler = []
    for s in f.shape[: rng.randint(1, len(f.shape))]:
        t = random_layout(rng, 2, [0, 1, 2, 3])
        if strides in ("gather",) and max(table(t)) >= volume(s):
            t = Layout(rng.randint(1, volume(s)))
        tiler.append(rng.choice([t, rng.randint(1, volume(s))]))
    tiler = tuple(tiler)
    result, error = run(lc.composition, x, tiler)
    layouts = [Layout(t, 1) if isinstance(t, int) else t for t in tiler]
    inner = domain(f)
    if error is not None:
        if strides in ("gather", "user"):
            raise LawError(f"refused: {shown(lc.composition, (x, tiler))}: {error}")
        modes = [inner[i] for i in range(len(tiler))]
        fine = [
            exists(
                lambda c, m=m, t=t: value(m, value(t, nest(c, t.shape))),
                t.shape,
                [value(m, v) for v in table(t)],
                has_xor(inner),
            )
            for m, t in zip(modes, layouts, strict=True)
        ]
        holds(not all(fine), "refused", lc.composition, (x, tiler), error)
        return "refused"
    rest = [0] * (len(f.shape) - len(tiler))
    for i in range(min(volume(result.shape), 200)):
        crd = split(i, tuple([volume(t.shape) for t in layouts]))
        wanted = value(f, (*(value(t, c) for t, c in zip(layouts, crd, strict=True)), *rest))
        if kind == "layout" and strides == "gather" and rest:
            break  # modes that are dropped add their first entry
        holds(value(result, tuple(crd)) == wanted, f"at {crd}", lc.composition, (x, tiler), result)
    return "exact"
