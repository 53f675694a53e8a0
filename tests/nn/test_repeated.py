"""Layers over cells that are there more than once, by the rule of ``Coordinates.repeats``."""

from __future__ import annotations

import copy
import gc
import pickle
import weakref
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.sparse import (
    Coordinates,
    KernelMap,
    SparseTensor,
    collate,
    dense_index,
    prune,
    strided_map,
    submanifold_map,
    transposed_map,
)
from layoutconv.sparse.maps.taps import Taps

from ..sparse.clouds import clouds, offset_sets

some = settings(max_examples=40, deadline=None)
Pairs = list[tuple[int, int, int]]  # a row of the outputs, a tap, a row of the inputs


@st.composite
def repeated(draw: Any, rank: int = 2, padded: bool | None = None) -> Coordinates:
    """Cells some of which are there up to four times, rows in any order."""
    once = draw(clouds(rank, padded=padded, least=1))
    rows = once.cells.tolist()
    for _ in range(draw(st.integers(0, 9))):
        rows.insert(draw(st.integers(0, len(rows))), rows[draw(st.integers(0, len(rows) - 1))])
    cells = torch.tensor(rows, dtype=torch.int32)
    grid = once.spatial_shape, once.batch_size
    return Coordinates(cells, *grid, padded=once.padded, repeated=True)


def rows_of(coordinates: Coordinates) -> dict[tuple[int, ...], list[int]]:
    """All rows of each cell, in order."""
    found: dict[tuple[int, ...], list[int]] = {}
    for row, cell in enumerate(coordinates.cells.tolist()):
        if cell[0] >= 0:
            found.setdefault(tuple(cell), []).append(row)
    return found


def moved(cell: tuple[int, ...], stride: tuple[int, ...], offset: tuple[int, ...]) -> Any:
    return (cell[0], *(c * s + o for c, s, o in zip(cell[1:], stride, offset, strict=True)))


def around(coordinates: Coordinates, taps: Taps) -> Pairs:
    """The pairs of a submanifold convolution, by the rule."""
    rows, pairs = rows_of(coordinates), []
    for cell, own in rows.items():
        for tap, offset in enumerate(taps.offsets):
            there = rows.get(moved(cell, taps.stride, offset), [])
            if offset == (0,) * len(offset):
                pairs += [(row, tap, row) for row in own]
            elif offset < (0,) * len(offset):
                pairs += [(own[0], tap, row) for row in there]
            else:
                pairs += [(row, tap, there[0]) for row in own if there]
    return pairs


def between(inputs: Coordinates, outputs: Coordinates, taps: Taps, transposed: bool) -> Pairs:
    """Every row of an output's cell reads all rows of the cells that its taps point to."""
    read, made, pairs = rows_of(inputs), rows_of(outputs), []
    fine, coarse = (made, read) if transposed else (read, made)
    for cell, rows in coarse.items():
        for tap, offset in enumerate(taps.offsets):
            for other in fine.get(moved(cell, taps.stride, offset), []):
                pairs += [(other, tap, row) if transposed else (row, tap, other) for row in rows]
    return pairs


def computed(pairs: Pairs, x: Tensor, weight: Tensor, rows: int) -> Tensor:
    """The sums of a convolution over pairs."""
    if not pairs:
        return x.new_zeros(rows, weight.shape[0])
    out, tap, read = (torch.tensor(column) for column in zip(*pairs, strict=True))
    products = torch.einsum("pc,pkc->pk", x[read], weight.flatten(1, -2)[:, tap].movedim(1, 0))
    return x.new_zeros(rows, weight.shape[0]).index_add(0, out, products)


def draw_like(*shapes: tuple[int, ...], seed: int = 0) -> list[Tensor]:
    random = torch.Generator().manual_seed(seed)
    return [torch.randn(s, generator=random, dtype=torch.float64).requires_grad_() for s in shapes]


def assert_same(ours: Tensor, wanted: Tensor, *inputs: Tensor) -> None:
    """Values and gradients."""
    torch.testing.assert_close(ours, wanted)
    grad = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(7)).double()
    of = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    if wanted.requires_grad:
        found = torch.autograd.grad(ours, inputs, grad, **of)  # type: ignore[arg-type]
        for a, b in zip(found, torch.autograd.grad(wanted, inputs, grad, **of), strict=True):  # type: ignore[arg-type]
            torch.testing.assert_close(a, b)


