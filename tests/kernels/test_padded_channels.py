"""Channels rounded up to whole k-tiles: what is beyond them is neither read nor multiplied."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning import legality
from layoutconv.planning.channel_padding import has_padded_channels, padded_channels
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import KernelSchedule, Load
from layoutconv.planning.structural_zeros import k_tile_runs
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.view.gemm_view import GemmView, locate
from layoutconv.view.operands import row_major, static

from ..grid_cover import with_deep
from .launcher import (
    Case,
    check_not_finite,
    check_view_runs,
    compiled_view,
    run_case,
    spec_of,
)
from .test_tma import copies, known
from .tiles import retiled

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TILE = specialized((64, 64, 32), (4, 1), 3, Load.TMA_WARP)
HALO = replace(TILE, halo_taps=3)
LAST = persistent((64, 64, 32), (4, 1), 3)
TEAMS = replace(LAST, schedule=KernelSchedule.PINGPONG)
HELD = retiled(TEAMS, n=32, halo_taps=3)

SWIN = ConvProblem((1, 5, 7, 48), (40, 3, 3), padding=1)
MONAI = ConvProblem((1, 2, 4, 7, 16), (24, 3, 3, 3), padding=1)
ONE_BLOCK = ConvProblem((1, 5, 6, 16), (8, 3, 3), padding=1)
EFFICIENT = ConvProblem((1, 5, 7, 24), (24, 3, 3), padding=1)
WHISPER = ConvProblem((1, 40, 80), (72, 3), padding=1)
STRIDED = ConvProblem((2, 7, 9, 48), (64, 3, 3), 2, 1)


def padded(view: GemmView, k: int = 32) -> GemmView:
    return known(padded_channels(view, k))


def wide(view: GemmView) -> GemmView:
    return known(widened(view))


def gradient(problem: ConvProblem) -> GemmView:
    """The padded view of a gradient, whose channels are those of the output."""
    (view,) = dgrad_views(replace(problem, filter=(problem.C, *problem.taps)))
    return padded(view)


# With how many runs of k-tiles: of blocks that are zeros there is none.
RUN: dict[str, tuple[GemmView, torch.dtype, TileConfig, int]] = {
    "three halves of 32": (padded(fprop_view(SWIN)), F16, TILE, 2),
    "one product of a k-tile": (padded(fprop_view(ONE_BLOCK)), F16, TILE, 1),
    "taps that share rows": (wide(padded(fprop_view(SWIN))), F16, HALO, 2),
    "24 channels": (wide(padded(fprop_view(EFFICIENT))), F16, retiled(HALO, n=32), 0),
    "80 channels of a line": (padded(fprop_view(WHISPER)), F16, TILE, 0),
    "two that take turns": (padded(fprop_view(SWIN)), BF16, TEAMS, 2),
    "B held": (wide(padded(fprop_view(MONAI))), F16, replace(HELD, b_resident=9), 1),
    "a gradient whose taps share rows": (wide(gradient(SWIN)), BF16, HALO, 0),
    "parts of a cluster": (padded(fprop_view(SWIN)), F16, replace(TILE, cluster_k=2), 0),
    "tf32": (wide(padded(fprop_view(EFFICIENT), 16)), F32, retiled(HALO, k=16, n=32), 2),
}  # fmt: skip


DEEP = "one product of a k-tile", "80 channels of a line", "a gradient whose taps share rows"


@pytest.mark.parametrize("name", with_deep(RUN, *DEEP))
def test_what_is_multiplied(name: str) -> None:
    view, dtype, tile, count = RUN[name]
    more = {"most": 2} if tile.persistent else {}
    check_view_runs(view, dtype, tile, arch="sm_90a", **more)
    spec = spec_of(view, dtype, tile, "sm_90a")
    assert len(k_tile_runs(view, spec)) == count
    legality.check(view, spec)
    assert copies(compiled_view(view, dtype, tile, "sm_90a"))[2] == 0  # no thread copies


def test_what_is_not_finite_stays_with_its_windows() -> None:
    """The numbers beside a tap's channels are those of another."""
    view = padded(fprop_view(SWIN))
    case = Case.of(view, F16)
    case.a.view(-1, SWIN.C)[3, 0] = torch.inf
    case.b.view(SWIN.K, -1, SWIN.C)[5, 4, 0] = torch.inf
    ran = run_case(case, compiled_view(view, F16, TILE, "sm_90a"))
    plain = Case(fprop_view(SWIN), case.a, case.b, case.out)
    check_not_finite(plain, ran)


