"""Output coordinates by kernels, in the simulator, against a Python set."""

from __future__ import annotations

import re
from math import prod
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.kernels.maps import occupancy_bitmap
from layoutconv.kernels.maps.block_table import Fill
from layoutconv.kernels.maps.occupancy_bitmap import CountBits, Mark, WriteCells
from layoutconv.kernels.maps.output_coords import reached
from layoutconv.kernels.maps.per_rank import build

from .cloud_launcher import ROWS, SEEDS, Launches, Work, box, cloud, few, grids, reaches, tap_lists


@few
@given(st.data())
def test_reached_cells_are_a_sorted_set(launches: Launches, data: Any) -> None:
    grid = data.draw(grids())
    rank = len(grid) - 1
    indices = cloud(data.draw(SEEDS), data.draw(ROWS), grid, data.draw(st.integers(0, 3)), 0.2)
    stride = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    offsets = tap_lists(data.draw, rank)
    transposed, as_bits = data.draw(st.booleans()), data.draw(st.booleans())
    launches.seed = data.draw(SEEDS)
    want = reaches(indices, stride, offsets, grid, transposed)
    arguments = (indices, stride, offsets, grid[1:], grid[0])
    cells, count = reached(*arguments, transposed=transposed, as_bits=as_bits)
    assert list(map(tuple, cells.tolist())) == want
    assert (cells.shape, cells.dtype) == ((len(want), 1 + rank), torch.int32)
    assert (count.shape, int(count)) == ((), len(want))

    capacity = max(0, len(want) + data.draw(st.integers(-3, 5)))
    cells, count = reached(*arguments, capacity, transposed=transposed, as_bits=as_bits)
    padding = [(-1, *[0] * rank)] * (capacity - len(want))
    assert list(map(tuple, cells.tolist())) == want[:capacity] + padding
    assert int(count) == len(want)


def test_cells_of_several_blocks_of_bits(launches: Launches) -> None:
    grid = (2, 21, 33, 47)
    assert prod(grid) > 3 * 64 * occupancy_bitmap.BLOCK
    indices = cloud(2, 120, grid)
    offsets = box(3, 2)
    want = reaches(indices, (1, 1, 1), offsets, grid, False)
    reached(indices, (1, 1, 1), offsets, grid[1:], 2)  # copies the taps to where they are read
    for capacity in (None, 0, 300, len(want) + 2000):
        launches.kinds.clear()
        with Work() as noted:
            cells, count = reached(indices, (1, 1, 1), offsets, grid[1:], 2, capacity)
        rows = len(want) if capacity is None else capacity
        padding = [(-1, 0, 0, 0)] * (rows - len(want))
        assert list(map(tuple, cells.tolist())) == want[:rows] + padding
        assert int(count) == len(want)
        # What a call costs: a dozen launches were 0.2 ms. The host waits once, or not at all.
        kernels = [Fill, Mark, CountBits, WriteCells]
        assert launches.kinds == (kernels if rows else kernels[:-1])
        assert noted.names.count("_local_scalar_dense") == (capacity is None)
        assert set(noted.names) <= {"new_empty", "select", "_local_scalar_dense"}


def test_bits_are_for_grids_that_are_not_too_great() -> None:
    assert occupancy_bitmap.suits(1 << 26, 1)
    assert occupancy_bitmap.suits(90 * 10**6, 50_000)
    assert not occupancy_bitmap.suits(90 * 10**6, 40_000)
    assert not occupancy_bitmap.suits(1 << 29, 10**8)


def test_cells_before_the_first_one_are_divided_downwards(launches: Launches) -> None:
    indices = torch.tensor([[0, -1, -3], [1, -2, 4], [0, -7, 5]], dtype=torch.int32)
    cells, _ = reached(indices, (2, 3), [(-1, -3), (-2, 1), (-5, -1)], (4, 4), 2)
    assert cells.tolist() == [[0, 0, 0], [1, 0, 1]]


def test_more_taps_than_a_mask_has_bits(
    launches: Launches,
) -> None:
    grid = (1, 40, 40)
    indices = cloud(1, 90, grid)
    offsets = box(2, 7)
    for transposed in (False, True):
        cells, _ = reached(
            indices, (1, 2), offsets, grid[1:], 1, transposed=transposed, as_bits=False
        )
        assert list(map(tuple, cells.tolist())) == reaches(
            indices, (1, 2), offsets, grid, transposed
        )


@pytest.mark.parametrize(("rank", "arch"), [(1, "sm_80"), (3, "sm_90a"), (4, "sm_80")])
def test_cells_of_bits_are_one_call_of_four_kernels(rank: int, arch: str, tmp_path: Any) -> None:
    count, _, both = occupancy_bitmap.kernels_of(rank)
    for chain, kernels in ((count, 3), (both, 4)):
        built = build(chain, arch, dump=str(tmp_path))
        assert built.__ptx__.count(".entry") == kernels
        assert ".nc" not in built.__ptx__
        assert all(kernel.stack == 0 for kernel in read_cubin(built.__cubin__).values())


def test_the_words_of_several_taps_are_asked_for_together(tmp_path: Any) -> None:
    """One tap after the other, a kernel of 27 took 10 to 13 microseconds on an H200, whatever the
    cloud: rows of a warp meet different taps.
    """
    ptx = build(Mark(3), "sm_90a", dump=str(tmp_path)).__ptx__
    blocks = re.split(r"^\$\w+:|\bbra\b", ptx, flags=re.MULTILINE)
    most = max(len(re.findall(r"\bld\.global\.[bsu]64\b", block)) for block in blocks)
    assert most >= occupancy_bitmap.TAPS_AT_ONCE > 1


@pytest.mark.parametrize("cells", [0, 1, 63, 64, 65, 200])
@pytest.mark.parametrize("capacity", [None, 0, 3, 64, 300])
@pytest.mark.chessboard
def test_words_of_many_cells(launches: Launches, cells: int, capacity: int | None) -> None:
    """Four cells of a word are written at once; fewer behind them, and where room ends."""
    at = torch.arange(cells, dtype=torch.int32)
    indices = torch.stack([0 * at, at // 100, at % 100], 1).contiguous()
    found, count = reached(indices, (1, 1), [(0, 0)], (3, 100), 1, capacity=capacity, as_bits=True)
    assert int(count) == cells
    rows = cells if capacity is None else capacity
    want = torch.tensor([-1, 0, 0], dtype=torch.int32).repeat(rows, 1)
    want[: min(cells, rows)] = indices[:rows]
    assert torch.equal(found, want)
