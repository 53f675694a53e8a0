"""All values at once are the values one by one, and so is whatever is asked of them.

Layouts here have more values than the few that are computed one by one.
"""

from __future__ import annotations

import os
import random
from math import gcd

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv.algebra import F2, ComposedLayout, CustomStride, IndexedGather, Layout, Swizzle
from layoutconv.algebra.budget import Budget
from layoutconv.algebra.listed import of_integers
from layoutconv.algebra.lookups import at_places, counted, repeated
from layoutconv.algebra.plane_values import Values, divided, plus
from layoutconv.algebra.values_at_once import through, values_at_once
from layoutconv.testing import oracle
from layoutconv.testing.checks import check_right_inverse
from layoutconv.testing.random_layouts import Cyclic, ListedCyclic

CASES = int(os.environ.get("LAYOUTCONV_CAMPAIGN", "8"))


def extents(rng, most=800):
    shape = []
    for _ in range(rng.randint(1, 4)):
        s = rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 31, 64, 100, 257, 1024])
        shape.append(s if s <= most else 1)
        most //= shape[-1]
    return tuple(shape)


def integers(rng):
    shape = extents(rng)
    if rng.random() < 0.4:
        return lc.make_ordered_layout(shape, tuple(rng.sample(range(len(shape)), len(shape))))
    most = rng.choice([4, 40, 4000])
    return Layout(shape, tuple([rng.randint(-most, most) for _ in shape]))


def xors(rng):
    shape = extents(rng)
    most = rng.choice([4, 64, 5000])
    return Layout(shape, tuple([F2(rng.randrange(most)) for _ in shape]))


def functions(rng):
    a = integers(rng)
    strides = []
    for s, d in zip(a.shape, a.stride, strict=True):
        index = rng.choice([list(range(s)), rng.sample(range(s), s), [rng.randint(-9, 99)] * s])
        strides.append(
            rng.choice(
                [
                    d,
                    rng.choice([Cyclic, ListedCyclic])(rng.randint(1, 9), d),
                    CustomStride(IndexedGather(index), d or 1),
                ]
            )
        )
    return Layout(a.shape, tuple(strides))


def swizzled(rng):
    bits = rng.randint(0, 3)
    swizzle = Swizzle(bits, rng.randint(0, 5), rng.choice([1, -1]) * rng.randint(bits, 6))
    return ComposedLayout(swizzle, rng.choice([0, 0, 5, 64, -3]), rng.choice([integers, xors])(rng))


def composed(rng):
    outer = rng.choice([integers, integers, xors])(rng)
    inner = rng.choice([integers, swizzled])(rng)
    low = min(map(int, oracle.table(inner)))
    return ComposedLayout(outer, max(rng.choice([0, 3, -2]), -low), inner)


def looked_up(rng):
    outer = functions(rng)
    return ComposedLayout(
        outer,
        0,
        lc.make_ordered_layout(outer.shape, outer.stride[:0] or tuple(range(outer.rank))[::-1]),
    )


KINDS = {f.__name__: f for f in (integers, xors, functions, swizzled, composed, looked_up)}


def cases(kind, name):
    for case in range(CASES):
        rng = random.Random(f"{kind} {name} {case}")
        yield rng, KINDS[kind](rng)


def values_of(a):
    return [int(v) for v in oracle.table(a)]


@pytest.mark.parametrize("kind", KINDS)
def test_values_at_once_are_those_of_the_definition(kind):
    known = 0
    for rng, a in cases(kind, "values"):
        table, found = values_of(a), values_at_once(a)
        if found is None:
            continue
        known += 1
        assert list(found.listed()) == table, a
        assert found.extremes() == (min(table), max(table)), a
        i, value = rng.randrange(len(table)), rng.randint(min(table) - 2, max(table) + 2)
        assert found.at(i) == table[i], a
        assert found.place_of(value) == (table.index(value) if value in table else None), a
        assert found.at_least(value) == sum(1 << i for i, v in enumerate(table) if v >= value), a
        n, r = rng.randint(1, 40), rng.randint(0, 3)
        left = [v for v in table if (v - r) % n == 0]
        assert list(found.among(found.multiples(n, r))) == left, (a, n, r)
        first = next((i for i, v in enumerate(table) if v != table[0] + i), len(table))
        assert counted(found, table[0]) == first, a
    assert known > CASES // 2


