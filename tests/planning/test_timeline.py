"""The estimated timeline of a CTA: a pipeline that could run, and the time of the cost model."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.planning.cost_model import Problem, expected_time, ranked
from layoutconv.planning.group_tile import GroupTile
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.timeline import SHOWN_TILES, Timeline, timeline

PROBLEMS = st.builds(
    Problem,
    m=st.integers(1, 10**6), n=st.sampled_from([16, 32, 64, 128, 256]), k=st.integers(16, 4000),
    channels=st.sampled_from([16, 64]), dtype=st.just("float16"), staged_bytes=st.just(2),
    moved=st.integers(0, 10**9), tma=st.booleans(), clusters=st.booleans(),
    persistent=st.booleans(), splittable=st.booleans(), register_store=st.booleans(),
)  # fmt: skip


@given(PROBLEMS, st.sampled_from(sorted(MACHINES)), st.integers(0, 30))
@settings(max_examples=150, deadline=None)
def test_it_is_a_pipeline(problem: Problem, arch: str, which: int) -> None:
    machine = MACHINES[arch]
    pairs = list(ranked(problem, machine))
    tile, splits = pairs[which % len(pairs)]
    found = timeline(problem, tile, splits, machine)
    assert found is not None
    tiles = min(SHOWN_TILES, found.output_tiles)
    assert len(found.epilogues) == tiles
    assert len(found.k_tiles) == tiles * found.whole
    assert found.output_tiles == 1 or tile.persistent
    close = 1e-9
    for one, next in pairwise(found.k_tiles):
        assert one.load <= next.load
        assert one.landed <= next.landed + close
        assert one.end <= next.begin + close  # tensor cores are busy with one at a time
    for number, one in enumerate(found.k_tiles):
        assert one.load < one.landed <= one.begin + close
        assert one.begin < one.end
        # A stage has one k-tile at a time.
        if number >= tile.stages:
            assert found.k_tiles[number - tile.stages].end <= one.load + close
    for number, (begin, end) in enumerate(found.epilogues):
        assert begin == found.k_tiles[(number + 1) * found.whole - 1].end
        follower = number + tile.consumers
        if follower < tiles:  # the warps that store have no products then
            assert end <= found.k_tiles[follower * found.whole].begin + close


def total(found: Timeline, problem: Problem, rounds: int) -> float:
    """The time of ``rounds`` CTAs one after another, or of a persistent one for all its tiles."""
    rest = found.output_tiles - len(found.epilogues)
    return rounds * (found.end + rest * max(found.multiply, found.copy) * found.whole)


@pytest.mark.parametrize("arch", MACHINES)
@pytest.mark.parametrize(("n", "k"), [(64, 576), (128, 1728), (256, 2304)])
def test_its_time_is_that_of_the_cost_model(arch: str, n: int, k: int) -> None:
    """Both models agree within 15% on a whole launch of long sums, which products bound."""
    machine = MACHINES[arch]
    for m in (200_000, 1_000_000):
        problem = Problem(
            m, n, k, 64, "float16", 2, moved=4 * m * n, tma=arch == "sm_90a", clusters=True,
            persistent=True, register_store=True,
        )  # fmt: skip
        tile, splits = next(ranked(problem, machine))
        found = timeline(problem, tile, splits, machine)
        assert found is not None
        assert found.bound == "products"
        ctas = -(-m // tile.m) * -(-n // tile.n) * splits * tile.cluster_k
        rounds = 1 if tile.persistent else -(-ctas // (machine.sm_count * found.together))
        expected = expected_time(problem, tile, splits, machine)
        assert 0.85 < total(found, problem, rounds) / expected < 1.15


def test_memory_that_is_slow_keeps_consumers_waiting() -> None:
    slow = Problem(10**6, 64, 256, 64, "float16", 2, moved=10**10)
    fast = Problem(10**6, 64, 256, 64, "float16", 2)
    tile, splits = next(ranked(slow, MACHINES["sm_80"]))
    waits = [timeline(problem, tile, splits, MACHINES["sm_80"]) for problem in (slow, fast)]
    assert waits[0] is not None
    assert waits[1] is not None
    assert (waits[0].bound, waits[1].bound) == ("loads", "products")
    assert waits[0].waited > 10 * waits[1].waited


def test_tiles_of_groups_have_no_k_tiles() -> None:
    tile = GroupTile(
        (128, 64, 64), (2, 2), 1, groups=8, columns=64, box=(16, 8, 1), patch=(18, 10, 1),
        filter=(64, 72),
    )  # fmt: skip
    assert timeline(Problem(128, 64, 64, 8, "float16", 2), tile, 1, MACHINES["sm_80"]) is None
