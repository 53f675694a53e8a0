"""The times of pointwise layers: short rows are slow by TMA, and L2 holds what is small."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem
from layoutconv.conv.k_major_filter import k_major_view
from layoutconv.conv.pointwise_views import (
    pointwise_dgrad_view,
    pointwise_fprop_view,
    pointwise_wgrad_view,
)
from layoutconv.gpu.select import KernelChoice, choose_kernel
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.pointwise_rates import Latency, PointwiseLoads, memory_time
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.planning.tile_time import expected_time, rate_of

HOPPER = replace(MACHINES["sm_90a"], name="NVIDIA H200")
VIEWS = {
    "fprop": pointwise_fprop_view, "dgrad": pointwise_dgrad_view, "wgrad": pointwise_wgrad_view
}  # fmt: skip


def chosen(direction: str, pixels: int, C: int, K: int) -> KernelChoice:
    view = VIEWS[direction](ConvProblem((1, pixels, C), (K, 1)))
    return choose_kernel(view, torch.float16, HOPPER, torch.float16, measures=False)


@pytest.mark.parametrize("direction", ["fprop", "dgrad"])
@pytest.mark.parametrize("pixels", [409_600, 512_000])
def test_rows_of_32_bytes_are_copied_by_threads(direction: str, pixels: int) -> None:
    """On an H200 TMA took 18 to 26 microseconds for 16 channels to 16, multistage tiles 8 to 12."""
    assert not chosen(direction, pixels, 16, 16).spec.tile.warp_specialized


def test_first_layers_of_mobile_networks() -> None:
    """On an H200, of 16 channels to 96 the gradient took 87 microseconds in a multistage tile, and
    170 by TMA; 24 to 144 took 41 with all columns and B in shared memory, 80 in two tiles.
    """
    assert not chosen("dgrad", 1_605_632, 16, 96).spec.tile.warp_specialized
    tile = chosen("fprop", 401_408, 24, 144).spec.tile
    assert tile.b_resident
    assert tile.n >= 144


@given(
    m=st.integers(1, 999), n=st.integers(1, 999), k=st.integers(1, 40).map(lambda k: 8 * k),
    along=st.booleans(), tma=st.booleans(),
)  # fmt: skip
def test_loads_are_the_mean_of_all_tiles(m: int, n: int, k: int, along: bool, tma: bool) -> None:
    loads = PointwiseLoads(2, tma, 192, 128, 32, along, along, False)
    of = [
        [min(tile, size - at) for at in range(0, size, tile)] for size, tile in ((m, 192), (n, 128))
    ]
    times = [loads.time(rows, columns, k) for rows in of[0] for columns in of[1]]
    assert loads.time(m, n, k) == pytest.approx(sum(times) / len(times))


def test_further_stages_hide_latency() -> None:
    """Nothing waits for what is loaded at once; a persistent kernel's sums are one pipeline."""
    two, four = (Latency.of(TileConfig((64, 64, 32), (2, 2), stages=n), True) for n in (3, 5))
    assert two.time(2, 1) == 0.0 < four.time(9, 1) < two.time(9, 1)
    of_sums = Latency.of(TileConfig((64, 64, 32), (2, 2)), along_k=False)
    assert of_sums.time(9, 1) > two.time(9, 1)
    of_cta = Latency.of(persistent((128, 128, 64), (4, 1), 4, pingpong=True), True)
    assert of_cta.time(1, 6) == of_cta.time(6, 1) > 0.0
    by_warpgroup, by_warp = (
        Latency.of(specialized((128, 64, 64), (4, 1), 3, load), True)
        for load in (Load.CP_ASYNC_WARPGROUP, Load.TMA_WARP)
    )
    assert by_warpgroup.time(9, 2) == 0.0 < by_warp.time(9, 2)


def test_whole_lines_come_by_tma() -> None:
    assert chosen("fprop", 401_408, 256, 128).spec.tile.warp_specialized


