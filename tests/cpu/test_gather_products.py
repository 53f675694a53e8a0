"""Products of gathered rows are the sums of a kernel map's view, and of the definition."""

from __future__ import annotations

import copy
import gc
import pickle
import sys
import weakref

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.cpu import gathered_passes
from layoutconv.cpu.gather_products import GatherPlan
from layoutconv.cpu.gathered_passes import plan_of
from layoutconv.errors import ArgumentError
from layoutconv.ops import map_pass_on_cpu, sparse_calls
from layoutconv.sparse import Coordinates, strided_map, submanifold_map


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


CELLS = Coordinates.of_keys(torch.randperm(9**3, generator=torch.Generator().manual_seed(2))[:150],
                            (9, 9, 9), 1)  # fmt: skip
MAPS = {
    "submanifold": lambda: submanifold_map(CELLS),
    "strided": lambda: strided_map(CELLS, 3, 2, 1),
    "inverse": lambda: strided_map(CELLS, 3, 2, 1).inverse,
}


def layer(found, dtype):
    """A layer with its gradients, first by the operator, then by a call that is known."""
    generator = torch.Generator().manual_seed(1)

    def integers(*shape):
        drawn = torch.randint(-3, 4, shape, generator=generator)
        return drawn.to(dtype).requires_grad_()

    rows, own = len(found.inputs), len(found.outputs)
    x, w, bias = integers(rows, 4), integers(6, 3, 3, 3, 2), integers(6)
    residual, pulled = integers(own, 6), integers(own, 6).detach()
    sparse_calls.forget()
    results = []
    for _ in range(2):
        y = lc.subm_conv(
            lc.SparseTensor(x, found.inputs), w, bias, kernel_map=found, groups=2,
            residual=residual, activation="relu",
        ).features  # fmt: skip
        results += [y, *torch.autograd.grad(y, (x, w, bias, residual), pulled)]
    return results


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("name", MAPS)
def test_layers_are_gathered_and_have_the_numbers_of_views(name, dtype, watched, ungathered):
    by_views = watched("execute_cpu", sys.modules["layoutconv.ops.execute"], map_pass_on_cpu)
    gathered = layer(MAPS[name](), dtype)
    assert not by_views
    ungathered()
    for got, want in zip(gathered, layer(MAPS[name](), dtype), strict=True):
        assert got.dtype == want.dtype
        assert torch.equal(got, want)  # sums of small integers are exact
    assert len(by_views) >= 4  # forward passes and gradients


@pytest.mark.parametrize("groups", [1, 2, 8])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_operands_and_no_sums(groups, dtype):
    """Each later call has the bits of a call of lowered operands without autocast."""
    layer = lc.nn.SubmConv2d(16, 16, 3, bias=False, groups=groups)
    lowered = copy.deepcopy(layer).to(dtype)
    for _ in range(3):
        dense = torch.randn(1, 6, 6, 16) * (torch.rand(1, 6, 6, 1) < 0.7)
        x = lc.SparseTensor.from_dense(dense)
        with torch.autocast("cpu", dtype):
            y = layer(x).features
        assert torch.equal(y, lowered(x.replace(x.features.to(dtype))).features)


def test_an_index_that_was_written_to_is_planned_again():
    index = torch.tensor([[1, -1], [0, 1]], dtype=torch.int32)
    x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[[10.0], [100.0]]])
    assert plan_of(index, 2).forward(x, w).tolist() == [[20.0], [210.0]]
    index[0, 1] = 0
    assert plan_of(index, 2).forward(x, w).tolist() == [[120.0], [210.0]]
    for copied in copy.deepcopy(index), pickle.loads(pickle.dumps(index)):
        assert copied._layoutconv_plan.plan is None
        assert plan_of(copied, 2).forward(x, w).tolist() == [[120.0], [210.0]]
    with pytest.raises(ArgumentError, match="got 1"):
        plan_of(index, 1)


def test_a_plan_ends_with_its_index():
    index = MAPS["strided"]().index.clone()
    alive = weakref.ref(plan_of(index, len(CELLS)))
    gc.disable()  # no circle either
    try:
        del index
        assert alive() is None
    finally:
        gc.enable()


class Net(torch.nn.Module):
    """Three layers over two maps."""

    def __init__(self):
        super().__init__()
        self.layers = lc.nn.Sequential(
            lc.nn.SubmConv3d(4, 6, 3), lc.nn.SubmConv3d(6, 6, 3),
            lc.nn.SparseConv3d(6, 5, 3, stride=2, padding=1),
        )  # fmt: skip

    def forward(self, features, cells):
        return self.layers(lc.SparseTensor(features, cells, (9, 9, 9), 1)).features


def test_layers_of_an_exported_network_share_the_plan_of_a_map(watched):
    net, features = Net().eval(), torch.randn(150, 4)
    rows = torch.export.Dim("rows", min=2, max=1 << 20)
    shapes = {"features": {0: rows}, "cells": {0: rows}}
    program = torch.export.export(net, (features, CELLS.cells), dynamic_shapes=shapes)
    made = watched("GatherPlan", gathered_passes)
    got = program.module()(features[:140], CELLS.cells[:140])
    assert len(made) == 2
    torch.testing.assert_close(got, net(features[:140], CELLS.cells[:140]))