@some
@given(st.data(), st.integers(1, 3), st.booleans())
def test_submanifold(data: Any, rank: int, sized: bool) -> None:
    coordinates = data.draw(repeated(rank))
    if sized:
        size = data.draw(st.lists(st.integers(1, 3), min_size=rank, max_size=rank))
        taps, how = Taps.centred(rank, size), {}
    else:
        offsets = data.draw(offset_sets(rank))
        taps, how = Taps.centred(rank, offsets=offsets), {"offsets": offsets}
    x, weight = draw_like((len(coordinates), 2), (3, *taps.extents, 2))
    y = lc.subm_conv(SparseTensor(x, coordinates), weight, **how)
    assert y.coordinates is coordinates
    assert_same(y.features, computed(around(coordinates, taps), x, weight, len(x)), x, weight)


@some
@given(repeated(2), st.integers(1, 3), st.integers(1, 2), st.integers(0, 1))
def test_layers_that_make_cells(coordinates: Coordinates, size: int, stride: int, pad: int) -> None:
    """Forward, transposed and back again; every row takes part, and cells are made once."""
    shape = [max(e, size) for e in coordinates.spatial_shape]
    coordinates = Coordinates(coordinates.cells, shape, coordinates.batch_size,
                              padded=coordinates.padded, repeated=True)  # fmt: skip
    pad = min(pad, size - 1)
    taps = Taps.strided(2, size, stride, pad)
    x, weight = draw_like((len(coordinates), 2), (3, size, size, 2))
    tensor = SparseTensor(x, coordinates)
    for transposed in (False, True):
        function = lc.sparse_conv_transpose if transposed else lc.sparse_conv
        y = function(tensor, weight, stride=stride, padding=pad)
        assert y.coordinates.valid
        pairs = between(coordinates, y.coordinates, taps, transposed)
        assert_same(y.features, computed(pairs, x, weight, len(y)), x, weight)
        (back,) = draw_like((2, size, size, 3))
        z = lc.sparse_inverse_conv(y, back)
        assert z.coordinates is coordinates
        pairs = [(read, tap, row) for row, tap, read in pairs]
        assert_same(z.features, computed(pairs, y.features, back, len(x)), x, weight, back)


@some
@given(repeated(2), repeated(2, padded=False))
def test_outputs_that_are_repeated(coordinates: Coordinates, outputs: Coordinates) -> None:
    """Every row of an output's cell is computed."""
    grid = [max(e) for e in zip(coordinates.spatial_shape, outputs.spatial_shape, strict=True)]
    images = max(coordinates.batch_size, outputs.batch_size)
    coordinates = Coordinates(coordinates.cells, grid, images, padded=True, repeated=True)
    outputs = Coordinates(outputs.cells, grid, images, repeated=True)
    taps = Taps.strided(2, 3, 1, 1)
    x, weight = draw_like((len(coordinates), 2), (3, 3, 3, 2))
    y = lc.sparse_conv(SparseTensor(x, coordinates), weight, padding=1, outputs=outputs)
    pairs = between(coordinates, outputs, taps, False)
    assert_same(y.features, computed(pairs, x, weight, len(outputs)), x, weight)
    once = prune(SparseTensor(x, coordinates), torch.zeros(len(x), dtype=torch.bool))
    assert not lc.sparse_conv(once, weight, padding=1, outputs=outputs).features.any()


@some
@given(repeated(2), st.sampled_from(["max", "sum", "mean", "include"]), st.booleans())
def test_pooling(coordinates: Coordinates, mode: str, submanifold: bool) -> None:
    """Every row counts, of whatever cell; around cells, too."""
    (x,) = draw_like((len(coordinates), 3))
    tensor = SparseTensor(x, coordinates)
    if submanifold:
        kernel_map = submanifold_map(coordinates, 3)
        taps = Taps.centred(2, 3)
    else:
        kernel_map = strided_map(coordinates, 2, 2, 1)
        taps = Taps.strided(2, 2, 2, 1)
    functions: dict[str, Any] = {
        "max": lc.nn.sparse_max_pool,
        "sum": lc.nn.sparse_sum_pool,
        "mean": lc.nn.sparse_avg_pool,
        "include": lambda t, **how: lc.nn.sparse_avg_pool(t, count_include_pad=True, **how),
    }
    y = functions[mode](tensor, kernel_map=kernel_map)
    window: dict[int, list[int]] = {}
    for row, _, read in between(coordinates, y.coordinates, taps, False):
        window.setdefault(row, []).append(read)
    reduce: dict[str, Any] = {
        "max": lambda v: v.amax(0),
        "sum": lambda v: v.sum(0),
        "mean": lambda v: v.mean(0),
        "include": lambda v: v.sum(0) / len(taps.offsets),
    }
    nothing = x.new_zeros(3)
    rows = [reduce[mode](x[window[r]]) if r in window else nothing for r in range(len(y))]
    wanted = torch.stack(rows) if rows else x.new_zeros(0, 3)
    assert_same(y.features, wanted, x)
    if not submanifold and mode == "sum":
        back = lc.nn.sparse_unpool(y)
        sums = x.new_zeros(len(x), 3)
        for row, _, read in between(coordinates, y.coordinates, taps, False):
            sums[read] += wanted[row].detach()
        torch.testing.assert_close(back.features.detach(), sums)


