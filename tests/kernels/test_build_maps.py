"""``build_maps`` with a GPU's kernels in the machine: the maps that are asked for one by one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch

from layoutconv.errors import ArgumentError
from layoutconv.gpu.dry_run import dry
from layoutconv.kernels.maps import output_coords
from layoutconv.kernels.maps.block_table import Fill
from layoutconv.kernels.maps.box_inverse import KeysOfBoxInverse
from layoutconv.kernels.maps.build_map import HashTable
from layoutconv.kernels.maps.level_cells import CountLevels, MarkLevels, WriteLevels
from layoutconv.kernels.maps.level_maps import LevelPlan
from layoutconv.kernels.maps.parents import KeysOfParents
from layoutconv.kernels.maps.sort_keys import Keys
from layoutconv.sparse import Coordinates, KernelMap, build_maps, strided_map, submanifold_map
from layoutconv.sparse.coords import coordinates
from layoutconv.sparse.coords.row_plan import FixedRows, RowCount
from layoutconv.sparse.maps import together as making
from layoutconv.sparse.maps.ahead import Ahead, asked_of, joined
from layoutconv.sparse.maps.reached import reached
from layoutconv.sparse.maps.taps import Taps

from ..stand_ins import Gpu
from .cloud_launcher import Launches, cloud

GRID = (2, 9, 12, 10)


@pytest.fixture
def take_gpu_tables(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """A function: from now on cells on a CPU have tables of a GPU, and nothing is launched yet."""

    def take() -> None:
        monkeypatch.setattr(coordinates, "cell_table", HashTable)
        monkeypatch.setattr(making, "runs_together", lambda cells: launches.together)
        launches.kinds.clear()
        launches.keys.clear()

    return take


@pytest.fixture
def gpu_tables(launches: Launches, take_gpu_tables: Callable[[], None]) -> Launches:
    take_gpu_tables()
    return launches


def of_cloud(seed: int, rows: int, padding: int = 0, grid: Any = GRID) -> Coordinates:
    padded = torch.tensor([[-1, 0, 0, 0]] * padding, dtype=torch.int32).view(-1, 4)
    cells = torch.cat([cloud(seed, rows, grid), padded])
    return Coordinates(cells, grid[1:], grid[0], padded=padding > 0)


def same(found: KernelMap, want: KernelMap) -> None:
    for one, other in ((found, want), (found.inverse, want.inverse)):
        assert torch.equal(one.outputs.cells, other.outputs.cells)
        assert all(map(torch.equal, one.sorted, other.sorted))
        assert torch.equal(one.index, other.index)
        assert one.index.stride() == other.index.stride()


def test_maps_of_all_levels_are_there_for_who_asks(gpu_tables: Launches) -> None:
    together = of_cloud(1, 180)
    found = build_maps(together, 3)
    assert len(gpu_tables.keys) == 3  # cells counted, and written, and all maps
    apart = of_cloud(1, 180)
    gpu_tables.together = False
    want = build_maps(apart, 3)
    gpu_tables.together = True
    for here, there in zip(found, want, strict=True):
        assert torch.equal(here.cells, there.cells)
        assert here.spatial_shape == there.spatial_shape
    before = len(gpu_tables.keys)
    ours = [submanifold_map(level) for level in found]
    ours += [strided_map(level, 2, 2) for level in found[:-1]]
    for level, below in pairwise(found):
        assert strided_map(level, 2, 2).outputs is below
        assert below.origin is strided_map(level, 2, 2)
    for kernel_map in ours:
        assert len(kernel_map.sorted) == 2
        assert kernel_map.mirrored or len(kernel_map.inverse.sorted) == 2
    assert len(gpu_tables.keys) == before  # nobody launches anything
    theirs = [submanifold_map(level) for level in want]
    theirs += [strided_map(level, 2, 2) for level in want[:-1]]
    for one, other in zip(ours, theirs, strict=True):
        same(one, other)


def test_with_capacities_nothing_waits(gpu_tables: Launches) -> None:
    exact, padded = build_maps(of_cloud(2, 150, 20), 3), of_cloud(2, 150, 20).check()
    capacities = [len(level) + 7 for level in exact[1:]]
    gpu_tables.keys.clear()
    found = build_maps(padded, 3, capacities=capacities)
    assert len(gpu_tables.keys) == 2
    assert [len(level) for level in found[1:]] == capacities
    assert [level.padded for level in found] == [True] * 3
    for level, of in zip(found[1:], exact[1:], strict=True):
        assert torch.equal(level.cells[: len(of)], of.cells)
        assert (int(level.total), level.overflowed) == (len(of), False)
    apart = of_cloud(2, 150, 20).check()
    for level, capacity in zip(found, capacities, strict=False):
        want = strided_map(apart, 2, 2, capacity=capacity)
        same(strided_map(level, 2, 2, capacity=capacity), want)
        apart = want.outputs
    few = build_maps(of_cloud(2, 150, 20).check(), 3, capacities=[20, 3])
    assert [level.overflowed for level in few] == [False, True, True]


BOXES: Any = [
    (3, 2, 1, [400, 300]), ((3, 1, 1), (2, 1, 1), 0, [300, 150]), (3, 1, 1, None),
    pytest.param(3, 2, (0, 1, 1), None, marks=pytest.mark.deep),
    pytest.param(2, 3, 0, None, marks=pytest.mark.deep),
]  # fmt: skip


@pytest.mark.parametrize(("size", "stride", "padding", "capacities"), BOXES)
def test_cells_of_box_filters_are_found_together(
    gpu_tables: Launches, size: Any, stride: Any, padding: Any, capacities: Any
) -> None:
    """At stride 1, which leads to 27 cells and from there to 125, those of the first level."""
    sizes = {"strided_size": size, "padding": padding}
    rows = 5 if stride == 1 else 40
    cells = of_cloud(3, rows).check()
    gpu_tables.kinds.clear()
    found = build_maps(cells, 3, 3, stride, **sizes, capacities=capacities)
    assert gpu_tables.kinds[:4] == [Fill, MarkLevels, CountLevels, WriteLevels]
    level = of_cloud(3, rows)
    for number, have in enumerate(found[:-1]):
        capacity = capacities[number] if capacities else None
        one, other = (
            strided_map(c, size, stride, padding, capacity=capacity) for c in (have, level)
        )
        same(one, other)
        same(submanifold_map(have), submanifold_map(level))
        level = other.outputs
        assert not found[number + 1].overflowed


def test_inverses_of_box_filters_are_there_for_who_asks(gpu_tables: Launches) -> None:
    found = build_maps(of_cloud(2, 60), 3, strided_size=3, padding=1)
    before = len(gpu_tables.keys)
    down = [strided_map(level, 3, 2, 1) for level in found[:-1]]
    assert all(len(each.inverse.sorted) == len(each.sorted) for each in down)
    assert len(gpu_tables.keys) == before  # nobody launches anything


def test_dilated_filters_make_cells_level_by_level(gpu_tables: Launches) -> None:
    taps = Taps.strided(3, 3, 2, 2, dilation=2)
    steps = [making.LevelStep(taps, (4, 5, 4), None)]
    cells = of_cloud(3, 40)
    gpu_tables.kinds.clear()
    _, found = making.made_together(cells, making.LevelMaps([], steps, set(), set()))
    assert MarkLevels not in gpu_tables.kinds
    want = reached(of_cloud(3, 40), taps, (4, 5, 4), transposed=False)
    assert torch.equal(found.cells, want.cells)


def test_a_level_without_cells(gpu_tables: Launches) -> None:
    """Cells at an edge, where no box of the next level is."""
    cells = torch.tensor([[0, 2, 1, 1], [1, 2, 3, 0]], dtype=torch.int32)
    found = build_maps(Coordinates(cells, (3, 5, 4), 2), 2)
    assert [len(level) for level in found] == [2, 0]
    assert strided_map(found[0], 2, 2).outputs is found[1]
    assert submanifold_map(found[0]).index[:, 13].tolist() == [0, 1]


def test_invalid_cells_are_refused_and_nothing_is_kept(gpu_tables: Launches) -> None:
    twice = Coordinates(torch.tensor([[0, 1, 1, 1]] * 2, dtype=torch.int32), (4, 4, 4), 1)
    with pytest.raises(ArgumentError, match="row"):
        build_maps(twice, 2)
    assert not twice._known.made


def test_levels_are_noted_for_calls_of_fixed_rows(gpu_tables: Launches) -> None:
    together, apart = RowCount(), RowCount()
    with together.in_effect():
        build_maps(of_cloud(1, 90), 3)
    with apart.in_effect():
        cells = of_cloud(1, 90)
        for _ in range(2):
            cells = strided_map(cells, 2, 2).outputs
    assert together.keys == apart.keys
    assert [len(a) for a in together.levels] == [len(a) for a in apart.levels]


def test_what_is_there_is_not_made_again(gpu_tables: Launches) -> None:
    cells = of_cloud(1, 60)
    kept = submanifold_map(cells)
    found = build_maps(cells, 2)
    assert submanifold_map(cells) is kept
    assert len(build_maps(cells, 2)[1]) == len(found[1])
    assert build_maps(cells, 2)[1] is found[1]


def test_who_comes_second_gets_the_cells_of_who_came_first(
    gpu_tables: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As another thread that makes the same maps meanwhile."""
    cells, other, began = of_cloud(1, 60), list[Coordinates](), list[bool]()
    original = LevelPlan.run

    def late(*of: Any) -> Any:
        if not began:
            began.append(True)
            other.extend(build_maps(cells, 3))
        return original(*of)

    monkeypatch.setattr(LevelPlan, "run", late)
    found = build_maps(cells, 3)
    for level, (finer, coarser) in zip(other[1:], pairwise(found), strict=True):
        assert strided_map(finer, 2, 2).outputs is coarser is level
        assert coarser.origin is strided_map(finer, 2, 2)


