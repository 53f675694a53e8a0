"""Pooling of sparse tensors: what torch does to the dense grid, where cells that are not there take
no part; gradients; what is refused."""

from __future__ import annotations

import copy
import pickle
from itertools import product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as theirs

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn import sparse_pool as module
from layoutconv.nn.sparse_depthwise import CHUNK
from layoutconv.ops import gathered_operators as ops
from layoutconv.sparse import Coordinates, KernelMap, SparseTensor, strided_map, submanifold_map

from .grids import at_cells, cloud, grid

DOUBLE = torch.float64


@st.composite
def problems(draw, ranks=(1, 2, 3)):
    """A cloud with the sizes of a window that fits, as torch allows them."""
    rank = draw(st.sampled_from(ranks))
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    stride = [draw(st.integers(1, 3)) for _ in range(rank)]
    padding = [draw(st.integers(0, k // 2)) for k in kernel]
    dilation = [draw(st.integers(1, 2)) for _ in range(rank)]
    shape = tuple(
        draw(st.integers(d * (k - 1) + 1, 7)) for k, d in zip(kernel, dilation, strict=True)
    )
    density = draw(st.sampled_from([0.0, 0.1, 0.5, 1.0]))
    return (
        cloud(shape, density=density, seed=draw(st.integers(0, 99))),
        kernel,
        stride,
        padding,
        dilation,
    )


def windows(x, features, fill, kernel, stride, padding, dilation):
    """The dense grid's windows as (N, C, *outputs, taps), by unfolding every mode."""
    dense = grid(x, features, fill)
    sides = [p for pad in reversed(padding) for p in (pad, pad)]
    dense = theirs.pad(dense, sides, value=fill)
    for mode, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True)):
        dense = dense.unfold(2 + mode, d * (k - 1) + 1, s)[..., ::d]
    rank = len(kernel)
    return dense.flatten(2 + rank)


def reference(mode, x, features, *sizes):
    fill = -torch.inf if mode == "max" else 0.0
    found = windows(x, features, fill, *sizes)
    if mode == "max":
        return found.amax(-1)
    if mode == "sum":
        return found.sum(-1)
    count = windows(x, torch.ones_like(features[:, :1]), 0.0, *sizes).sum(-1)
    return found.sum(-1) / count


POOLS = {"max": lc.nn.sparse_max_pool, "avg": lc.nn.sparse_avg_pool, "sum": lc.nn.sparse_sum_pool}


def agree(mine, expected, features):
    """Results and gradients are equal."""
    torch.testing.assert_close(mine, expected)
    grad = torch.randn_like(expected)
    ours, want = (torch.autograd.grad(y, features, grad)[0] for y in (mine, expected))
    torch.testing.assert_close(ours, want)


# -- against dense grids --------------------------------------------------------------------------


@settings(max_examples=50, deadline=None)
@given(problems(ranks=(1, 2, 3, 4)), st.sampled_from(list(POOLS)))
def test_windows_of_the_cells_that_are_there(problem, mode):
    x, *sizes = problem
    features = x.features.requires_grad_()
    y = POOLS[mode](x, *sizes)
    dense = reference(mode, x, features, *sizes)
    assert y.spatial_shape == dense.shape[2:]
    agree(y.features, at_cells(dense, y), features)
    # All cells that read some cell, and no other.
    reached = windows(x, torch.ones_like(features[:, :1]), 0.0, *sizes).sum(-1)[:, 0] > 0
    assert len(y) == int(reached.sum())


@settings(max_examples=25, deadline=None)
@given(problems())
def test_maxima_are_torch_maxima(problem):
    x, kernel, stride, padding, dilation = problem
    y = lc.nn.sparse_max_pool(x, kernel, stride, padding, dilation)
    dense = grid(x, x.features, -torch.inf)
    pool = getattr(theirs, f"max_pool{len(kernel)}d")
    want = pool(dense, tuple(kernel), tuple(stride), tuple(padding), tuple(dilation))
    torch.testing.assert_close(y.features, at_cells(want, y))


@settings(max_examples=25, deadline=None)
@given(problems())
def test_means_that_count_padding_are_torch_means(problem):
    x, kernel, stride, padding, _ = problem
    y = lc.nn.sparse_avg_pool(x, kernel, stride, padding, count_include_pad=True)
    pool = getattr(theirs, f"avg_pool{len(kernel)}d")
    want = pool(grid(x, x.features, 0.0), tuple(kernel), tuple(stride), tuple(padding))
    torch.testing.assert_close(y.features, at_cells(want, y))


@pytest.mark.parametrize("mode", POOLS)
def test_a_submanifold_map_keeps_the_cells(mode):
    x = cloud((4, 5, 6))
    features = x.features.requires_grad_()
    map = submanifold_map(x.coordinates, 3)
    y = POOLS[mode](x, kernel_map=map)
    assert y.coordinates is x.coordinates
    dense = reference(mode, x, features, [3] * 3, [1] * 3, [1] * 3, [1] * 3)
    agree(y.features, at_cells(dense, x), features)
    assert len(POOLS[mode](x, 3, 1, 1)) > len(x)  # without a map: all that are reached


def test_the_stride_is_the_size_by_default():
    x = cloud((6, 6))
    assert lc.nn.sparse_max_pool(x, (2, 3)).spatial_shape == (3, 2)
    sizes = (2, 3), (2, 3)
    assert torch.equal(
        lc.nn.sparse_sum_pool(x, (2, 3)).features, lc.nn.sparse_sum_pool(x, *sizes).features
    )


# -- unpooling ------------------------------------------------------------------------------------


def test_unpooling_brings_a_coarse_cell_to_its_fine_cells():
    x = cloud((6, 5, 4))
    y = lc.nn.sparse_max_pool(x, 2)
    features = torch.randn(len(y), 2, dtype=DOUBLE, requires_grad=True)
    found = lc.nn.sparse_unpool(y.replace(features))
    assert found.coordinates is x.coordinates
    row = {tuple(cell): r for r, cell in enumerate(y.coords.tolist())}
    want = torch.zeros_like(found.features)
    for r, (n, *cell) in enumerate(x.coords.tolist()):
        coarse = (n, *(c // 2 for c in cell))
        if coarse in row:  # the last of five cells has no window
            want[r] = features[row[coarse]]
    agree(found.features, want, features)


def test_unpooling_of_windows_that_overlap_sums():
    x = cloud((9,), C=1)
    map = strided_map(x.coordinates, 3, 2, 1)
    coarse = SparseTensor(torch.randn(len(map.outputs), 1, dtype=DOUBLE), map.outputs)
    found = lc.nn.sparse_unpool(coarse, map)
    want = torch.zeros_like(x.features)
    for o, t in (map.index >= 0).nonzero().tolist():
        want[map.index[o, t]] += coarse.features[o]
    torch.testing.assert_close(found.features, want)


# -- all cells of an image ------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["max", "avg", "sum"])
def test_global_pooling(mode):
    x = cloud((4, 5), N=4)
    there = x.coords[:, 0] != 2  # an image without cells
    x = SparseTensor(x.features[there], x.coords[there], x.spatial_shape, 4)
    features = x.features.requires_grad_()
    y = lc.nn.sparse_global_pool(x, mode)
    reduce = {"max": lambda t: t.amax(0), "avg": lambda t: t.mean(0), "sum": lambda t: t.sum(0)}
    zero = torch.zeros(3, dtype=DOUBLE)
    images = [features[x.coords[:, 0] == n] for n in range(4)]
    want = torch.stack([reduce[mode](t) if len(t) else zero for t in images])
    agree(y, want, features)
    made = {
        "max": lc.nn.SparseGlobalMaxPool,
        "avg": lc.nn.SparseGlobalAvgPool,
        "sum": lc.nn.SparseGlobalSumPool,
    }
    assert torch.equal(made[mode]()(x), y)
    assert mode != "avg" or torch.equal(lc.nn.sparse_global_pool(x, "mean"), y)


def test_global_pooling_leaves_padding_out():
    cells = torch.tensor([[0, 1], [-1, 0], [0, 3]], dtype=torch.int32)
    coordinates = Coordinates(cells, (5,), 2, padded=True)
    features = torch.tensor([[1.0], [9.0], [3.0]], requires_grad=True)
    for mode, want, grads in (("max", 3.0, [0, 0, 1]), ("avg", 2.0, [0.5, 0, 0.5]),
                              ("sum", 4.0, [1, 0, 1])):  # fmt: skip
        y = lc.nn.sparse_global_pool(SparseTensor(features, coordinates), mode)
        assert y.tolist() == [[want], [0.0]]
        (grad,) = torch.autograd.grad(y.sum(), features)
        assert grad[:, 0].tolist() == grads


@pytest.mark.parametrize("rows", [2961, 70_000])
def test_a_gradient_in_16_bits_is_that_of_all_rows(rows):
    """Neither number of rows is one of float16: the gradient is rounded once, at its end."""
    cells = torch.stack((torch.zeros(rows), torch.arange(rows)), 1).int()
    features = torch.randn(rows, 1).half().requires_grad_()
    y = lc.nn.sparse_global_pool(SparseTensor(features, cells, (rows,), 1), "mean")
    (grad,) = torch.autograd.grad(y.sum(), features)
    assert torch.equal(grad, torch.full_like(grad, 1 / rows))


# -- laws -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "min"])
def test_gradients_and_gradients_of_gradients(mode):
    x = cloud((4, 5), C=2, N=1)
    map = strided_map(x.coordinates, 3, 2, 1, capacity=12)
    assert (map.index < 0).all(1).any()  # rows that read nothing
    features = x.features.requires_grad_()

    def run(f):
        return ops.sparse_pool(f, map.index, map.inverse.index, mode, 0, mode in ("max", "min"))[0]

    assert torch.autograd.gradcheck(run, features)
    assert torch.autograd.gradgradcheck(run, features)


@pytest.mark.parametrize("mode", ["sum", "avg", "max"])
def test_gradients_of_global_pooling(mode):
    x = cloud((4, 5), C=2)
    features = x.features.requires_grad_()

    def run(f):
        return lc.nn.sparse_global_pool(x.replace(f), mode)

    assert torch.autograd.gradcheck(run, features)
    assert torch.autograd.gradgradcheck(run, features)


def everything(x: SparseTensor, features: torch.Tensor, weight: torch.Tensor) -> list[torch.Tensor]:
    """Results at cells in lexicographic order, and gradients."""
    x = x.replace(features)
    pooled = [POOLS[mode](x, 3, 2, 1).features for mode in POOLS]
    pooled += [lc.nn.sparse_global_pool(x, mode) for mode in ("max", "avg", "sum")]
    pooled.append(lc.nn.sparse_depthwise(features, weight, strided_map(x.coordinates, 3, 2, 1)))
    loss = sum((y.double() * torch.arange(y.numel()).view(y.shape).cos()).sum() for y in pooled)
    return [*pooled, *torch.autograd.grad(loss, (features, weight))]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, DOUBLE])
def test_results_are_the_same_in_every_run(dtype):
    x = cloud((9, 9, 9), C=5)
    weight = torch.randn(5, 3, 3, 3, 1).to(dtype).requires_grad_()
    features = x.features.to(dtype).requires_grad_()
    for a, b in zip(everything(x, features, weight), everything(x, features, weight), strict=True):
        assert a.dtype == dtype
        assert torch.equal(a, b)


def test_the_order_of_rows_changes_nothing():
    x = cloud((6, 7, 5))
    order = torch.randperm(len(x))
    mixed = SparseTensor(x.features[order], x.coords[order], x.spatial_shape, 2)
    weight = torch.randn(3, 3, 3, 3, 1, dtype=DOUBLE, requires_grad=True)
    *here, grad, dw = everything(x, x.features.requires_grad_(), weight)
    *there, grad_of_mixed, dw_of_mixed = everything(mixed, mixed.features.requires_grad_(), weight)
    for a, b in zip([*here, grad[order], dw], [*there, grad_of_mixed, dw_of_mixed], strict=True):
        torch.testing.assert_close(a, b)


def test_halves_are_summed_in_fp32():
    """2048 and ones: in fp16, a one added to 2048 is lost."""
    cells = torch.arange(33, dtype=torch.int32)[:, None]
    cells = torch.cat([torch.zeros_like(cells), cells], 1)
    features = torch.ones(33, 1, dtype=torch.float16)
    features[0] = 2048
    x = SparseTensor(features, cells, (33,), 1)
    assert lc.nn.sparse_sum_pool(x, 33).features.item() == 2080
    assert lc.nn.sparse_global_pool(x, "sum").item() == 2080


def test_of_equal_cells_the_first_tap_has_the_gradient():
    cells = torch.tensor([[0, 1], [0, 0], [0, 2], [0, 3]], dtype=torch.int32)
    features = torch.tensor([[-torch.inf], [-torch.inf], [1.0], [torch.nan]], requires_grad=True)
    x = SparseTensor(features, cells, (4,), 1)
    y = lc.nn.sparse_max_pool(x, 2)
    torch.testing.assert_close(
        y.features, torch.tensor([[-torch.inf], [torch.nan]]), equal_nan=True
    )
    (grad,) = torch.autograd.grad(y.features, features, torch.ones(2, 1))
    assert grad[:, 0].tolist() == [0, 1, 0, 1]  # row 1 is the first tap of the first window


# -- what may be missing --------------------------------------------------------------------------


@pytest.mark.parametrize("mode", POOLS)
def test_nothing(mode):
    empty = SparseTensor(torch.zeros(0, 4, requires_grad=True), torch.zeros(0, 3).int(), (6, 6), 2)
    y = POOLS[mode](empty, 2)
    assert y.features.shape == (0, 4)
    assert lc.nn.sparse_unpool(y).features.shape == (0, 4)
    pooled = lc.nn.sparse_global_pool(empty, mode)
    assert torch.equal(pooled, torch.zeros(2, 4))
    loss = pooled.sum() + y.features.sum()
    assert torch.autograd.grad(loss, empty.features)[0].shape == (0, 4)
    weight = torch.zeros(4, 3, 3, 1, requires_grad=True)
    found = lc.nn.sparse_depthwise(empty.features, weight, submanifold_map(empty.coordinates, 3))
    assert torch.autograd.grad(found.sum(), weight)[0].eq(0).all()


@pytest.mark.parametrize("mode", POOLS)
def test_rows_that_read_nothing_are_zero(mode):
    """A map with a capacity has rows that are no cells."""
    cells = torch.tensor([[0, 0], [0, 3]], dtype=torch.int32)
    features = torch.tensor([[-1.0], [-2.0]], requires_grad=True)
    x = SparseTensor(features, cells, (4,), 1)
    map = strided_map(x.coordinates, 2, 2, capacity=4)
    y = POOLS[mode](x, kernel_map=map)
    assert y.features[:, 0].tolist() == [-1.0, -2.0, 0.0, 0.0]
    assert torch.autograd.grad(y.features.sum(), features)[0].tolist() == [[1.0], [1.0]]
    assert lc.nn.sparse_global_pool(y, mode)[0].item() == {"max": -1, "avg": -1.5, "sum": -3}[mode]


def test_what_is_refused():
    x = cloud((4, 4))
    other = cloud((4, 4), seed=1)
    map = submanifold_map(x.coordinates, 3)
    with pytest.raises(ArgumentError, match="`kernel_size`: expected an int >= 1, one per"):
        lc.nn.sparse_max_pool(x)
    for name, usual in (("kernel_size", None), ("stride", None), ("padding", 0), ("dilation", 1)):
        with pytest.raises(
            ArgumentError,
            match=f"`{name}`: expected {usual} beside `kernel_map`, which determines it",
        ):
            lc.nn.sparse_max_pool(x, **{name: 2}, kernel_map=map)
    with pytest.raises(
        ArgumentError, match="`kernel_map`: expected a map whose inputs are the cells"
    ):
        lc.nn.sparse_max_pool(other, kernel_map=map)
    with pytest.raises(
        ArgumentError, match="`kernel_map`: expected a map whose outputs are the cells"
    ):
        lc.nn.sparse_unpool(other, map)
    with pytest.raises(
        ArgumentError,
        match="`kernel_map`: expected the kernel map to invert, as no pooling made the cells",
    ):
        lc.nn.sparse_unpool(x)
    with pytest.raises(ArgumentTypeError, match="`x`: expected a SparseTensor, got Tensor"):
        lc.nn.sparse_avg_pool(x.features, 2)
    with pytest.raises(ArgumentTypeError, match=r"`x`: expected .* of float16, .* torch\.int64"):
        lc.nn.sparse_max_pool(x.replace(x.features.long()), 2)
    with pytest.raises(ArgumentError, match="`mode`: expected one of max, mean, sum, got 'min'"):
        lc.nn.sparse_global_pool(x, "min")
    for bad, message in (
        ([1, 1, 4], "column 2 in"),
        ([2, 0, 0], "column 0 in"),
        (None, "distinct cells"),
    ):
        cells = x.coords.clone()
        cells[1] = cells[0] if bad is None else torch.tensor(bad)
        with pytest.raises(ArgumentError, match=f"`coords`: expected .*{message}"):
            lc.nn.sparse_global_pool(SparseTensor(x.features, cells, (4, 4), 2), "max")
    with pytest.raises(
        ArgumentError, match="`x`: expected a SparseTensor of 3 spatial modes, got 2"
    ):
        lc.nn.SparseMaxPool3d(2)(x)
    weight = torch.zeros(3, 3, 3, 1)
    with pytest.raises(
        ArgumentError, match=r"`weight`: expected \(a multiple of 3, \*\(3, 3\), 1\)"
    ):
        lc.nn.sparse_depthwise(x.features, weight[:2], map)
    with pytest.raises(
        ArgumentError, match=r"`w`: expected torch\.float64 on cpu, as the features"
    ):
        lc.nn.sparse_depthwise(x.features, weight, map)
    with pytest.raises(ArgumentError, match=r"`features`: expected .* a row for each input"):
        lc.nn.sparse_depthwise(x.features[1:], weight, map)


# -- torch's machinery ----------------------------------------------------------------------------


def test_operators_are_what_torch_expects_of_operators():
    x = cloud((3, 4), C=2)
    map = strided_map(x.coordinates, 2, 2)
    inverse, pairs = map.inverse, map.pairs(2)
    features = x.features.requires_grad_()
    weight = torch.randn(4, 4, dtype=DOUBLE, requires_grad=True)
    grad = torch.randn(len(map.outputs), 4, dtype=DOUBLE, requires_grad=True)
    of = pairs.outputs, pairs.inputs, pairs.lengths
    check = torch.library.opcheck
    for mode in ("sum", "mean", "max"):
        arguments = features, map.index, inverse.index, mode, 0, mode == "max"
        check(torch.ops.layoutconv.sparse_pool.default, arguments)
        arguments = features, *x.coordinates.by_image, mode, mode == "max"
        check(torch.ops.layoutconv.sparse_global_pool.default, arguments)
    y, winners = ops.sparse_pool(features.detach(), map.index, None, "max", 0, True)
    check(
        torch.ops.layoutconv.sparse_pool_chosen.default,
        (y.requires_grad_(), winners, map.index, inverse.index),
    )
    check(
        torch.ops.layoutconv.sparse_depthwise.default,
        (features, weight, map.index, inverse.index, *of, 4),
    )
    check(
        torch.ops.layoutconv.sparse_depthwise_wgrad.default,
        (grad, features, map.index, inverse.index, *of, 4),
    )


def test_gradients_want_what_they_are_taken_through():
    x = cloud((4, 4))
    map = submanifold_map(x.coordinates, 3)
    features = x.features.requires_grad_()
    weight = torch.zeros(9, 3, dtype=DOUBLE, requires_grad=True)
    for name, y in (
        ("inverse", ops.sparse_pool(features, map.index, None, "sum")[0]),
        ("winners", ops.sparse_pool(features, map.index, map.inverse.index, "max")[0]),
        ("pairs", ops.sparse_depthwise(features.detach(), weight, ops.Ways(map.index), 3)),
    ):
        with pytest.raises(ArgumentError, match=f"`{name}`: expected"):
            y.sum().backward()


def test_compiled_functions():
    x = cloud((5, 6))
    map = strided_map(x.coordinates, 3, 2, 1)
    submanifold = submanifold_map(x.coordinates, 3)
    submanifold.pairs(CHUNK)
    assert map.inverse
    assert submanifold.inverse

    def run(features, weight):
        y = x.replace(lc.nn.sparse_depthwise(features, weight, submanifold))
        pooled = lc.nn.sparse_avg_pool(
            lc.nn.sparse_max_pool(y, kernel_map=submanifold), kernel_map=map
        )
        return lc.nn.sparse_global_pool(lc.nn.sparse_unpool(pooled), "max")

    features = x.features.requires_grad_()
    weight = torch.randn(3, 3, 3, 1, dtype=DOUBLE, requires_grad=True)
    compiled = torch.compile(run, fullgraph=True, backend="aot_eager")
    mine, want = compiled(features, weight), run(features, weight)
    torch.testing.assert_close(mine, want)
    for a, b in zip(
        *(torch.autograd.grad(y.sum(), (features, weight)) for y in (mine, want)), strict=True
    ):
        torch.testing.assert_close(a, b)


def test_autocast_lowers_filters_and_leaves_pooling():
    x = cloud((5, 6))
    x = x.replace(x.features.float())
    weight = torch.randn(3, 3, 3, 1, requires_grad=True)
    map = submanifold_map(x.coordinates, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert lc.nn.sparse_max_pool(x, 2).features.dtype == torch.float32
        y = lc.nn.sparse_depthwise(x.features, weight, map)
    assert y.dtype == torch.bfloat16
    want = lc.nn.sparse_depthwise(x.features.bfloat16(), weight.bfloat16(), map)
    assert torch.equal(y, want)
    assert torch.autograd.grad(y.float().sum(), weight)[0].dtype == torch.float32


def test_modules():
    x = cloud((5, 6))
    layer = lc.nn.SparseAvgPool2d((2, 3), 2, 1, 1, True)
    want = lc.nn.sparse_avg_pool(x, (2, 3), 2, 1, 1, True)
    for made in (layer, pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        assert torch.equal(made(x).features, want.features)
    text = "kernel_size=(2, 3), stride=2, padding=1, dilation=1, count_include_pad=True"
    assert repr(layer) == f"SparseAvgPool2d({text})"
    net = torch.nn.Sequential(
        lc.nn.SparseAvgPool2d(2), lc.nn.SparseUnpool(), lc.nn.SparseGlobalAvgPool()
    )
    assert net(x).shape == (2, 3)
    for kind, rank in product(("Max", "Avg", "Sum"), (1, 2, 3, 4)):
        layer = getattr(module, f"Sparse{kind}Pool{rank}d")(2)
        cells = cloud((3,) * rank, density=0.5)
        want = POOLS[kind.lower()](cells, 2)
        assert torch.equal(layer(cells).features, want.features)


def test_maps_of_ones_own():
    """Any index is a map: here each output reads all inputs of its parity."""
    cells = torch.tensor([[0, i] for i in range(6)], dtype=torch.int32)
    inputs, outputs = Coordinates(cells, (6,), 1), Coordinates(cells[:2], (6,), 1)
    index = torch.tensor([[0, 2, 4], [1, 3, 5]], dtype=torch.int32)
    map = KernelMap(inputs, outputs, (3,), index)
    x = SparseTensor(torch.arange(6.0)[:, None], inputs)
    assert lc.nn.sparse_max_pool(x, kernel_map=map).features[:, 0].tolist() == [4.0, 5.0]
    again = SparseTensor(x.features, cells, (6,), 1)  # other Coordinates of the same memory
    assert lc.nn.sparse_sum_pool(again, kernel_map=map).features[:, 0].tolist() == [6.0, 9.0]
