"""TorchSparse's names, against its rules written as dictionaries of coordinates in float64."""

from __future__ import annotations

import importlib
import itertools

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv.compat.torchsparse as torchsparse
import layoutconv.compat.torchsparse.nn as spnn
from layoutconv.compat.torchsparse import PointTensor, SparseTensor, backend
from layoutconv.compat.torchsparse.nn import functional as spf
from layoutconv.compat.torchsparse.nn.utils import get_kernel_offsets
from layoutconv.compat.torchsparse.utils.collate import sparse_collate_fn
from layoutconv.compat.torchsparse.utils.quantize import sparse_quantize
from layoutconv.errors import ArgumentError

from .. import precision

Cell = tuple[int, ...]


@pytest.fixture
def old():
    torchsparse.set_interface("1.4")
    yield
    torchsparse.set_interface("2.1")


def taps_of(sizes) -> list[Cell]:
    """The order of hashmap_cuda.cuh: of an odd volume the first axis is fastest, else the last."""
    found = []
    odd = sizes[0] * sizes[1] * sizes[2] % 2
    for number in range(sizes[0] * sizes[1] * sizes[2]):
        cell = [0, 0, 0]
        for axis in (0, 1, 2) if odd else (2, 1, 0):
            cell[axis] = number % sizes[axis] - (sizes[axis] - 1) // 2
            number //= sizes[axis]
        found.append(tuple(cell))
    return found


def tensor(seed=0, rows=50, low=0, high=7, last=False) -> SparseTensor:
    random = torch.Generator().manual_seed(seed)
    coords = torch.randint(low, high, (rows, 4), generator=random)
    coords[:, 0] = coords[:, 0].abs() % 2
    coords = torch.unique(coords, dim=0).int()
    features = torch.randn(len(coords), 3, dtype=torch.float64, generator=random)
    return SparseTensor(features, coords.roll(-1, 1) if last else coords)


