"""Exactness, on many random operands: no result that is wrong, no refusal where a result exists.

``LAYOUTCONV_CAMPAIGN=40000`` runs the full length; the default is short enough for every commit.
"""

from __future__ import annotations

import os
import random

import pytest
from oracle import (
    composition_exists,
    coordinates,
    evaluate,
    factorizations,
    flat_strides,
    forced_complement,
    is_layout,
    leaves,
    paths_of,
    plus,
    solved,
    table,
    times,
    vector,
)
from strategies import STRIDES, random_layout

from layoutconv.algebra import (
    Layout,
    LayoutError,
    blocked_product,
    coalesce,
    complement,
    composition,
    downcast,
    filter,
    layout_add,
    left_inverse,
    logical_divide,
    logical_product,
    nullspace,
    raked_product,
    recast,
    right_inverse,
    tile_to_shape,
    upcast,
    zipped_divide,
)

PAIRS = int(os.environ.get("LAYOUTCONV_CAMPAIGN", "1500"))
SIGNED = [*STRIDES, 0, -1, -2, -3, -8]


def outcome(operation, *operands):
    """The result and None, or None and the error."""
    try:
        return operation(*operands), None
    except LayoutError as error:
        return None, error


def refines(coarse, fine):
    if isinstance(coarse, tuple):
        assert isinstance(fine, tuple)
        assert len(coarse) == len(fine)
        for c, f in zip(coarse, fine, strict=True):
            refines(c, f)
    else:
        size = 1
        for s in leaves(fine):
            size *= s
        assert size == coarse


def at_leaves(layout, shape, c, paths):
    """``layout``, whose shape refines ``shape``, at a coordinate of the leaves of ``shape``."""
    n, place = 0, 1
    for x, s in zip(c, leaves(shape), strict=True):
        n, place = n + x * place, place * s
    total = (0,) * len(paths)
    strides = flat_strides(layout.shape, layout.stride)
    for s, d in zip(leaves(layout.shape), strides, strict=True):
        total = plus(total, times(n % s, vector(d, paths)))
        n //= s
    return total


def check(what, operation, operands, function, shape, paths=((),)):
    """The result is ``function`` on ``shape``; or none is, and the witness shows it."""
    result, error = outcome(operation, *operands)
    if error is not None:
        assert not composition_exists(function, shape), f"refused although exact: {what}"
        if error.best is not None and error.exact is not None:
            witness = tuple(leaves(error.witness))
            assert at_leaves(error.best, shape, witness, paths) != function(witness), what
        return False
    refines(shape, result.shape)
    for c in coordinates(shape):
        assert at_leaves(result, shape, c, paths) == function(c), f"wrong at {c}: {what} = {result}"
    return True


def composed(a, b, paths=((),)):
    steps = flat_strides(b.shape, b.stride)

    def function(c):
        n = sum(x * d for x, d in zip(c, steps, strict=True))
        return evaluate(a.shape, a.stride, n, paths)

    return function


def pairs(seed, a_rank=3, b_rank=2, **options):
    rng = random.Random(seed)
    b_options = {k: v for k, v in options.items() if k != "basis"}
    for _ in range(PAIRS):
        yield random_layout(rng, a_rank, **options), random_layout(rng, b_rank, **b_options)


@pytest.mark.parametrize(
    ("seed", "ranks", "options"),
    [
        (1, (3, 2), {}),
        (2, (4, 3), {"nested": True, "strides": SIGNED}),
        (3, (3, 2), {"basis": True}),
    ],
    ids=["anchors", "nested-negative", "basis"],
)
def test_composition(seed, ranks, options):
    exact = 0
    for a, b in pairs(seed, *ranks, **options):
        paths = paths_of(a.stride)
        function = composed(a, b, paths)
        exact += check(f"{a} o {b}", composition, (a, b), function, b.shape, paths)
    assert PAIRS // 4 < exact < PAIRS  # both answers occur


def test_composition_by_mode():
    rng = random.Random(4)
    for _ in range(PAIRS):
        a = random_layout(rng, 3, nested=True)
        if not isinstance(a.shape, tuple):
            continue
        tiler = tuple(random_layout(rng, 2) for _ in range(rng.randint(1, a.rank)))
        exists = all(
            composition_exists(composed(m, t), t.shape) for m, t in zip(a, tiler, strict=False)
        )
        result, error = outcome(composition, a, tiler)
        assert (error is None) == exists, f"{a} o {tiler}"
        if result is not None:
            for part, m, t in zip(result, a, tiler, strict=False):
                function = composed(m, t)
                for c in coordinates(t.shape):
                    assert at_leaves(part, t.shape, c, ((),)) == function(c), f"{a} o {tiler}"


def offsets(layout):
    return [v[0] for v in table(layout.shape, layout.stride)]


def completed(layout, bound):
    """The forced complement of a layout, None if there is none: zero strides do not count."""
    values = offsets(layout)
    zeros = [s for s, d in zip(leaves(layout.shape), flat_strides(layout.shape, layout.stride),
                               strict=True) if d == 0]  # fmt: skip
    size = len(values)
    for s in zeros:
        size //= s
    distinct = sorted(set(values))
    return forced_complement(distinct, bound) if len(distinct) == size else None


