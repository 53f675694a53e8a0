"""The same operations by other libraries, where their answers are right.

The oracle decides who is right: where another library's result is the functional definition ours
has to be the same function; where it is not, ours must not be equal to it.
"""

from __future__ import annotations

import random

import pytest

import layoutconv.algebra as lc
from layoutconv.algebra import Layout, LayoutError
from layoutconv.testing.oracle import coordinates, evaluate, flat_strides, leaves
from layoutconv.testing.random_layouts import random_layout

PAIRS = 400


@pytest.fixture(scope="module")
def pycute():
    """NVIDIA's pycute, which a checkout of CUTLASS has in ``python/``.

    The package of that name on the registry is another one, and torch's copy counts coordinates
    the other way round.
    """
    module = pytest.importorskip("pycute")
    if not hasattr(module, "composition"):
        pytest.skip("another package of this name")
    return module


def same_function(ours, theirs):
    """Return whether two layouts agree on every coordinate of their common size."""
    size = 1
    for s in leaves(theirs.shape):
        size *= s
    return ours.size() == size and all(
        evaluate(ours.shape, ours.stride, i) == evaluate(theirs.shape, theirs.stride, i)
        for i in range(size)
    )


def test_composition_agrees_wherever_pycute_is_right(pycute):
    rng = random.Random(20)
    right = wrong = 0
    for _ in range(PAIRS):
        a, b = random_layout(rng, 3), random_layout(rng, 2)
        try:
            theirs = pycute.composition(
                pycute.Layout(a.shape, a.stride), pycute.Layout(b.shape, b.stride)
            )
        except AssertionError:
            continue
        steps = flat_strides(b.shape, b.stride)
        exact = [
            evaluate(a.shape, a.stride, sum(x * d for x, d in zip(c, steps, strict=True)))
            for c in coordinates(b.shape)
        ]
        size = 1
        for s in leaves(theirs.shape):
            size *= s
        table = [evaluate(theirs.shape, theirs.stride, i) for i in range(size)]
        if table == exact:
            right += 1
            ours = lc.composition(a, b)
            assert same_function(ours, theirs), f"{a} o {b}"
        else:
            wrong += 1
    assert right > PAIRS // 3
    assert wrong > 0


def test_kernel_layouts_agree(pycute):
    """Layouts as kernels have them: every operation gives the very same layout."""

    def theirs(layout):
        return pycute.Layout(layout.shape, layout.stride)

    row, col = Layout((64, 64), (64, 1)), Layout((64, 64), (1, 64))
    smem = Layout(((8, 8), (8, 8)), ((8, 512), (1, 64)))
    for a in (row, col, smem):
        assert str(lc.coalesce(a)) == show(pycute.coalesce(theirs(a)))
        assert str(lc.right_inverse(a)) == show(pycute.right_inverse(theirs(a)))
        assert same_function(lc.left_inverse(a), pycute.left_inverse(theirs(a)))
        assert str(lc.composition(a, smem)) == show(pycute.composition(theirs(a), theirs(smem)))
        for tiler in ((8, 16), (16, 8), (None, 4)):
            assert str(lc.zipped_divide(a, tiler)) == show(pycute.zipped_divide(theirs(a), tiler))
            assert str(lc.tiled_divide(a, tiler)) == show(pycute.tiled_divide(theirs(a), tiler))
    for tile, bound in ((Layout(4, 2), 24), (Layout((4, 2), (1, 16)), 64), (Layout(8, 4), 32)):
        assert str(lc.complement(tile, bound)) == show(pycute.complement(theirs(tile), bound))
        assert str(lc.logical_divide(Layout(64), tile)) == show(
            pycute.logical_divide(pycute.Layout(64), theirs(tile))
        )
        assert str(lc.logical_product(tile, Layout(4))) == show(
            pycute.logical_product(theirs(tile), pycute.Layout(4))
        )


def show(layout):
    return f"{layout.shape}:{layout.stride}".replace(" ", "").replace(",)", ")")


CASES = [
    ("composition", Layout((64, 64), (64, 1)), Layout(((8, 8), (8, 8)), ((8, 512), (1, 64)))),
    ("composition", Layout((4, 8, 3)), (2, 4)),
    ("composition", Layout((4, 8, 3)), Layout((1, 3), (2, 1))),
    ("logical_divide", Layout((4, 8, 3)), (2, 4)),
    ("zipped_divide", Layout((9, (4, 8)), (59, (13, 1))), (3, 8)),
    ("tiled_divide", Layout((64, 64), (64, 1)), (8, 16)),
    ("flat_divide", Layout((64, 64), (64, 1)), (8, 16)),
    ("logical_product", Layout((2, 2), (4, 1)), Layout(6)),
    ("zipped_product", Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))),
    ("blocked_product", Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))),
    ("raked_product", Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))),
    ("blocked_product", Layout((2, 2), (1, 4)), Layout((2, 2), (1, 2))),
    ("tile_to_shape", Layout((2, 2), (1, 2)), (4, 8), (1, 0)),
    ("complement", Layout((2, 2), (1, 6)), 24),
    ("right_inverse", Layout((4, 8), (8, 1))),
    ("left_inverse", Layout((4, 8), (1, 5))),
    ("left_inverse", Layout(4, 2)),
    ("coalesce", Layout((1, 4, 1), (3, 1, 7))),
    ("filter", Layout((4, 2, 3), (1, 0, 4))),
    ("make_ordered_layout", (2, 3, 4), (2, 0, 1)),
    ("make_identity_layout", (4, (2, 3))),
    ("slice_", Layout((4, 8, 3)), (None, 2, None)),
]


def test_the_cute_dsl_prints_the_same():
    """The DSL traces these on a CPU; its text for static layouts is that of the literature."""
    cutlass = pytest.importorskip("cutlass")
    cute = pytest.importorskip("cutlass.cute")
    shown = []

    def value(x):
        return cute.make_layout(x.shape, stride=x.stride) if isinstance(x, Layout) else x

    def trace():
        for name, *operands in CASES:
            arguments = [value(x) for x in operands]
            if name == "slice_":
                shown.append(str(cute.slice_(*arguments)))
            elif name == "make_ordered_layout":
                shown.append(str(cute.make_ordered_layout(arguments[0], order=arguments[1])))
            else:
                shown.append(str(getattr(cute, name)(*arguments)))

    assert cutlass is not None
    cute.jit(trace)()
    for (name, *operands), theirs in zip(CASES, shown, strict=True):
        arguments = operands[::-1] if name == "slice_" else operands
        ours = str(getattr(lc, name)(*arguments))
        assert ours == theirs.replace(" ", ""), f"{name}{tuple(map(str, operands))}"


def test_wrong_answers_of_the_cute_dsl_are_not_ours():
    """It gives (3,2):(12,6) for a function that is no layout."""
    with pytest.raises(LayoutError):
        lc.composition(Layout((5, 3), (6, 6)), Layout(6, 2))
