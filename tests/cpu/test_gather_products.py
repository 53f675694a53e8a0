"""Products of gathered rows are the sums of a kernel map's view, and of the definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.cpu.gather_products import GatherPlan
from layoutconv.errors import ArgumentError


@st.composite
def indices(draw):
    """An index (outputs, taps) of some rows, with full taps, empty ones, and those in order."""
    rows, outputs, taps = draw(st.integers(1, 9)), draw(st.integers(0, 9)), draw(st.integers(1, 5))
    columns = []
    for _ in range(taps):
        kind = draw(st.sampled_from(["some", "none", "all", "in order"]))
        least = {"some": -1, "none": -1, "all": 0, "in order": 0}[kind]
        most = -1 if kind == "none" else rows - 1
        column = draw(st.lists(st.integers(least, most), min_size=outputs, max_size=outputs))
        columns.append(list(range(rows)) if kind == "in order" and outputs == rows else column)
    return torch.tensor(columns, dtype=torch.int32).view(taps, outputs).T, rows


def definition(index, rows, x, w, groups):
    """The sums, pair by pair, as a function that autograd follows."""
    K = len(w) // groups
    sums = [torch.zeros(len(w), dtype=x.dtype) for _ in range(len(index))]
    for m, read in enumerate(index.tolist()):
        for tap, row in enumerate(read):
            if row >= 0:
                parts = x[row].view(groups, 1, -1) * w[:, tap].view(groups, K, -1)
                sums[m] = sums[m] + parts.sum(-1).view(-1)
    return torch.stack(sums) if sums else torch.zeros(0, len(w), dtype=x.dtype)


@settings(max_examples=150)
@given(
    indices(), st.sampled_from([(1, 3, 2), (1, 1, 1), (2, 2, 3), (3, 1, 1), (1, 40, 2)]),
    st.sampled_from([16, 1 << 24]),
)  # fmt: skip
def test_all_passes_are_those_of_the_definition(given_index, sizes, listed):
    (index, rows), (groups, K, C) = given_index, sizes
    x = torch.randint(-4, 5, (rows, groups * C)).double().requires_grad_()
    w = torch.randint(-4, 5, (groups * K, index.shape[1], C)).double().requires_grad_()
    y = torch.randint(-4, 5, (len(index), groups * K)).double()
    expected = definition(index, rows, x, w, groups)
    (expected * y).sum().backward() if expected.requires_grad else None
    x_grad = torch.zeros_like(x) if x.grad is None else x.grad
    w_grad = torch.zeros_like(w) if w.grad is None else w.grad
    with torch.no_grad():
        plan = GatherPlan(index, rows, listed)
        for _ in range(2):  # the second from what is kept
            assert torch.equal(plan.forward(x, w, groups), expected)
            assert torch.equal(plan.backward(y, w, groups), x_grad)
            assert torch.equal(plan.filter(y, x, groups), w_grad)


def test_rows_that_there_are_not_are_an_error():
    index = torch.tensor([[0, 3]], dtype=torch.int32)
    GatherPlan(index, 4)
    with pytest.raises(ArgumentError, match=r"`index`: expected entries in \[-1, 3\), got 3"):
        GatherPlan(index, 3)
    with pytest.raises(ArgumentError, match="got -2"):
        GatherPlan(index.neg() + 1, 4)


def test_a_plan_in_order_holds_no_rows():
    index = torch.arange(5, dtype=torch.int32).view(5, 1)
    assert GatherPlan(index, 5).nbytes == 0
    assert GatherPlan(index, 6).nbytes == 5 * 4
