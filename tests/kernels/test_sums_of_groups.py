"""Sums over voxels of several groups, the filter's gradient, in the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from layoutconv.conv import ConvProblem, wgrad_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.kernels.compile.build import build
from layoutconv.planning import legality
from layoutconv.planning.group_sums import (
    GroupSumTile,
    GroupSumView,
    jobs_of,
    make_sum_tile,
    sum_vectors,
)
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.view_rules import UnsupportedViewError

from ..grid_cover import with_deep
from .launcher import NAMES, Case, Ran, check_exact, compile_spec, dtype_name, run_case
from .view_cases import conv


@dataclass(frozen=True)
class Summed:
    """A problem with a tile: groups of a CTA and a box of voxels; parts of the sums."""

    problem: ConvProblem
    groups: int
    box: tuple[int, ...]
    splits: int = 1
    dtype: torch.dtype = torch.float16
    out: torch.dtype = torch.float32

    @property
    def spec(self) -> KernelSpec:
        of = GroupSumView.of(wgrad_view(self.problem))
        assert of is not None
        kinds = NAMES.get(self.dtype, ""), dtype_name(self.out)
        tile, split = make_sum_tile(of, self.groups, self.box), "partial" * (self.splits > 1)
        return KernelSpec(*kinds, tile, "sm_80", sum_vectors(of, *kinds), (0, 0), split=split)


SUMMED = {
    "tf32, 4, in parts": Summed(conv((2, 5, 6, 32), (32, 3, 3), 8), 8, (8, 4, 1), 3, torch.float32),
    "tf32, 8": Summed(conv((2, 5, 6, 32), (32, 3, 3), 4), 4, (4, 4, 1), 1, torch.float32),
    "tf32, 8, stride 2": Summed(
        conv((2, 5, 9, 32), (32, 3, 3), 4, stride=2), 4, (4, 3, 1), 1, torch.float32
    ),
    "tf32, 12 to 8, 3d": Summed(
        conv((1, 2, 3, 6, 48), (32, 3, 1, 3), 4), 4, (4, 1, 2, 1), 1, torch.float32
    ),
    "4, in parts": Summed(conv((2, 5, 6, 32), (32, 3, 3), 8), 8, (8, 4, 1), 3),
    "8": Summed(conv((2, 5, 6, 32), (32, 3, 3), 4), 4, (4, 4, 1)),
    "8, five of four": Summed(conv((1, 5, 6, 40), (40, 3, 3), 5), 4, (4, 4, 1), out=torch.float16),
    "12": Summed(conv((1, 5, 6, 48), (48, 3, 1), 4), 4, (3, 5, 1), 1, torch.bfloat16),
    "16, stride 2": Summed(
        conv((2, 5, 6, 48), (48, 3, 3), 3, stride=2), 2, (4, 4, 1), 1, torch.bfloat16
    ),
    "24": Summed(conv((1, 5, 6, 72), (72, 2, 2), 3), 2, (6, 5, 1)),
    "32, in parts": Summed(conv((1, 5, 6, 64), (64, 1, 3), 2), 2, (6, 5, 1), 2),
    "8 to 16, one mode": Summed(conv((3, 17, 32), (64, 5), 4, padding=2, dilation=2), 2, (16, 1)),
    "16 to 8, three modes": Summed(conv((1, 3, 4, 5, 32), (16, 2, 2, 2), 2), 2, (5, 4, 2, 1)),
}


def run_sums(name: str, case: Case) -> Ran:
    summed = SUMMED[name]
    ran = run_case(case, compile_spec(case.view, summed.spec), splits=summed.splits)
    if summed.splits > 1:
        assert ran.written.all()
        ran.out, ran.written = ran.out.sum(0), ran.written.all(0)
    return ran


@pytest.mark.parametrize("name", with_deep(SUMMED, "8", "24"))
def test_sums(name: str) -> None:
    summed = SUMMED[name]
    case = Case.of(wgrad_view(summed.problem), summed.dtype, summed.out)
    check_exact(case, run_sums(name, case))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_infinities_stay_where_they_are(dtype: torch.dtype) -> None:
    """Rows of a box past the last voxel have no product with what their taps would reach."""
    name = "8" if dtype == torch.float16 else "tf32, 8"  # a box of 4 x 4 on 6 x 5 voxels
    case = Case.of(wgrad_view(SUMMED[name].problem), dtype, torch.float32)
    case.b[0, 4, 5, 3] = torch.inf  # of X, in group 0, at the corner
    case.a[0, 0, 0, 9] = torch.nan  # of Y, in group 1
    ran = run_sums(name, case)
    check_exact(case, ran)
    of_group = ran.out.unflatten(0, (4, 8))
    assert of_group[2:].isfinite().all()
    # At tap 0 the corner is below the last voxel: there are products of it at the others alone.
    assert of_group[0, :, 1:, 1:, 3].isinf().all()
    assert of_group[0, :, 0, :, 3].isfinite().all()
    assert of_group[0, ..., :3].isfinite().all()


def test_jobs_cover_every_result_once() -> None:
    for groups, channels, columns in ((8, 4, 4), (4, 12, 8), (2, 24, 24), (1, 48, 32), (4, 4, 12)):
        of_x = torch.arange(groups * channels) // channels
        of_y = torch.arange(groups * columns) // columns
        count = torch.zeros(len(of_y), len(of_x), dtype=torch.int64)
        for m, m_begin, c, c_begin in jobs_of(groups, channels, columns):
            assert m % 4 == c % 8 == 0
            assert m + 16 <= len(of_y)
            assert c + 16 <= len(of_x)
            count[max(m, m_begin) : m + 16, max(c, c_begin) : c + 16] += 1
        assert (count[of_y[:, None] == of_x] == 1).all()


@pytest.mark.parametrize("machine", MACHINES)
def test_few_channels_a_group_are_summed_together(machine: str) -> None:
    for channels, groups, cells in ((128, 32, 56), (256, 32, 28), (48, 6, 56)):
        view = wgrad_view(conv((64, cells, cells, channels), (channels, 3, 3), groups))
        found = choose_kernel(view, torch.float16, MACHINES[machine])
        assert isinstance(found.spec.tile, GroupSumTile), (channels, groups)
        assert found.splits > 1
        assert found.spec.split == "partial"
        assert not legality.reasons(found.view, found.spec, MACHINES[machine].smem_per_cta)
        found = choose_kernel(view, torch.float32, MACHINES[machine], precision="tf32")
        assert isinstance(found.spec.tile, GroupSumTile) or groups == 6, (channels, groups)
        assert not legality.reasons(found.view, found.spec, MACHINES[machine].smem_per_cta)
    for channels, groups, taps in ((512, 2, 3), (96, 16, 3), (128, 32, 5)):  # 6 channels; 25 taps
        view = wgrad_view(conv((64, 28, 28, channels), (channels, taps, taps), groups))
        tile = choose_kernel(view, torch.float16, MACHINES[machine]).spec.tile
        assert not isinstance(tile, GroupSumTile)


SUMMED_IN_THREES = replace(SUMMED["12"], dtype=torch.float32).spec


def test_tiles_that_sums_cannot_have() -> None:
    spec = SUMMED["8"].spec
    view = wgrad_view(SUMMED["8"].problem)
    assert isinstance(spec.tile, GroupSumTile)
    for changed, words in (
        (replace(spec, tile=replace(spec.tile, patch=(4, 4, 1))), "the patch and the jobs"),
        (replace(spec, dtype="float32"), "float16, bfloat16"),
        (SUMMED_IN_THREES, "whole 4 voxels"),
        (replace(spec, epilogue="relu"), "nothing follows"),
        (replace(spec, vectors=(8, 8, 1)), "2 at once"),
    ):
        with pytest.raises(UnsupportedViewError, match=words):
            build(view, changed)
    with pytest.raises(ValueError, match="127 voxels a digit"):
        replace(spec.tile, box=(128, 1, 1), mma=(128, 32, 32))
