"""Exactness: no result that is wrong, no refusal where a result exists, none that takes too long.

Here each cell of the campaign plays a few cases. ``python -m tests.algebra.campaign`` plays 2,000 a
cell and prints the table; ``LAYOUTCONV_CAMPAIGN`` is the number of cases that this file plays.
"""

from __future__ import annotations

import os
import random
from functools import partial

import pytest
from campaign import cells, play
from laws import LAWS, LawError

from layoutconv import algebra
from layoutconv.algebra import Layout, LayoutError, coalesce, complement, composition
from layoutconv.testing.random_layouts import random_layout

CASES = int(os.environ.get("LAYOUTCONV_CAMPAIGN", "8"))
PLAIN = [("layout", "int")]  # layouts of integers: what everything else rests on


@pytest.mark.parametrize("law", LAWS)
def test_every_cell_of_the_campaign(law):
    broken = []
    for name, kind, strides in cells():
        if name == law:
            cases = CASES * (5 if (kind, strides) in PLAIN else 1)
            broken += [first for first in [play(law, kind, strides, cases)[1]] if first]
    assert not broken, "\n".join(broken)


def test_both_answers_occur():
    for law in ("composition", "complement", "logical_divide", "logical_product", "left_inverse"):
        counts, _ = play(law, "layout", "int", 60)
        assert counts["exact"] > 5, law
        assert counts["refused"] > 2, law


@pytest.fixture
def replaced(monkeypatch):
    """A function: laws find another operation of that name in the algebra."""
    return partial(monkeypatch.setattr, algebra)


@pytest.mark.parametrize(
    ("law", "operation", "wrong"),
    [
        ("coalesce", "coalesce", lambda layout, profile=None: Layout(layout.size(), 1)),
        ("composition", "composition", lambda a, b: Layout(b.shape, b.stride)),
        ("complement", "complement", lambda a, bound: complement(a, bound + 60)[0]),
        ("right_inverse", "right_inverse", lambda a: Layout(1, 0)),
    ],
)
def test_the_oracle_sees_what_is_wrong(law, operation, wrong, replaced):
    replaced(operation, wrong)
    assert play(law, "layout", "int", 40)[1]


def test_a_refusal_of_what_exists_is_seen(replaced):
    def refuse(a, b):
        raise LayoutError("no")

    replaced("composition", refuse)
    with pytest.raises(LawError, match="refused"):
        LAWS["composition"](random.Random(3), "layout", "int")


def test_composition_is_associative_where_nothing_carries():
    rng = random.Random(7)
    for _ in range(200):
        a, b, c = (random_layout(rng, 2) for _ in range(3))
        try:
            left, right = composition(composition(a, b), c), composition(a, composition(b, c))
        except LayoutError:
            continue
        inside = max(c(i) for i in range(c.size())) < b.size()
        assert not inside or [left(i) for i in range(c.size())] == [
            right(i) for i in range(c.size())
        ]
        assert coalesce(coalesce(left)) == coalesce(left)
