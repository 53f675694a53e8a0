"""TorchSparse's backbones and bird's-eye views, against dense torch and dictionaries in float64."""

from __future__ import annotations

import importlib
from collections import defaultdict

import pytest
import torch
from torch.nn import functional

import layoutconv.compat.torchsparse as torchsparse
import layoutconv.compat.torchsparse.nn as spnn
from layoutconv.compat.torchsparse import SparseTensor
from layoutconv.compat.torchsparse.backbones import SparseResNet21D, SparseResUNet42
from layoutconv.compat.torchsparse.backbones.modules import SparseResBlock
from layoutconv.errors import ArgumentError, ArgumentTypeError

EXTENT, GRID = 15, 16  # cells there are, in a grid of so many along each axis


def cloud(seed=0, rows=400, channels=4, stride=1, high=EXTENT):
    """A tensor of some interface, and its coordinates (batch, x, y, z) in units of the stride."""
    random = torch.Generator().manual_seed(seed)
    coords = torch.randint(0, high, (rows, 4), generator=random)
    coords[:, 0] %= 2
    coords = torch.unique(coords, dim=0).int()
    coords = coords[torch.randperm(len(coords), generator=random)]
    features = torch.randn(len(coords), channels, dtype=torch.float64, generator=random)
    given = coords
    if torchsparse.version.batch_last():
        given = torch.cat([coords[:, 1:] * stride, coords[:, :1]], 1)
    return SparseTensor(features.requires_grad_(), given, stride), coords


# -- backbones, masked dense convolutions ------------------------------------------------------


class Dense:
    """A grid (N, C, X, Y, Z), which cells there are, and the last of them along each axis."""

    def __init__(self, grid, there):
        self.grid, self.there = grid * there, there

    def conv(self, layer, onto=None):
        sizes, steps = layer.kernel_size, layer.stride
        kernel = layer.kernel.reshape(-1, layer.in_channels, layer.out_channels)
        if len(kernel) % 2:
            weight = kernel.reshape(*sizes[::-1], *kernel.shape[1:]).permute(4, 3, 2, 1, 0)
        else:
            weight = kernel.reshape(*sizes, *kernel.shape[1:]).permute(4, 3, 0, 1, 2)
        if layer.transposed:
            y = functional.conv_transpose3d(self.grid, weight.transpose(0, 1), stride=steps)
            return Dense(y[(..., *map(slice, onto.there.shape[2:]))], onto.there)
        near = tuple((size - 1) // 2 for size in sizes)
        y = functional.conv3d(self.grid, weight, stride=steps, padding=near)
        if steps == (1, 1, 1):
            return Dense(y, self.there)
        # A cell y is there if a filter from y * stride on meets some cell: it is no centred one. If
        # filter and stride differ, it has to end within the cells, without padding.
        far = [side for size in sizes[::-1] for side in (0, size - 1)]
        there = functional.max_pool3d(functional.pad(self.there, far), sizes, steps)
        there = there[(..., *map(slice, y.shape[2:]))]
        cells = self.there[:, 0].nonzero()[:, 1:]
        for axis in range(3) if sizes != steps else ():
            last = (int(cells[:, axis].max()) - sizes[axis] + 1) // steps[axis]
            place = torch.arange(there.shape[2 + axis])
            there = there * (place <= last).view([-1 if a == axis else 1 for a in range(3)])
        return Dense(y, there)

    def run(self, layer, onto=None):
        if isinstance(layer, spnn.Conv3d):
            return self.conv(layer, onto)
        if isinstance(layer, spnn.BatchNorm):
            return Dense(torch.nn.BatchNorm1d.forward(layer, self.grid.flatten(2)).view_as(
                self.grid), self.there)  # fmt: skip
        if isinstance(layer, spnn.ReLU):
            return Dense(self.grid.relu(), self.there)
        if isinstance(layer, SparseResBlock):
            main = self.run(layer.main)
            return Dense((main.grid + self.run(layer.shortcut).grid).relu(), main.there)
        x = self
        for inner in layer.children():
            x = x.run(inner, onto)
        return x

    def rows(self, x):
        """The features at a tensor's coordinates, which are all cells that there are."""
        assert len(x.C) == int(self.there.sum())
        n, a, b, c = (x._caches.levels[x.s][1].coords.long().T if x.s in x._caches.levels
                      else x.cells.coords.long().T)  # fmt: skip
        assert bool(self.there[n, 0, a, b, c].all())
        return self.grid[n, :, a, b, c]


def prepared(net):
    """A network in float64 with norms that do something, in inference."""
    torch.manual_seed(1)
    for module in net.modules():
        if isinstance(module, spnn.BatchNorm):
            torch.nn.init.uniform_(module.running_mean, -0.2, 0.2)
            torch.nn.init.uniform_(module.running_var, 0.5, 2)
            torch.nn.init.uniform_(module.bias, -0.2, 0.2)
    return net.double().eval()


def dense_of(x, coords):
    grid = x.F.new_zeros(2, GRID, GRID, GRID, x.F.shape[1])
    places = tuple(coords.long().T)
    there = grid[..., :1].index_put(places, x.F.new_ones(len(coords), 1))
    return Dense(grid.index_put(places, x.F).movedim(-1, 1), there.movedim(-1, 1))


def agrees(net, x, found, expected):
    parameters = [p for p in net.parameters() if p.requires_grad]
    torch.manual_seed(2)
    weights = [torch.randn_like(y.F) for y in found]
    rows = [dense.rows(y) for y, dense in zip(found, expected, strict=True)]
    for y, row in zip(found, rows, strict=True):
        torch.testing.assert_close(y.F, row)
    total = sum((y.F * w).sum() for y, w in zip(found, weights, strict=True))
    other = sum((row * w).sum() for row, w in zip(rows, weights, strict=True))
    asked = [x.F, *parameters]
    ours = torch.autograd.grad(total, asked, retain_graph=True)
    theirs = torch.autograd.grad(other, asked)
    for one, two in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-8, atol=1e-8)


