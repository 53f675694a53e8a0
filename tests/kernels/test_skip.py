"""Tiles that leave out the taps that none of their rows has, in the machine."""

from __future__ import annotations

from math import lcm, prod

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, gather_fprop_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.kernel_spec import can_skip, skips_sums
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.sparse import kernel_map_view, tile_taps
from layoutconv.sparse.maps.tap_pairs import Pairs, pairs_of
from layoutconv.sparse.views import pairs_wgrad_view
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    Case,
    Ran,
    check_exact,
    compile_spec,
    compiled_view,
    half_line,
    reference,
    run_case,
)

PROBLEMS = {
    "a small output": ConvProblem((40, 3, 4, 64), (64, 2, 4)),
    "three modes": ConvProblem((33, 3, 2, 3, 16), (32, 2, 2, 3)),
    "32 taps": ConvProblem((35, 2, 5, 16), (32, 4, 8), padding=2),
    "rows without any tap": ConvProblem((34, 5, 3, 16), (32, 2, 2), padding=((0, 0), (0, 0))),
    "a stride": ConvProblem((32, 6, 5, 16), (32, 3, 3), stride=2),
}


def ran_with(view: GemmView, tile: TileConfig, dtype: torch.dtype, *, skip: bool) -> Ran:
    case = Case.of(view, dtype)
    ran = run_case(case, compiled_view(view, dtype, tile, skip=skip))
    check_exact(case, ran)
    return ran


def products(ran: Ran) -> int:
    return sum(count for name, count in ran.stats.opcodes.items() if name.startswith("mma"))


def of_a_k_tile(tile: TileConfig, dtype: torch.dtype) -> int:
    """The products of warps, 16 x 8 x 32 bytes each, that a CTA multiplies a k-tile by."""
    return tile.m // 16 * (tile.n // 8) * (tile.k * dtype.itemsize // 32)


