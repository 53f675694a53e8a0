"""The public checks see what is wrong, and the suite sees it in another library."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.algebra as lc
from layoutconv import testing
from layoutconv.algebra import Layout, LayoutError
from layoutconv.testing.conformance import OPERATIONS, table
from layoutconv.testing.strategies import layouts, operands, swizzles, tilers

# What other libraries give (docs/algebra/discrepancies.md): the operation, operands, their result.
WRONG = [
    ("composition", (Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3))), Layout((3, 2), (2, 3))),
    ("composition", (Layout((4, 3), (1, 8)), Layout(6)), Layout(4)),
    ("complement", (Layout((2, 2), (3, 2)), 24), Layout((2, 4), (1, 6))),
    ("logical_divide", (Layout((6, 2), (7, 6)), Layout(2, 4)), Layout((2, 4), (28, 7))),
    ("logical_product", (Layout(4), 3), Layout((3, 2), (1, 3))),
    ("left_inverse", (Layout((4, 8), (1, 5)),), Layout(4)),
    ("left_inverse", (Layout((2, 2), (2, 3)),), Layout((2, 2), (4, 1))),
    ("right_inverse", (Layout((2, 4), (0, 1)),), Layout(4)),
    ("coalesce", (Layout((2, (1, 6)), (1, (6, 2))),), Layout((1, 1), (0, 0))),
]


@pytest.mark.parametrize(("name", "operands", "result"), WRONG, ids=str)
def test_what_other_libraries_give_is_seen(name, operands, result):
    with pytest.raises(testing.WrongResultError, match=name):
        OPERATIONS[name].check(*operands, result)


@settings(deadline=None)
@given(layouts(), layouts(max_rank=2, strides=(0, 1, 2, 3, 4)), st.integers(1, 60))
def test_what_ours_gives_passes(a, b, bound):
    for name, operation in OPERATIONS.items():
        chosen = [a, b][: operation.layouts] + [bound] * operation.bound
        try:
            result = getattr(lc, name)(*chosen)
        except LayoutError:
            continue
        operation.check(*chosen, result)


def faulty(name, function):
    """A library like ours with one operation replaced."""
    ours = {n: getattr(lc, n) for operation in OPERATIONS.values() for n in operation.names[:1]}
    return SimpleNamespace(Layout=Layout, **(ours | {name: function}))


@pytest.mark.parametrize("name", list(OPERATIONS))
def test_the_suite_sees_faults_refusals_and_crashes(name):
    def refuse(*_):
        raise AssertionError

    def crash(*_):
        raise RuntimeError

    ours = testing.conformance(faulty(name, getattr(lc, name)), 40)[name]
    assert (ours.wrong, ours.over_refused, ours.crashed, ours.first) == (0, 0, 0, "")
    refusing = testing.conformance(faulty(name, refuse), 40)[name]
    assert (refusing.over_refused, refusing.refused) == (ours.exact, ours.refused)
    assert "is refused" in refusing.first
    crashing = testing.conformance(faulty(name, crash), 40)[name]
    assert crashing.crashed == 40
    wrong = testing.conformance(faulty(name, lambda *_: Layout((2, 2), (5, 7))), 40)[name]
    assert wrong.wrong > 30
    assert name in table({name: wrong})


@settings(deadline=None, max_examples=20)
@given(st.sampled_from(testing.OPERAND_KINDS), st.data())
def test_strategies_give_operands(kind, data):
    x = data.draw(operands(kind, "int"))
    assert lc.size(x) >= 1
    shape = lc.shape(x)
    tiler = data.draw(tilers(shape))
    modes = shape if isinstance(shape, tuple) else (shape,)
    assert all(t is None or lc.size(s) % t == 0 for t, s in zip(tiler, modes, strict=True))
    swizzle = data.draw(swizzles())
    assert sorted(map(swizzle, range(swizzle.size()))) == list(range(swizzle.size()))
