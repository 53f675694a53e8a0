"""The cells of all coarser levels at once, in the machine: those of one level after the other."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.kernels.maps.block_table import Fill
from layoutconv.kernels.maps.box_filter import BoxFilter, box_filter, boxes_of, cells_in
from layoutconv.kernels.maps.level_cells import (
    MOST_LEVELS,
    CountLevels,
    MarkLevels,
    WriteLevels,
    cells_of_levels,
    kernels_of,
    levels_at_once,
    suits,
)
from layoutconv.kernels.maps.per_rank import build
from layoutconv.sparse.maps.taps import Taps

from .cloud_launcher import SEEDS, Cell, Launches, Work, cloud, few, reaches

EXTENTS = {1: (300,), 2: (23, 37), 3: (9, 18, 31), 4: (6, 5, 14, 15)}


PAIRS = BoxFilter((2, 2, 2), (2, 2, 2), (0, 0, 0))
# Of SECOND and CenterPoint: 3 x 3 x 3 at stride 2, without padding along z at the last of them.
DETECTOR = [
    *[Taps.strided(3, 3, 2, 1)] * 2, Taps.strided(3, 3, 2, (0, 1, 1)),
    Taps.strided(3, (3, 1, 1), (2, 1, 1)),
]  # fmt: skip


def reached_by(cells: Any, grid: Cell, filters: tuple[BoxFilter, ...]) -> Any:
    """The grids of levels, and of each the cells that those of the level before reach."""
    grids, found = [], []
    for stride, size, before in filters:
        axes = zip(grid[1:], stride, size, before, strict=True)
        grid = (grid[0], *(max(0, (e + 2 * p - k) // s + 1) for e, s, k, p in axes))
        taps = [range(-p, k - p) for k, p in zip(size, before, strict=True)]
        found.append(reaches(cells, stride, list(product(*taps)), grid, False))
        cells = torch.tensor(found[-1], dtype=torch.int32).view(-1, len(grid))
        grids.append(grid)
    return grids, found


def check(
    data: Any, cells: Any, filters: tuple[BoxFilter, ...], grids: list[Cell], want: Any
) -> None:
    """Compare cells of all levels, as many as there are and of capacities that are drawn."""
    found, totals = cells_of_levels(cells, filters, grids)
    assert [list(map(tuple, each.tolist())) for each in found] == want
    assert totals_of(totals) == [len(each) for each in want]
    capacities = [max(1, len(each) + data.draw(st.integers(-3, 5))) for each in want]
    found, totals = cells_of_levels(cells, filters, grids, capacities)
    for each, there, rows in zip(found, want, capacities, strict=True):
        padding = [(-1, *[0] * (len(grids[0]) - 1))] * (rows - len(there))
        assert list(map(tuple, each.tolist())) == there[:rows] + padding
    assert totals_of(totals) == [len(each) for each in want]


def drawn_cloud(data: Any, launches: Launches, rank: int) -> tuple[Any, Cell]:
    """Cells in any order, some twice, some of no grid and some of none of the images."""
    grid = (data.draw(st.integers(1, 3)), *EXTENTS[rank])
    rows = data.draw(st.sampled_from([1, 5, 70, 200]))
    launches.seed = data.draw(SEEDS)
    return cloud(data.draw(SEEDS), rows, grid, data.draw(st.integers(0, 2)), 0.2), grid


def check_cloud(data: Any, launches: Launches, rank: int, filters: tuple[BoxFilter, ...]) -> None:
    """Cells of a cloud that is drawn, as far as there are grids to lead to."""
    cells, grid = drawn_cloud(data, launches, rank)
    grids, want = reached_by(cells, grid, filters)
    if not suits(len(cells), filters, grids):
        assert 0 in map(min, grids)
        return
    check(data, cells, filters, grids, want)


def drawn(data: Any, rank: int, least: int, most: int) -> tuple[int, ...]:
    """An integer for each mode."""
    return tuple(data.draw(st.integers(least, most)) for _ in range(rank))


@few
@given(st.data(), st.integers(1, 4), st.integers(1, 4))
def test_cells_of_all_levels_are_those_of_each(
    launches: Launches, data: Any, rank: int, levels: int
) -> None:
    """Filters as large as their strides, or with cells that no tap reads behind the last."""
    strides = [drawn(data, rank, 1, 3) for _ in range(levels)]
    filters = tuple(BoxFilter(stride, stride, (0,) * rank) for stride in strides)
    check_cloud(data, launches, rank, filters)


@few
@given(st.data(), st.integers(1, 4), st.integers(1, 3))
def test_cells_of_box_filters_are_those_of_each(
    launches: Launches, data: Any, rank: int, levels: int
) -> None:
    """Filters that overlap, and that leave cells out, with padding before and behind a grid."""
    filters: tuple[BoxFilter, ...] = ()
    for _ in range(levels):
        stride, size = drawn(data, rank, 1, 3), drawn(data, rank, 1, 4)
        before = tuple(data.draw(st.integers(0, k)) for k in size)
        filters += (BoxFilter(stride, size, before),)
    filters = filters[: levels_at_once(filters)] or (BoxFilter(*[(1,) * rank] * 3),)
    check_cloud(data, launches, rank, filters)


@given(st.data())
def test_boxes_hold_what_a_cell_reaches(data: Any) -> None:
    """As many cells of an axis as some cell reaches of a level; ``always`` where none reaches
    nothing."""
    axes = st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(-3, 5))
    steps = data.draw(st.lists(axes, min_size=1, max_size=4))
    filters = tuple(BoxFilter((s,), (k,), (p,)) for s, k, p in steps)
    most, every = [0] * len(steps), range(-80, 80)
    for x in range(-12, 12):
        low = high = x
        for level, (s, k, p) in enumerate(steps):
            first, last = low, high
            found = [y for y in every if any(low <= y * s - p + t <= high for t in range(k))]
            assert found or k < s
            if not found:
                break
            low, high = found[0], found[-1]
            assert found == list(range(low, high + 1))
            assert (low, high) == (-((k - 1 - p - first) // s), (last + p) // s)
            most[level] = max(most[level], len(found))
    boxes = boxes_of(filters)
    assert [axis.always for (axis,) in boxes] == [k >= s for s, k, _ in steps]
    assert all(count <= axis.most for count, (axis,) in zip(most, boxes, strict=True))
    assert most[0] == boxes[0][0].most


def test_levels_of_detectors(launches: Launches) -> None:
    filters = tuple(map(box_filter, DETECTOR))
    assert list(map(cells_in, boxes_of(filters))) == [8] * 4
    cells = cloud(7, 250, (2, 41, 40, 36))
    cells = cells[cells[:, 0] != 1]  # an image without cells
    grids, want = reached_by(cells, (3, 41, 40, 36), filters)
    assert [grid[1:] for grid in grids] == [(21, 20, 18), (11, 10, 9), (5, 5, 5), (2, 5, 5)]
    launches.kinds.clear()
    capacities = [len(each) + 9 for each in want]
    capacities[1] = 11
    found, totals = cells_of_levels(cells, filters, grids, capacities)
    assert launches.kinds == [Fill, MarkLevels, CountLevels, WriteLevels]
    assert totals_of(totals) == [len(each) for each in want]
    for each, there in zip(found, want, strict=True):
        rows = [cell for cell in map(tuple, each.tolist()) if cell[0] >= 0]
        assert rows == there[: len(each)]


def totals_of(totals: list[Any]) -> list[int]:
    return [int(total) for total in totals]


def test_filters_that_are_boxes() -> None:
    corners = Taps.strided(2, 1, 3, offsets=[(1, 5), (0, 5), (1, 4), (0, 4)])
    assert box_filter(corners) == ((3, 3), (2, 2), (0, -4))
    assert box_filter(Taps.strided(3, (3, 1, 1), (2, 1, 1))) == ((2, 1, 1), (3, 1, 1), (0, 0, 0))
    assert box_filter(Taps.strided(2, 3, 2, 1, dilation=2)) is None
    assert box_filter(Taps.strided(2, 1, 2, offsets=[(0, 0), (1, 1)])) is None


def test_cells_lie_in_memory_in_any_way(launches: Launches) -> None:
    """Columns that lie apart, and rows that do not begin at a multiple of 16 bytes."""
    grid, filters = (2, 9, 18, 31), (PAIRS,) * 2
    cells = cloud(3, 50, grid)
    grids, want = reached_by(cells, grid, filters)
    aside = torch.empty(cells.numel() + 1, dtype=torch.int32)[1:].view_as(cells).copy_(cells)
    for laid_out in (cells.T.contiguous().T, aside, cells.repeat(1, 2)[:, :4]):
        found, _ = cells_of_levels(laid_out, filters, grids)
        assert [list(map(tuple, each.tolist())) for each in found] == want


def test_levels_of_several_blocks_take_the_launches_of_one(launches: Launches) -> None:
    grid, filters = (2, 41, 65, 96), (PAIRS,) * 4
    cells = cloud(2, 300, grid)
    grids, want = reached_by(cells, grid, filters)
    for capacities in (None, [len(each) + 30 for each in want]):
        launches.kinds.clear()
        with Work() as noted:
            found, _ = cells_of_levels(cells, filters, grids, capacities)
        for each, there in zip(found, want, strict=True):
            assert list(map(tuple, each[: len(there)].tolist())) == there
        assert launches.kinds == [Fill, MarkLevels, CountLevels, WriteLevels]
        # The host waits once, or not at all.
        assert noted.names.count("_local_scalar_dense") == 0
        assert noted.names.count("slice") == (capacities is None)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("filters", [(PAIRS,) * 4, tuple(map(box_filter, DETECTOR))])
@pytest.mark.chessboard
def test_cells_of_levels_are_one_call_of_four_kernels(
    filters: Any, arch: str, tmp_path: Any
) -> None:
    count, _, both = kernels_of(3, boxes_of(filters))
    for chain, kernels in ((count, 3), (both, 4)):
        built = build(chain, arch, dump=str(tmp_path))
        assert built.__ptx__.count(".entry") == kernels


def test_a_grid_without_cells_has_no_levels() -> None:
    two, three = (BoxFilter((2, 2), (k, k), (0, 0)) for k in (2, 3))
    assert suits(5, (two,) * 2, [(1, 4, 4), (1, 2, 2)])
    assert not suits(5, (two,) * 2, [(1, 1, 4), (1, 0, 2)])
    assert not suits(0, (two,), [(1, 4, 4)])
    assert not suits(5, (), [])
    assert not suits(5, (two,), [(1, 2**15, 2**15)])  # too many bits
    # A cell may be reached for each 2048 of a grid that is more than 8 MB of bits.
    assert not suits(20_000, (two,), [(1, 2**14, 2**13)])
    assert suits(20_000, (three,), [(1, 2**14, 2**13)])


def test_a_thread_makes_few_marks() -> None:
    same = BoxFilter((1, 1, 1), (3, 3, 3), (1, 1, 1))
    assert levels_at_once((PAIRS,) * 12) == MOST_LEVELS
    assert levels_at_once((PAIRS, same, PAIRS)) == 3  # 1, 27, 8 cells
    assert levels_at_once((PAIRS, same, same)) == 2
    grids = [(1, 8, 8, 8)] * 3
    assert suits(5, (PAIRS, same, PAIRS), grids)
    assert not suits(5, (PAIRS, same, same), grids)
