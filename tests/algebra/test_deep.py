"""Tuples nested by thousands: an answer or an error of the algebra in every place, and soon."""

from __future__ import annotations

import contextlib
import copy
import pickle
import time

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError, LayoutTypeError

from .test_any_operand import EVERY_CALL, nested

DEEP = {
    "integer": nested,
    "open": lambda levels: _around(None, levels),
    "layout": lambda levels: _around(Layout(4), levels),
    "pairs": lambda levels: _around(2, levels, 1),
    "list": lambda levels: [nested(levels)],
    "text": lambda levels: "(" * levels + "4" + ",)" * levels,
    "no integer": lambda levels: _around(1.5, levels),
}


def _around(leaf, levels, *beside):
    for _ in range(levels):
        leaf = (leaf, *beside)
    return leaf


def places(operand, new):
    """``new`` in the place of an operand, and of each entry of it."""
    yield new
    if type(operand) is tuple and len(operand) < 6:
        for i, entry in enumerate(operand):
            for part in places(entry, new):
                yield (*operand[:i], part, *operand[i + 1 :])


@pytest.mark.parametrize("kind", DEEP)
@pytest.mark.parametrize("levels", [100, 300, 1500, 20000])
def test_every_operation_answers_or_says_what_is_too_deep(kind, levels):
    new = DEEP[kind](levels)
    for name, (args, named) in EVERY_CALL:
        for key in [*range(len(args)), *named]:
            for operand in places(args[key] if isinstance(key, int) else named[key], new):
                given, options = list(args), dict(named)
                (given if isinstance(key, int) else options)[key] = operand
                started = time.process_time()
                with contextlib.suppress(LayoutError):
                    getattr(lc, name)(*given, **options)
                assert time.process_time() - started < 1, (name, key)


def test_the_error_says_how_deep():
    for call in (
        lambda: Layout(nested(66)),
        lambda: Layout(nested(400), nested(400)),
        lambda: lc.E(*[0] * 65),
        lambda: lc.composition(Layout(4), nested(65)),
        lambda: lc.logical_divide(Layout((4, 8)), (2, nested(400))),
        lambda: lc.zipped_divide(Layout(4), nested(3000)),
        lambda: lc.logical_product(Layout(4), nested(3000)),
        lambda: lc.coalesce(Layout(4), nested(3000)),
        lambda: lc.slice_and_offset(nested(3000), Layout(4)),
    ):
        with pytest.raises(LayoutTypeError, match="nested too deeply; expected at most 64 levels"):
            call()


def test_what_is_not_too_deep_does_all_that_a_layout_does():
    deep = Layout(nested(60))
    assert deep.depth == 60
    assert lc.parse(str(deep)) == deep
    assert copy.deepcopy(deep) == pickle.loads(pickle.dumps(deep)) == deep
    assert {deep: 1}[Layout(nested(60))] == 1
    assert deep.offsets() == [0, 1, 2, 3]
    assert lc.coalesce(deep) == Layout(4)
    assert lc.composition(Layout(nested(30)), nested(20)).size() == 4
