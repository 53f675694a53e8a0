"""Which sums the model cuts in parts: those for which a second launch pays."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.cost_model import SPLIT_GAIN, Problem, choose, expected_time, ranked
from layoutconv.planning.machine import MACHINES

H200, F16 = MACHINES["sm_90a"], torch.float16


@given(
    m=st.integers(1, 1 << 14), n=st.integers(1, 512), k_tiles=st.integers(1, 512),
    tma=st.booleans(), clusters=st.booleans(),
)  # fmt: skip
def test_a_split_saves_what_its_launch_costs(
    m: int, n: int, k_tiles: int, tma: bool, clusters: bool
) -> None:
    problem = Problem(
        m, n, 64 * k_tiles, 64, "float16", 4, splittable=True, tma=tma, clusters=clusters
    )
    tile, splits = choose(problem, H200)
    time = expected_time(problem, tile, splits, H200)
    whole = min(
        expected_time(problem, other, 1, H200)
        for other, parts in ranked(problem, H200)
        if parts == 1
    )
    assert time + SPLIT_GAIN <= whole if splits > 1 else time == whole


def test_a_short_strided_layer_is_one_launch_and_its_filters_gradient_two() -> None:
    problem = ConvProblem((1, 16, 32, 32, 64), (64, 3, 3, 3), stride=2, padding=1)
    found = [choose_kernel(view(problem), F16, H200) for view in (fprop_view, wgrad_view)]
    assert [choice.splits > 1 for choice in found] == [False, True]
