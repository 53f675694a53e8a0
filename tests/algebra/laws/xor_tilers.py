"""Tilers with XOR strides in them, mode by mode: their values add as those of the modes do."""

from __future__ import annotations

import layoutconv.algebra as lc
from layoutconv.algebra import F2, Layout
from layoutconv.testing.oracle import (
    coordinates,
    exists,
    flat_strides,
    hashable,
    kind_of,
    plain,
    plus,
    table,
    value,
    volume,
    xor,
)
from layoutconv.testing.random_layouts import domain, operand

from .compositions import plain_of
from .products import endless, in_order
from .running import VOID, as_function, gives_coordinates, has_xor, holds, nest, required, run

_STEPS = (1, 1, 2, 3, 4, 5, 6, 8)
_LOOKED_AT = 200  # coordinates of a result, at most


def xor_tile(rng):
    """A layout of XOR strides, at most two modes."""
    shape = tuple([rng.choice((2, 2, 3, 4)) for _ in range(rng.choice((1, 2)))])
    return Layout(shape, tuple([F2(rng.choice(_STEPS)) for _ in shape]))


def drawn_tiler(rng, shape):
    """An entry for each of the first modes, one of them of XOR strides; now and then a nested one.

    ``shape`` is a tuple. None, integers and layouts of integers stand beside them.
    """
    count = rng.randint(1, len(shape))
    here = rng.randrange(count)
    tiler = []
    for i, s in enumerate(shape[:count]):
        if isinstance(s, tuple) and rng.random() < 0.4:
            tiler.append(drawn_tiler(rng, s))
        elif i == here:
            tiler.append(xor_tile(rng))
        else:
            tiler.append(rng.choice((None, rng.choice((1, 2, 4)), Layout(2, rng.choice((1, 2))),
                                     xor_tile(rng))))  # fmt: skip
    return tuple(tiler)


def pieces(layout, tiler):
    """The modes that a tiler takes apart, nested ones by themselves, each with its entry."""
    modes = list(layout) if isinstance(layout.shape, tuple) else [layout]
    found = []
    for i, mode in enumerate(modes):
        t = tiler[i] if i < len(tiler) else None
        found += pieces(mode, t) if isinstance(t, tuple) else [(mode, t)]
    return found


def gathered(digits, shape, tiler):
    """The coordinate of a shape whose pieces have these positions; ``digits`` is an iterator."""
    if not isinstance(tiler, tuple):
        return next(digits)
    full = [*tiler, *[None] * (len(shape) - len(tiler))]
    return tuple([gathered(digits, s, t) for s, t in zip(shape, full, strict=True)])


def taken(digits, tiler):
    """The coordinate of a composition by mode."""
    return tuple([taken(digits, t) if isinstance(t, tuple) else next(digits) for t in tiler])


def padded(digits, shape, tiler):
    """The coordinate that it stands for, 0 in the modes that are dropped."""
    if not isinstance(tiler, tuple):
        return next(digits)
    rest = [0] * (len(shape) - len(tiler))
    return (*[padded(digits, s, t) for s, t in zip(shape, tiler, strict=False)], *rest)


def as_tile(t):
    return Layout(t, 1) if isinstance(t, int) else t


def add_of(layout):
    """The addition of the values of a layout."""
    strides = flat_strides(layout.shape, layout.stride)
    return xor if any(kind_of(d) == "F2" and d.value for d in strides) else plus


def is_opaque(layout):
    """Tell if a layout has strides of which nothing is known but values."""
    strides = flat_strides(layout.shape, layout.stride)
    kinds = [kind_of(d.func) if kind_of(d) == "CustomStride" else kind_of(d) for d in strides]
    return any(kind in ("IndexedGather", "Cyclic", "ListedCyclic") for kind in kinds)


def both_values(result, crd):
    """The value at a coordinate, of which the oracle and a call have to be of one opinion."""
    got, call = value(result, crd), result(crd)
    return got if hashable(plain(call)) == hashable(got) else f"{call}, by the oracle {got}"


def samples(rng, sizes):
    """Coordinates of so many modes: all, or some of many."""
    if volume(tuple(sizes)) <= _LOOKED_AT:
        return coordinates(tuple(sizes))
    return [[rng.randrange(n) for n in sizes] for _ in range(_LOOKED_AT)]