def test_a_maximum_that_rows_share() -> None:
    """The first of them has the gradient; NaN is the maximum of whatever it is in."""
    cells = torch.tensor([[0, 1], [0, 0], [0, 1], [0, 1]], dtype=torch.int32)
    coordinates = Coordinates(cells, (4,), 1, repeated=True)
    x = torch.tensor([[2.0], [1.0], [5.0], [5.0]], requires_grad=True)
    y = lc.nn.sparse_max_pool(SparseTensor(x, coordinates), 2)
    (grad,) = torch.autograd.grad(y.features.sum(), x)
    assert y.features.tolist() == [[5.0]]
    assert grad.T.tolist() == [[0.0, 0.0, 1.0, 0.0]]
    x.data[3] = torch.nan
    assert lc.nn.sparse_max_pool(SparseTensor(x, coordinates), 2).features.isnan().all()


def cloud(rows: int = 40, C: int = 4, dtype: Any = torch.float64, **flags: Any) -> SparseTensor:
    """Rows of which about half share a cell with another."""
    random = torch.Generator().manual_seed(rows)
    cells = torch.randint(0, 5, (rows, 3), generator=random, dtype=torch.int32)
    cells[:, 0] %= 2
    coordinates = Coordinates(cells, (5, 5), 2, **{"repeated": True, **flags})
    features = torch.randn(rows, C, generator=random, dtype=torch.float64).to(dtype)
    return SparseTensor(features, coordinates)


