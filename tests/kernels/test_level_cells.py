"""The cells of all coarser levels at once, in the machine: those of one level after the other."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.kernels.maps.block_table import Fill
from layoutconv.kernels.maps.level_cells import (
    CountLevels,
    MarkLevels,
    WriteLevels,
    cells_of_levels,
    kernels_of,
    suits,
)
from layoutconv.kernels.maps.per_rank import build

from .cloud_launcher import SEEDS, Cell, Launches, Work, cloud, few, reaches

EXTENTS = {1: (300,), 2: (23, 37), 3: (9, 18, 31), 4: (6, 5, 14, 15)}


def reached_by(cells: Any, grid: Cell, strides: list[Cell], ceil: bool) -> Any:
    """The grids of levels, and of each the cells that those of the level before reach."""
    grids, found = [], []
    for stride in strides:
        up = [step - 1 if ceil else 0 for step in stride]
        finer = zip(grid[1:], stride, up, strict=True)
        grid = (grid[0], *((extent + u) // step for extent, step, u in finer))
        offsets = list(product(*map(range, stride)))
        found.append(reaches(cells, stride, offsets, grid, False))
        cells = torch.tensor(found[-1], dtype=torch.int32).view(-1, len(grid))
        grids.append(grid)
    return grids, found


@few
@given(st.data())
def test_cells_of_all_levels_are_those_of_each(launches: Launches, data: Any) -> None:
    rank = data.draw(st.integers(1, 4))
    levels = data.draw(st.integers(1, 4))
    strides = [tuple(data.draw(st.integers(1, 3)) for _ in range(rank)) for _ in range(levels)]
    grid = (data.draw(st.integers(1, 3)), *EXTENTS[rank])
    rows = data.draw(st.sampled_from([1, 5, 70, 200]))
    cells = cloud(data.draw(SEEDS), rows, grid, data.draw(st.integers(0, 2)), 0.2)
    launches.seed = data.draw(SEEDS)
    grids, want = reached_by(cells, grid, strides, data.draw(st.booleans()))
    if not suits(len(cells), grids):
        assert 0 in map(min, grids)
        return
    found, totals = cells_of_levels(cells, strides, grids)
    assert [list(map(tuple, each.tolist())) for each in found] == want
    assert [int(total) for total in totals] == [len(each) for each in want]
    capacities = [max(1, len(each) + data.draw(st.integers(-3, 5))) for each in want]
    found, totals = cells_of_levels(cells, strides, grids, capacities)
    for each, there, rows in zip(found, want, capacities, strict=True):
        padding = [(-1, *[0] * rank)] * (rows - len(there))
        assert list(map(tuple, each.tolist())) == there[:rows] + padding
    assert [int(total) for total in totals] == [len(each) for each in want]


def test_cells_lie_in_memory_in_any_way(launches: Launches) -> None:
    """Columns that lie apart, and rows that do not begin at a multiple of 16 bytes."""
    grid, strides = (2, 9, 18, 31), [(2, 2, 2)] * 2
    cells = cloud(3, 50, grid)
    grids, want = reached_by(cells, grid, strides, False)
    aside = torch.empty(cells.numel() + 1, dtype=torch.int32)[1:].view_as(cells).copy_(cells)
    for laid_out in (cells.T.contiguous().T, aside, cells.repeat(1, 2)[:, :4]):
        found, _ = cells_of_levels(laid_out, strides, grids)
        assert [list(map(tuple, each.tolist())) for each in found] == want


def test_levels_of_several_blocks_take_the_launches_of_one(launches: Launches) -> None:
    grid, strides = (2, 41, 65, 96), [(2, 2, 2)] * 4
    cells = cloud(2, 300, grid)
    grids, want = reached_by(cells, grid, strides, False)
    for capacities in (None, [len(each) + 30 for each in want]):
        launches.kinds.clear()
        with Work() as noted:
            found, _ = cells_of_levels(cells, strides, grids, capacities)
        for each, there in zip(found, want, strict=True):
            assert list(map(tuple, each[: len(there)].tolist())) == there
        assert launches.kinds == [Fill, MarkLevels, CountLevels, WriteLevels]
        # The host waits once, or not at all.
        assert noted.names.count("_local_scalar_dense") == 0
        assert noted.names.count("slice") == (capacities is None)


@pytest.mark.parametrize(("rank", "arch"), [(1, "sm_80"), (3, "sm_90a")])
def test_cells_of_levels_are_one_call_of_four_kernels(rank: int, arch: str, tmp_path: Any) -> None:
    count, _, both = kernels_of(rank, 4)
    for chain, kernels in ((count, 3), (both, 4)):
        built = build(chain, arch, dump=str(tmp_path))
        assert built.__ptx__.count(".entry") == kernels


def test_a_grid_without_cells_has_no_levels() -> None:
    assert suits(5, [(1, 4, 4), (1, 2, 2)])
    assert not suits(5, [(1, 1, 4), (1, 0, 2)])
    assert not suits(0, [(1, 4, 4)])
    assert not suits(5, [])
    assert not suits(5, [(1, 2**15, 2**15)])  # too many bits