def test_a_resident_b_has_a_rate_of_its_own() -> None:
    problem = chosen("fprop", 65_536, 256, 64).problem
    tile = persistent((128, 64, 64), (4, 1), 4, pingpong=True, b_resident=4)
    assert problem.pointwise
    assert rate_of(problem, tile) > rate_of(replace(problem, pointwise=False), tile)


@given(
    m=st.integers(1, 256), n=st.integers(1, 256), k=st.integers(1, 96).map(lambda k: 8 * k),
    tile_k=st.sampled_from([32, 64]), along=st.booleans(), tma=st.booleans(),
)  # fmt: skip
def test_loads_add_up(m: int, n: int, k: int, tile_k: int, along: bool, tma: bool) -> None:
    loads = PointwiseLoads(2, tma, 256, 256, tile_k, along, along, False)
    time = loads.time(m, n, k)
    assert time >= 0
    if along:
        assert min(loads.time(2 * m, n, k), loads.time(m, 2 * n, k)) >= time * (1 - 1e-12)
    assert loads.time(m, n, k) >= loads._replace(b_resident=True).time(m, n, k)
    whole = 64 * -(-k // 64)
    if tma and along:  # a row is the slower the less of a box it fills
        assert loads.time(m, n, whole) / whole <= time / k + 1e-12


@given(
    m=st.integers(1, 256), n=st.integers(1, 256), k=st.integers(1, 96).map(lambda k: 4 * k),
    along=st.booleans(), tma=st.booleans(),
)  # fmt: skip
def test_loads_take_the_time_of_their_bytes(m: int, n: int, k: int, along: bool, tma: bool) -> None:
    """Rows of k elements of 4 bytes are rows of 2 k of 2; across k, rows of m and n elements."""
    of_tf32 = PointwiseLoads(4, tma, 128, 128, 32, along, along, False)
    if along:
        of_half = of_tf32._replace(size=2, k=64).time(m, n, 2 * k)
    else:
        of_half = of_tf32._replace(size=2, m=256, n=256).time(2 * m, 2 * n, k)
    assert of_tf32.time(m, n, k) == pytest.approx(of_half)


@pytest.mark.parametrize("direction", ["fprop", "dgrad", "wgrad"])
def test_tf32_of_k_major_operands_is_timed_as_pointwise(direction: str) -> None:
    """``wgmma`` reads tf32 along k alone: on an H200 these terms chose fprops 5% faster, and others
    3% to 10% slower.
    """
    view = VIEWS[direction](ConvProblem((1, 6272, 256), (1024, 1)))
    problem = choose_kernel(
        view, torch.float32, HOPPER, torch.float32, precision="tf32", measures=False
    ).problem
    assert problem.pointwise == (direction == "fprop")
    if direction == "dgrad":
        problem = choose_kernel(
            k_major_view(view), torch.float32, HOPPER, torch.float32, precision="tf32",
            measures=False,
        ).problem  # fmt: skip
        assert problem.pointwise


def test_boxes_of_nothing_take_time() -> None:
    """A tile of 128 columns asks for two boxes of 64, of which 16 columns fill a quarter of one."""
    narrow, wide = (PointwiseLoads(2, True, 64, n, 64, False, False, False) for n in (64, 128))
    assert narrow.time(16, 16, 1000) < wide.time(16, 16, 1000) < 2 * narrow.time(16, 16, 1000)
    assert narrow.time(16, 64, 1000) < narrow.time(16, 48, 1000) + 1e-9


@given(small=st.integers(1, 10**9), more=st.integers(0, 10**9))
def test_more_bytes_take_longer(small: int, more: int) -> None:
    assert memory_time(small + more, 4.8e6) >= memory_time(small, 4.8e6)


@pytest.mark.parametrize("direction", VIEWS)
def test_twice_the_pixels_take_no_less(direction: str) -> None:
    once, twice = (chosen(direction, pixels, 96, 384) for pixels in (50_176, 100_352))
    times = [
        expected_time(each.problem, once.spec.tile, once.splits, HOPPER) for each in (once, twice)
    ]
    assert times[0] < times[1]
