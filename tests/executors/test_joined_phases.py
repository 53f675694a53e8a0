"""Which strided gradients run all stride phases in one launch, and that they compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.base.caches import clear_caches
from layoutconv.conv import ConvProblem
from layoutconv.gpu.joined_phases import joined_phases
from layoutconv.gpu.packing_choice import Multiplied, multiplied_on
from layoutconv.gpu.phase_choice import arranged_dgrad, columns_of
from layoutconv.ops import dense_passes
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.planning.machine import MACHINES
from layoutconv.tuning.tuned_problems import pass_on

HALF = multiplied_on(torch.float16, MACHINES["sm_90a"])
TF32 = multiplied_on(torch.float32, MACHINES["sm_90a"], "tf32")
UP = ConvProblem.transposed((4, 6, 6, 6, 384), (64, 3, 3, 3), 2, 1, 1)  # of MONAI's networks
DOWN = {"activation": (1, 14, 14, 512), "filter": (512, 3, 3), "stride": 2, "padding": 1}


@pytest.mark.parametrize("of", [HALF, TF32], ids=["fp16", "tf32"])
@pytest.mark.parametrize(
    ("problem", "launches"),
    [
        (UP, 1),
        (ConvProblem(**DOWN), 1),
        (ConvProblem(**DOWN | {"activation": (256, 14, 14, 512)}), 4),
        (ConvProblem(**DOWN | {"filter": (512, 2, 2), "padding": 0}), 1),  # alike: no zeros
        (ConvProblem(**DOWN | {"filter": (512, 1, 1), "padding": 0}), 1),  # one has a tap
        (ConvProblem(**DOWN | {"dilation": 3}), 4),
        (ConvProblem(**DOWN | {"groups": 32}), 1),
        (ConvProblem(**DOWN | {"stride": 1}), 1),
    ],
    ids=str,
)
def test_launches(problem: ConvProblem, launches: int, of: Multiplied) -> None:
    assert len(pass_on(problem, "dgrad", of).views) == launches


def test_phases_of_one_mode() -> None:
    """One view of each pair of phases where all would have too many products with zeros."""
    problem = ConvProblem((2, 16, 16, 32, 128), (256, 3, 3, 3), 2, 1)
    views = arranged_dgrad(problem, columns_of(HALF.dtype, HALF.machine))
    joined = joined_phases(problem, views, HALF)
    assert len(views) == 8
    assert len(pass_on(problem, "dgrad", HALF).views) == 2 ** (3 - len(joined)) < 8


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_gradients_are_torchs(data: st.DataObject) -> None:
    """For any extents, strides and paddings, with an epilogue or without one."""
    rank = data.draw(st.integers(1, 3))

    def each(*values: int) -> list[int]:
        return data.draw(st.lists(st.sampled_from(values), min_size=rank, max_size=rank))

    taps, stride, near = each(1, 2, 3, 4), each(1, 2, 3), each(0, 1, 2)
    voxels, spare = each(1, 2, 3), each(0, 1)
    modes = list(zip(voxels, taps, stride, near, spare, strict=True))
    spatial = [max(1, (v - 1) * s + t - 2 * n + e) for v, t, s, n, e in modes]
    C, K, N = (data.draw(st.sampled_from(some)) for some in ((4, 8), (8, 16), (1, 2)))
    groups, sides = data.draw(st.sampled_from((1, 1, 2))), [(n, n + 3) for n in near]
    problem = ConvProblem((N, *spatial, C), (K, *taps), stride, sides, groups=groups)
    random = torch.Generator().manual_seed(data.draw(st.integers(0, 99)))

    def integers(shape: Any) -> torch.Tensor:
        return torch.randint(-4, 5, shape, generator=random).float().movedim(-1, 1)

    y, w, bias = integers(problem.output), integers(problem.stored_filter), torch.arange(C) - 1.0
    made = pass_on(problem, "dgrad", HALF)
    x = integers(problem.activation).requires_grad_()
    conv = getattr(torch.nn.functional, f"conv{rank}d")
    padded = torch.nn.functional.pad(x, [side for n in reversed(near) for side in (n, n + 3)])
    [want] = torch.autograd.grad(conv(padded, w, stride=stride, groups=groups), x, y)
    assert torch.equal(made.compute(y, w, EpilogueArgs())[0], want)
    columns = columns_of(HALF.dtype, HALF.machine)
    numbers = stride, [side for pair in sides for side in pair], problem.dilation, groups
    shapes = problem.output, problem.stored_filter, problem.spatial
    made = dense_passes.dgrad_pass(*shapes, numbers, ends=True, columns=columns, of=HALF)
    got, _ = made.compute(y, w, EpilogueArgs(bias=bias, activation="relu"))
    assert torch.equal(got, (want + bias.view(-1, *[1] * rank)).relu())


def test_a_pass_is_made_once() -> None:
    clear_caches()
    assert pass_on(UP, "dgrad", HALF) is pass_on(UP, "dgrad", HALF)
