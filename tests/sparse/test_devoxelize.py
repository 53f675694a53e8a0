"""devoxelize, against a dictionary of cells and against torch's interpolation of a full grid."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.sparse import SparseTensor, devoxelize, merge_repeated, voxelize
from layoutconv.sparse.coords.rows import add_rows, take


@st.composite
def clouds(draw, columns=4, largest=12):
    value = st.integers(-(2 << 8), 2 << 8).map(lambda i: i / (1 << 8))
    rows = draw(st.lists(st.tuples(*[value] * columns), max_size=largest))
    return torch.tensor(rows, dtype=torch.float64).reshape(len(rows), columns)


EXACT = [(0.5, 0.5, 0.5), (0.25, 0.5, 1.0)]  # with these, nothing rounds
SIZES = st.sampled_from([*EXACT, (0.3, 0.7, 0.1)])
BOXES = st.sampled_from([None, (-1.0, -1.5, -0.5, 1.5, 1.25, 1.0)])


@settings(max_examples=60, deadline=None)
@given(st.lists(clouds(), min_size=1, max_size=3), SIZES, BOXES)
def test_nearest_of_the_points_themselves_is_their_voxel(batch, size, box):
    voxels = voxelize(batch, size, range=box)
    found = devoxelize(voxels)
    assert torch.equal(devoxelize(voxels, batch), found)
    for row, features in zip(voxels.point_to_voxel.tolist(), found, strict=True):
        assert torch.equal(features, voxels.features[row] if row >= 0 else torch.zeros(4).double())


@settings(max_examples=100, deadline=None)
@given(st.data(), st.sampled_from(EXACT), BOXES)
def test_both_modes_are_their_definition(data, size, box):
    batch = data.draw(st.lists(clouds(largest=6), min_size=1, max_size=2))
    points = [data.draw(clouds(columns=3)) for _ in batch]
    voxels = voxelize(batch, size, range=box)
    rows = {tuple(cell): row for row, cell in enumerate(voxels.coords.tolist())}
    nearest, linear = [], []
    for b, cloud in enumerate(points):
        for p in cloud.tolist():
            at = [(p[i] - voxels.origin[i]) / size[i] for i in range(3)]
            cell = (b, *(math.floor(u) for u in reversed(at)))
            inside = box is None or all(box[i] <= p[i] < box[i + 3] for i in range(3))
            nearest.append(rows.get(cell, -1) if inside else -1)
            weights = {}
            for corner in itertools.product((0, 1), repeat=3):
                xyz = [math.floor(u - 0.5) + c for u, c in zip(at, corner, strict=True)]
                row = rows.get((b, *reversed(xyz)))
                if row is not None:
                    parts = (1 - abs(u - (x + 0.5)) for u, x in zip(at, xyz, strict=True))
                    weights[row] = math.prod(parts)
            total = sum(weights.values())
            mean = torch.zeros(4, dtype=torch.float64)
            for row, weight in weights.items():
                if total > 0:
                    mean += weight / total * voxels.features[row]
            linear.append(mean)
    expected = take(voxels.features, torch.tensor(nearest, dtype=torch.int64))
    assert torch.equal(devoxelize(voxels, points), expected)
    expected = torch.stack(linear) if linear else torch.zeros(0, 4, dtype=torch.float64)
    torch.testing.assert_close(devoxelize(voxels, points, "trilinear"), expected)


def full(channels=3, shape=(4, 5, 6), batch_size=2, dtype=torch.float64) -> SparseTensor:
    grid = torch.randn(batch_size, *shape, channels, generator=torch.Generator().manual_seed(0))
    return SparseTensor.from_dense(grid.to(dtype))


def test_in_a_full_grid_it_is_torchs_interpolation():
    x = full()
    size, origin = (0.5, 0.25, 2.0), (-1.0, 3.0, 0.5)
    extent = torch.tensor([6, 5, 4]) * torch.tensor(size)
    points = torch.rand(2, 200, 3, dtype=torch.float64) * extent + torch.tensor(origin)
    unit = (points - torch.tensor(origin)) / extent * 2 - 1
    grid = x.dense().movedim(-1, 1)  # (N, C, D, H, W)
    for mode, theirs in (("trilinear", "bilinear"), ("nearest", "nearest")):
        # Beyond the centres of the outermost cells the weights that are left are scaled up, which
        # is to repeat the outermost cell.
        expected = torch.nn.functional.grid_sample(
            grid, unit.view(2, 1, 1, 200, 3), theirs, padding_mode="border", align_corners=False
        )
        found = devoxelize(x, list(points), mode, voxel_size=size, origin=origin)  # type: ignore[arg-type]
        torch.testing.assert_close(found, expected[:, :, 0, 0].mT.reshape(400, 3))


def test_centres_have_the_features_of_their_cells():
    points = torch.rand(50, 5, generator=torch.Generator().manual_seed(0)) * 4
    voxels = voxelize(points, 0.5)
    at = voxels.centres()
    for mode in ("nearest", "trilinear"):
        torch.testing.assert_close(devoxelize(voxels, at, mode), voxels.features)  # type: ignore[arg-type]
    shuffled = torch.randperm(len(voxels))
    other = SparseTensor(
        voxels.features[shuffled], voxels.coords[shuffled], voxels.spatial_shape, 1
    )
    options = {"voxel_size": 0.5, "origin": voxels.origin}
    for mode in ("nearest", "trilinear"):
        found = devoxelize(other.padded(len(other) + 3), points, mode, **options)  # type: ignore[arg-type]
        assert torch.equal(found, devoxelize(voxels, points, mode))  # type: ignore[arg-type]


def test_gradients():
    # Apart from where a point passes from one cell to the next, there is a gradient in it.
    near = torch.rand(6, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    points = (near * 0.2 + torch.tensor([0.4, 0.9, 0.4])).requires_grad_()
    voxels = voxelize(torch.rand(9, 4, dtype=torch.float64) * 1.5, 0.5)
    features = voxels.features.clone().requires_grad_()
    for mode in ("nearest", "trilinear"):

        def at(f, p, mode=mode):
            return devoxelize(voxels.replace(f), p, mode)

        assert torch.autograd.gradcheck(at, (features, points.detach()))
        if mode == "trilinear":
            assert torch.autograd.gradcheck(at, (features, points))
            assert torch.autograd.gradgradcheck(at, (features, points))
    assert torch.autograd.gradcheck(lambda f: devoxelize(voxels.replace(f)), features)
    index = torch.tensor([2, -1, 0, 2, 2])
    for dtype in (torch.float64, torch.complex128):
        rows = torch.randn(5, 2, dtype=dtype).requires_grad_()
        assert torch.autograd.gradgradcheck(lambda r: take(r, index), rows)
        assert torch.autograd.gradgradcheck(lambda r: add_rows(r, index, 3), rows)


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "min", "first"])
def test_voxels_have_a_gradient_in_the_points(reduce):
    cloud = torch.rand(12, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    cloud = cloud.mul(0.9).add(0.05)  # apart from the boundaries of cells of 0.5
    cloud[(cloud - 0.5).abs() < 1e-3] += 2e-3
    box = (0.0, 0.0, 0.0, 1.0, 1.0, 0.8)

    def features(p: torch.Tensor) -> torch.Tensor:
        return voxelize([p[:7], p[7:]], 0.5, box, reduce).features

    cloud.requires_grad_()
    assert torch.autograd.gradcheck(features, cloud, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(features, cloud)


@pytest.mark.parametrize("factor", [1.0, -1.0])
@pytest.mark.parametrize("reduce", ["max", "min"])
def test_rows_that_share_an_extreme_share_its_gradient(reduce, factor):
    """Whatever its sign: zeros, as a ReLU leaves many, are the largest of rows without another."""
    rows = torch.tensor([[0.0, 3.0], [0.0, 1.0], [0.0, 3.0], [0.0, 1.0]], requires_grad=True)
    cells = torch.zeros(4, 3, dtype=torch.int32)
    merged = merge_repeated(rows, cells, (1, 1), 1, reduce=reduce)
    merged.features.backward(torch.full((1, 2), factor))
    wanted = torch.tensor([[0.25, 0.5 * (row % 2 == (reduce == "min"))] for row in range(4)])
    assert torch.equal(rows.grad, factor * wanted)


@pytest.mark.parametrize("reduce", ["mean", "sum", "max", "min", "first"])
def test_batches_of_rows_are_reduced_as_each_is(reduce):
    """By ``torch.vmap``, gradients and second derivatives too, which ``hessian`` takes by it."""
    cells = torch.tensor([[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 1, 0]], dtype=torch.int32)

    def merged(rows: torch.Tensor) -> torch.Tensor:
        return merge_repeated(rows, cells, (2, 2), 1, reduce=reduce).features

    def loss(rows: torch.Tensor) -> torch.Tensor:
        return merged(rows).pow(3).sum()

    many = torch.randn(3, 4, 2, dtype=torch.float64)
    for function in merged, torch.func.grad(loss), torch.func.hessian(loss):
        found = torch.vmap(function)(many)
        torch.testing.assert_close(found, torch.stack([*map(function, many)]))
    again = torch.autograd.functional.hessian(loss, many[0])
    torch.testing.assert_close(torch.func.hessian(loss)(many[0]), again)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(-1, 4), max_size=20))
def test_rows_are_added_up_by_their_index(index):
    rows = torch.randn(len(index), 2)
    expected = [
        sum((row.double() for row, i in zip(rows, index, strict=True) if i == at), torch.zeros(2))
        for at in range(5)
    ]
    found = add_rows(rows, torch.tensor(index, dtype=torch.int64), 5)
    assert torch.equal(found, torch.stack(expected).float())


def test_the_gradient_has_the_same_bits_every_time():
    # More elements than torch gives one thread, 2^15, and hundreds of points in each voxel.
    cloud = torch.rand(15_000, 3, generator=torch.Generator().manual_seed(0))
    voxels = voxelize(cloud, 0.25)
    weight = torch.randn(len(cloud), 3)

    def gradient(mode):
        features = voxels.features.clone().requires_grad_()
        (devoxelize(voxels.replace(features), cloud, mode) * weight).sum().backward()
        return features.grad

    for mode in ("nearest", "trilinear"):
        first = gradient(mode)
        assert all(torch.equal(first, gradient(mode)) for _ in range(3))


def test_types():
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.complex64):
        x = full(dtype=dtype)
        points = [torch.rand(20, 3) * 4, torch.rand(0, 3)]
        for mode in ("nearest", "trilinear"):
            found = devoxelize(x, points, mode, voxel_size=1, origin=(0, 0, 0))  # type: ignore[arg-type]
            wide = torch.complex128 if dtype.is_complex else torch.float64
            there = x.replace(x.features.to(wide))
            exact = devoxelize(there, points, mode, voxel_size=1, origin=(0, 0, 0))  # type: ignore[arg-type]
            assert found.dtype == dtype
            torch.testing.assert_close(found, exact.to(dtype))
    numbers = full(dtype=torch.float32)
    numbers = numbers.replace(numbers.features.int())
    assert devoxelize(numbers, points, voxel_size=1, origin=(0, 0, 0)).dtype == torch.int32
    with pytest.raises(TypeError, match="`voxels`: expected features of a floating-point type"):
        devoxelize(numbers, points, "trilinear", voxel_size=1, origin=(0, 0, 0))


def test_clouds_without_points_and_images_without_voxels():
    voxels = voxelize([torch.empty(0, 3), torch.ones(1, 3)], 0.5)
    for mode in ("nearest", "trilinear"):
        found = lc.devoxelize(voxels, [torch.ones(2, 3), torch.empty(0, 3)], mode)  # type: ignore[arg-type]
        assert torch.equal(found, torch.zeros(2, 3))
        nowhere = voxelize(torch.empty(0, 3), 0.5)
        assert torch.equal(devoxelize(nowhere, torch.ones(2, 3), mode), torch.zeros(2, 3))  # type: ignore[arg-type]
        assert devoxelize(nowhere, torch.ones(0, 3), mode).shape == (0, 3)  # type: ignore[arg-type]
        single = voxelize(torch.ones(1, 3), 0.5)
        far = torch.tensor([[1.1, 1.1, 1.1], [1e30, 1, 1], [1, -1e30, 1], [1, 1, 3e9]])
        expected = torch.tensor([[1.0], [0], [0], [0]]).expand(4, 3)
        assert torch.equal(devoxelize(single, far, mode), expected)  # type: ignore[arg-type]
    assert devoxelize(voxelize(torch.empty(0, 3), 0.5)).shape == (0, 3)


def test_what_is_refused():
    voxels = voxelize(torch.ones(2, 3), 0.5)
    x = SparseTensor(voxels.features, voxels.coordinates)
    points = torch.ones(2, 3)
    for arguments, options, message in [
        ((voxels, points, "cubic"), {}, "`mode`: expected nearest, linear, bil"),
        ((voxels, None, "trilinear"), {}, "`points`: expected the points"),
        ((x,), {"voxel_size": 1, "origin": (0, 0, 0)}, "`points`: expected the points"),
        ((x, points), {}, "`voxel_size`: expected a value"),
        ((x, points), {"voxel_size": 1.0}, "`origin`: expected a value"),
        ((x, points), {"voxel_size": 1.0, "origin": (0, 0)}, "`origin`: expected a corner"),
        ((x, points), {"voxel_size": 0, "origin": (0, 0, 0)}, "`voxel_size`: expected a finite"),
        ((voxels, points), {"voxel_size": 1.0}, "`voxel_size`: expected None"),
        ((voxels, [points, points]), {}, "`points`: expected 1 clouds, one per image, got 2"),
        ((voxels, points.int()), {}, "`points`: expected .* floating-point"),
        ((voxels, points[:, :2]), {}, r"`points`: expected \(points, F\)"),
        ((voxels, points / 0), {}, "2 of 2 points that are not finite"),
        ((points, points), {}, "`voxels`: expected Voxels or a SparseTensor"),
    ]:
        with pytest.raises(ValueError, match=message):
            devoxelize(*arguments, **options)
    flat = SparseTensor(torch.ones(1, 1), torch.zeros(1, 3).int(), (2, 2), 1)
    with pytest.raises(ValueError, match="`origin`: expected a corner of 2 numbers"):
        devoxelize(flat, points, voxel_size=1, origin=(0, 0, 0))
    with pytest.raises(
        ValueError, match="`mode`: expected linear or nearest for 2 spatial modes, got tri"
    ):
        devoxelize(flat, points, "trilinear", voxel_size=1, origin=(0, 0))
    with pytest.raises(ValueError, match="`points`: expected points on the device of voxels"):
        devoxelize(voxels.to("meta"), points)


def test_what_layers_make_of_voxels_goes_back_to_points():
    points = torch.rand(50, 4)
    voxels = voxelize(points, 0.3)
    y = lc.subm_conv(voxels, torch.ones(2, 3, 3, 3, 4))
    assert torch.equal(lc.devoxelize(y), y.features[voxels.point_to_voxel])
    z = lc.sparse_inverse_conv(
        lc.sparse_conv(y, torch.ones(2, 2, 2, 2, 2), stride=2), torch.ones(3, 2, 2, 2, 2)
    )
    assert torch.equal(lc.devoxelize(y.replace(z.features)), z.features[voxels.point_to_voxel])