def rows_of(x, last=False, stride=(1, 1, 1)) -> dict[Cell, torch.Tensor]:
    """Features by (batch, x, y, z) in units of the stride."""
    coords = x.C.roll(1, 1) if last else x.C
    if last:
        assert not (coords[:, 1:] % torch.tensor(stride)).any()
        coords = torch.cat([coords[:, :1], coords[:, 1:] // torch.tensor(stride)], 1)
    return dict(zip(map(tuple, coords.tolist()), x.F, strict=True))


def summed(rows, outputs, sizes, steps, kernel, transposed=False):
    kernel = kernel[None] if kernel.dim() == 2 else kernel
    found = {}
    for cell in outputs:
        total = torch.zeros(kernel.shape[2], dtype=torch.float64)
        for tap, offset in enumerate(taps_of(sizes)):
            if transposed:
                parts = zip(cell[1:], offset, steps, strict=True)
                parts = [divmod(c - o, s) for c, o, s in parts]
                source = (cell[0], *(q for q, _ in parts))
                if any(rest for _, rest in parts):
                    continue
            else:
                parts = zip(cell[1:], offset, steps, strict=True)
                source = (cell[0], *(c * s + o for c, o, s in parts))
            if source in rows:
                total = total + rows[source] @ kernel[tap]
        found[cell] = total
    return found


def check(x, expected, last=False):
    found = rows_of(x, last, x.s)
    assert found.keys() == expected.keys()
    for cell, row in expected.items():
        torch.testing.assert_close(found[cell], row)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.integers(1, 4), min_size=3, max_size=3),
    st.lists(st.integers(1, 3), min_size=3, max_size=3),
    st.integers(0, 2), st.booleans(), st.integers(0, 9),
)  # fmt: skip
def test_convolutions_are_their_definition(sizes, steps, padding, last, seed):
    torchsparse.set_interface("1.4" if last else "2.1")
    try:
        x = tensor(seed, last=last)
        if sizes == [1, 1, 1] and steps != [1, 1, 1] and last:
            return  # which 1.4 has no weight for
        net = spnn.Conv3d(3, 2, sizes, steps, padding=padding, bias=True).double()
        y = net(x)
        rows = rows_of(x, last)
        if all(step in (1, size) for size, step in zip(sizes, steps, strict=True)):
            cells = {(c[0], *(v // s for v, s in zip(c[1:], steps, strict=True))) for c in rows}
        else:
            lows = [min(c[a] for c in rows) for a in (1, 2, 3)]
            highs = [max(c[a] for c in rows) for a in (1, 2, 3)]
            cells = set()
            for cell, tap in itertools.product(rows, itertools.product(*map(range, sizes))):
                axes, place = zip(cell[1:], tap, sizes, steps, lows, highs, strict=True), []
                for v, t, k, s, low, high in axes:
                    pad = (k - 1) // 2 if last else net.padding[len(place)]
                    at, rest = divmod(v + pad - t, s)
                    top = (high + 2 * pad - (k - 1)) // s
                    inside = at * s >= low if last else 0 <= at <= top
                    if rest or not inside:
                        break
                    place.append(at)
                else:
                    cells.add((cell[0], *place))
        expected = summed(rows, cells, sizes, steps, net.kernel)
        check(y, {cell: row + net.bias for cell, row in expected.items()}, last)
        assert y.s == tuple(steps)
        again = net(x)
        assert again.C is y.C
        back = spnn.Conv3d(2, 3, sizes, steps, transposed=True).double()
        if sizes != [1, 1, 1] or steps == [1, 1, 1]:
            z = back(y)
            assert torch.equal(z.C, x.C)
            down = rows_of(y, last, y.s)
            check(z, summed(down, rows, sizes, steps, back.kernel, transposed=True), last)
    finally:
        torchsparse.set_interface("2.1")


@pytest.mark.parametrize("extents", [(2, 9, 8, 7), (1, 9, 8, 7), (2, 6, 5, 9)])
def test_extents_bound_the_cells_of_every_level(extents):
    """A level's ``spatial_range`` bounds what the next stride leaves, and layers bring it back."""
    x = tensor()
    x.spatial_range = extents
    sizes, steps = (3, 3, 3), (2, 2, 2)
    levels, cells = [x], set(rows_of(x))
    for layer in range(3):
        net = spnn.Conv3d(3, 3, 3, stride=2, padding=1).double()
        y = net(levels[-1])
        extents = extents[0], *((extent + 2 - 3) // 2 + 1 for extent in extents[1:])
        reached = set()
        for cell, tap in itertools.product(cells, itertools.product(range(3), repeat=3)):
            places = [divmod(c + 1 - t, 2) for c, t in zip(cell[1:], tap, strict=True)]
            at = cell[0], *(place for place, _ in places)
            if not any(rest for _, rest in places) and all(
                0 <= c < extent for c, extent in zip(at, extents, strict=True)
            ):
                reached.add(at)
        check(y, summed(rows_of(levels[-1]), reached, sizes, steps, net.kernel))
        assert y.spatial_range == extents, layer
        assert y.dense().shape == (*extents, 3)
        levels, cells = [*levels, y], reached
    same = spnn.ReLU()(spnn.Conv3d(3, 3, 3).double()(y))
    assert same.spatial_range == extents
    for finer in reversed(levels[:-1]):
        y = spnn.Conv3d(3, 3, 3, stride=2, transposed=True).double()(y)
        assert (y.C is finer.C, y.spatial_range) == (True, finer.spatial_range)


def test_other_extents_of_the_same_coordinates():
    x = tensor()
    net = spnn.Conv3d(3, 2, 3, stride=2, padding=1).double()
    x.spatial_range = (2, 7, 7, 7)
    many = len(net(x))
    x.spatial_range = (2, 3, 3, 3)
    few = net(x)
    assert len(few) < many
    assert int(few.C[:, 1:].max()) == 1


def minkowski():
    return spf.conv_config.ConvConfig(downsample_mode="minkowski")


@pytest.mark.parametrize("how", ["of the layer", "of all", "of the call", "changed"])
def test_a_layer_leaves_the_cells_that_its_settings_say(how):
    """Settings choose kernels, but one: which cells a stride leaves."""
    x, config = tensor(), spf.conv_config
    sizes, steps = (3, 3, 3), (2, 2, 2)
    options = {"config": minkowski()} if how == "of the layer" else {}
    net = spnn.Conv3d(3, 2, 3, 2, padding=1, **options).double()
    usual = spnn.Conv3d(3, 2, 3, 2, padding=1).double()
    before = {tuple(cell) for cell in usual(x).C.tolist()}
    floored = {(b, *(c // 2 for c in cell)) for b, *cell in x.C.tolist()}
    assert before != floored
    try:
        if how == "of all":
            config.set_global_conv_config(minkowski())
        elif how == "changed":
            config.get_default_conv_config().downsample_mode = "minkowski"
        if how == "of the call":
            y = spf.conv3d(x, net.kernel, 3, None, 2, 1, config=minkowski())
        else:
            y = net(x)
    finally:
        config.clear_global_conv_config()
        config.get_default_conv_config().downsample_mode = "spconv"
    check(y, summed(rows_of(x), floored, sizes, steps, net.kernel))
    assert {tuple(cell) for cell in usual(x).C.tolist()} == before
    with pytest.raises(ArgumentError, match="downsample_mode"):
        spf.conv3d(x, net.kernel, 3, None, 2, 1, config={"downsample_mode": "other"})


def test_settings_that_choose_kernels_are_accepted():
    config = spf.conv_config.get_default_conv_config(spf.ConvMode.mode1, training=True)
    assert config.dataflow is spf.Dataflow.ImplicitGEMM
    spf.set_kmap_mode("hashmap")
    spf.set_conv_mode(2)
    spf.set_downsample_mode("minkowski")
    assert (spf.get_kmap_mode(), spf.get_downsample_mode()) == ("hashmap", "minkowski")
    assert spf.get_conv_mode() is spf.ConvMode.mode2
    spf.set_kmap_mode("hashmap_on_the_fly")
    spf.set_conv_mode(0)
    spf.set_downsample_mode("spconv")
    torchsparse.tune(model=None, data_loader=None)
    with pytest.raises(ArgumentError, match="downsample_mode"):
        spf.set_downsample_mode("other")


def test_taps_are_in_the_order_of_kernels():
    for sizes in ((2, 2, 2), (3, 3, 3), (3, 2, 1), (4, 3, 2), (1, 3, 5)):
        assert list(map(tuple, get_kernel_offsets(sizes).tolist())) == taps_of(sizes)


class Block(torch.nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.net = torch.nn.Sequential(
            spnn.Conv3d(channels, channels, 3), spnn.BatchNorm(channels), spnn.ReLU(True),
            spnn.Conv3d(channels, channels, 3), spnn.BatchNorm(channels),
        )  # fmt: skip

    def forward(self, x):
        return self.net(x) + x


class UNet(torch.nn.Module):
    """A network in TorchSparse's names, of our own."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Sequential(spnn.Conv3d(4, 8, 3), spnn.GroupNorm(2, 8), spnn.SiLU())
        self.down = torch.nn.Sequential(spnn.Conv3d(8, 16, 2, stride=2), Block(16))
        self.deep = spnn.Conv3d(16, 16, 3, stride=2, padding=1)
        self.up = spnn.Conv3d(16, 16, 3, stride=2, transposed=True)
        self.top = spnn.Conv3d(16, 8, 2, stride=2, transposed=True)
        self.head = spnn.Conv3d(16, 2, 1, bias=True)

    def forward(self, x):
        fine = self.stem(x)
        coarse = self.down(fine)
        coarse = coarse + self.up(self.deep(coarse))
        return self.head(torchsparse.cat([fine, self.top(coarse)]))


def test_a_network_trains_and_its_state_has_the_names(version):
    torch.manual_seed(0)
    net = UNet()
    state = {name: tuple(value.shape) for name, value in net.state_dict().items()}
    for name, shape in {
        "stem.0.kernel": (27, 4, 8), "stem.1.weight": (8,), "down.0.kernel": (8, 8, 16),
        "down.1.net.1.running_var": (16,), "top.kernel": (8, 16, 8), "head.kernel": (16, 2),
        "head.bias": (2,),
    }.items():  # fmt: skip
        assert state.pop(name) == shape
    clouds = [torch.rand(150, 4, generator=torch.Generator().manual_seed(k)) for k in (0, 1)]
    batch = []
    for cloud in clouds:
        cells, first = sparse_quantize(cloud[:, :3].numpy() * 9, 1.0, return_index=True)
        batch.append({"x": SparseTensor(cloud[first], cells), "n": len(cells), "a": numpy.ones(2)})
    inputs = sparse_collate_fn(batch)
    assert inputs["n"] == [one["n"] for one in batch]
    x = inputs["x"]
    labels = (x.F[:, 2] > 0.5).long()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
    losses = []
    for _ in range(4):
        y = net(SparseTensor(x.F, x.C))
        assert torch.equal(y.C, x.C)
        loss = torch.nn.functional.cross_entropy(y.F, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    pooled = spnn.GlobalMaxPool()(y)
    assert torch.equal(pooled, torch.stack([r.amax(0) for r in y.F.split([o["n"] for o in batch])]))
    assert spnn.GlobalAvgPool()(y).shape == (2, 2)


def test_points_between_voxels():
    x = tensor(3, rows=80)
    points = torch.rand(40, 4, dtype=torch.float64) * 7
    points[:, 0] = torch.arange(40) % 2
    table = backend.GPUHashTable(torch.zeros(1), torch.zeros(1))
    table.insert_coords(x.C[:, [1, 2, 3, 0]])
    cells = points.floor().int()
    found = table.lookup_coords(cells[:, [1, 2, 3, 0]], (2, 2, 2), (1, 1, 1), 8) - 1
    rows = {cell: row for row, cell in enumerate(map(tuple, x.C.tolist()))}
    for cell, eight in zip(cells.tolist(), found.tolist(), strict=True):
        around = itertools.product((0, 1), repeat=3)
        places = [(cell[0], *(a + b for a, b in zip(cell[1:], o, strict=True))) for o in around]
        assert eight == [rows.get(place, -1) for place in places]
    weights = spf.calc_ti_weights(points[:, 1:], found)
    features = spf.spdevoxelize(x.F, found, weights)
    for n, point in enumerate(points.tolist()):
        total, whole = torch.zeros(3, dtype=torch.float64), 0.0
        for k, offset in enumerate(itertools.product((0, 1), repeat=3)):
            weight = 1.0
            for p, c, o in zip(point[1:], cells[n, 1:].tolist(), offset, strict=True):
                weight *= 1 - abs(p - c - o)
            if found[n, k] >= 0:
                total, whole = total + weight * x.F[found[n, k]], whole + weight
        torch.testing.assert_close(features[n], total / (whole + 1e-8))


def test_voxels_of_points_and_back_as_before_2_1(old):
    """As programs of 1.4 write it: hashes, counts, means, and weights (8, points)."""
    points = torch.rand(60, 4, dtype=torch.float64) * 6
    points[:, 3] = torch.arange(60) % 2
    z = PointTensor(torch.randn(60, 3, dtype=torch.float64), points)
    hashes = spf.sphash(z.C.floor().int())
    unique = torch.unique(hashes)
    place = spf.sphashquery(hashes, unique)
    counts = spf.spcount(place.int(), len(unique))
    coords = spf.spvoxelize(z.C.floor(), place, counts).round().int()
    x = SparseTensor(spf.spvoxelize(z.F, place, counts), coords)
    assert torch.equal(coords[place], z.C.floor().int())
    for row in range(len(unique)):
        torch.testing.assert_close(x.F[row], z.F[place == row].mean(0))
    y = spnn.Conv3d(3, 3, 2, stride=2).double()(x)
    assert y.s == (2, 2, 2)
    assert not (y.C[:, :3] % 2).any()
    offsets = get_kernel_offsets(2, y.s)
    low = torch.cat([(z.C[:, :3] / 2).floor().int() * 2, z.C[:, 3:].int()], 1)
    query = spf.sphashquery(spf.sphash(low, offsets), spf.sphash(y.C))
    assert query.shape == (8, 60)
    assert (query[0] >= 0).all()
    assert torch.equal(y.C[query[0]], low)
    weights = spf.calc_ti_weights(z.C, query, scale=2)
    ones = torch.ones(60, dtype=torch.float64)
    torch.testing.assert_close(weights.sum(0), ones, atol=1e-4, rtol=0)
    back = spf.spdevoxelize(y.F, query.T.contiguous(), weights.T.contiguous())
    assert back.shape == (60, 3)
    other = SparseTensor(y.F * 2, y.C, y.s)
    other.cmaps, other.kmaps = y.cmaps, y.kmaps  # how 1.4 hands coordinates on
    up = spnn.Conv3d(3, 3, 2, 2, 1, False, True).double()  # dilation, bias, transposed
    torch.testing.assert_close(up(other).F, 2 * up(y).F)
    assert torch.equal(up(other).C, x.C)


def test_unions_and_dense_grids():
    a, b = tensor(0), tensor(1)
    total = torchsparse.generative_add(a, b)
    expected = rows_of(a)
    for cell, row in rows_of(b).items():
        expected[cell] = expected.get(cell, 0) + row
    check(total, expected)
    grid = SparseTensor(a.F, a.C, spatial_range=(2, 7, 7, 7)).dense()
    for cell, row in rows_of(a).items():
        assert torch.equal(grid[cell], row)
    assert torch.count_nonzero(grid) == a.F.numel()


def test_what_is_refused():
    x = tensor()
    with pytest.raises(ValueError, match="`dilation`: expected 1, as TorchSparse's maps ignore it"):
        spnn.Conv3d(3, 2, 3, dilation=2).double()(x)
    for size in 1, 3:
        with pytest.raises(ValueError, match=r"`input`: expected 5 channels, as the weight has"):
            spnn.Conv3d(5, 2, size).double()(x)
    with pytest.raises(ValueError, match="`generative`: expected False"):
        spnn.Conv3d(3, 2, 3, transposed=True, generative=True).double()(x)
    with pytest.raises(ValueError, match="`stride`: expected a divisor of the tensor's stride"):
        spnn.Conv3d(3, 2, 3, stride=2, transposed=True).double()(x)
    with pytest.raises(ValueError, match=r"`coords`: expected \(rows, 4\)"):
        spnn.Conv3d(3, 2, 3).double()(SparseTensor(x.F, x.C[:, 1:]))
    with pytest.raises(ValueError, match=r"`version`: expected 2\.1 or 1\.4, got 3"):
        torchsparse.set_interface("3")
    with pytest.raises(
        TypeError, match=r"`arguments`: expected at most one each of padding.* got bias"
    ):
        spnn.Conv3d(3, 2, 3, 1, 0, 1, True, bias=False)
    with pytest.raises(ValueError, match="distinct cells"):
        spnn.Conv3d(3, 2, 3).double()(SparseTensor(x.F[:2], x.C[[0, 0]]))
    layers = spnn.Conv3d(3, 2, 3), spnn.BatchNorm(3), spnn.ReLU()
    for layer, nothing in itertools.product(layers, (None, torch.ones(2, 3))):
        with pytest.raises(TypeError, match=r"`input`: expected a SparseTensor, got (None|Tensor)"):
            layer(nothing)
    with pytest.raises(TypeError, match="torch's relu takes tensors, not a SparseTensor"):
        torch.relu(x)


def test_files_of_torchsparse_are_found_under_their_names():
    """Also those whose names are in another module here; others say what to use instead."""
    with torchsparse.install():
        for file, name, ours in (
            ("backbones.modules.blocks", "SparseResBlock", torchsparse.backbones.modules),
            ("nn.functional.conv.conv", "conv3d", spf),
            ("nn.functional.conv.conv_config", "set_global_conv_config", spf.conv_config),
            ("nn.functional.conv.conv_mode", "set_kmap_mode", spf),
            ("nn.functional.hash", "sphash", spf),
            ("nn.functional.voxelize", "spvoxelize", spf),
            ("nn.modules", "Conv3d", spnn),
            ("nn.modules.bev", "ToBEVReduction", spnn.bev),
            ("nn.modules.pooling", "GlobalAvgPool", spnn),
            ("nn.utils.kernel", "get_kernel_offsets", spnn.utils),
            ("utils.utils", "make_ntuple", torchsparse.utils),
        ):
            found = importlib.import_module(f"torchsparse.{file}")
            assert getattr(found, name) is getattr(ours, name)
        with pytest.raises(ModuleNotFoundError, match=r"conv\.kmap.*submanifold_map"):
            importlib.import_module("torchsparse.nn.functional.conv.kmap.build_kmap")


def test_tf32_is_allowed_by_torchsparses_switch():
    """The layers follow torch's setting; a switch that only kept its value would be ignored."""
    with torchsparse.install():
        backends = importlib.import_module("torchsparse").backends
    with precision.restored():
        for allowed in (False, True):
            torch.backends.cudnn.allow_tf32 = allowed
            assert backends.allow_tf32 is allowed
            backends.allow_tf32 = not allowed
            assert torch.backends.cudnn.allow_tf32 is not allowed
