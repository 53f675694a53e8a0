"""A whole CuTe DSL kernel for Hopper: right as compiled, and planted faults are caught."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pytest

from .. import (
    Deadlock,
    Fault,
    InFlight,
    Misaligned,
    Stats,
    Unfenced,
)
from .planted import Planted, each, edit, multiply

cutlass = pytest.importorskip("cutlass")


KINDS = {"waits": (False, False), "asynchronous": (True, False), "map": (True, True)}


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Any]:
    """The kernel of a kind, compiled once."""
    from .dsl_hopper import compile_hopper_gemm

    return cache(
        lambda kind: compile_hopper_gemm(str(tmp_path_factory.mktemp("dumps")), *KINDS[kind])
    )


@pytest.fixture(scope="module", params=KINDS)
def compiled(request: pytest.FixtureRequest, kinds: Callable[[str], Any]) -> Any:
    return kinds(request.param)


@pytest.fixture(scope="module")
def waiting(kinds: Callable[[str], Any]) -> Any:
    return kinds("waits")


@pytest.fixture(scope="module")
def by_map(kinds: Callable[[str], Any]) -> Any:
    return kinds("map")


def run_gemm(
    compiled: Any, ptx: str, m: int = 100, n: int = 60, k: int = 320, **options: Any
) -> tuple[np.ndarray, np.ndarray, Stats]:
    """D as the kernel computes it and as it should be, and what was executed."""
    return multiply(compiled, ptx, m, n, k, **options)


@pytest.mark.parametrize(
    "options", [{}, {"independent": False}, {"late": False}, {"seed": 7}], ids=str
)
@pytest.mark.parametrize("shape", [(128, 64, 64), (100, 60, 320), (130, 10, 256)], ids=str)
def test_the_kernel_multiplies(
    compiled: Any, shape: tuple[int, int, int], options: dict[str, Any]
) -> None:
    got, want, stats = run_gemm(compiled, compiled.__ptx__, *shape, **options)
    np.testing.assert_allclose(got, want, atol=0.02, rtol=2e-3)
    m, n, k = shape
    # Every k-tile is four products of 64 x 64 x 16 for each of the eight consumer warps.
    assert stats.count("wgmma.mma_async") == -(-m // 128) * -(-n // 64) * (k // 64) * 8 * 4


PLANTED = [
    (
        "a wgmma wait too lax",
        r"wgmma\.wait_group\.sync\.aligned\s+1;",
        "wgmma.wait_group.sync.aligned 2;",
        InFlight,
    ),
    ("no last wgmma wait", r"wgmma\.wait_group\.sync\.aligned\s+0;", "", InFlight),
    ("a group not committed", r"wgmma\.commit_group\.sync\.aligned;", "", InFlight),
    ("no wgmma fence", r"wgmma\.fence\.sync\.aligned;", "", Unfenced),
    ("no proxy fence", r"fence\.proxy\.async[^;]*;", "", Unfenced),
    ("a copy wait too lax", r"cp\.async\.wait_group\s+1;", "cp.async.wait_group 2;", Fault),
    ("no barrier behind the initialisation", r"bar\.sync\s+0;", "", Fault),
    ("nobody waits", r"LAB_WAIT:[^;]*;[^;]*;[^;]*;", "", Fault),
    ("a wait that does not look at its answer", r"bra\.uni\s+LAB_WAIT;", "", Fault),
]


@each(PLANTED)
def test_planted_faults_are_caught(waiting: Any, planted: Planted) -> None:
    planted.is_caught(waiting.__ptx__, partial(run_gemm, waiting))


def test_a_barrier_that_wants_one_arrival_more_is_a_deadlock(waiting: Any) -> None:
    broken = edit(waiting.__ptx__, r"(mov\.b32\s+%r\d+), 128;", r"\1, 129;")
    with pytest.raises(Deadlock, match="1 of 129 arrivals"):
        run_gemm(waiting, broken)


PLANTED_OF_MAP = [
    ("no bytes are expected", r"arrive\.expect_tx(\S+) (\S+ \S+), \S+;", r"arrive\1 \2;", Fault),
    ("too few bytes", r"(mov\.b32\s+%r\d+), 8192;(\s+mbarrier)", r"\1, 8176;\2", Deadlock),
    ("too many bytes", r"(mov\.b32\s+%r\d+), 8192;(\s+mbarrier)", r"\1, 8208;\2", Deadlock),
    ("the parity of the phase before", r"\], 0, 10000000;", "], 1, 10000000;", Fault),
    ("the thread of the map is not counted", r"(mov\.b32\s+%r\d+), 129;", r"\1, 128;", Fault),
    ("the copies do not arrive", r"cp\.async\.mbarrier\.arrive[^;]*;", "", Deadlock),
    ("no proxy fence behind cp.async", r"fence\.proxy\.async[^;]*;", "", Unfenced),
    ("a stage too far", r"\[(%r\d+)\+49152\]", r"[\1+57344]", Fault),
    ("no room for the swizzle", r"\[(%r\d+)\+49152\]", r"[\1+49168]", Misaligned),
    ("two threads load", r"elect\.sync\s+(%r\d+)\|(%p\d+), -1;", r"setp.eq.b32 \2, 0, 0;", Fault),
]


@each(PLANTED_OF_MAP)
def test_planted_faults_of_a_tensor_map_are_caught(by_map: Any, planted: Planted) -> None:
    planted.is_caught(by_map.__ptx__, partial(run_gemm, by_map))


def test_a_tensor_map_brings_every_tile_once(by_map: Any) -> None:
    stats = run_gemm(by_map, by_map.__ptx__, 200, 100, 192)[2]
    assert stats.count("cp.async.bulk.tensor.2d") == 2 * 2 * 3