def test_the_unet_is_one_of_masked_dense_convolutions():
    x, coords = cloud()
    net = prepared(SparseResUNet42(in_channels=4, width_multiplier=0.0625))
    levels = [dense_of(x, coords).run(net.stem)]
    for encoder in net.encoders:
        levels.append(levels[-1].run(encoder))
    expected = list(levels)
    for decoder, beside in zip(net.decoders, levels[-2::-1], strict=True):
        up = expected[-1].run(decoder["upsample"], beside)
        joined = Dense(torch.cat([up.grid, beside.grid], 1), beside.there)
        expected.append(joined.run(decoder["fuse"]))
    agrees(net, x, net(x), expected)


def test_the_encoder_is_one_of_masked_dense_convolutions():
    x, coords = cloud(rows=2000)
    net = prepared(SparseResNet21D(in_channels=4, width_multiplier=0.25))
    expected = [dense_of(x, coords)]
    for stage in net:
        expected.append(expected[-1].run(stage))
    found = net(x)
    assert [y.s for y in found] == [(1,) * 3, (2,) * 3, (4,) * 3, (8,) * 3, (8, 16, 8)]
    full = [y for y in found if len(y)]
    assert len(full) >= 3
    agrees(torch.nn.ModuleList(list(net)[: len(full)]), x, full, expected[1 : 1 + len(full)])


def test_names_of_parameters_and_modules():
    net = SparseResUNet42()
    names = set(net.state_dict())
    assert {
        "stem.3.kernel",
        "encoders.0.0.0.kernel",
        "encoders.3.2.main.4.running_var",
        "encoders.1.1.shortcut.0.kernel",
        "decoders.0.upsample.1.weight",
        "decoders.3.fuse.0.shortcut.1.bias",
    } <= names
    assert net.decoders[3]["fuse"][0].main[0].kernel.shape == (27, 96 + 32, 96)
    assert "4.0.0.kernel" in SparseResNet21D().state_dict()
    with torchsparse.install():
        there = importlib.import_module("torchsparse.backbones.modules")
        assert there.SparseResBlock is SparseResBlock


# -- bird's-eye views ----------------------------------------------------------------------------