@pytest.mark.parametrize("sizes", [{}, {"strided_size": 3, "padding": 1}])
@pytest.mark.parametrize("capacities", [None, [300, 250]])
@pytest.mark.chessboard
def test_a_dry_run_notes_what_is_launched(
    launches: Launches, gpu: Gpu, take_gpu_tables: Callable[[], None], capacities: Any, sizes: Any
) -> None:
    gpu.like("sm_80")
    gpu.says(current_device=-1)
    noted: list[Any] = []
    with dry(note_other=lambda key, request: noted.append(key), stands_in=True):
        build_maps(of_cloud(1, 90), 3, **sizes, capacities=capacities)
    take_gpu_tables()
    build_maps(of_cloud(1, 90), 3, **sizes, capacities=capacities)
    assert len(launches.keys) == (3 if capacities is None else 2)
    assert {repr(key) for key in launches.keys} <= {repr(key[:-1]) for key in noted}


def test_a_cloud_without_rows() -> None:
    nothing = Coordinates(torch.empty(0, 4, dtype=torch.int32), (4, 4, 4), 1)
    assert [len(level) for level in build_maps(nothing, 3)] == [0, 0, 0]
    assert output_coords  # rooms of kernels load without a GPU


class Beside:
    """A stream beside the current one, which has always come."""

    def fork(self) -> Any:
        return nullcontext()

    def mark(self) -> Any:
        return lambda: None


