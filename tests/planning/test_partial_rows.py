"""Rows that are short for TMA, and tiles whose columns are mostly empty: times and choices."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.gpu.select import KernelChoice, choose_kernel
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.partial_rows import time_of_tap
from layoutconv.planning.tile import TileConfig, persistent
from layoutconv.planning.tile_time import expected_time

HOPPER = replace(MACHINES["sm_90a"], name="NVIDIA H200")
TILE, RESIDENT = persistent((128, 64, 32), (4, 1), 4), persistent(
    (128, 64, 32), (4, 1), 4, pingpong=True, b_resident=9
)  # fmt: skip


def chosen(problem: ConvProblem, dtype: torch.dtype = torch.float16) -> KernelChoice:
    view = fprop_view(problem)
    return choose_kernel(view, dtype, HOPPER, dtype, precision="tf32", measures=False)


@given(
    stored=st.integers(1, 32).map(lambda vectors: 8 * vectors), size=st.sampled_from([2, 4]),
    columns=st.integers(1, 64),
)  # fmt: skip
def test_whole_lines_are_the_fastest_way_to_load_bytes(
    stored: int, size: int, columns: int
) -> None:
    line = replace(RESIDENT, mma=(128, 64, 128 // size))
    of_byte = time_of_tap(line, columns, 128 // size, size) / 128
    assert time_of_tap(RESIDENT, columns, stored, size) >= of_byte * stored * size * (1 - 1e-9)
    assert time_of_tap(TILE, columns, stored, size) > time_of_tap(RESIDENT, columns, stored, size)
    assert time_of_tap(TILE, columns, stored, size) < time_of_tap(TILE, columns + 1, stored, size)


def test_threads_load_rows_in_any_time() -> None:
    assert time_of_tap(TileConfig((128, 64, 32), (2, 2)), 64, 24, 2) == 0.0


def test_threads_load_rows_of_32_bytes() -> None:
    """On an H200, 72 microseconds by threads, 175 by a persistent tile that TMA loads."""
    problem = ConvProblem((128, 224, 112, 16), (32, 3, 1), (2, 1), ((1, 1), (0, 0)))
    assert not chosen(problem).spec.tile.warp_specialized


@pytest.mark.parametrize(
    ("shape", "taps", "stride", "K", "columns"),
    [
        ((4, 498, 434, 64), (3, 3), 2, 64, 64),  # 47 us in fp16, 74 in tiles of 128 columns
        ((2, 128, 128, 128, 32), (3, 3, 3), 2, 64, 64),  # 197, and 283
        ((8, 16, 112, 112, 64), (7, 1, 1), (2, 1, 1), 64, 64),
        ((4, 64, 64, 320), (3, 3), 1, 4, 8),  # 10, and 25 in tiles of 64
        ((2, 64, 64, 64, 64), (1, 1, 1), 1, 3, 8),  # 7.6, and 8.5 in tiles of 32
    ],
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_tiles_are_not_half_empty(
    shape: tuple[int, ...], taps: tuple[int, ...], stride: int | tuple[int, ...], K: int,
    columns: int, dtype: torch.dtype,
) -> None:  # fmt: skip
    problem = ConvProblem(shape, (K, *taps), stride, tuple(t // 2 for t in taps))
    assert chosen(problem, dtype).spec.tile.n == columns


def test_empty_columns_take_longer_than_products_of_zeros() -> None:
    problem = chosen(ConvProblem((64, 64, 64, 64), (64, 3, 3), padding=1)).problem
    wide = persistent((192, 128, 64), (12, 1), 4)
    half, whole = (
        expected_time(replace(problem, n=n, moved=0), wide, 1, HOPPER) for n in (64, 128)
    )
    assert half > 1.2 * whole