def fits(mode, rest):
    """Tell if some layout is ``mode`` at the values of ``rest``, by sums or by XOR."""

    def function(c):
        return value(mode, plain_of(c, None, rest))

    values = [function(c) for c in coordinates(rest.shape)]
    return exists(function, rest.shape, values, True)


def operand_and_tiler(rng, kind, strides):
    """An operand, the function that it is, and a tiler of its modes; None where it has just one."""
    x = operand(rng, kind, strides)
    f = as_function(x)
    return (x, f, drawn_tiler(rng, f.shape)) if isinstance(f.shape, tuple) else None


def law_composition_by_xor_tilers(rng, kind, strides):
    drawn = operand_and_tiler(rng, kind, strides)
    if drawn is None:
        return VOID
    x, f, tiler = drawn
    parts = pieces_of_tiler(f.shape, tiler)
    if strides == "gather" and any(max(table(t)) >= volume(s) for s, t in parts if t is not None):
        return VOID  # beyond the index there is nothing to compare
    result = required(lc.composition, x, tiler)
    if strides == "gather" and len(tiler) < len(f.shape) and kind == "layout":
        return "exact"  # modes that are dropped add their first entry
    sizes = [volume(s if t is None else t.shape) for s, t in parts]
    for c in samples(rng, sizes):
        positions = [n if t is None else value(t, n) for (_, t), n in zip(parts, c, strict=True)]
        wanted = value(f, padded(iter(positions), f.shape, tiler))
        got = both_values(result, taken(iter(c), tiler))
        holds(got == wanted, f"at {c}", lc.composition, (x, tiler), result)
    return "exact"


def pieces_of_tiler(shape, tiler):
    """The shapes of the modes that a tiler takes, and the layouts that it takes of them."""
    found = []
    for s, t in zip(shape, tiler, strict=False):
        found += pieces_of_tiler(s, t) if isinstance(t, tuple) else [(s, as_tile(t))]
    return found


def law_divide_by_xor_tilers(rng, kind, strides):
    drawn = operand_and_tiler(rng, kind, strides)
    if drawn is None:
        return VOID
    x, f, tiler = drawn
    inner = domain(f)
    result, error = run(lc.logical_divide, x, tiler)
    halves, possible, always = [], True, is_opaque(inner) or has_xor(inner)
    for mode, t in pieces(inner, tiler):
        n = volume(mode.shape)
        if t is None:
            halves.append((Layout(n, 1), None))
            continue
        tile = as_tile(t)
        rest, missing = run(lc.complement, tile, n)
        if missing is not None or not covers(tile, rest, n):
            holds(error is not None, "positions are lost", lc.logical_divide, (x, tiler), result)
            return "refused"
        halves.append((tile, rest))
        whole = Layout((tile.shape, rest.shape), (tile.stride, rest.stride))
        coordinates_of = gives_coordinates(mode) and has_xor(tile)
        possible = possible and (always or coordinates_of or fits(mode, whole))
    if error is not None:
        holds(not possible, "refused", lc.logical_divide, (x, tiler), error)
        return "refused"
    sizes = [n for tile, rest in halves for n in (volume(tile.shape), rest and volume(rest.shape))
             if n is not None]  # fmt: skip
    logical = lc.logical_divide, result
    zipped = lc.zipped_divide, required(lc.zipped_divide, x, tiler)
    for c in samples(rng, sizes):
        positions, coordinate = [], []
        digits = iter(c)
        for tile, rest in halves:
            i = next(digits)
            j = None if rest is None else next(digits)
            coordinate.append(i if rest is None else (i, j))
            positions.append(
                i if rest is None else meeting(tile, rest)(value(tile, i), value(rest, j))
            )
        if is_opaque(inner) and beyond(pieces(inner, tiler), positions):
            continue  # to be predicated: nothing is known of the strides there
        wanted = value(f, gathered(iter(positions), f.shape, tiler))
        check_both_forms((x, tiler), f.shape, coordinate, wanted, logical, zipped)
    return "exact"