@pytest.mark.parametrize("kind", ["subm", "strided", "inverse"])
@pytest.mark.parametrize("groups", [1, 2, 4])
def test_what_follows_the_sums(kind: str, groups: int) -> None:
    x = cloud()
    weight, bias = draw_like((8, 3, 3, 4 // groups), (8,))
    scale = torch.rand(8, dtype=torch.float64)
    if kind == "strided":
        function: Any = lc.sparse_conv
        over: Any = strided_map(x.coordinates, 3, 2, 1)
    elif kind == "subm":
        function, over = lc.subm_conv, submanifold_map(x.coordinates, 3)
    else:
        over = strided_map(x.coordinates, 3, 2, 1)
        x = SparseTensor(torch.randn(len(over.outputs), 4).double(), over.outputs)
        function = lc.sparse_inverse_conv
    sums = function(x, weight, groups=groups, kernel_map=over).features
    (residual,) = draw_like(tuple(sums.shape), seed=3)
    of = {"scale": scale, "residual": residual, "activation": "leaky_relu", "slope": 0.2}
    y = function(x, weight, bias, groups=groups, kernel_map=over, **of).features
    wanted = torch.nn.functional.leaky_relu(sums * scale + bias + residual, 0.2)
    assert_same(y, wanted, weight, bias, residual)
    with pytest.raises(ArgumentError, match=r"`residual`: expected shape \(\d+, 8\)"):
        function(x, weight, groups=groups, kernel_map=over, residual=residual[1:])
    with pytest.raises(ArgumentError, match="activation"):
        function(x, weight, groups=groups, kernel_map=over, activation="tan")
    half = function(x, weight, groups=groups, kernel_map=over, out_dtype=torch.float32)
    assert half.features.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_other_types(dtype: torch.dtype) -> None:
    x, exact = cloud(dtype=dtype), cloud()
    weight = torch.randn(8, 3, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype)
    wanted = lc.subm_conv(exact.replace(x.features.double()), weight.double()).features
    tolerance = 4 * torch.finfo(dtype).eps
    y = lc.subm_conv(x, weight).features
    assert y.dtype == dtype
    torch.testing.assert_close(y.double(), wanted, rtol=tolerance, atol=4 * tolerance)
    with torch.autocast("cpu", torch.bfloat16):
        low = lc.subm_conv(x.float(), weight.float()).features
    assert low.dtype == torch.bfloat16
    torch.testing.assert_close(low.double(), wanted, rtol=0.02, atol=0.1)


def test_gradients_of_gradients() -> None:
    x = cloud(12, C=2)
    features, weight = x.features.requires_grad_(), draw_like((2, 3, 3, 2))[0]
    down = strided_map(x.coordinates, 2, 2)

    def net(features: Tensor, weight: Tensor) -> Tensor:
        y = lc.subm_conv(x.replace(features), weight)
        y = y.replace(y.features.tanh())
        y = lc.sparse_conv(y, weight[:, :2, :2], kernel_map=down)
        return lc.sparse_inverse_conv(y, weight[:, 1:, 1:]).features

    torch.autograd.gradcheck(net, (features, weight))
    torch.autograd.gradgradcheck(net, (features, weight))


def test_the_same_bits_every_time() -> None:
    x = cloud(400, dtype=torch.float32)
    weight = torch.randn(8, 3, 3, 4, requires_grad=True)
    runs = []
    for _ in range(3):
        y = SparseTensor(x.features.requires_grad_(), cloud(400).coordinates)
        y = lc.sparse_conv(lc.subm_conv(y, weight), weight.repeat(1, 1, 1, 2), stride=2)
        y = lc.sparse_inverse_conv(y, weight.repeat(1, 1, 1, 2)).features
        runs.append([y, *torch.autograd.grad(y.square().sum(), [x.features, weight])])
    for other in runs[1:]:
        assert all(map(torch.equal, runs[0], other))


def test_a_warm_call_of_others_is_not_taken_for_one() -> None:
    """A call over extended rows uses nothing known of calls over maps of as many rows."""
    weight = torch.randn(8, 3, 3, 4)
    x = cloud(dtype=torch.float32)
    once = x.coordinates.check().repeats.distinct
    for _ in range(3):
        lc.subm_conv(SparseTensor(torch.randn(len(once), 4), once), weight)
        outputs = Coordinates(x.coords, (5, 5), 2, repeated=True)
        y = lc.sparse_conv(SparseTensor(torch.randn(len(once), 4), once), weight, outputs=outputs)
        z = lc.subm_conv(x, weight)
    wanted = computed(around(x.coordinates, Taps.centred(2, 3)), x.features, weight, len(x))
    torch.testing.assert_close(z.features, wanted)
    assert len(y) == len(x)


def test_cells_that_could_be_repeated_and_are_not() -> None:
    """Nothing is different: the same map, and the same bits."""
    x = cloud()
    once = x.coordinates.check().repeats.distinct
    could = Coordinates(once.cells, (5, 5), 2, repeated=True)
    assert could.check().repeats is None
    assert could.valid
    found = submanifold_map(could, 3)
    assert found.extended is None
    assert torch.equal(found.index, submanifold_map(once, 3).index)


def test_who_has_not_asked_is_told() -> None:
    x = cloud(repeated=False)
    with pytest.raises(ArgumentError, match=r"distinct cells.*rows \d+ and \d+.*repeated=True"):
        submanifold_map(x.coordinates, 3)


def test_what_wants_a_cell_once() -> None:
    x = cloud()
    at_zero = Coordinates(torch.zeros(40, 4).int(), (5, 5, 5), 1, repeated=True)
    grid = {"voxel_size": 1.0, "origin": (0, 0, 0)}
    points = torch.rand(3, 3)
    for refused in (
        lambda: dense_index(x.coordinates),
        lambda: x + cloud(41, C=4),
        lambda: lc.sparse.devoxelize(SparseTensor(x.features, at_zero), points, **grid),
    ):
        with pytest.raises(ArgumentError, match="distinct cells"):
            refused()
    assert torch.equal((x + x).features, 2 * x.features)


def test_a_grid_has_the_last_row() -> None:
    x = cloud()
    x = x.replace(x.features.requires_grad_())
    grid = x.dense()
    last = {tuple(cell): row for row, cell in enumerate(x.coords.tolist())}
    for cell, row in last.items():
        assert torch.equal(grid[cell], x.features[row])
    (grad,) = torch.autograd.grad(grid.sum(), x.features)
    assert sorted(grad[:, 0].nonzero()[:, 0].tolist()) == sorted(last.values())


def test_rows_of_repeated_cells_are_kept() -> None:
    """Slices, batches, pruning, padding, devices, pickles; and global pooling counts them all."""
    x = cloud()
    x.check()
    weight = torch.randn(3, 3, 3, 4).double()
    wanted = lc.subm_conv(x, weight).features
    for other in (
        pickle.loads(pickle.dumps(x)), copy.deepcopy(x), collate([x[0], x[1]]), x.padded(50),
        x.padded(50).unpadded(), prune(x, torch.ones(40, dtype=torch.bool)),
    ):  # fmt: skip
        assert other.coordinates.repeated
        y = lc.subm_conv(other, weight)
        order = torch.cat([(x.coords[:, 0] == image).nonzero()[:, 0] for image in (0, 1)])
        found, own = y.features[:40], wanted
        if len(other) == 40 and not torch.equal(other.coords, x.coords):
            own = wanted[order]
        torch.testing.assert_close(found, own)
        assert not y.features[40:].any()
    assert x.coordinates.to("meta").repeated
    kernel_map = submanifold_map(x.coordinates, 3)
    again = pickle.loads(pickle.dumps(kernel_map))
    assert isinstance(again, KernelMap)
    other = SparseTensor(x.features, again.inputs)
    torch.testing.assert_close(lc.subm_conv(other, weight, kernel_map=again).features, wanted)
    mean = torch.stack([x.features[x.coords[:, 0] == image].mean(0) for image in (0, 1)])
    torch.testing.assert_close(lc.nn.sparse_global_pool(x, "mean"), mean)
    assert "repeated" in repr(x.coordinates)


def test_depthwise_by_itself() -> None:
    x = cloud()
    (weight,) = draw_like((8, 3, 3, 1))
    kernel_map = submanifold_map(x.coordinates, 3)
    full = torch.zeros(8, 3, 3, 4).double()
    for k in range(8):
        full[k, ..., k // 2] = weight[k, ..., 0].detach()
    wanted = computed(around(x.coordinates, Taps.centred(2, 3)), x.features, full, 40)
    torch.testing.assert_close(lc.nn.sparse_depthwise(x.features, weight, kernel_map), wanted)
    with pytest.raises(ArgumentError, match="features"):
        lc.nn.sparse_depthwise(x.features[1:], weight, kernel_map)


def test_a_capacity() -> None:
    x = cloud()
    y = lc.sparse_conv(x, torch.ones(1, 2, 2, 4).double(), stride=2, capacity=30)
    wanted = lc.sparse_conv(x, torch.ones(1, 2, 2, 4).double(), stride=2)
    assert len(y) == 30
    torch.testing.assert_close(y.unpadded().features, wanted.features)


def test_maps_are_kept_and_let_go() -> None:
    """One map for the same question, freed with its cells though nobody collects garbage."""
    x = cloud()
    first = submanifold_map(x.coordinates, 3)
    assert submanifold_map(x.coordinates, 3) is first
    assert first.inverse.inverse is first
    down = strided_map(x.coordinates, 2, 2)
    assert down.outputs.origin is down
    assert transposed_map(x.coordinates, 2, 2) is not down
    assert first.extended.inverse.index.shape == first.index.shape
    assert first.repeats[0] is first.repeats[1] is x.coordinates.repeats
    assert down.inverse.repeats == (None, x.coordinates.repeats)


def test_they_are_let_go() -> None:
    """With the last tensor at their cells, though nobody collects garbage."""

    def made() -> list[weakref.ref[Any]]:
        x, weight = cloud(), torch.randn(4, 2, 2, 4, requires_grad=True).double()
        around, down = submanifold_map(x.coordinates, 2), strided_map(x.coordinates, 2, 2)
        y = lc.sparse_conv(lc.subm_conv(x, weight), weight, stride=2)
        lc.sparse_inverse_conv(y, weight).features.sum().backward()
        repeats = x.coordinates.repeats
        maps = around, around.extended, down, down.extended, down.inverse
        return [weakref.ref(it) for it in (x.coordinates, y.coordinates, repeats, *maps)]

    gc.collect()
    gc.disable()
    try:
        assert [ref() for ref in made()] == [None] * 8
    finally:
        gc.enable()
