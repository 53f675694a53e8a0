"""Points near points, and points shared out among voxels, against all pairs in float64."""

from __future__ import annotations

import itertools
import math
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.sparse import knn_search, radius_search, splat, voxelize
from layoutconv.sparse.coords import neighbours


@st.composite
def batches(draw, rank, least=0):
    """Points that tie and repeat, and some far away."""
    value = st.one_of(
        st.integers(-6, 6).map(lambda i: i / 2), st.sampled_from([-1000.0, 1e-7, 512.25])
    )
    count = draw(st.integers(1, 2))
    rows = st.lists(st.tuples(*[value] * rank), min_size=least, max_size=14)
    return [torch.tensor(draw(rows), dtype=torch.float64).reshape(-1, rank) for _ in range(count)]


def by_definition(points, queries, radius=math.inf, limit=None):
    """For each query of all clouds the (distance, row) of points, in order."""
    found, before = [], 0
    for cloud, asking in zip(points, queries, strict=True):
        for query in asking:
            apart = (query - cloud).square().sum(1).sqrt().tolist()
            near = sorted((d, before + i) for i, d in enumerate(apart) if d <= radius)
            found.append(near[:limit])
        before += len(cloud)
    return found


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([0.5, 1.0, 2.3, 600.0]), st.sampled_from([None, 1, 3]))
def test_neighbours_are_their_definition(data, radius, limit):
    rank = data.draw(st.integers(1, 4))
    points = data.draw(batches(rank))
    queries = data.draw(st.one_of(st.none(), st.just([p + 0.25 for p in points])))
    expected = by_definition(points, queries or points, radius, limit)
    found = radius_search(points, radius, queries, limit, rank=rank)
    lengths = [len(near) for near in expected]
    assert found.starts.diff().tolist() == lengths
    assert found.points.tolist() == [row for near in expected for _, row in near]
    assert found.distances.tolist() == [d for near in expected for d, _ in near]
    k = limit or 2
    rows, distances = knn_search(points, k, queries, rank=rank)
    for near, row, apart in zip(
        by_definition(points, queries or points, limit=k), rows, distances, strict=True
    ):
        missing = k - len(near)
        assert row.tolist() == [r for _, r in near] + [-1] * missing
        assert apart.tolist() == [d for d, _ in near] + [math.inf] * missing


@pytest.mark.parametrize(("limit", "least"), [(None, 3000), (5, 1000)])
@pytest.mark.parametrize("step", [1, 3])
def test_pieces_change_nothing(limit, least, step):
    """Neither of all queries, as a search of a radius has, nor of some, as one of the nearest."""
    cloud = torch.rand(300, 4, generator=torch.Generator().manual_seed(0))
    search = partial(neighbours._within, neighbours._Sides(cloud, None, 3), 0.3)
    whole = search(torch.arange(0, 300, step), limit)
    pieces = search(torch.arange(0, 300, step), limit, at_once=100)
    for a, b in zip(whole, pieces, strict=True):
        assert torch.equal(a, b)
    assert len(whole.points) > least / step


@settings(max_examples=60, deadline=None)
@given(st.data(), st.sampled_from([1.0, 0.5, 0.3]), st.booleans(), st.sampled_from(["sum", "mean"]))
def test_splat_is_its_definition(data, size, boxed, reduce):
    rank = data.draw(st.integers(1, 4))
    batch = [
        torch.cat([p.clamp(-3, 3), p[:, :1] * 0 + 1 + p[:, -1:]], 1)
        for p in data.draw(batches(rank))
    ]
    low = -2.0
    box = [low] * rank + [2.5] * rank if boxed else None
    v = splat(batch, size, box, reduce, rank=rank)
    sums, weights = {}, {}
    points = [(b, p) for b, cloud in enumerate(batch) for p in cloud]
    for b, p in points:
        place = p[:rank].tolist()
        if boxed and not all(low <= c < 2.5 for c in place):
            continue
        at = [(c - o) / s for c, o, s in zip(place, v.origin, v.voxel_size, strict=True)]
        for corner in itertools.product((0, 1), repeat=rank):
            cell = [math.floor(u - 0.5) + c for u, c in zip(at, corner, strict=True)]
            weight = math.prod(1 - abs(u - c - 0.5) for u, c in zip(at, cell, strict=True))
            inside = all(0 <= c < e for c, e in zip(cell, v.spatial_shape[::-1], strict=True))
            if weight > 1e-9 and inside:
                key = (b, *reversed(cell))
                sums[key] = sums.get(key, 0) + weight * p
                weights[key] = weights.get(key, 0) + weight
    kept = [i for i, c in enumerate(v.coords.tolist()) if tuple(c) in sums]
    assert len(kept) == len(sums)
    assert len(v) == len(sums) or size == 0.3  # whose cells have centres that round
    for row in kept:
        key = tuple(v.coords[row].tolist())
        expected = sums[key] / (weights[key] if reduce == "mean" else 1)
        torch.testing.assert_close(v.features[row], expected)
    own = v.lattice
    for (b, p), row in zip(points, v.point_to_voxel.tolist(), strict=True):
        cell, inside = own.cells(p[None, :rank])
        assert inside.item() == (row >= 0)
        assert row < 0 or v.coords[row].tolist() == [b, *reversed(cell[0].tolist())]
    onto = splat(batch, onto=v, reduce=reduce)
    assert onto.coordinates is v.coordinates
    if not boxed:  # to cells that are there, points outside of a range give too
        torch.testing.assert_close(onto.features, v.features)