def test_values_wider_than_a_word():
    a = Layout((300, 3), (1 << 40, -(1 << 70)))
    assert list(values_at_once(a).listed()) == values_of(a)
    assert values_at_once(Layout((2, 300), (1 << 130, 1))) is None


@given(st.integers(1, 300), st.integers(-50, 50), st.integers(1, 99), st.randoms())
def test_a_progression_in_any_order_has_a_step(count, low, step, rng):
    values = [low + step * i for i in range(count)]
    rng.shuffle(values)
    assert of_integers(values).step() == (step if count > 1 else None)
    if count > 2:
        values[0] = values[1]
        assert of_integers(values).step() is None


def test_a_width_of_values_that_lie_far_apart():
    index = random.Random(0).sample(range(1 << 26), 1 << 15)
    a = Layout((1 << 15, 8), (CustomStride(IndexedGather(index), 8), 1))
    assert lc.vector_width(a) == 8
    gapped = Layout((1 << 15, 8), (CustomStride(IndexedGather(index), 8), 3))
    assert lc.vector_width(gapped) == 1


INTEGERS = st.lists(st.integers(-(1 << 90), 1 << 90) | st.integers(-9, 300), min_size=1)


@given(INTEGERS, st.integers(-70, 70), st.integers(-300, 300))
def test_listed_integers_are_planes_and_planes_are_listed(integers, n, by):
    values = of_integers(integers)
    assert list(values.listed()) == integers
    assert list(values.times(n).moved(by).listed()) == [n * x + by for x in integers]
    assert values.extremes() == (min(integers), max(integers))
    span = range(min(integers), min(integers) + 500)
    assert [x for x, found in zip(span, values.marks(span), strict=True) if found] == sorted(
        set(integers) & set(span)
    )


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8", ">i4", "bool"])
def test_the_memory_of_arrays_is_read(kind):
    rng = np.random.default_rng(3)
    limits = None if kind == "bool" else np.iinfo(kind)
    low, high = (0, 2) if limits is None else (limits.min, limits.max)
    table = rng.integers(low, high, 200, dtype=kind.strip(">") if limits else "u1").astype(kind)
    for part in (table, table[::-1], table[::3]):
        values = of_integers(part)
        assert list(values.listed()) == list(map(int, part))
    assert list(of_integers(torch.tensor([3, -1, 5])).listed()) == [3, -1, 5]


@pytest.mark.parametrize(
    "junk", [[1.5], [1 << 70, 1.5], ["a"], [None], np.array([1.0]), np.zeros((2, 2), int)]
)
def test_what_is_no_list_of_integers_has_no_planes(junk):
    assert of_integers(junk) is None


@given(st.lists(st.integers(-1000, 1 << 40), min_size=1, max_size=700), st.data())
def test_entries_of_a_table_at_places(table, data):
    places = data.draw(st.lists(st.integers(0, len(table) - 1), min_size=1, max_size=900))
    found = at_places(of_integers(table), of_integers(places))
    assert list(found.listed()) == [table[i] for i in places]
    start = data.draw(st.integers(0, len(table) - 1))
    rest = at_places(of_integers(table), of_integers(range(start, len(table))))
    assert list(rest.listed()) == table[start:]


@given(st.lists(st.integers(-9, 999), min_size=1, max_size=40), st.integers(1, 50), st.data())
def test_values_are_repeated(values, times, data):
    count = data.draw(st.integers(len(values) * times, 4 * len(values) * times))
    run = [x for x in values for _ in range(times)]
    planes = repeated(of_integers(values), times, count)
    found = list(Values(planes, count, of_integers(values).low).listed())
    assert found == (run * 4)[:count]


def test_values_of_a_stride_are_as_many_as_are_asked_for():
    class Short(Cyclic):
        def values(self, count):
            return [0] * (count - 1)

    with pytest.raises(lc.LayoutError, match=r"values\(300\) gave 299"):
        lc.cosize(Layout((300, 3), (Short(3, 1), 1)))


def test_a_buffer_of_long_integers_is_analysed():
    """Its values, too wide for a word, ended in an OverflowError."""
    a = Layout(300, CustomStride(IndexedGather([*range(299), 1 << 70])))
    assert lc.is_injective(a)
    assert lc.cosize(a) == (1 << 70) + 1
    assert not lc.is_surjective(a)
    assert lc.right_inverse(a).size() == 299
    assert lc.vector_width(a) == 1