def check_both_forms(operands, shape, coordinate, wanted, logical, zipped):
    """Hold the logical and the zipped form, operations with their results, to a value."""
    tiler = operands[1]
    got = both_values(logical[1], gathered(iter(coordinate), shape, tiler))
    holds(got == wanted, f"at {coordinate}", logical[0], operands, logical[1])
    got = value(zipped[1], unzipped(iter(coordinate), shape, tiler))
    holds(got == wanted, f"at {coordinate}", zipped[0], operands, zipped[1])


def beyond(parts, positions):
    return any(n >= volume(mode.shape) for (mode, _), n in zip(parts, positions, strict=True))


def meeting(tile, rest):
    """The addition of a tile and its rest."""
    return xor if has_xor(tile) or has_xor(rest) else plus


def covers(tile, rest, n):
    """Tell if the copies of a tile do not meet and reach all of the first n positions."""
    add, own = meeting(tile, rest), set(table(tile))
    copies = [add(t, r) for t in own for r in table(rest)]
    return set(range(n)) <= set(copies) and len(set(copies)) == len(copies)


def unzipped(pairs, shape, tiler):
    """The coordinate of the zipped form: tiles first, then what runs over them."""
    first, second = [], []
    for i, s in enumerate(shape):
        t = tiler[i] if i < len(tiler) else None
        if isinstance(t, tuple):
            tile, rest = unzipped(pairs, s, t)
        elif t is None:
            tile, rest = 0, next(pairs)
        else:
            tile, rest = next(pairs)
        if i < len(tiler):
            first.append(tile)
        second.append(rest)
    return tuple(first), tuple(second)


def law_product_by_xor_tilers(rng, kind, strides):
    x = operand(rng, kind, strides, 32)
    f = as_function(x)
    if not isinstance(f.shape, tuple):
        return VOID
    tiler = drawn_tiler(rng, f.shape)
    inner = domain(f)
    result, error = run(lc.logical_product, x, tiler)
    parts = pieces(inner, tiler)
    starts = [None if t is None else starts_of(mode, as_tile(t)) for mode, t in parts]
    if any(t is not None and at is None for (_, t), at in zip(parts, starts, strict=True)):
        holds(error is not None, "no copies", lc.logical_product, (x, tiler), result)
        return "refused"
    if gives_coordinates(inner) and any(at and any(map(is_number, at)) for at in starts):
        holds(error is not None, "adds integers", lc.logical_product, (x, tiler), result)
        return "refused"
    holds(error is None, "refused", lc.logical_product, (x, tiler), error)
    logical = lc.logical_product, result
    zipped = lc.zipped_product, required(lc.zipped_product, x, tiler)
    sizes = [n for (mode, _), at in zip(parts, starts, strict=True)
             for n in (volume(mode.shape), None if at is None else len(at)) if n]  # fmt: skip
    for c in samples(rng, sizes):
        total, digits, coordinate = 0, iter(c), []
        for (mode, _), at in zip(parts, starts, strict=True):
            i = next(digits)
            total = add_of(inner)(total, value(mode, i))
            j = None if at is None else next(digits)
            total = total if at is None else add_of(inner)(total, at[j])
            coordinate.append(i if at is None else (i, j))
        wanted = after(f, total)
        check_both_forms((x, tiler), f.shape, coordinate, wanted, logical, zipped)
    return "exact"


def after(f, v):
    """The value of a function whose domain gives ``v``."""
    kind = kind_of(f)
    if kind == "ComposedLayout":
        return value(f.outer, plus(after(f.inner, v), plain(f.offset)))
    return int(f.engine[plus(v, plain(f.offset))]) if kind == "Tensor" else v


def is_number(v):
    """Tell if a value is an integer, which cannot be added to a coordinate."""
    return isinstance(v, int) and v != 0


def starts_of(mode, tile):
    """The values of the copies of a mode in the order of a tile; None where no layout has them."""
    if has_xor(mode) or gives_coordinates(mode) or is_opaque(mode):
        both, error = run(lc.logical_product, mode, tile)
        if error is not None:
            return None
        return [value(both, (0, j)) for j in range(volume(tile.shape))]
    modes = in_order(mode)
    if modes is None:
        return None
    places = endless(modes, max(table(tile)) + 1)
    copies = [places[n] for n in table(tile)]

    def function(c):
        return places[value(tile, nest(c, tile.shape))]

    return copies if exists(function, tile.shape, copies, True) else None