def test_splat_is_the_transpose_of_devoxelize():
    cloud = torch.rand(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3
    v = splat(torch.nn.functional.pad(cloud, (0, 2), value=1.0), 0.5)
    features = torch.randn(len(v), 4, dtype=torch.float64, requires_grad=True)
    values = torch.randn(40, 4, dtype=torch.float64)
    (grad,) = torch.autograd.grad(
        lc.devoxelize(v.replace(features), cloud, "linear"), features, values
    )
    given_to = splat(torch.cat([cloud, values], 1), onto=v).features[:, 3:]
    torch.testing.assert_close(grad, given_to)
    # What is given to all cells is what there was.
    torch.testing.assert_close(v.features[:, 3:].sum(0), torch.full((2,), 40.0).double())


def test_splat_has_gradients():
    cloud = torch.rand(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    cloud = (cloud * 0.2 + 0.6).requires_grad_()
    onto = voxelize(torch.tensor(list(itertools.product((0.5, 1.5), repeat=3))), 1.0)
    for reduce in ("sum", "mean"):
        assert torch.autograd.gradcheck(
            lambda p, r=reduce: splat(p, onto=onto, reduce=r).features, cloud
        )


def test_voxels_of_other_ranks_go_there_and_back():
    for rank in (1, 2, 4):
        points = torch.rand(50, rank + 1, generator=torch.Generator().manual_seed(rank)) * 4 - 2
        v = voxelize(points, 0.5, rank=rank)
        assert v.coordinates.rank == rank
        cells = {}
        for p in points:
            key = tuple(math.floor(c / 0.5) for c in reversed(p[:rank].double().tolist()))
            cells.setdefault(key, []).append(p)
        low = v.lattice.first[::-1]
        for coords, features in zip(v.coords[:, 1:].tolist(), v.features, strict=True):
            own = cells.pop(tuple(c + f for c, f in zip(coords, low, strict=True)))
            torch.testing.assert_close(features, torch.stack(own).mean(0))
        assert not cells
        assert torch.equal(lc.devoxelize(v), v.features[v.point_to_voxel])
        torch.testing.assert_close(lc.devoxelize(v, v.centres(), "linear"), v.features)
        box = [0.0] * rank + [1.0] * rank
        inside = ((points[:, :rank] >= 0) & (points[:, :rank] < 1)).all(1)
        assert torch.equal(voxelize(points, 0.5, box, rank=rank).point_to_voxel >= 0, inside)


def test_a_plane_is_torchs_interpolation():
    grid = torch.randn(1, 5, 6, 3, dtype=torch.float64)
    x = lc.SparseTensor.from_dense(grid)
    points = torch.rand(100, 2, dtype=torch.float64) * torch.tensor([6, 5])
    unit = points / torch.tensor([6, 5]) * 2 - 1
    expected = torch.nn.functional.grid_sample(
        grid.movedim(-1, 1), unit[None, None], padding_mode="border", align_corners=False
    )
    found = lc.devoxelize(x, points, "bilinear", voxel_size=1.0, origin=(0, 0))
    torch.testing.assert_close(found, expected[0, :, 0].mT)


def test_what_is_refused():
    cloud = torch.rand(5, 3)
    v = voxelize(cloud, 0.5)
    for call, message in [
        (lambda: radius_search(cloud, 0.0), "`radius`: expected a finite positive number, got 0.0"),
        (lambda: radius_search(cloud, 1.0, limit=0), "`limit`: expected an integer >= 1, got 0"),
        (lambda: knn_search(cloud, 0), "`k`: expected an integer >= 1, got 0"),
        (lambda: knn_search(cloud, "2"), "`k`: expected an integer >= 1"),  # type: ignore[arg-type]
        (lambda: knn_search(cloud, 2, cloud.double()), "`queries`: expected .*float32.* got"),
        (lambda: knn_search(cloud, 2, [cloud, cloud]), "`queries`: expected 1 clouds"),
        (lambda: knn_search(cloud, 2, rank=4), r"`points`: expected \(points, F\), F >= 4"),
        (lambda: radius_search(cloud, 1e-12), "`voxel_size`: expected fewer than"),
        (lambda: voxelize(cloud, 0.5, rank=5), "`rank`: expected 1 to 4 spatial modes, got 5"),
        (lambda: voxelize(cloud, (0.5, 1, 2), rank=2), "`voxel_size`: .*or two in a sequence"),
        (lambda: voxelize(cloud, 0.5, (0, 1), rank=2), r"`range`: expected finite \(x0, y0, x1"),
        (lambda: splat(cloud), "`voxel_size`: expected the edges of a voxel, or `onto`"),
        (lambda: splat(cloud, 0.5, reduce="max"), "`reduce`: expected sum or mean"),  # type: ignore[arg-type]
        (lambda: splat(cloud, 0.5, origin=(0, 0, 0)), "`origin`: expected None without `onto`"),
        (lambda: splat(cloud, range=(0, 0, 0, 1, 1, 1), onto=v), "`range`: expected None"),
        (lambda: splat(cloud, 0.5, onto=v), "`voxel_size`: expected None"),
    ]:
        with pytest.raises(ValueError, match=message):
            call()
