"""Modes as entries: taken, added, exchanged, left out, nested; filter_zeros and swizzles' parts."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.algebra import ComposedLayout, Layout, Tensor
from layoutconv.testing.oracle import (
    components,
    coordinates,
    flat_strides,
    kind_of,
    leaves,
    value,
    volume,
)
from layoutconv.testing.random_layouts import domain, operand, random_layout

from .questions import alike
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


def over(f, modes):
    """``f`` over a domain of other modes, (extent, stride) each; of one mode if it is no list."""
    if kind_of(f) == "ComposedLayout":
        return ComposedLayout(f.outer, f.offset, over(f.inner, modes))
    if kind_of(f) == "Tensor":
        return Tensor(f.engine, over(f.layout, modes), f.offset)
    if isinstance(modes, tuple):
        return Layout(*modes)
    return Layout(tuple([s for s, _ in modes]), tuple([d for _, d in modes]))


def modes_of(f):
    inner = domain(f)
    return list(zip(inner.shape, inner.stride, strict=True))


def check(operation, operands, f, modes, result):
    """The result is ``f`` over these modes, and for a shape their extents."""
    if isinstance(result, int | tuple):
        wanted = modes[0] if isinstance(modes, tuple) else tuple([s for s, _ in modes])
        holds(result == wanted, f"not {wanted}", operation, operands, result)
        return
    wanted = over(f, modes)
    fine = leaves(result.shape) == leaves(wanted.shape) and alike(result.shape, wanted.shape)
    holds(fine and same(result, wanted), f"not {wanted}", operation, operands, result)


def law_select(rng, kind, strides):
    """get, select, take: modes of the operand."""
    x = operand(rng, kind, strides)
    f = as_function(x)
    if not isinstance(f.shape, tuple):
        return VOID
    modes = modes_of(f)
    i = rng.randrange(len(modes))
    check(lc.get, (x, i), f, modes[i], required(lc.get, x, i))
    chosen = tuple(rng.sample(range(len(modes)), rng.randint(1, len(modes))))
    wanted = [modes[j] for j in chosen]
    check(lc.select, (x, chosen), f, wanted, required(lc.select, x, chosen))
    begin = rng.randint(0, i)
    check(lc.take, (x, begin, i + 1), f, modes[begin : i + 1], required(lc.take, x, begin, i + 1))
    crd = tuple([0 if rng.random() < 0.6 else None for _ in modes])
    kept = [mode for mode, c in zip(modes, crd, strict=True) if c is not None]
    if kept:
        check(lc.dice, (crd, x), f, kept, required(lc.dice, crd, x))
    return "exact"


def law_append(rng, kind, strides):
    """append, prepend, replace, concat: a mode more, or another."""
    x = operand(rng, kind, strides)
    f = as_function(x)
    if not isinstance(f.shape, tuple):
        return VOID
    modes, new = modes_of(f), random_layout(rng, 1, basis=gives_coordinates(domain(f)))
    entry = new.shape if kind == "shape" else new
    mode = (new.shape, new.stride)
    check(lc.append, (x, entry), f, [*modes, mode], required(lc.append, x, entry))
    check(lc.prepend, (x, entry), f, [mode, *modes], required(lc.prepend, x, entry))
    rank = len(modes) + rng.randint(0, 2)
    longer = [*modes, *[mode] * (rank - len(modes))]
    check(lc.append, (x, entry, rank), f, longer, required(lc.append, x, entry, rank))
    i = rng.randrange(len(modes))
    wanted = [*modes[:i], mode, *modes[i + 1 :]]
    check(lc.replace, (x, i, entry), f, wanted, required(lc.replace, x, i, entry))
    if kind == "layout" and isinstance(new.shape, tuple):
        wanted = [*modes, (new.shape[0], new.stride[0])]
        check(lc.concat, (x, new), f, wanted, required(lc.concat, x, new))
    return "exact"


def law_nesting(rng, kind, strides):
    """unflatten, wrap, unwrap: the same function in another nesting."""
    x = operand(rng, kind, strides)
    f = as_function(x)
    back = required(lc.unflatten, required(lc.flatten, x), f.shape)
    if isinstance(back, int | tuple):
        holds(back == f.shape, "another shape", lc.unflatten, (x,), back)
    else:
        holds(back.shape == f.shape and same(back, f), "wrong", lc.unflatten, (x,), back)
    for operation in (lc.wrap, lc.unwrap):
        result = required(operation, x)
        shape = result if isinstance(result, int | tuple) else result.shape
        holds(leaves(shape) == leaves(f.shape), "another shape", operation, (x,), result)
        holds(shape is result or same(result, f), "wrong", operation, (x,), result)
        deep = isinstance(shape, tuple) and (operation is lc.wrap or len(shape) != 1)
        flat = operation is lc.unwrap and not isinstance(shape, tuple)
        holds(deep or flat, "nesting", operation, (x,), result)
    return "exact"


def law_filter_zeros(rng, kind, strides):
    x = operand(rng, kind, strides)
    f = as_function(x)
    inner, result = domain(f), required(lc.filter_zeros, x)
    if isinstance(result, int | tuple):
        holds(result == f.shape, "another shape", lc.filter_zeros, (x,), result)
        return "exact"
    got = leaves(domain(result).shape)
    holds(alike(result.shape, f.shape), "nesting", lc.filter_zeros, (x,), result)
    for c in coordinates(inner.shape):
        moved = [a if s > 1 else 0 for a, s in zip(c, got, strict=True)]
        wanted, value_there = value(f, nest(c, f.shape)), value(result, nest(moved, result.shape))
        holds(value_there == wanted, f"at {c}", lc.filter_zeros, (x,), result)
    steps = flat_strides(domain(result).shape, domain(result).stride)
    left = [d for s, d in zip(got, steps, strict=True) if s > 1 and isinstance(d, int) and d == 0]
    holds(not left, "a stride of 0", lc.filter_zeros, (x,), result)
    return "exact"


def law_swizzle_portions(rng, kind, strides):
    """A swizzle, and what it is of: applied to that it is the operand."""
    x = operand(rng, kind, strides)
    inner = as_layout(x)
    swizzle = required(lc.get_swizzle_portion, x)
    rest = as_layout(required(lc.get_nonswizzle_portion, x))
    holds(kind_of(swizzle) == "Swizzle", "no swizzle", lc.get_swizzle_portion, (x,), swizzle)
    if kind == "swizzled":
        rest = ComposedLayout(swizzle, 0, rest)
    holds(same(rest, inner), "wrong", lc.get_nonswizzle_portion, (x,), rest)
    return "exact"


def law_shapes(rng, kind, strides):
    """shape, product_each, product_like, weakly_congruent, common_refinement and -coarsening."""
    x, y = operand(rng, kind, strides), random_layout(rng, 3, nested=True).shape
    shape = as_function(x).shape
    holds(required(lc.shape, x) == shape, "wrong", lc.shape, (x,))
    parts = tuple(map(volume, shape)) if isinstance(shape, tuple) else shape
    holds(required(lc.product_each, x) == parts, f"not {parts}", lc.product_each, (x,))
    profile = tuple([1] * len(shape)) if isinstance(shape, tuple) else 1
    holds(required(lc.product_like, x, profile) == parts, "wrong", lc.product_like, (x, profile))
    for a, b in ((x, y), (y, x)):
        wanted = coarser(*[as_function(z).shape for z in (a, b)])
        holds(required(lc.weakly_congruent, a, b) == wanted, "wrong", lc.weakly_congruent, (a, b))
    fine, error = run(lc.common_refinement, x, y)
    wanted = joined(shape, y)
    holds(fine == wanted, f"not {wanted}", lc.common_refinement, (x, y), fine or error)
    coarse, error = run(lc.common_coarsening, x, y)
    wanted = met(shape, y)
    holds(coarse == wanted, f"not {wanted}", lc.common_coarsening, (x, y), coarse or error)
    return "exact"


def coarser(a, b):
    if not isinstance(a, tuple):
        return True
    return isinstance(b, tuple) and len(a) == len(b) and all(map(coarser, a, b))


def joined(a, b):
    """The coarsest shape that refines both, or None."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(a) != len(b):
            return None
        parts = tuple(map(joined, a, b))
        return None if None in parts else parts
    if volume(a) != volume(b):
        return None
    return a if isinstance(a, tuple) else b


def met(a, b):
    """The finest shape that both refine, or None."""
    if volume(a) != volume(b):
        return None
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        parts = tuple(map(met, a, b))
        if None not in parts:
            return parts
    return volume(a)


def law_coshape(rng, kind, strides):
    """coshape and coprofile: how far the values reach, by component."""
    x = operand(rng, kind, strides)
    f = as_layout(x)
    result, profile = required(lc.coshape, x), required(lc.coprofile, x)
    holds(alike(profile, result), f"profile {profile}", lc.coshape, (x,), result)
    values = [components(value(f, i)) for i in range(volume(f.shape))]
    for path, extent in paths(result):
        parts = [v.get(path, 0) for v in values]
        wanted = max(parts) - min(parts) + 1
        holds(extent == wanted, f"not {wanted} at {path}", lc.coshape, (x,), result)
    known = {path for path, _ in paths(result)}
    holds(all(set(v) <= known for v in values), "a component more", lc.coshape, (x,), result)
    return "exact"


def paths(tree, path=()):
    if not isinstance(tree, tuple):
        return [(path, tree)]
    return [found for i, part in enumerate(tree) for found in paths(part, (*path, i))]
