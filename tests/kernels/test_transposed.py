"""Transposed convolutions as one kernel: residues side by side read one bias, and D is folded."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views
from layoutconv.gpu.phase_choice import MORE_COLUMNS, arranged_dgrad
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.tensors.tensor_checks import columns_of
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual, Scale
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import Case, convert, integers, reference, run_case

F16, F32 = torch.float16, torch.float32
SMALL = TileConfig((64, 64, 32), (2, 2), 2)
WARPS = specialized((64, 128, 64), (4, 1), 2, Load.TMA_WARP)
GROUPS = specialized((64, 128, 32), (4, 1), 4, Load.TMA_WARP)
PERSISTENT = persistent((128, 128, 64), (8, 1), 3)
PINGPONG = persistent((64, 64, 64), (4, 1), 3, pingpong=True)


def one(problem: ConvProblem) -> GemmView:
    [view] = arranged_dgrad(problem, MORE_COLUMNS, empty=True)
    return view


def joined(*shapes: tuple[int, ...], groups: int = 1) -> GemmView:
    """The gradient of all stride phases as columns, zeros included."""
    problem = ConvProblem(*shapes, stride=2, padding=1, groups=groups)
    [view] = dgrad_views(problem, side_by_side=tuple(range(problem.rank)))
    return view


UP = ConvProblem((2, 4, 4, 6, 64), (64, 2, 2, 2), stride=2)
VIEWS = {
    "2x2x2": (one(ConvProblem((2, 4, 2, 6, 16), (24, 2, 2, 2), stride=2)), SMALL, "sm_80"),
    "2x2 with cells to spare": (one(ConvProblem((2, 5, 7, 16), (24, 2, 2), 2)), SMALL, "sm_80"),
    "4x4": (one(ConvProblem((1, 8, 7, 16), (24, 4, 4), 2, 1)), SMALL, "sm_80"),
    "3x3, a tap is missing": (one(ConvProblem((1, 8, 7, 8), (24, 3, 3), 2, 1)), SMALL, "sm_80"),
    "patches of 3 channels": (one(ConvProblem((1, 32, 32, 3), (24, 16, 16), 16)), SMALL, "sm_80"),
    "8 x 8 x 8": (one(ConvProblem((1, 8, 16, 16, 1), (16, 8, 8, 8), 8)), SMALL, "sm_80"),
    "a vocoder": (one(ConvProblem((2, 40, 8), (16, 16), 8, 4)), SMALL, "sm_80"),
    "320 samples": (one(ConvProblem((1, 2880, 1), (16, 320), 320)), SMALL, "sm_80"),
    "groups": (one(ConvProblem((1, 6, 6, 16), (32, 2, 2), 2, groups=2)), SMALL, "sm_80"),
    "groups, 4x4": (one(ConvProblem((1, 9, 6, 16), (24, 4, 4), 2, groups=4)), SMALL, "sm_80"),
    "TMA": (one(UP), WARPS, "sm_90a"),
    "TMA, borders": (one(ConvProblem((1, 6, 6, 64), (64, 4, 4), 2, 1)), WARPS, "sm_90a"),
    "persistent": (one(UP), PERSISTENT, "sm_90a"),
    "3x3x3, taps are missing": (joined((1, 6, 6, 5, 64), (64, 3, 3, 3)), WARPS, "sm_90a"),
    "3x3 of groups": (joined((1, 6, 5, 64), (64, 3, 3), groups=2), GROUPS, "sm_90a"),
}  # fmt: skip


def steps_of(view: GemmView, shape: tuple[int, ...]) -> Epilogue:
    count = columns_of(view)
    scale = 2.0 ** integers((count,), F32, 6).clamp(-1, 1)
    residual = Residual(integers(shape, F16, 7), 2.0)
    return Epilogue((Scale(scale), Bias(integers((count,), F32, 5)), residual, Activation("relu")))


@pytest.mark.parametrize("name", with_deep(VIEWS, "4x4", "8 x 8 x 8", "groups", "TMA"))
def test_one_kernel_with_an_epilogue(name: str) -> None:
    view, tile, arch = VIEWS[name]
    case = Case.of(view, F16, F32)
    case.epilogue = steps_of(view, tuple(case.out.shape))
    if tile.persistent or list(VIEWS).index(name) % 2:  # what needs no more than the column
        case.epilogue = Epilogue((*case.epilogue.steps[:2], case.epilogue.steps[3]))
    check(case, tile, arch)


def check(case: Case, tile: TileConfig, arch: str) -> None:
    """Compare with float64 at every place of D; places have channels."""
    ran = run_case(case, case.compiled(tile, arch))
    sums, written = reference(case)
    assert torch.equal(ran.written, written)
    channels = columns_of(case.view)
    x = sums.reshape(-1, channels)
    for step in case.epilogue.steps:
        if isinstance(step, Scale):
            x = x * step.by.double()
        elif isinstance(step, Bias):
            x = x + step.by.double()
        elif isinstance(step, Residual):
            x = x + step.scale * step.source.double().reshape(-1, channels)
        else:
            x = x.relu()
    want = convert(x.view(sums.shape), case.out.dtype)
    assert torch.equal(ran.out[written], want[written])
    if case.epilogue.statistics:
        assert ran.statistics is not None
        entries = case.view.columns(torch.arange(case.view.n))
        found = torch.zeros(2, channels, dtype=torch.float64)
        found.index_add_(1, entries, ran.statistics.double().sum(0))
        stored = torch.where(written, want.double(), 0.0).reshape(-1, channels)
        assert torch.equal(found, torch.stack((stored.sum(0), stored.square().sum(0))))


def test_ping_pong_stores_from_registers() -> None:
    view = one(UP)
    case = Case.of(view, F16)
    case.epilogue = Epilogue((Bias(integers((columns_of(view),), F32, 5)), Activation("relu")))
    check(case, PINGPONG, "sm_90a")
