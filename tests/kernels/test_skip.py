"""Tiles that leave out the taps that none of their rows has, in the machine."""

from __future__ import annotations

import pytest
import torch
from layoutconv.kernels.spec import can_skip
from layoutconv.kernels.tile import Tile

from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.gemm_view import GemmView

from .launcher import Case, Ran, check_exact, compiled_view, half_line, run_case

PROBLEMS = {
    "a small output": ConvProblem((40, 3, 4, 64), (64, 2, 4)),
    "three modes": ConvProblem((33, 3, 2, 3, 16), (32, 2, 2, 3)),
    "32 taps": ConvProblem((35, 4, 9, 16), (32, 4, 8), padding=(2, 1)),
    "rows without any tap": ConvProblem((34, 5, 3, 16), (32, 2, 2), padding=((0, 0), (0, 0))),
    "a stride": ConvProblem((32, 6, 5, 16), (32, 3, 3), stride=2),
}


def ran_with(view: GemmView, tile: Tile, dtype: torch.dtype, *, skip: bool) -> Ran:
    case = Case.of(view, dtype)
    ran = run_case(case, compiled_view(view, dtype, tile, skip=skip))
    check_exact(case, ran)
    return ran


def products(ran: Ran) -> int:
    return sum(count for name, count in ran.stats.opcodes.items() if name.startswith("mma"))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", PROBLEMS)
def test_taps_that_no_row_has_are_not_multiplied(name: str, dtype: torch.dtype) -> None:
    tile = Tile(32, 64, half_line(dtype), 1, 2, 3)
    for view in dgrad_views(PROBLEMS[name], images_first=True):
        if not view.k:
            continue
        skipping = ran_with(view, tile, dtype, skip=True)
        if can_skip(view, (1, 0), tile) and name in ("a small output", "three modes"):
            assert products(skipping) < products(ran_with(view, tile, dtype, skip=False))


def test_where_tiles_skip() -> None:
    tile = Tile(64, 64, 32)
    problem = ConvProblem((64, 4, 4, 64), (32, 3, 3))
    [images_first], [cells_first] = (
        dgrad_views(problem, images_first=first) for first in (True, False)
    )
    assert can_skip(images_first, (1, 0), tile)
    assert not can_skip(cells_first, (1, 0), tile)  # neighbours lack different taps
    assert not can_skip(images_first, (0, 0), tile)  # no bits for taps
    few = ConvProblem((16, 4, 4, 64), (32, 3, 3))
    assert not can_skip(*dgrad_views(few, images_first=True), (1, 0), tile)
    assert not can_skip(images_first, (1, 0), Tile(64, 64, 64))  # k-tiles of several taps