class Net(torch.nn.Module):
    """A network that asks for maps as a U-Net does, and for some of other kinds."""

    def __init__(self, size: int, padding: int) -> None:
        super().__init__()
        self.size, self.padding = size, padding

    def forward(self, cells: Coordinates) -> list[torch.Tensor]:
        asked: list[KernelMap] = []
        skips: list[KernelMap] = []
        for level in range(3):
            own = submanifold_map(cells), submanifold_map(cells, (1, 3, 3), 2)
            asked += own[: 1 + level % 2]
            if level < 2:
                skips.append(strided_map(cells, self.size, 2, self.padding))
                cells = skips[-1].outputs
        aside = strided_map(cells, 3, 1, 1)  # to cells that nobody leads on from
        asked += [*skips, aside, *(down.inverse for down in reversed(skips))]
        return [each for kernel_map in asked for each in kernel_map.sorted]


@pytest.mark.parametrize(("size", "padding"), [pytest.param(2, 0, marks=pytest.mark.deep), (3, 1)])
def test_a_run_of_fixed_rows_makes_foreseen_maps_together(
    launches: Launches, take_gpu_tables: Callable[[], None], size: int, padding: int
) -> None:
    net, count = Net(size, padding), RowCount()
    with count.in_effect():
        net(of_cloud(5, 90))
    rows = [len(level) + 5 for level in count.levels]

    def run(ahead: Ahead | None, cloud: Coordinates) -> tuple[list[torch.Tensor], FixedRows]:
        plan = FixedRows(count.keys, rows, [len(cloud)], beside=ahead)
        with plan.in_effect(), joined(ahead):
            cells = Coordinates(cloud.cells, GRID[1:], GRID[0], padded=True, valid=True)
            plan.start(cells)
            return net(cells), plan

    want, plan = run(None, of_cloud(5, 90))
    asked = asked_of(plan.given, plan.made)
    take_gpu_tables()
    launches.kinds.clear()
    have, plan = run(Ahead(asked, Beside()), of_cloud(5, 90))
    assert not plan.made  # all of them were foreseen
    assert all(map(torch.equal, have, want))
    together = [key for key in launches.keys if "Jobs" in repr(key)]
    assert len(together) == 1
    # Together: three submanifold maps, a dilated one, two steps and their inverses; one is aside.
    assert launches.kinds.count(Keys) == 3 + 1 + 2 + 1
    assert launches.kinds.count(KeysOfParents) == (2 if size == 2 else 0)
    assert launches.kinds.count(KeysOfBoxInverse) == (0 if size == 2 else 2)
    # A run that read inverses sorted needs no index of them.
    assert [each.indexed[1] for each in asked] == [False] * len(asked)
    assert "Scatter" not in repr(launches.keys)
    assert "MarkLevels" in repr(launches.keys)


def test_maps_of_other_grids_take_the_same_launches() -> None:
    own, down = Taps.centred(3, 3), Taps.strided(3, 3, 2, 1)
    maps = making.LevelMaps(
        [(0, own), (1, own)], [making.LevelStep(down, (5, 5, 5), None)], {0}, set()
    )
    plan = making._plan_of(Coordinates(torch.zeros(1, 4).int(), (9, 9, 9), 1), maps)
    other = maps.through([(7, 9, 4)])
    assert other.steps == [making.LevelStep(down, (7, 9, 4), None)]
    assert other.keys != maps.keys
    assert plan is not None
    assert making._plan_of(Coordinates(torch.zeros(1, 4).int(), (13, 17, 8), 2), other) is plan
    wide = other.through([(1 << 20, 1 << 20, 1 << 20)])  # whose keys are wide
    far = Coordinates(torch.zeros(1, 4).int(), (2 << 20, 2 << 20, 1 << 20), 1)
    assert making._plan_of(far, wide) is not plan
