"""MinkowskiEngine's names, against its rules written as dictionaries of coordinates in float64."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.compat.MinkowskiEngine as ME  # noqa: N817
from layoutconv.compat.MinkowskiEngine.modules.resnet_block import BasicBlock, Bottleneck

Cell = tuple[int, ...]


def region(sizes, dilation, cross=False) -> list[Cell]:
    """MinkowskiEngine's taps, from its kernel_region.hpp: the first axis fastest."""
    rank = len(sizes)
    if cross:
        found = [(0,) * rank]
        for axis, size in enumerate(sizes):
            for step in range(size - 1):
                reach = size // 2
                offset = step + 1 if step < reach else step - 2 * reach
                found.append(tuple(offset * dilation[a] if a == axis else 0 for a in range(rank)))
        return found
    lows = [0 if size % 2 == 0 else -(size // 2) for size in sizes]
    axes = [range(low, low + size) for low, size in zip(lows, sizes, strict=True)]
    cells = itertools.product(*reversed(axes))  # the last of a product is fastest
    return [tuple(c * d for c, d in zip(reversed(cell), dilation, strict=True)) for cell in cells]


def cells_of(x) -> list[Cell]:
    return [tuple(cell) for cell in x.C.tolist()]


def summed(rows, outputs, taps, stride, kernel, transposed=False):
    """y[u] = sum of kernel[i] x[u + i * stride]; transposed, x[u] goes to u + i * stride."""
    found = []
    for cell in outputs:
        total = torch.zeros(kernel.shape[2], dtype=torch.float64)
        for number, tap in enumerate(taps):
            sign = -1 if transposed else 1
            steps = zip(cell[1:], tap, stride, strict=True)
            source = (cell[0], *(c + sign * t * s for c, t, s in steps))
            if source in rows:
                total = total + rows[source] @ kernel[number]
        found.append(total)
    return torch.stack(found)


def floored(cells, stride) -> set[Cell]:
    return {(c[0], *(x // s * s for x, s in zip(c[1:], stride, strict=True))) for c in cells}


def tensor(seed=0, rank=3, rows=40, channels=3, low=-5, high=5, step=1, **options):
    random = torch.Generator().manual_seed(seed)
    coords = torch.randint(low, high, (rows, rank + 1), generator=random)
    coords[:, 0] = coords[:, 0].abs() % 2
    coords[:, 1:] *= step
    coords = torch.unique(coords, dim=0)[
        torch.randperm(len(torch.unique(coords, dim=0)), generator=random)
    ]
    features = torch.randn(len(coords), channels, dtype=torch.float64, generator=random)
    return ME.SparseTensor(features, coords.int(), tensor_stride=step, **options)


def rows_of(x) -> dict[Cell, torch.Tensor]:
    return dict(zip(cells_of(x), x.F, strict=True))


@st.composite
def filters(draw):
    rank = draw(st.integers(1, 4))
    per_axis = st.lists(st.integers(1, 3), min_size=rank, max_size=rank)
    sizes = draw(per_axis)
    cross = draw(st.booleans())
    sizes = [size // 2 * 2 + 1 for size in sizes] if cross else sizes
    return rank, sizes, draw(per_axis), draw(per_axis), cross


@settings(max_examples=60, deadline=None)
@given(filters(), st.sampled_from([1, 2, 4]), st.integers(0, 9))
def test_convolutions_are_their_definition(drawn, step, seed):
    rank, sizes, stride, dilation, cross = drawn
    kind = ME.RegionType.HYPER_CROSS if cross else ME.RegionType.HYPER_CUBE
    make = ME.KernelGenerator(sizes, stride, dilation, region_type=kind, dimension=rank)
    taps = region(sizes, dilation, cross)
    x = tensor(seed, rank, step=step)
    steps = [step] * rank
    coarse = [s * step for s in stride]
    conv = ME.MinkowskiConvolution(3, 2, kernel_generator=make, dimension=rank).double()
    kernel = conv.kernel[None] if conv.kernel.dim() == 2 else conv.kernel
    assert kernel.shape == (len(taps), 3, 2)
    y = conv(x)
    assert y.tensor_stride == coarse
    outputs = cells_of(y)
    assert set(outputs) == floored(cells_of(x), coarse)
    torch.testing.assert_close(y.F, summed(rows_of(x), outputs, taps, steps, kernel))
    # The way back: to the coordinates that there were, and to all that are reached.
    back = ME.MinkowskiConvolutionTranspose(2, 3, kernel_generator=make, dimension=rank).double()
    kernel = back.kernel[None] if back.kernel.dim() == 2 else back.kernel
    z = back(y)
    assert z.coordinate_map_key == x.coordinate_map_key
    expected = summed(rows_of(y), cells_of(z), taps, steps, kernel, transposed=True)
    torch.testing.assert_close(z.F, expected)
    other = ME.KernelGenerator(sizes, stride, dilation, region_type=kind, dimension=rank)
    options: dict[str, Any] = {"kernel_generator": other, "dimension": rank}
    generative = ME.MinkowskiGenerativeConvolutionTranspose(2, 3, **options).double()
    kernel = generative.kernel[None] if generative.kernel.dim() == 2 else generative.kernel
    z = generative(y)
    reach = set()
    for cell, tap in itertools.product(outputs, taps):
        reach.add((cell[0], *(c + t * step for c, t in zip(cell[1:], tap, strict=True))))
    if not generative.use_mm:
        assert set(cells_of(z)) == reach
        assert z.tensor_stride == steps
        expected = summed(rows_of(y), cells_of(z), taps, steps, kernel, transposed=True)
        torch.testing.assert_close(z.F, expected)


@settings(max_examples=40, deadline=None)
@given(filters(), st.sampled_from([1, 2]), st.integers(0, 9))
def test_poolings_are_their_definition(drawn, step, seed):
    rank, sizes, stride, dilation, _ = drawn
    x = tensor(seed, rank, step=step)
    coarse = [s * step for s in stride]
    taps = region(sizes, dilation)
    if sizes == stride:  # a cell is in the window that it lies in, whatever the size
        taps = list(itertools.product(*map(range, sizes)))
    kinds = {
        ME.MinkowskiSumPooling: lambda f: f.sum(0),
        ME.MinkowskiAvgPooling: lambda f: f.mean(0),
        ME.MinkowskiMaxPooling: lambda f: f.amax(0),
    }
    rows = rows_of(x)
    for kind, reduce in kinds.items():
        y = kind(sizes, stride, dilation, dimension=rank)(x)
        assert y.tensor_stride == coarse
        assert set(cells_of(y)) == floored(rows, coarse)
        windows: dict[Cell, list[Cell]] = {}
        for cell, found in zip(cells_of(y), y.F, strict=True):
            reads = [
                (cell[0], *(c + t * step for c, t in zip(cell[1:], tap, strict=True)))
                for tap in taps
            ]
            windows[cell] = [source for source in reads if source in rows]
            if windows[cell]:
                expected = reduce(torch.stack([rows[source] for source in windows[cell]]))
                torch.testing.assert_close(found, expected)
        z = ME.MinkowskiPoolingTranspose(sizes, stride, dilation, dimension=rank)(y)
        assert z.coordinate_map_key == x.coordinate_map_key
        totals = {cell: torch.zeros(3, dtype=torch.float64) for cell in rows}
        for cell, features in zip(cells_of(y), y.F, strict=True):
            for source in windows[cell]:
                totals[source] = totals[source] + features
        torch.testing.assert_close(z.F, torch.stack([totals[cell] for cell in cells_of(z)]))


@pytest.mark.parametrize(("size", "stride"), [(3, 1), (2, 1), (3, 2)])
def test_expanded_coordinates(size, stride):
    x = tensor(rank=2, rows=12)
    options = {"expand_coordinates": True, "dimension": 2}
    net = ME.MinkowskiConvolution(3, 2, size, stride, **options).double()
    y = net(x)
    taps = region([size] * 2, (1, 1))
    reach = {
        (c[0], *(a + b for a, b in zip(c[1:], tap, strict=True)))
        for c in cells_of(x)
        for tap in taps
    }
    assert set(cells_of(y)) == {c for c in reach if all(a % stride == 0 for a in c[1:])}
    expected = summed(rows_of(x), cells_of(y), taps, (1, 1), net.kernel)
    torch.testing.assert_close(y.F, expected)


def test_gradients_are_those_of_the_definition():
    x = tensor(rank=2, rows=15, requires_grad=True)
    net = ME.MinkowskiConvolution(3, 2, 3, stride=2, bias=True, dimension=2).double()
    y = net(x)
    by_hand = summed(rows_of(x), cells_of(y), region([3, 3], (1, 1)), (1, 1), net.kernel)
    up = torch.randn_like(y.F)
    inputs = x.F, net.kernel, net.bias
    found = torch.autograd.grad(y.F, inputs, up)
    expected = torch.autograd.grad(by_hand + net.bias, inputs, up)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
    depthwise = ME.MinkowskiChannelwiseConvolution(3, 3, dimension=2, bias=True).double()
    y = depthwise(x)
    diagonal = torch.diag_embed(depthwise.kernel)
    expected = summed(rows_of(x), cells_of(y), region([3, 3], (1, 1)), (1, 1), diagonal)
    torch.testing.assert_close(y.F, expected + depthwise.bias)
    assert [tuple(p.shape) for p in depthwise.parameters()] == [(9, 3), (1, 3)]


class UNet(ME.MinkowskiNetwork):
    """A network in MinkowskiEngine's names, of our own."""

    def __init__(self):
        super().__init__(3)
        self.conv0 = ME.MinkowskiConvolution(3, 8, kernel_size=5, dimension=3)
        self.bn0 = ME.MinkowskiBatchNorm(8)
        self.down = ME.MinkowskiConvolution(8, 8, kernel_size=2, stride=2, dimension=3)
        self.block = torch.nn.Sequential(
            BasicBlock(8, 8, dimension=3),
            Bottleneck(
                8, 4, dimension=3,
                downsample=torch.nn.Sequential(
                    ME.MinkowskiConvolution(8, 16, kernel_size=1, dimension=3),
                    ME.MinkowskiInstanceNorm(16),
                ),
            ),
        )  # fmt: skip
        self.up = ME.MinkowskiConvolutionTranspose(16, 8, kernel_size=2, stride=2, dimension=3)
        self.final = ME.MinkowskiConvolution(16, 4, kernel_size=1, bias=True, dimension=3)
        self.relu = ME.MinkowskiReLU(inplace=True)
        self.squeeze = torch.nn.Sequential(ME.MinkowskiLinear(16, 16), ME.MinkowskiSigmoid())

    def forward(self, x):
        fine = self.relu(self.bn0(self.conv0(x)))
        coarse = self.block(self.down(fine))
        scale = self.squeeze(ME.MinkowskiGlobalAvgPooling()(coarse))
        coarse = ME.MinkowskiBroadcastMultiplication()(coarse, scale)
        return self.final(ME.cat(fine, self.up(coarse)))


def test_a_network_trains_and_its_state_has_the_names():
    torch.manual_seed(0)
    net = UNet()
    state = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    for name, shape in {
        "conv0.kernel": (125, 3, 8), "bn0.bn.weight": (8,), "bn0.bn.running_mean": (8,),
        "down.kernel": (8, 8, 8), "block.0.conv1.kernel": (27, 8, 8),
        "block.0.norm2.bn.bias": (8,), "block.1.conv1.kernel": (8, 4),
        "block.1.conv3.kernel": (4, 16), "block.1.downsample.0.kernel": (8, 16),
        "block.1.downsample.1.weight": (1, 16), "up.kernel": (8, 16, 8),
        "final.kernel": (16, 4), "final.bias": (1, 4), "squeeze.0.linear.weight": (16, 16),
    }.items():  # fmt: skip
        assert state.pop(name) == shape
    assert not any("inst_norm" in name for name in state)
    points = torch.randn(300, 3) * 6
    coords, features = ME.utils.sparse_collate(
        [points[:200], points[200:]], [points[:200], points[200:]]
    )
    target = (points[:, 2] > 0).long()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(4):
        field = ME.TensorField(features, coords.float())
        x = field.sparse()
        y = net(x)
        assert y.coordinate_map_key == x.coordinate_map_key
        assert y.F.shape == (len(x), 4)
        loss = torch.nn.functional.cross_entropy(y.slice(field).F, target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    again = UNet()
    again.load_state_dict(net.state_dict())
    x = ME.TensorField(features, coords.float()).sparse()
    assert torch.equal(again.eval()(x).F, net.eval()(x).F)


def test_arithmetic_is_over_the_union():
    a, b = tensor(0, 2, 20), None
    other = tensor(1, 2, 20)
    b = ME.SparseTensor(other.F, other.C, coordinate_manager=a.coordinate_manager)
    assert b.coordinate_map_key != a.coordinate_map_key
    mine, theirs = rows_of(a), rows_of(b)
    zero = torch.zeros(3, dtype=torch.float64)
    for total, function in (
        (a + b, lambda x, y: x + y), (a - b, lambda x, y: x - y), (a * b, lambda x, y: x * y),
    ):  # fmt: skip
        assert set(cells_of(total)) == mine.keys() | theirs.keys()
        for cell, row in rows_of(total).items():
            # As MinkowskiEngine: rows that the first alone has stay as they are.
            own = mine.get(cell, zero)
            expected = function(own, theirs[cell]) if cell in theirs else own
            assert torch.equal(row, expected)
    assert torch.equal(ME.MinkowskiUnion()(a, b).F, (a + b).F)
    assert torch.equal((a + 1).F, a.F + 1)
    assert torch.equal((a * a.F).F, a.F * a.F)
    assert torch.equal((a**2).F, a.F**2)
    torch.testing.assert_close(ME.mean(a, a + 2).F, a.F + 1)
    assert torch.equal(ME.sum([a, a]).F, 2 * a.F)
    before = a.F
    c = a
    c += a.on(a.F)
    assert c is a
    assert torch.equal(a.F, 2 * before)
    with pytest.raises(ValueError, match="`other`: expected a tensor with the same coordinate_man"):
        a + other
    with pytest.raises(ValueError, match="`other`: expected a tensor at the same coordinates"):
        ME.cat(a, b)


def test_points_between_voxels():
    x = tensor(rank=3, rows=60, low=-2, high=3, step=2)
    points = torch.rand(50, 4, dtype=torch.float64) * 10 - 5
    points[:, 0] = torch.arange(50) % 2
    points[:10] = x.C[:10].double()
    rows, expected = rows_of(x), []
    for image, *place in points.tolist():
        total = torch.zeros(3, dtype=torch.float64)
        for corner in itertools.product((0, 1), repeat=3):
            cell = tuple(int((p // 2 + c) * 2) for p, c in zip(place, corner, strict=True))
            weight = 1.0
            for p, c in zip(place, cell, strict=True):
                weight *= 1 - abs(p - c) / 2
            total = total + weight * rows.get((int(image), *cell), torch.zeros(3).double())
        expected.append(total)
    found = x.features_at_coordinates(points)
    torch.testing.assert_close(found, torch.stack(expected))
    torch.testing.assert_close(found[:10], x.F[:10])
    got, (of_x, of_points), weights = ME.MinkowskiInterpolation(True, True)(x, points)
    assert torch.equal(got, found)
    again = torch.zeros_like(found).index_add(
        0, of_points.long(), weights[:, None] * x.F[of_x.long()]
    )
    torch.testing.assert_close(again, found)


def test_fields_and_repeated_rows():
    points = torch.rand(80, 4, dtype=torch.float64) * 6 - 3
    points[:, 0] = torch.arange(80) % 2
    features = torch.randn(80, 2, dtype=torch.float64)
    cells = [tuple(c) for c in points.floor().int().tolist()]
    groups: dict[Cell, list[int]] = {}
    for row, cell in enumerate(cells):
        groups.setdefault(cell, []).append(row)
    Mode = ME.SparseTensorQuantizationMode
    for mode, reduce in {
        Mode.UNWEIGHTED_AVERAGE: lambda f: f.mean(0), Mode.UNWEIGHTED_SUM: lambda f: f.sum(0),
        Mode.MAX_POOL: lambda f: f.amax(0), Mode.RANDOM_SUBSAMPLE: lambda f: f[0],
    }.items():  # fmt: skip
        field = ME.TensorField(features, points, quantization_mode=mode)
        x = field.sparse()
        assert cells_of(x) == list(groups)  # in the order of their first points
        expected = torch.stack([reduce(features[rows]) for rows in groups.values()])
        torch.testing.assert_close(x.F, expected)
        again = ME.SparseTensor(features, points, quantization_mode=mode)
        torch.testing.assert_close(again.F, expected)
        assert torch.equal(again.F[again.inverse_mapping], x.slice(field).F)
        assert torch.equal(again.slice(again).F, x.slice(field).F)
    assert torch.equal(x.slice(field).F, x.F[[list(groups).index(cell) for cell in cells]])
    assert x.cat_slice(field).F.shape == (80, 4)
    coarse = ME.MinkowskiAvgPooling(2, 2, dimension=3)(x)
    of_cell = {cell: row for row, cell in enumerate(cells_of(coarse))}
    lies_in = [(c[0], *(v // 2 * 2 for v in c[1:])) for c in cells]
    assert torch.equal(coarse.slice(field).F, coarse.F[[of_cell[cell] for cell in lies_in]])
    splat = field.splat()
    torch.testing.assert_close(splat.F.sum(0), features.sum(0))  # weights of a point sum to one
    torch.testing.assert_close(splat.interpolate(field).F, splat.features_at_coordinates(points))


def test_images_and_dense_grids():
    x = tensor(rank=2, rows=30, low=0, high=6)
    parts = x.decomposed_coordinates, x.decomposed_features
    for image, (coords, features) in enumerate(zip(*parts, strict=True)):
        there = x.C[:, 0] == image
        assert torch.equal(coords, x.C[there, 1:])
        assert torch.equal(features, x.F[there])
        assert torch.equal(x.features_at(image), features)
    grid, low, step = x.dense()
    assert grid.shape[:2] == (2, 3)
    for cell, row in rows_of(x).items():
        assert torch.equal(grid[cell[0], :, cell[1], cell[2]], row)
    assert torch.count_nonzero(grid) == x.F.numel()
    back = ME.to_sparse(grid)
    assert rows_of(back).keys() == rows_of(x).keys()
    sparse, low, step = x.sparse(min_coords=torch.tensor([0, 0]).int())
    assert torch.equal(sparse.to_dense()[x.C[0, 0], x.C[0, 1], x.C[0, 2]], x.F[0])
    moved = tensor(rank=2, rows=30, low=-6, high=6, step=2)
    with pytest.raises(ValueError, match=r"`min_coordinate`: .* some are negative"):
        moved.dense()
    grid, low, step = moved.dense(min_coordinate=torch.tensor([-12, -12]).int())
    assert low.tolist() == [[-12, -12]]
    assert step.tolist() == [2, 2]
    cell = moved.C[0].tolist()
    assert torch.equal(grid[cell[0], :, (cell[1] + 12) // 2, (cell[2] + 12) // 2], moved.F[0])
    mask = moved.F[:, 0] > 0
    kept = ME.MinkowskiPruning()(moved, mask)
    assert torch.equal(kept.C, moved.C[mask])
    assert torch.equal(kept.F, moved.F[mask])
    pooled = ME.MinkowskiGlobalMaxPooling()(moved)
    assert pooled.tensor_stride == [0, 0]
    assert torch.equal(pooled.F, torch.stack([f.amax(0) for f in moved.decomposed_features]))
    whole = ME.MinkowskiBroadcastConcatenation()(moved, pooled)
    assert torch.equal(whole.F[:, 3:], pooled.F[moved.C[:, 0].long()])
    normed = ME.MinkowskiInstanceNorm(3).double()(moved)
    for features in normed.decomposed_features:
        torch.testing.assert_close(features.mean(0), torch.zeros(3).double())
        torch.testing.assert_close(features.var(0, unbiased=False), torch.ones(3).double())


def test_quantization_of_points():
    points = torch.rand(60, 3).numpy() * 4 - 2
    labels = torch.arange(60).numpy() % 3
    cells, features, found, rows, inverse = ME.utils.sparse_quantize(
        points, points, labels, quantization_size=0.9, return_index=True, return_inverse=True
    )
    grid = torch.as_tensor(points / 0.9).floor().int()
    assert (cells[inverse] == grid.numpy()).all()  # arrays, as there, since there are labels
    assert (cells == grid.numpy()[rows]).all()
    assert (features == points[rows]).all()
    for number in range(len(cells)):
        own = set(labels[inverse == number].tolist())
        assert found[number] == (own.pop() if len(own) == 1 else -100)
    only = ME.utils.sparse_quantize(points, quantization_size=0.9, return_maps_only=True)
    assert torch.equal(only, torch.from_numpy(rows))
    batch = ME.utils.batched_coordinates([points, points - 10])
    assert batch[60:, 0].tolist() == [1] * 60
    assert batch.dtype == torch.int32


def test_kernel_maps_say_the_pairs():
    x = tensor(rank=2, rows=20)
    conv = ME.MinkowskiConvolution(3, 2, 3, stride=2, dimension=2).double()
    y = conv(x)
    pairs = x.coordinate_manager.kernel_map(1, 2, stride=2, kernel_size=3)
    total = torch.zeros_like(y.F)
    for tap, (inputs, outputs) in pairs.items():
        total = total.index_add(0, outputs.long(), x.F[inputs.long()] @ conv.kernel[tap])
    torch.testing.assert_close(total, y.F)
    fine, coarse = x.coordinate_manager.stride_map(x.coordinate_map_key, y.coordinate_map_key)
    assert torch.equal(x.C[fine.long(), 1:] // 2 * 2, y.C[coarse.long(), 1:])


def test_what_is_refused():
    x = tensor()
    with pytest.raises(ValueError, match="`dimension`: expected 1 to 4"):
        ME.MinkowskiConvolution(3, 2, 3)
    with pytest.raises(ValueError, match="`region_type`: expected HYPER_CUBE or HYPER_CROSS"):
        ME.KernelGenerator(3, region_type=ME.RegionType.CUSTOM, dimension=3)
    with pytest.raises(ValueError, match="`input`: expected a tensor of 2 spatial modes"):
        ME.MinkowskiConvolution(3, 2, 3, dimension=2)(x)
    with pytest.raises(ValueError, match="`input`: expected 4 channels, got 3"):
        ME.MinkowskiConvolution(4, 2, 3, dimension=3).double()(x)
    with pytest.raises(ValueError, match="`coordinates`: expected multiples of tensor_stride"):
        ME.SparseTensor(torch.ones(1, 1), torch.tensor([[0, 1]]), tensor_stride=2)
    with pytest.raises(
        ValueError, match="`coordinates`: expected coordinates, or a coordinate_map"
    ):
        ME.SparseTensor(torch.ones(1, 1))
    with pytest.raises(ValueError, match="`stride`: expected divisors of the tensor stride"):
        ME.MinkowskiConvolutionTranspose(3, 2, 2, 2, dimension=3).double()(x)
    layers: list[Any] = [ME.MinkowskiReLU(), ME.MinkowskiBatchNorm(3), ME.MinkowskiLinear(3, 2)]
    layers += [ME.MinkowskiSinusoidal(3, 2), ME.MinkowskiFunctional.relu]
    for layer, nothing in itertools.product(layers, (None, torch.ones(2, 3))):
        with pytest.raises(TypeError, match="`input`: expected a SparseTensor or a TensorField"):
            layer(nothing)
    with pytest.raises(TypeError, match="torch's relu takes tensors, not a SparseTensor"):
        torch.relu(x)


def test_a_transposed_layer_whose_stride_does_not_divide_the_tensors():
    """Cells 3 apart have none between that lie 1.5 apart."""
    x = ME.MinkowskiConvolution(3, 2, 3, 3, dimension=3).double()(tensor())
    given = tensor().coordinate_map_key
    for layer in (
        ME.MinkowskiConvolutionTranspose(2, 3, 3, 2, dimension=3).double(),
        ME.MinkowskiPoolingTranspose(2, 2, dimension=3),
    ):
        for more in ((), (given,), (tensor().C,)):
            with pytest.raises(ValueError, match=r"`stride`: expected divisors of .* \[3, 3, 3\]"):
                layer(x, *more)


@pytest.mark.parametrize("far", [2**32 + 5, -(2**31) - 1, 5e9, float("nan"), float("inf")])
def test_coordinates_that_32_bits_do_not_hold(far):
    cells = torch.tensor([[0, far], [0, 5]])
    refused = pytest.raises(
        ValueError, match=r"`coordinates`: expected whole numbers .* fit in 32 bits"
    )
    with refused:
        ME.SparseTensor(torch.ones(2, 1), cells)
    with refused:
        ME.utils.sparse_quantize(cells[:, 1:])
    with refused:
        ME.utils.unique_coordinate_map(cells)


def test_a_manager_that_is_shared():
    mode = ME.SparseTensorOperationMode
    ME.set_sparse_tensor_operation_mode(mode.SHARE_COORDINATE_MANAGER)
    try:
        a, b = tensor(0), tensor(1)
        assert a.coordinate_manager is b.coordinate_manager
        assert len(a + b) >= max(len(a), len(b))
    finally:
        ME.clear_global_coordinate_manager()
        ME.set_sparse_tensor_operation_mode(mode.SEPARATE_COORDINATE_MANAGER)
    assert tensor(0).coordinate_manager is not tensor(0).coordinate_manager