def test_who_leaves_nothing_out_multiplies_every_k_tile() -> None:
    index, dtype = kernel_map(70, 9, 0.3), torch.float16
    view = kernel_map_view(index, 32, 72, kernel_size=(3, 3))
    tile = TileConfig((32, 32, 32), (2, 2), 2)
    ran = ran_with(view, tile, dtype, skip=False)
    assert products(ran) == 3 * 3 * 9 * of_a_k_tile(tile, dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.chessboard
def test_taps_that_no_row_has_are_not_multiplied(name: str, dtype: torch.dtype) -> None:
    tile = TileConfig((32, 64, half_line(dtype)), (1, 2))
    for view in dgrad_views(PROBLEMS[name], images_first=True):
        if not view.k:
            continue
        skipping = ran_with(view, tile, dtype, skip=True)
        if can_skip(view, (1, 0), tile) and name in ("a small output", "three modes"):
            k_tiles = -(-view.m // tile.m) * -(-view.n // tile.n) * -(-view.k // tile.k)
            assert products(skipping) < k_tiles * of_a_k_tile(tile, dtype)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_groups_leave_out_the_taps_that_each_lacks(arch: str) -> None:
    """The model counts the taps of one group, since all have the same."""
    problem = ConvProblem((64, 2, 2, 32), (128, 3, 3), padding=1, groups=2)
    (view,) = dgrad_views(problem, images_first=True)
    choice = choose_kernel(view, torch.float16, MACHINES[arch], splits=1)
    assert choice.spec.skip
    assert choice.problem.k == view.k * 4 // 9  # two by two of three by three
    case = Case.of(view, torch.float16)
    check_exact(case, run_case(case, compile_spec(choice.view, choice.spec)))


def test_where_tiles_skip() -> None:
    tile = TileConfig((64, 64, 32))
    problem = ConvProblem((64, 4, 4, 64), (32, 3, 3))
    [images_first], [cells_first] = (
        dgrad_views(problem, images_first=first) for first in (True, False)
    )
    assert can_skip(images_first, (1, 0), tile)
    assert not can_skip(cells_first, (1, 0), tile)  # neighbours lack different taps
    assert not can_skip(images_first, (0, 0), tile)  # no bits for taps
    few = ConvProblem((16, 4, 4, 64), (32, 3, 3))
    assert not can_skip(*dgrad_views(few, images_first=True), (1, 0), tile)
    assert not can_skip(images_first, (1, 0), TileConfig((64, 64, 64)))  # k-tiles of several taps


def kernel_map(rows: int, taps: int, share: float, seed: int = 0) -> torch.Tensor:
    """An index buffer whose rows have a few taps, neighbours the same ones."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, rows, (taps, rows), generator=generator, dtype=torch.int32)
    there = torch.rand(taps, -(-rows // 32), generator=generator) < share
    index[~there.repeat_interleave(32, dim=1)[:, :rows]] = -1
    return index.T


MAPS = {  # channels, taps, rows, tile
    "k-tiles within a tap": (64, (3, 3, 3), 150, (64, 64, 32, 2, 2, 2)),
    "a k-tile is two taps": (16, (3, 3, 3), 150, (64, 64, 32, 2, 2, 2)),
    "two taps are three k-tiles": (48, (3, 3), 100, (32, 64, 32, 2, 2, 2)),
    "more threads than vectors": (32, (3, 3), 70, (32, 64, 32, 2, 4, 3)),
    "more rows than threads": (32, (3, 3), 300, (256, 32, 32, 4, 1, 2)),
    "four threads a row": (32, (3, 3, 3), 70, (32, 64, 32, 2, 2, 2)),
    "125 taps": (32, (5, 5, 5), 70, (64, 32, 32, 4, 1, 2)),
    "343 taps, two to a k-tile": (16, (7, 7, 7), 40, (32, 32, 32, 2, 2, 2)),
    "odd channels": (5, (3, 3, 3), 70, (64, 32, 32, 4, 1, 2)),
}


DEEP = "a k-tile is two taps", "four threads a row", "125 taps"


@pytest.mark.parametrize("name", with_deep(MAPS, *DEEP))
def test_taps_that_a_kernel_map_lacks_are_not_multiplied(name: str) -> None:
    channels, taps, rows, sizes = MAPS[name]
    m, n, k, warps_m, warps_n, stages = sizes
    tile = TileConfig((m, n, k), (warps_m, warps_n), stages)
    index = kernel_map(rows, prod(taps), 0.3)
    index[-40:] = -1  # rows, and tiles, without any tap
    view = kernel_map_view(index, channels, 32, kernel_size=taps)
    assert can_skip(view, (1, 1), tile) == (name != "odd channels" or lcm(5, 32) < view.k)
    skipping = ran_with(view, tile, torch.float16, skip=True)
    unit = lcm(channels, tile.k) // channels
    there = tile_taps(index, tile.m)
    there = torch.nn.functional.pad(there, (0, -prod(taps) % unit))
    there = there.view(len(there), -1, unit).any(2)
    units = there.sum(1).clamp(min=1)  # a tile of no tap has one, of zeros
    k_tiles = int(units.sum()) * lcm(channels, tile.k) // tile.k
    assert products(skipping) == k_tiles * of_a_k_tile(tile, torch.float16)


@pytest.mark.parametrize(
    ("tile", "arch"),
    [
        (TileConfig((64, 128, 32), (2, 2), 2), "sm_80"),
        (specialized((64, 128, 32), (4, 1), 2), "sm_90a"),
    ],
    ids=["multistage", "warp-specialized"],
)
def test_an_index_buffer_is_kept_behind_an_epilogue_larger_than_the_stages(
    tile: TileConfig, arch: str
) -> None:
    """Both have memory of their own, once: a launch that asks for less writes past its end."""
    index, order = kernel_map(100, 9, 0.3), torch.arange(100, dtype=torch.int32)
    view = kernel_map_view(index, 32, tile.n, kernel_size=(3, 3), scatter_index=order)
    case = Case.of(view, torch.float16, torch.float32)
    compiled = compiled_view(view, torch.float16, tile, arch, torch.float32, skip=True)
    assert compiled.spec.kept
    assert compiled.spec.bytes_past_stages
    check_exact(case, run_case(case, compiled))


def test_a_grid_that_is_gathered_has_its_taps() -> None:
    index = torch.arange(2 * 8 * 8, dtype=torch.int32)
    view = gather_fprop_view(ConvProblem((2, 8, 8, 64), (32, 3, 3), padding=1), index)
    assert not can_skip(view, (1, 1), TileConfig((64, 64, 32)))


def test_more_taps_than_bits_are_all_multiplied() -> None:
    view = kernel_map_view(kernel_map(9, 512, 0.5), 32, 32, kernel_size=8)
    assert not can_skip(view, (1, 1), TileConfig((64, 64, 32)))


@pytest.mark.parametrize(
    ("tile", "arch"),
    [
        (TileConfig((32, 64, 32), (1, 2)), "sm_80"),
        (specialized((64, 64, 64), (4, 1), 3), "sm_90a"),
    ],
    ids=["cp.async", "wgmma"],
)
def test_problems_of_nothing_are_left_out(tile: TileConfig, arch: str) -> None:
    """As the pairs of a graph, of which there are as many chunks as there could be: their CTAs end
    at once, and write nothing.
    """
    random = torch.Generator().manual_seed(0)
    index = torch.randint(-3, 40, (300, 2), generator=random, dtype=torch.int32).clamp(min=-1)
    found = pairs_of(index, 192)
    nothing = torch.full((3, 192), -1, dtype=torch.int32)
    rows = [torch.cat([rows, nothing]) for rows in (found.outputs, found.inputs)]
    pairs = Pairs(*rows, found.lengths, 192)
    view = pairs_wgrad_view(pairs, 64, 64, in_rows=40, out_rows=300)
    assert skips_sums(view, (0, 0))
    case, made = Case.of(view, torch.float16, torch.float32), list[Ran]()
    want, _ = reference(case)
    for skip in (False, True):
        compiled = compiled_view(view, torch.float16, tile, arch, torch.float32, skip=skip)
        ran = run_case(case, compiled)
        chunks = len(want) - len(nothing) * skip
        assert ran.written[:chunks].all()
        assert torch.equal(ran.out[:chunks].double(), want[:chunks])
        assert not ran.written[chunks:].any()
        made.append(ran)
    instructions = [
        sum(n for name, n in ran.stats.opcodes.items() if name.startswith(("mma", "wgmma.mma")))
        for ran in made
    ]
    assert instructions[1] * len(want) == instructions[0] * (len(want) - len(nothing))


@pytest.mark.parametrize("sizes", [((3, 3, 3), (27, 1, 1)), ((1, 1, 1), (1,))])
def test_taps_of_a_kernel_map_are_coalesced(sizes: tuple[tuple[int, ...], ...]) -> None:
    """Three digits of a tap take the code of one: their index entries lie as 27 in a row do."""
    tile, codes = TileConfig((32, 32, 32), (2, 2), 2), []
    for kernel_size in sizes:
        index = torch.zeros(prod(kernel_size), 90, dtype=torch.int32).T
        view = kernel_map_view(index, 32, 32, kernel_size=kernel_size)
        ptx = compiled_view(view, torch.float16, tile, skip=True).ptx
        codes.append([line.split()[0] for line in ptx.splitlines() if line.startswith("\t")])
    assert codes[0] == codes[1]