@pytest.mark.parametrize("problem", [SWIN, MONAI, WHISPER, STRIDED])
def test_the_products_are_the_same(problem: ConvProblem) -> None:
    """Padded channels are outside both operands; all other channels are where they were."""
    plain, view = fprop_view(problem), padded(fprop_view(problem))
    whole, taps = int(view.a.inner.shape[1][0]), view.k // int(view.a.inner.shape[1][0])
    assert (view.m, view.n, taps) == (plain.m, plain.n, plain.k // problem.C)
    for layout, before, rows in ((view.a, plain.a, view.m), (view.b, plain.b, view.n)):
        row, k = torch.arange(rows)[:, None], torch.arange(view.k)[None]
        at, there = (torch.as_tensor(t).expand(rows, view.k) for t in locate(layout, row, k))
        real = (k % whole < problem.C).expand(rows, view.k)
        assert not there[~real].any()
        columns = torch.arange(plain.k)[None]
        want, inside = (
            torch.as_tensor(t).expand(rows, plain.k) for t in locate(before, row, columns)
        )
        assert torch.equal(there[real], inside.reshape(-1))
        assert torch.equal(at[real][there[real]], want[inside])


def test_threads_do_not_copy_padded_channels() -> None:
    view = padded(fprop_view(SWIN))
    for tile in (TileConfig((64, 64, 32)), specialized((64, 64, 32), (4, 1), 3)):
        spec = spec_of(view, F16, tile, "sm_90a", aligned=(8, 16, 16))
        assert any("padded channels" in reason for reason in legality.reasons(view, spec))


def test_pixels_past_memory_are_no_padded_channels() -> None:
    """Where sums run over pixels, more of them than memory has are padding of the convolution."""
    pixels, memory, modes = static(20, "Q"), row_major((16, 64)), (E(1), E(0))
    a, b = (ComposedLayout(memory, (at, 0), Layout((64, pixels), modes)) for at in (-2, -3))
    results = Layout((64, 64), (E(0), E(1)))
    view = GemmView(a, b, ComposedLayout(row_major((64, 64)), 0, results))
    assert not has_padded_channels(view)
    for arch in ("sm_80", "sm_90a"):
        choice = choose_kernel(view, F16, MACHINES[arch])
        check_view_runs(view, F16, choice.spec.tile, arch=arch)


def test_what_is_not_padded() -> None:
    for problem in (
        ConvProblem((2, 5, 7, 64), (40, 3, 3)),  # whole k-tiles
        ConvProblem((2, 5, 7, 8), (40, 3, 3)),  # four times as many
        ConvProblem((2, 5, 7, 96), (64, 3, 3), groups=2),
    ):
        assert padded_channels(fprop_view(problem), 32) is None


def test_the_model_pads_where_that_is_faster() -> None:
    machine = MACHINES["sm_90a"]
    big = ConvProblem((16, 160, 160, 48), (48, 3, 3), padding=1)
    for view in (fprop_view(big), *dgrad_views(big)):
        choice = choose_kernel(view, F16, machine)
        assert has_padded_channels(choice.view)
        assert choice.spec.tile.load is Load.TMA_WARP
        unaligned = choose_kernel(view, F16, machine, aligned=(8, 16, 16))
        assert not has_padded_channels(unaligned.view)
    assert not has_padded_channels(choose_kernel(fprop_view(big), F16, MACHINES["sm_80"]).view)
