"""Maps of all levels at once on a GPU: bit for bit those of one level after the other."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.sparse import Coordinates, KernelMap, build_maps, strided_map, submanifold_map
from layoutconv.sparse.coords.street import street
from layoutconv.sparse.coords.voxels import voxelize
from layoutconv.sparse.maps.kernel_map import strided_in
from layoutconv.sparse.maps.levels import LevelMaps, LevelStep, made_together
from layoutconv.sparse.maps.reached import reached
from layoutconv.sparse.maps.taps import Taps

from .on_device import captured

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def clouds() -> list[tuple[torch.Tensor, tuple[int, ...], int]]:
    """Cells, a shape and a batch size: sweeps, a single voxel, a plane, many dense rows."""
    sweeps = voxelize([torch.from_numpy(street(seed)) for seed in (0, 1)], 0.1)
    shuffled = torch.randperm(len(sweeps), generator=torch.Generator().manual_seed(0))
    dense = torch.cartesian_prod(torch.arange(2), *[torch.arange(e) for e in (41, 60, 33)]).int()
    return [
        (sweeps.coords[shuffled], sweeps.spatial_shape, 2),
        (torch.tensor([[0, 3, 5, 9]], dtype=torch.int32), (64, 64, 64), 3),
        (dense[(dense[:, 1] == 7)], (41, 60, 33), 2),
        (dense, (41, 60, 33), 2),
    ]


def check(found: KernelMap, want: KernelMap, *, both: bool) -> None:
    ways = ((found, want), (found.inverse, want.inverse))
    for one, other in ways if both else ways[:1]:
        assert torch.equal(one.outputs.cells, other.outputs.cells)
        assert all(map(torch.equal, one.sorted, other.sorted))
        assert torch.equal(one.index, other.index)


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("fixed", [False, True])
def test_maps_are_those_of_each_level(number: int, fixed: bool) -> None:
    cells, shape, batch = clouds()[number]
    apart = Coordinates(cells.cuda(), shape, batch).check()
    want = [apart]
    for _ in range(4):
        want.append(strided_map(want[-1], 2, 2).outputs)
    capacities = [len(level) + 37 for level in want[1:]] if fixed else None
    found = build_maps(Coordinates(cells.cuda(), shape, batch), 5, capacities=capacities)
    level = Coordinates(cells.cuda(), shape, batch)
    for n, have in enumerate(found):
        check(submanifold_map(have), submanifold_map(level), both=False)
        if n < 4:
            capacity = capacities[n] if capacities else None
            one, other = (strided_map(c, 2, 2, capacity=capacity) for c in (have, level))
            check(one, other, both=True)
            level = other.outputs
            assert not found[n + 1].overflowed


def test_rows_that_do_not_fit_and_filters_that_overlap() -> None:
    cells, shape, batch = clouds()[0]
    level = Coordinates(cells.cuda(), shape, batch).check()
    capacities = [len(strided_map(level, 2, 2).outputs) + 5, 70]
    found = build_maps(Coordinates(cells.cuda(), shape, batch), 3, capacities=capacities)
    for have, capacity in zip(found, capacities, strict=False):
        one, other = (strided_map(c, 2, 2, capacity=capacity) for c in (have, level))
        check(one, other, both=True)
        level = other.outputs
    assert [level.overflowed for level in found] == [False, False, True]
    found = build_maps(Coordinates(cells.cuda(), shape, batch), 3, capacities=[1000, 70])
    assert [level.overflowed for level in found] == [False, True, True]
    options = {"strided_size": 3, "padding": 1}
    found = build_maps(Coordinates(cells.cuda(), shape, batch), 3, 3, 2, **options)
    level = Coordinates(cells.cuda(), shape, batch)
    for have in found[:-1]:
        one, other = (strided_map(c, 3, 2, 1) for c in (have, level))
        check(one, other, both=True)
        check(submanifold_map(have), submanifold_map(level), both=False)
        level = other.outputs


# Of each level a size, a stride and a padding: SECOND's, CenterPoint's, and others of all kinds.
DETECTORS: list[list[tuple[Any, Any, Any]]] = [
    [(3, 2, 1), (3, 2, 1), (3, 2, (0, 1, 1)), ((3, 1, 1), (2, 1, 1), 0)],
    [(3, 2, 1)] * 4,
    [(2, 3, 1), ((1, 4, 2), (1, 3, 2), (0, 2, 1)), (3, 2, 1)],
]


@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("kind", range(3))
@pytest.mark.parametrize("fixed", [False, True])
def test_levels_of_detectors(number: int, kind: int, fixed: bool) -> None:
    cells, shape, batch = clouds()[number]
    level = Coordinates(cells.cuda(), shape, batch).check()
    want, steps = [level], list[LevelStep]()
    for sizes in DETECTORS[kind]:
        extents = level.spatial_shape
        taps, grid = strided_in(extents, *sizes, 1)
        level = reached(level, taps, tuple(grid or ()), transposed=False)
        steps.append(LevelStep(taps, level.spatial_shape, len(level) + 37 if fixed else None))
        want.append(level)
    every = set(range(len(want)))
    own = [(n, Taps.centred(3, 3)) for n in every]
    have = made_together(
        Coordinates(cells.cuda(), shape, batch), LevelMaps(own, steps, every, every)
    )
    level = Coordinates(cells.cuda(), shape, batch).check()
    for n, (one, other) in enumerate(zip(have, want, strict=True)):
        assert torch.equal(one.cells[: len(other)], other.cells)
        assert not one.overflowed
        check(submanifold_map(one), submanifold_map(level), both=False)
        if n < len(steps):
            sizes, capacity = DETECTORS[kind][n], steps[n].capacity
            down, there = (strided_map(c, *sizes, capacity=capacity) for c in (one, level))
            assert down.outputs is have[n + 1]
            check(down, there, both=True)
            level = there.outputs


@pytest.mark.parametrize(("size", "padding"), [(2, 0), (3, 1)])
def test_a_graph_replays_them_for_other_cells(size: int, padding: int) -> None:
    cells, shape, batch = clouds()[0]
    rows, capacities = 30_000, (30_000, 25_000, 12_000)
    if size == 3:
        capacities = (90_000, 60_000, 30_000)
    held = torch.full((rows, 4), -1, dtype=torch.int32, device="cuda")

    def load(seed: int) -> torch.Tensor:
        order = torch.randperm(len(cells), generator=torch.Generator().manual_seed(seed))
        some = cells[order[: rows - 100 * seed]].cuda()
        held.fill_(-1)
        held[: len(some)] = some
        return some

    def made() -> list[torch.Tensor]:
        padded = Coordinates(held, shape, batch, padded=True, valid=True)
        sizes = {"strided_size": size, "padding": padding}
        levels = build_maps(padded, 4, **sizes, capacities=capacities)
        maps = [submanifold_map(level) for level in levels]
        pairs = zip(levels, capacities, strict=False)
        down = [strided_map(level, size, 2, padding, capacity=c) for level, c in pairs]
        every = [*maps, *down, *(m.inverse for m in down)]
        return [t for m in every for t in (*m.sorted, m.outputs.cells)]

    load(1)
    graph, kept = captured(made)
    for seed in (2, 3, 1):
        for tensor in kept:
            tensor.fill_(-7)
        load(seed)  # behind it: the cells of the finest level are among them
        graph.replay()
        torch.cuda.synchronize()
        for have, want in zip(kept, made(), strict=True):
            assert torch.equal(have, want)


def test_invalid_cells_are_refused() -> None:
    cells = torch.tensor([[0, 1, 1, 1], [0, 2, 1, 1], [0, 1, 1, 1]], dtype=torch.int32)
    with pytest.raises(ArgumentError, match="row"):
        build_maps(Coordinates(cells.cuda(), (4, 4, 4), 1), 2)


def test_a_step_gives_the_same_with_them() -> None:
    """Gradients of strided layers read inverses."""
    cells, shape, batch = clouds()[0]
    net = torch.nn.Sequential(
        lc.nn.SubmConv3d(4, 16, 3), lc.nn.SparseConv3d(16, 32, 3, stride=2, padding=1),
        lc.nn.SubmConv3d(32, 32, 3), lc.nn.SparseConv3d(32, 16, (3, 1, 1), stride=(2, 1, 1)),
    ).cuda().half()  # fmt: skip
    features = torch.randn(len(cells), 4).half().cuda().requires_grad_()
    found = []
    for together in (False, True):
        x = lc.SparseTensor(features, Coordinates(cells.cuda(), shape, batch))
        if together:
            build_maps(x.coordinates, 2, strided_size=3, padding=1)
        y = net(x).features
        found.append((y, *torch.autograd.grad(y.float().square().sum(), features)))
    assert all(map(torch.equal, *found))


def test_a_network_gives_the_same_with_them() -> None:
    cells, shape, batch = clouds()[0]
    net = torch.nn.Sequential(
        lc.nn.SubmConv3d(4, 16, 3), lc.nn.SparseConv3d(16, 32, 2, stride=2),
        lc.nn.SubmConv3d(32, 32, 3), lc.nn.SparseInverseConv3d(32, 16, 2),
    ).cuda().half()  # fmt: skip
    features = torch.randn(len(cells), 4).half().cuda()
    x, y = (lc.SparseTensor(features, Coordinates(cells.cuda(), shape, batch)) for _ in range(2))
    build_maps(y.coordinates, 2)
    with torch.no_grad():
        assert torch.equal(net(x).features, net(y).features)