def cells_of(x):
    """Coordinates (batch, x, y, z) in units of the stride."""
    if not torchsparse.version.batch_last():
        return [tuple(cell) for cell in x.C.tolist()]
    return [(b, *(c // s for c, s in zip(cell, x.s, strict=True))) for *cell, b in x.C.tolist()]


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_a_reduction_is_the_mean_over_an_axis(version, dim):
    x, coords = cloud(rows=300, high=6, stride=2)
    y = spnn.ToBEVReduction(dim)(x)
    groups = defaultdict(list)
    for row, cell in enumerate(coords.tolist()):
        groups[tuple(0 if axis == 1 + dim else c for axis, c in enumerate(cell))].append(row)
    assert cells_of(y) == sorted(groups)
    assert y.s == (2, 2, 2)
    expected = torch.stack([x.F[groups[cell]].mean(0) for cell in cells_of(y)])
    torch.testing.assert_close(y.F, expected)


@pytest.mark.parametrize(("dim", "bias", "stride"), [(1, False, 1), (2, True, 2), (0, True, 3)])
def test_a_convolution_sums_over_an_axis(version, dim, bias, stride):
    x, coords = cloud(rows=300, high=7, stride=2)
    layer = spnn.ToBEVConvolution(4, 5, 7, stride, dim, bias).double()
    if bias:
        torch.nn.init.uniform_(layer.bias)
    y = layer(x)
    sums = defaultdict(lambda: torch.zeros(5, dtype=torch.float64))
    for row, cell in enumerate(coords.tolist()):
        place = [c // stride for c in cell[1:]]
        place[dim] = 0
        own = x.F[row] @ layer.kernel[cell[1 + dim]] + (layer.bias[0] if bias else 0)
        key = (cell[0], *place)
        sums[key] = sums[key] + own
    assert cells_of(y) == sorted(sums)
    assert y.s == (2 * stride,) * 3
    torch.testing.assert_close(y.F, torch.stack([sums[cell] for cell in cells_of(y)]))
    asked = [x.F, *layer.parameters()]
    for one, two in zip(
        torch.autograd.grad(y.F.square().sum(), asked),
        torch.autograd.grad(sum(v.square().sum() for v in sums.values()), asked),
        strict=True,
    ):
        torch.testing.assert_close(one, two)


@pytest.mark.parametrize("dim", [0, 1, 2])
def test_dense_views_from_an_offset(version, dim):
    x, coords = cloud(rows=200, high=5, stride=2)
    shape, offset = [7, 8, 9], [-4, -2, -3]  # in cells of the input; of stride 1
    shape[dim] = 5
    axes = [axis for axis in range(3) if axis != dim]
    layer = spnn.ToDenseBEVConvolution(4, 3, tuple(shape), tuple(offset), dim, True).double()
    torch.nn.init.uniform_(layer.bias)
    flat = spnn.ToBEVHeightCompression(4, torch.tensor(shape), tuple(offset), dim)
    first, second = (shape[axis] for axis in axes)
    sums = torch.zeros(2, 3, first, second, dtype=torch.float64)
    columns = torch.zeros(2, shape[dim], 4, first, second, dtype=torch.float64)
    for row, (batch, *cell) in enumerate(coords.tolist()):
        place = [(2 * c - o) // 2 for c, o in zip(cell, offset, strict=True)]
        u, v = (place[axis] for axis in axes)
        with torch.no_grad():
            sums[batch, :, u, v] += x.F[row] @ layer.kernel[cell[dim]] + layer.bias[0]
            columns[batch, min(place[dim], shape[dim] - 1), :, u, v] += x.F[row]
    torch.testing.assert_close(layer(x), sums)
    torch.testing.assert_close(flat(x), columns.flatten(1, 2))
    assert set(layer.state_dict()) == {"kernel", "bias", "offset", "shape"}
    assert layer.offset.shape == (1, 4)
    layer(x).square().sum().backward()
    assert x.F.grad is not None
    assert layer.kernel.grad is not None


def test_a_crop_keeps_rows_within_bounds(version):
    x, _ = cloud(rows=200, high=6, stride=2)
    low, high = (2, 0, 3), (5, 9, 6)
    y = spnn.SparseCrop(low, high)(x)
    own = x.C[:, :3] if version == "1.4" else x.C[:, 1:]
    rows = [
        row
        for row, cell in enumerate(own.tolist())
        if all(a <= c < b for a, c, b in zip(low, cell, high, strict=True))
    ]
    assert 0 < len(rows) < len(x)
    assert torch.equal(y.C, x.C[rows])
    assert torch.equal(y.F, x.F[rows])
    assert y.s == (2, 2, 2)
    assert torch.equal(spnn.functional.spcrop(x).C, x.C)


def test_what_views_refuse():
    x, _ = cloud(high=6)
    with pytest.raises(ArgumentError, match=r"`input`: expected coordinates in \[0, 3\) along"):
        spnn.ToBEVConvolution(4, 5, 3).double()(x)
    with pytest.raises(ArgumentError, match="`shape`: expected extents that have every cell"):
        spnn.ToBEVHeightCompression(4, (3, 3, 3))(x)
    with pytest.raises(ArgumentError, match="`input`: expected 3 channels, as the kernel has"):
        spnn.ToBEVConvolution(3, 5, 6).double()(x)
    with pytest.raises(ArgumentError, match="`dim`: expected 0, 1 or 2"):
        spnn.ToBEVReduction(3)
    with pytest.raises(ArgumentError, match="`coords_max`: expected a number, or 3 of them"):
        spnn.SparseCrop(None, (1, 2))(x)


def test_a_cloud_without_rows_and_what_is_no_tensor():
    nothing = SparseTensor(torch.zeros(0, 4), torch.zeros(0, 4).int())
    assert len(spnn.ToBEVReduction()(nothing)) == 0
    assert len(spnn.ToBEVConvolution(4, 5, 3, bias=True)(nothing)) == 0
    assert spnn.ToDenseBEVConvolution(4, 5, (2, 3, 4))(nothing).shape == (0, 5, 2, 4)
    assert spnn.ToBEVHeightCompression(4, (2, 3, 4))(nothing).shape == (0, 12, 2, 4)
    for layer in (spnn.GlobalAvgPool(), spnn.GlobalMaxPool()):
        with pytest.raises(ArgumentTypeError, match="`inputs`: expected a SparseTensor, got Tens"):
            layer(nothing.F)
    with torch.device("meta"):
        layer = spnn.ToDenseBEVConvolution(4, 5, (2, 3, 4))
    assert layer.kernel.shape == (3, 4, 5)
    meta = SparseTensor(nothing.F.to("meta"), nothing.C.to("meta"))
    with pytest.raises(ArgumentError, match="`coords`: expected cells on a CPU or a GPU, got meta"):
        spnn.Conv3d(4, 4, 3)(meta)


def test_views_have_second_derivatives():
    x, _ = cloud(rows=12, high=3)
    for layer in (spnn.ToBEVReduction(), spnn.ToBEVConvolution(4, 2, 3, bias=True).double()):
        assert torch.autograd.gradgradcheck(lambda f, layer=layer: layer(x.on(f)).F, (x.F,))