@pytest.mark.parametrize("strides", [STRIDES, SIGNED], ids=["anchors", "negative"])
def test_complement(strides):
    rng = random.Random(5)
    for _ in range(PAIRS):
        a = random_layout(rng, 3, strides, nested=True)
        bound = rng.randint(1, 60)
        expected = completed(a, bound)
        result, error = outcome(complement, a, bound)
        assert (error is None) == (expected is not None), f"complement({a}, {bound})"
        if result is not None:
            assert offsets(result)[: len(expected)] == expected, f"complement({a}, {bound})"
            assert offsets(result) == sorted(set(offsets(result)))


def test_logical_divide():
    for a, b in pairs(6):
        starts = completed(b, a.size())
        if starts is None:
            assert outcome(logical_divide, a, b)[1] is not None
            continue
        rest = complement(b, a.size())  # checked above
        whole = Layout((b.shape, rest.shape), (b.stride, rest.stride))
        check(f"{a} / {b}", logical_divide, (a, b), composed(a, whole), whole.shape)


def test_zipped_divide():
    rng = random.Random(7)
    for _ in range(PAIRS):
        a = random_layout(rng, 3)
        tiler = tuple(rng.choice([None, rng.randint(1, 6)]) for _ in range(a.rank))
        if not isinstance(a.shape, tuple):
            continue
        logical, error = outcome(logical_divide, a, tiler)
        zipped, zipped_error = outcome(zipped_divide, a, tiler)
        assert (error is None) == (zipped_error is None)
        if logical is None:
            continue
        for i, t in enumerate(tiler):
            both = (Layout(1, 0), a[i]) if t is None else tuple(logical[i])
            assert (zipped[0][i], zipped[1][i]) == both


def test_logical_product():
    for a, b in pairs(8):
        bound = a.size() * (max(offsets(b)) - min(offsets(b)) + 1)
        starts = completed(a, bound)
        if starts is None:
            assert outcome(logical_product, a, b)[1] is not None
            continue
        rest = complement(a, bound)
        result, error = outcome(logical_product, a, b)
        function = composed(rest, b)
        assert (error is None) == composition_exists(function, b.shape), f"{a} x {b}"
        if result is not None:
            assert result[0] == a
            for c in coordinates(b.shape):
                assert at_leaves(result[1], b.shape, c, ((),)) == function(c), f"{a} x {b}"


def test_ranked_products():
    for a, b in pairs(9):
        logical, _ = outcome(logical_product, padded(a, 3), padded(b, 3))
        blocked, error = outcome(blocked_product, padded(a, 3), b)
        assert (error is None) == (logical is not None)
        if blocked is None:
            continue
        raked = raked_product(padded(a, 3), b)
        for i in range(blocked.rank):
            assert tuple(blocked[i]) == (logical[0][i], logical[1][i])
            assert tuple(raked[i]) == (logical[1][i], logical[0][i])


def padded(layout, rank):
    """The leaves of a layout as modes, and 1:0 up to ``rank``."""
    more = rank - len(leaves_of(layout))
    return Layout((*leaves_of(layout), *[1] * more), (*strides_of(layout), *[0] * more))


def leaves_of(layout):
    return leaves(layout.shape)


def strides_of(layout):
    return flat_strides(layout.shape, layout.stride)


