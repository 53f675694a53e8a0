"""Candidates of a kind of problem: sizes that the kind leaves out change nothing of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.planning import candidates
from layoutconv.planning.cost_model import Problem, ranked
from layoutconv.planning.kernel_spec import BYTES
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile_time import expected_time

SIZES = st.integers(1, 10**6)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    dtype = draw(st.sampled_from(["float16", "tfloat32", "float32", "int8", "float64"]))
    channels, taps = (
        draw(st.sampled_from([0, 3, 8, 32, 48, 64, 128])),
        draw(st.sampled_from([1, 9])),
    )
    halo = draw(st.sampled_from([1, 1, 2, 3])) if channels else 1
    flags = [draw(st.booleans()) for _ in range(5)]
    tma = draw(st.booleans()) and not flags[1]  # which brings no gathered rows
    return Problem(
        draw(SIZES), draw(st.sampled_from([1, 3, 8, 16, 64, 96, 200, 256, 320])),
        channels * taps * halo if channels else draw(SIZES), channels, dtype, BYTES[dtype],
        groups=draw(st.sampled_from([1, 4])), splittable=flags[0], skips_taps=flags[1],
        gathered=flags[1], moved=draw(SIZES), halo_taps=halo, halo_growth=draw(st.floats(1, 1.5)),
        wgmma=flags[2], clusters=flags[3], tma=tma, tma_halo=tma and halo > 1,
        persistent=flags[4], register_store=draw(st.booleans()), k_tiles=draw(st.integers(0, 20)),
        b_along_k=draw(st.booleans()), rows_adjoin=draw(st.booleans()),
    )  # fmt: skip


@given(problem=problems(), arch=st.sampled_from(["sm_90a", "sm_86"]))
def test_sizes_outside_of_the_kind_change_no_candidate(problem: Problem, arch: str) -> None:
    machine = MACHINES[arch]
    kind = candidates.without_sizes(problem)
    assert candidates._made(kind, machine) == candidates._made(problem, machine)


@given(problem=problems(), arch=st.sampled_from(["sm_90a", "sm_86"]))
def test_the_first_is_the_fastest_by_the_time_of_each(problem: Problem, arch: str) -> None:
    machine = MACHINES[arch]
    first, *others = ranked(problem, machine)
    of_one = [expected_time(problem, *pair, machine) for pair in others if pair[1] == 1]
    least = min(of_one, default=float("inf"))
    assert expected_time(problem, *first, machine) <= least


@pytest.mark.parametrize("k", [candidates.LONG, candidates.LONG + 1, 10**7])
@pytest.mark.parametrize("dtype", ["float16", "tfloat32"])
def test_long_sums_are_of_one_kind(k: int, dtype: str) -> None:
    problem = Problem(64, 576, k, 0, dtype, 4, splittable=True, tma=True, clusters=True)
    same = replace(problem, k=candidates.LONG)
    machine = MACHINES["sm_90a"]
    assert candidates.candidates(problem, machine) is candidates.candidates(same, machine)