def test_modes_longer_than_python_counts():
    gather = CustomStride(IndexedGather([3, 1, 0, 2]), 2)
    assert lc.is_injective(Layout((4, 10**30), (gather, 100)))
    twice = CustomStride(IndexedGather([0, 100, 1, 7]), 1)
    assert not lc.is_injective(Layout((4, 10**30), (twice, 100)))
    for question in (lc.is_surjective, lambda a: lc.overlaps(a, Layout(8, 3), 10**31)):
        with pytest.raises(lc.LayoutBudgetError):
            question(Layout((4, 10**30), (gather, 100)))


@pytest.mark.parametrize("index", [np.zeros((2, 2), int), "ab", b"ab"])
def test_an_index_buffer_is_flat(index):
    with pytest.raises(lc.LayoutError, match="flat buffer of integers"):
        IndexedGather(index)


@pytest.mark.parametrize("index", [np.array([3.5, 4.0]), torch.tensor([3.5, 4.0]), [3.5, 4.0]])
@pytest.mark.parametrize("name", ["cosize", "is_injective", "is_surjective", "vector_width"])
def test_an_index_buffer_of_numbers_that_are_no_integers_is_refused(index, name):
    with pytest.raises(lc.LayoutError, match="is not an integer"):
        getattr(lc, name)(Layout(2, CustomStride(IndexedGather(index), 3)))


