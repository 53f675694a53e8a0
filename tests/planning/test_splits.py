"""Which sums the model cuts in parts: those for which a second launch pays."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.cost_model import SPLIT_GAIN, Problem, choose, expected_time, ranked
from layoutconv.planning.deep_tiles import deep_tile
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import specialized

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


def test_short_strided_layers_are_one_launch_and_a_filters_gradient_of_many_pixels_two() -> None:
    """With many stages in flight, a short gradient needs no second launch either."""
    short, long = (
        ConvProblem((N, 16, 32, 32, 64), (64, 3, 3, 3), stride=2, padding=1) for N in (1, 8)
    )
    found = [
        choose_kernel(view, F16, H200).splits > 1
        for view in (fprop_view(short), wgrad_view(short), wgrad_view(long))
    ]
    assert found == [False, False, True]


@pytest.mark.parametrize("dtype", [F16, torch.bfloat16, torch.float32])
def test_few_outputs_have_many_k_tiles_in_flight(dtype: torch.dtype) -> None:
    """A tile to each SM: what is in flight bounds it. With many tiles, rates of products do."""
    few, many = (ConvProblem((N, 16, 16, 256), (256, 3, 3), padding=1) for N in (8, 512))
    chosen = [choose_kernel(fprop_view(problem), dtype, H200) for problem in (few, many)]
    assert [deep_tile(each.spec.tile) is not None for each in chosen] == [True, False]


@pytest.mark.parametrize("channels", [0, 64])
def test_the_more_stages_the_less_a_lone_tile_waits(channels: int) -> None:
    """Up to where products bound it; 0 channels: a filter's gradient."""
    problem = Problem(256, 256, 8192, channels, "float16", 2, tma=True, clusters=True)
    times = [
        expected_time(problem, specialized((128, 64, 64), (4, 1), stages), 1, H200)
        for stages in (2, 3, 4, 8)
    ]
    assert times == sorted(times, reverse=True)
    assert times[0] > 1.7 * times[2]
