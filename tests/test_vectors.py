"""Vectors are what they are said to be: element by element, in whatever layout."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import ComposedLayout, CustomStride, E, IndexedGather, Layout
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import OperandLayout, follow, locate
from layoutconv.view.vectors import recast, vector_extent


def check(layout: OperandLayout, mode: int, vector: int) -> None:
    """Elements of a vector follow one another, all or none; ``recast`` counts in such vectors."""
    coarse = recast(layout, mode, vector)
    others = [range(Layout(extent).size()) for extent in layout.shape]
    del others[mode]
    for other in product(*others):
        for start in range(0, Layout(layout.shape[mode]).size(), vector):

            def at(i: int, other: tuple[int, ...] = other) -> tuple[int, ...]:
                return (*other[:mode], i, *other[mode:])

            found = [locate(layout, *at(start + i)) for i in range(vector)]
            offset, valid = follow(coarse, at(start // vector), True)
            for i, (element, there) in enumerate(found):
                assert bool(there) == bool(valid)
                assert not there or int(element) == int(offset) * vector + i


@settings(max_examples=40, deadline=None)
@given(
    C=st.integers(1, 12),
    K=st.integers(1, 12),
    first=st.integers(0, 4),
    last=st.integers(0, 4),
    padding=st.integers(0, 2),
)
def test_channels_of_a_slice(C, K, first, last, padding):
    """A slice of ``C`` of ``first + C + last`` stored channels, as memory and as bounds."""
    stored = first + C + last
    im2col = Layout((4, (C, 3)), (E(0), (E(1), E(0))))
    memory = Layout((4, stored), (stored, 1))
    sliced = ComposedLayout(memory, (-padding, first), im2col)
    vector = vector_extent(sliced, 1)
    check(sliced, 1, vector)
    whole = fprop_view(ConvProblem((1, 4, C), (K, 3), padding=padding))
    assert vector_extent(whole.a, 1) == vector_extent(whole.b, 1) == C
    assert vector_extent(whole.d, 1) == K
    check(whole.a, 1, C)
    check(whole.d, 1, K)


@pytest.mark.parametrize("divisor", [1, 2, 3, 6])
def test_kernel_map(divisor):
    kernel_map = torch.tensor([[0, -1, 2], [1, 1, -1]], dtype=torch.int32)
    view = kernel_map_view(kernel_map, 6, 4, kernel_size=(3,), in_rows=3)
    assert vector_extent(view.a, 1) == 6
    check(view.a, 1, divisor)


INDEX = CustomStride(IndexedGather([1, 0, 2]), E(1))


@pytest.mark.parametrize(
    ("layout", "vector"),
    [
        (Layout((4, 6), (6, 1)), 6),
        (Layout((4, 6), (9, 1)), 3),
        (Layout((4, 6), (1, 4)), 1),
        (Layout((4, (6, 2)), (12, (1, 48))), 6),
        (Layout((4, 6), (6, 2)), 1),
        (ComposedLayout(Layout((4, 6), (6, 1)), (0, 2), Layout((4, 4), (E(0), E(1)))), 2),
        # channels that may leave the tensor, that a function picks, or that rows move
        (ComposedLayout(Layout((4, 6), (6, 1)), (0, 3), Layout((4, 4), (E(0), E(1)))), 1),
        (ComposedLayout(Layout((4, 7), (8, 1)), (0, 4), Layout((4, 4), (E(0), E(1)))), 1),
        (ComposedLayout(Layout((4, 6), (6, 1)), 0, Layout((4, 3), (E(0), INDEX))), 1),
        (ComposedLayout(Layout((4, 6), (6, 1)), 0, Layout((3, 4), (E(1), E(1)))), 1),
        (ComposedLayout(Layout((4, 6), (6, 1)), 0, Layout((2, 3), (3 * E(1), E(1)))), 3),
    ],
    ids=str,
)
def test_vector_extent(layout, vector):
    assert vector_extent(layout, 1) == vector
    check(layout, 1, vector)


@pytest.mark.parametrize(
    ("layout", "vectors"),
    [
        (Layout((4, 6, 3), (6, 1, 24)), (1, 6, 1)),
        (Layout((4, 6, 3), (18, 1, 6)), (1, 6, 1)),
        (Layout((4, 6, 8), (48, 8, 1)), (1, 1, 8)),
        (Layout((4, 6, 2), (8, 1, 3)), (1, 1, 1)),
        # a slice of the channels for each problem: whole slices, and such as leave the tensor
        (ComposedLayout(Layout((4, 8), (8, 1)), 0, Layout((4, 4, 2), (E(0), E(1), 4 * E(1)))), 4),
        (ComposedLayout(Layout((4, 8), (8, 1)), 0, Layout((4, 4, 2), (E(0), E(1), 3 * E(1)))), 1),
        (ComposedLayout(Layout((4, 7), (8, 1)), 0, Layout((4, 4, 2), (E(0), E(1), 4 * E(1)))), 1),
        # one row, one column, problems along the channels
        (
            ComposedLayout(
                Layout((5, 8), (8, 1)),
                (-1, 0),
                Layout((1, 3, (8, 5)), (0 * E(0), E(0), (E(1), E(0)))),
            ),
            (1, 1, 8),
        ),
    ],
    ids=str,
)
def test_a_third_mode(layout, vectors):
    if isinstance(vectors, int):
        vectors = (1, vectors, 1)
    for mode, vector in enumerate(vectors):
        assert vector_extent(layout, mode) == vector
        check(layout, mode, vector)
