"""One law for names: a symbolic result, at values that it may assume, is the numeric result."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, assuming, substitute
from layoutconv.testing import (
    check_coalesce,
    check_complement,
    check_composition,
    check_filter,
    check_left_inverse,
    check_logical_divide,
    check_logical_product,
    check_right_inverse,
    check_slice_and_offset,
    check_tile_to_shape,
    check_zipped_divide,
)
from layoutconv.testing.strategies import symbolic_layouts

TILE = Layout((2, 3), (3, 1))
# The operation, and its check, which gets the numeric operand and the result at the values.
LAWS = {
    "coalesce": (lc.coalesce, check_coalesce),
    "filter": (lc.filter, check_filter),
    "complement": (
        lambda x: lc.complement(x, lc.cosize(x)),
        lambda a, r: check_complement(a, a.cosize(), r),
    ),
    "compose": (
        lambda x: lc.composition(x, Layout(2, 2)),
        lambda a, r: check_composition(a, Layout(2, 2), r),
    ),
    "compose by mode": (
        lambda x: lc.composition(x, (2,)),
        lambda a, r: check_composition(a, (2,), r),
    ),
    "divide": (lambda x: lc.logical_divide(x, 4), lambda a, r: check_logical_divide(a, 4, r)),
    "divide by mode": (
        lambda x: lc.zipped_divide(x, (2, 4)[: x.rank]),
        lambda a, r: check_zipped_divide(a, (2, 4)[: a.rank], r),
    ),
    "product": (
        lambda x: lc.logical_product(x, TILE),
        lambda a, r: check_logical_product(a, TILE, r),
    ),
    "right_inverse": (lc.right_inverse, check_right_inverse),
    "left_inverse": (lc.left_inverse, check_left_inverse),
    "tile_to_shape": (
        lambda x: lc.tile_to_shape(x, tuple([2 * lc.size(s) for s in _modes(x)])),
        lambda a, r: check_tile_to_shape(a, tuple([2 * lc.size(s) for s in _modes(a)]), None, r),
    ),
}


def _modes(x):
    return x.shape if isinstance(x.shape, tuple) else (x.shape,)


@pytest.mark.parametrize("name", LAWS)
def test_a_result_holds_at_the_values_it_allows(name):
    operation, check = LAWS[name]
    decided, unsaid = [], []

    @settings(deadline=None, max_examples=60)
    @given(symbolic_layouts())
    def play(case):
        try:
            with assuming(*case.given):
                result = operation(case.layout)
        except LayoutError as error:
            if error.unknown is None and "unknown" in str(error):
                unsaid.append(error)
            return
        if all(eval(str(relation), dict(case.values)) for relation in result.assumptions):
            decided.append(case)
            check(substitute(case.layout, **case.values), substitute(result, **case.values))

    play()
    assert not unsaid
    assert len(decided) > 5


@settings(deadline=None, max_examples=60)
@given(symbolic_layouts())
def test_slices_hold_at_the_values(case):
    a = case.layout
    if not isinstance(a.shape, tuple):
        return
    crd = (0, *[None] * (a.rank - 1))
    rest, offset = lc.slice_and_offset(crd, a)
    now = substitute(a, **case.values)
    check_slice_and_offset(
        crd, now, (substitute(rest, **case.values), substitute(offset, **case.values))
    )