def test_digits_and_sums_of_planes():
    rng = random.Random(0)
    for _ in range(200):
        count, by, shift = rng.randint(1, 99), rng.randint(1, 70), rng.randint(0, 4)
        values = [rng.randrange(1 << rng.randint(0, 14)) for _ in range(count)]
        planes = [sum((v >> j & 1) << i for i, v in enumerate(values)) for j in range(14)]

        def read(planes, count=count):
            return [sum((p >> i & 1) << j for j, p in enumerate(planes)) for i in range(count)]

        quotients, rest = divided(planes, by, (1 << count) - 1)
        assert (read(quotients), read(rest)) == (
            [v // by for v in values],
            [v % by for v in values],
        )
        assert read(plus(planes, rest, shift)) == [v + (v % by << shift) for v in values]


@given(
    st.lists(st.integers(-300, 300), min_size=1, max_size=9),
    st.integers(1, 40),
    st.integers(1, 9),
    st.booleans(),
)
def test_sums_with_a_progression_collide_as_their_set_says(values, step, terms, down):
    steps = range(0, -step * terms, -step) if down else range(0, step * terms, step)
    sums = [v + x for v in values for x in steps]
    planes = [sum((v + 300 >> j & 1) << i for i, v in enumerate(values)) for j in range(10)]
    found = Values(planes, len(values), -300).apart_along(steps, Budget("is_injective", ()))
    assert found == (len(set(sums)) == len(sums))


@pytest.mark.parametrize("extent", [2, 3, 5, 64, 700])
def test_gathers_beside_a_progression_are_told_apart(extent):
    rng = random.Random(extent)
    answers = []
    for _ in range(4 * CASES):
        index = rng.sample(range(1 << rng.randint(7, 30)), 20)
        one, two = (CustomStride(IndexedGather(part), 1) for part in (index[:10], index[10:]))
        step = rng.randint(1, 99)
        a = Layout((10, extent, 10), (one, step, two))
        answers.append(lc.is_injective(a))
        steps = range(0, step * extent, step)
        values = {x + s + y for x in index[:10] for s in steps for y in index[10:]}
        assert answers[-1] == (len(values) == a.size())
    assert set(answers) == {True, False}


def runs(table):
    """The starts and the ends of all runs of integers in a set."""
    image = set(table)
    return [v for v in image if v - 1 not in image] + [v + 1 for v in image if v + 1 not in image]


QUESTIONS = {
    "is_injective": lambda t: len(set(t)) == len(t),
    "is_bijective": lambda t: sorted(t) == list(range(len(t))),
    "is_contiguous": lambda t: sorted(t) == list(range(min(t), min(t) + len(t))),
    "is_surjective": lambda t: len(set(t)) == max(t) - min(t) + 1,
    "contiguity": lambda t: next((i for i, v in enumerate(t) if v != t[0] + i), len(t)),
    "vector_width": lambda t: gcd(*runs(t)),
    "cosize": lambda t: max(t) - min(t) + 1,
}


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_questions_are_answered_as_the_values_say(kind, name):
    for _, a in cases(kind, name):
        table, found = values_of(a), getattr(lc, name)(a)
        wanted = QUESTIONS[name](table)
        if name == "cosize" and kind == "xors":
            wanted = max(table) + 1
        if name == "vector_width":  # one that all its values allow, where a swizzle follows
            assert wanted % found == 0, a
            assert found == wanted or isinstance(a, ComposedLayout), a
        else:
            assert found == wanted, a


@pytest.mark.parametrize("kind", KINDS)
def test_layouts_overlap_and_are_equal_as_their_values_say(kind):
    for rng, a in cases(kind, "overlaps"):
        b = KINDS[rng.choice(list(KINDS))](rng)
        shift = rng.choice([0, 1, -700, 5000])
        one, two = set(values_of(a)), {v + shift for v in values_of(b)}
        assert lc.overlaps(a, b, shift) is not one.isdisjoint(two), (a, b, shift)
        flat = Layout(a.size(), 1) if rng.random() < 0.5 else lc.coalesce(a)
        same = values_of(a) == values_of(flat)
        assert lc.functionally_equal(a, flat) is same, a


@pytest.mark.parametrize("kind", KINDS)
def test_right_inverses_and_common_layouts_lead_back(kind):
    for rng, a in cases(kind, "inverse"):
        if a(0) == 0:
            check_right_inverse(a, lc.right_inverse(a))
        b = Layout(a.shape) if rng.random() < 0.5 else integers(rng)
        table, other = values_of(a), values_of(b)
        common = lc.max_common_layout(a, b)
        for i, place in enumerate(map(int, oracle.table(common))):
            assert table[place] - table[0] == i == other[place] - other[0], (a, b, common)


def test_a_gather_that_counts_is_inverted_whole():
    index = [(5 * i) % 1024 for i in range(1024)]
    a = Layout((1024, 3), (CustomStride(IndexedGather(index), 1), 1024))
    found = lc.right_inverse(ComposedLayout(a, 0, Layout((1024, 3), (205, 1024))))
    check_right_inverse(a, lc.right_inverse(a))
    assert found.size() >= 1


@pytest.mark.parametrize("kind", ["xors", "swizzled", "functions"])
def test_a_matrix_is_one_everywhere_or_a_pair_shows_that_it_is_not(kind):
    for rng, a in cases(kind, "to_f2"):
        if a.size() & (a.size() - 1):
            a = ComposedLayout(Swizzle(1, 0, 3), 0, lc.make_ordered_layout((8, 64, 2), (1, 2, 0)))
        table = values_of(a)
        try:
            columns = lc.to_f2(a)
        except lc.LayoutError as error:
            if error.witness is not None:
                x, y = error.witness
                assert table[x] ^ table[y] != table[x ^ y], a
            continue
        for i in rng.sample(range(len(table)), min(99, len(table))):
            image = 0
            for k, column in enumerate(columns):
                image ^= column if i >> k & 1 else 0
            assert image == table[i], a


def test_composition_over_a_million_values_is_compared_everywhere():
    a = Layout((66, 71, 52), (F2(1340), F2(1178), F2(7)))
    assert lc.composition(Layout((1 << 10, 1 << 10)), a) == a
    outer, inner = Layout((1000, 1000), (F2(1), F2(1000))), Layout((7, 1 << 17), (1 << 17, 1))
    with pytest.raises(lc.LayoutError) as caught:
        lc.composition(outer, inner)
    at = caught.value.witness
    assert caught.value.exact == oracle.value(outer, oracle.value(inner, at))
    assert oracle.value(caught.value.best, at) != caught.value.exact


def test_what_is_no_function_of_bits_is_not_known_at_once():
    assert values_at_once(Layout((2, 2), (lc.E(0), lc.E(1)))) is None
    assert values_at_once(Layout((1 << 20, 2))) is None
    assert through(Layout(4, F2(3)), values_at_once(Layout(4, -1))) is None