def test_tile_to_shape():
    rng = random.Random(10)
    for _ in range(PAIRS // 4):
        block = Layout(tuple(rng.choice([1, 2, 4]) for _ in range(2)))
        shape = tuple(s * rng.randint(1, 3) for s in block.shape)
        order = rng.choice([(0, 1), (1, 0)])
        result = tile_to_shape(block, shape, order)
        refines(shape, result.shape)
        assert sorted(offsets(result)) == list(range(shape[0] * shape[1]))
        for i in range(block.shape[0]):
            for j in range(block.shape[1]):
                assert result(i, j) == block(i, j)


def test_coalesce_and_filter():
    rng = random.Random(11)
    for _ in range(PAIRS):
        a = random_layout(rng, 4, SIGNED, nested=True)
        short = coalesce(a)
        values = table(a.shape, a.stride)
        assert table(short.shape, short.stride) == values, a
        if len(values) <= 24 and short.size() > 1:
            assert short.rank == shortest(values), a
        image = filter(a)
        assert set(offsets(image)) == set(offsets(a)), a
        assert 0 not in strides_of(image) or image == Layout(1, 0)


def shortest(values):
    """The fewest modes of a layout with this table."""
    for extents in sorted(factorizations(len(values)), key=len):
        if all(value == sum_of_digits(i, extents, values) for i, value in enumerate(values)):
            return len(extents)
    raise AssertionError("no layout")


def sum_of_digits(n, extents, values):
    total, place = times(0, values[0]), 1
    for e in extents:
        total = plus(total, times(n % e, values[place]))
        n, place = n // e, place * e
    return total


@pytest.mark.parametrize("strides", [STRIDES, SIGNED], ids=["anchors", "negative"])
def test_right_inverse(strides):
    rng = random.Random(12)
    longer = 0
    for _ in range(PAIRS):
        a = random_layout(rng, 3, strides, nested=True)
        values = offsets(a)
        inverse = right_inverse(a)
        for k in range(inverse.size()):
            assert values[inverse(k)] == k, f"right_inverse({a}) = {inverse}"
        if len(set(values)) == len(values):
            place = {v: i for i, v in enumerate(values)}
            known = next(k for k in range(len(values) + 1) if k not in place)
            longest = max(n for n in range(1, known + 1)
                          if is_layout([(place[k],) for k in range(n)]))  # fmt: skip
            assert inverse.size() == longest, f"right_inverse({a}) = {inverse}"
            longer += longest > 1
    assert longer > PAIRS // 20


@pytest.mark.parametrize("strides", [STRIDES, SIGNED], ids=["anchors", "negative"])
def test_left_inverse(strides):
    rng = random.Random(13)
    found = refused = 0
    for _ in range(PAIRS // 2):
        a = random_layout(rng, 3, strides, nested=True)
        keep = [i for i in range(a.size()) if without_zeros(a, i) == i]
        values = offsets(a)
        points = {values[i]: i for i in keep}
        inverse, error = outcome(left_inverse, a)
        if error is not None:
            if len(points) == len(keep):
                span = max(points) - min(points)
                if span <= 10 and refused < 40:
                    refused += 1
                    assert not interpolated(points), f"refused although exact: left_inverse({a})"
            else:
                i, j = error.witness
                assert i != j
                assert a(i) == a(j)
            continue
        found += 1
        for n, i in points.items():
            assert evaluate(inverse.shape, inverse.stride, n)[0] == i, f"{a}: {inverse}"
    assert found > PAIRS // 10


def without_zeros(a, i):
    """The position with the digits of the modes of stride 0 set to 0."""
    result, place = 0, 1
    for s, d in zip(leaves_of(a), strides_of(a), strict=True):
        result += (i % s) * place * (d != 0)
        i, place = i // s, place * s
    return result


def interpolated(points):
    """Whether a layout goes through the points: try all extents, and solve for the strides."""
    span = max(abs(n) for n in points) + 1
    for size in range(1, span + 1):
        for extents in factorizations(size):
            rows = []
            for n, value in points.items():
                row = []
                for e in extents:
                    row.append(n % e)
                    n //= e
                rows.append([*row, n, value])
            solution = solved(rows)
            if solution is not None and all(x.denominator == 1 for x in solution):
                return True
    return False


def test_nullspace():
    rng = random.Random(14)
    for _ in range(PAIRS):
        a = random_layout(rng, 4, [0, 0, 1, 3, 8], nested=True)
        null = nullspace(a)
        assert null.size() * filter(a).size() == a.size()
        assert len(set(offsets(null))) == null.size()
        values = offsets(a)
        assert all(values[i] == 0 for i in offsets(null))


def test_recast():
    rng = random.Random(15)
    exact = 0
    for _ in range(PAIRS):
        a = random_layout(rng, 3, [*range(9), 12, 16, -4, -8, 0], nested=True)
        n = rng.choice([1, 2, 4, 8])
        result, error = outcome(upcast, a, n)
        best = error.best if error else result
        shares = [-(-n // abs(d)) if d else 1 for d in strides_of(a)]
        wrong = []
        for c in coordinates(a.shape):
            unit = [x // k for x, k in zip(c, shares, strict=True)]
            value = sum(x * d for x, d in zip(unit, strides_of(best), strict=True))
            exact_value = sum(x * d for x, d in zip(c, strides_of(a), strict=True)) // n
            if value != exact_value:
                wrong.append(c)
        assert bool(wrong) == (error is not None), f"upcast({a}, {n})"
        if error:
            assert tuple(leaves(error.witness)) in wrong
        exact += not wrong
        finer = downcast(a, n)
        assert finer.size() == n * a.size()
        assert sorted(offsets(finer)) == sorted(n * v + r for v in offsets(a) for r in range(n))
        if not wrong and n > 1 and any(s > 1 and d == 1 for s, d in finer._leaves):
            assert recast(finer, 8, 8 * n) == upcast(finer, n)
    assert exact > PAIRS // 10


def test_layout_add():
    rng = random.Random(16)
    exact = 0
    for _ in range(PAIRS):
        a, b = random_layout(rng, 3, SIGNED), random_layout(rng, 3, SIGNED)
        if a.size() != b.size():
            extents = rng.choice(factorizations(a.size())) or (1,)
            b = Layout(extents, tuple(rng.choice(SIGNED) for _ in extents))
        values = [plus(x, y) for x, y in zip(table(a.shape, a.stride), table(b.shape, b.stride),
                                             strict=True)]  # fmt: skip
        result, error = outcome(layout_add, a, b)
        assert (error is None) == is_layout(values), f"{a} + {b}"
        if result is not None:
            assert table(result.shape, result.stride) == values, f"{a} + {b}"
            exact += 1
        else:
            assert (error.best(error.witness),) != values[error.witness]
    assert PAIRS // 10 < exact < PAIRS
