"""Exactness, on many random pairs: no result that is wrong, no refusal where a result exists.

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
    flat_strides,
    leaves,
    paths_of,
    plus,
    times,
    vector,
)
from strategies import STRIDES, random_layout

from layoutconv.algebra import LayoutError, composition

PAIRS = int(os.environ.get("LAYOUTCONV_CAMPAIGN", "3000"))


def check_composition(a, b):
    """The result is the functional definition, or it is refused with a true witness."""
    paths = paths_of(a.stride)
    steps = flat_strides(b.shape, b.stride)

    def function(c):
        n = sum(x * d for x, d in zip(c, steps, strict=True))
        return evaluate(a.shape, a.stride, n, paths)

    def of(layout, c):
        """A layout whose shape refines b's, at a coordinate of b's leaves."""
        total = tuple(0 for _ in paths)
        n, place = 0, 1
        for x, s in zip(c, leaves(b.shape), strict=True):
            n, place = n + x * place, place * s
        extents, strides = leaves(layout.shape), flat_strides(layout.shape, layout.stride)
        for s, d in zip(extents, strides, strict=True):
            total = plus(total, times(n % s, vector(d, paths)))
            n //= s
        return total

    try:
        result = composition(a, b)
    except LayoutError as error:
        refusal = error
    else:
        refusal = None
    if refusal is not None:
        witness = tuple(leaves(refusal.witness))
        assert of(refusal.best, witness) != function(witness), f"false witness: {a} o {b}"
        assert not composition_exists(function, b.shape), f"refused although exact: {a} o {b}"
        return False
    refines(b.shape, result.shape)
    for c in coordinates(b.shape):
        assert of(result, c) == function(c), f"wrong at {c}: {a} o {b} = {result}"
    return True


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


@pytest.mark.parametrize(
    ("seed", "options"),
    [
        (1, {}),
        (2, {"nested": True, "strides": [*STRIDES, 0, -1, -2, -3, -8]}),
        (3, {"basis": True}),
    ],
    ids=["anchors", "nested-negative", "basis"],
)
def test_composition(seed, options):
    rng = random.Random(seed)
    exact = 0
    for _ in range(PAIRS):
        a = random_layout(rng, 4 if options.get("nested") else 3, **options)
        b_options = {k: v for k, v in options.items() if k != "basis"}
        b = random_layout(rng, 3 if options.get("nested") else 2, **b_options)
        exact += check_composition(a, b)
    assert PAIRS // 4 < exact < PAIRS  # both answers occur
