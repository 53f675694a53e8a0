"""Which strided gradients run all stride phases in one launch, and that they compute the same."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.base.caches import clear_caches
from layoutconv.conv import ConvProblem
from layoutconv.gpu.packing_choice import Multiplied, multiplied_on
from layoutconv.gpu.phase_choice import columns_of
from layoutconv.ops import dense_passes
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.planning.machine import MACHINES
from layoutconv.tuning.tuned_problems import pass_on

HALF = multiplied_on(torch.float16, MACHINES["sm_80"])
TF32 = multiplied_on(torch.float32, MACHINES["sm_80"], "tf32")
TOGETHER = multiplied_on(torch.float16, MACHINES["sm_90a"])  # where kernels run together
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


@pytest.mark.parametrize(
    ("changed", "sums"),
    [
        ({}, [2048, 1024, 1024, 512]),
        ({"filter": (512, 2, 2), "padding": 0}, [512]),
        ({"filter": (512, 1, 1), "padding": 0}, [512, 0, 0]),
        ({"filter": (512, 1, 1), "padding": 0, "stride": 4}, [512]),  # torch sets the rest to zero
        ({"groups": 32}, [64]),
    ],
    ids=str,
)
def test_phases_run_together(changed: dict[str, Any], sums: list[int]) -> None:
    """Each has a launch of its own where these overlap, long sums first, empty sums last."""
    found = pass_on(ConvProblem(**DOWN | changed), "dgrad", TOGETHER)
    assert [view.k for view in found.views] == sums
    assert found.zeroed == (4 in changed.values())
    places = [view.place for view in found.views]
    assert places == ([None] if len(sums) == 1 else list(range(len(sums))))


@pytest.mark.parametrize("groups", [1, 32, 512])
def test_passes_have_few_views_with_an_epilogue(groups: int) -> None:
    """Not one for each of 4,096 phases; nor of no images any."""
    for taps, stride, most in (((3, 3, 3), 16, 27), ((1, 1, 1), 8, 64), ((3, 3, 3), 2, 8)):
        spatial, C = (32, 32, 32), 512
        problem = ConvProblem((1, *spatial, C), (512, *taps), stride, 0, groups=groups)
        for images in (1, 0):
            shapes = (images, *problem.output[1:]), problem.stored_filter, problem.spatial
            numbers = problem.stride, [0] * 6, problem.dilation, groups
            made = dense_passes.dgrad_pass(*shapes, numbers, ends=True, columns=64, of=TOGETHER)
            assert 0 < len(made.views) <= most


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
    of = data.draw(st.sampled_from((HALF, TOGETHER)))
    made = pass_on(problem, "dgrad", of)
    x = integers(problem.activation).requires_grad_()
    conv = getattr(torch.nn.functional, f"conv{rank}d")
    padded = torch.nn.functional.pad(x, [side for n in reversed(near) for side in (n, n + 3)])
    [want] = torch.autograd.grad(conv(padded, w, stride=stride, groups=groups), x, y)
    assert torch.equal(made.compute(y, w, EpilogueArgs())[0], want)
    columns = columns_of(of.dtype, of.machine)
    numbers = stride, [side for pair in sides for side in pair], problem.dilation, groups
    shapes = problem.output, problem.stored_filter, problem.spatial
    made = dense_passes.dgrad_pass(*shapes, numbers, ends=True, columns=columns, of=of)
    got, _ = made.compute(y, w, EpilogueArgs(bias=bias, activation="relu"))
    assert torch.equal(got, (want + bias.view(-1, *[1] * rank)).relu())


def test_a_pass_is_made_once() -> None:
    clear_caches()
    assert pass_on(UP, "dgrad", HALF) is pass_on(UP, "dgrad", HALF)
