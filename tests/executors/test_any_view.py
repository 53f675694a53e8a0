"""Views that no convolution makes, on the CPU, against a loop that asks `locate` for each element.

Rows, or columns, may move none of a coordinate's modes, and alone lead outside of memory; tensors
are as long as their memory, so that what is read beside it has no place.
"""

from __future__ import annotations

from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import ComposedLayout, CustomStride, E, IndexedGather, Layout
from layoutconv.ops.execute import execute
from layoutconv.view.gemm_view import GemmView, locate


@st.composite
def operands(draw, rows: int, columns: int):
    """An operand of ``rows`` x ``columns``, behind an index or not, and the shape of its tensor."""
    memory = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=3)))
    modes = st.integers(0, len(memory) - 1)

    def step():
        size = draw(st.sampled_from([0, 0, 1, 1, 2, -1]))
        return size * E(draw(modes)) if size or draw(st.booleans()) else 0

    extents = (rows, (columns // 2, 2)) if columns % 2 == 0 else (rows, columns)
    split = isinstance(extents[1], tuple)
    cells = Layout(extents, (step(), (step(), step()) if split else step()))
    offset = tuple(draw(st.integers(-2, 2)) for _ in memory)
    strides = torch.empty(memory).stride()
    stored = Layout(memory, strides)
    if draw(st.booleans()):
        return ComposedLayout(stored, offset, cells), memory
    index = draw(st.lists(st.integers(-1, 2), min_size=memory[0], max_size=memory[0]))
    entries = IndexedGather(torch.tensor(index, dtype=torch.int32))
    unit = tuple(map(E, range(1, len(memory))))
    gather = Layout(memory, (CustomStride(entries, E(0)), *unit))
    stored = Layout((3, *memory[1:]), strides)
    return ComposedLayout(ComposedLayout(stored, 0, gather), offset, cells), (3, *memory[1:])


@settings(max_examples=200, deadline=None)
@given(data=st.data(), m=st.integers(1, 5), n=st.integers(1, 4), k=st.sampled_from([1, 2, 3, 4, 8]))
def test_any_view_is_its_definition(data, m, n, k):
    (A, a_shape), (B, b_shape) = data.draw(operands(m, k)), data.draw(operands(n, k))
    view = GemmView(A, B, Layout((m, n), (n, 1)))
    a, b = (torch.randint(-3, 4, shape).double() for shape in (a_shape, b_shape))

    def element(layout, tensor, *crd):
        place, there = locate(layout, *crd)
        return tensor.flatten()[place] if there else torch.zeros(()).double()

    exact = torch.zeros(m, n).double()
    for i, j, t in product(range(m), range(n), range(k)):
        exact[i, j] += element(A, a, i, t) * element(B, b, j, t)
    assert torch.equal(execute(view, a, b), exact)


@pytest.mark.parametrize("dtype", [torch.float32, torch.int8])
def test_nothing_is_read_beside_memory(dtype):
    """One row, whose columns run out of a memory of three elements, which others follow."""
    cells = Layout((1, 9), (2 * E(0), E(1)))
    view = GemmView(
        ComposedLayout(Layout((1, 3), (3, 1)), (0, 0), cells),
        Layout((1, 9), (9, 1)),
        Layout((1, 1), (1, 1)),
    )
    a = torch.arange(30).to(dtype)[:3].view(1, 3)
    assert execute(view, a, torch.ones(1, 9).to(dtype)).item() == 3
