"""Clusters: who is who, memory of other CTAs, the barrier of a cluster, loads to several CTAs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from .. import DataRace, Deadlock, Divergent, Fault, Memory, OutOfBounds, Uninitialised, parse, run
from .snippets import launch
from .tensor_cases import MULTICAST, BoxCase, expected_of_both, multicast_module, tensor

SHARED = ".shared .align 16 .b8 sm[1024];"
# %r10 is the rank in a cluster of two, %r11 the other one, %r12 what is at sm + 4 t there.
HEAD = """
    mov.u32 %r10, %cluster_ctarank; xor.b32 %r11, %r10, 1; mov.u32 %r20, sm; mov.u32 %r0, 7;
    mad.lo.u32 %r13, %t, 4, %r20; mapa.shared::cluster.u32 %r12, %r13, %r11;
"""
STORE = """
    mov.u32 %r14, %ctaid.x; mov.u32 %r15, %ntid.x; mad.lo.u32 %r14, %r14, %r15, %t;
    mul.wide.u32 %rd8, %r14, 4; add.u64 %rd9, %rd0, %rd8; st.global.u32 [%rd9], %r0;
"""
BARRIER = "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;"


def per_thread(body: str, threads: int = 32, ctas: int = 2, **options: Any) -> np.ndarray:
    """Run ``body`` in a cluster of CTAs; every thread's %r0: shape (CTAs, threads)."""
    memory, result = Memory(), np.zeros((ctas, threads), np.uint32)
    options = {"cluster": (ctas,), "grid": (ctas,)} | options
    launch(
        HEAD + body + STORE, memory.add(result, output=True),
        memory=memory, threads=threads, variables=SHARED, **options,
    )  # fmt: skip
    return result


def over_seeds(body: str, threads: int = 32) -> None:
    """:func:`per_thread` in several orders of the warps."""
    for seed in range(8):
        per_thread(body, threads, seed=seed)


def test_every_cta_knows_its_place() -> None:
    names = [f"cluster_{n}" for n in ("ctarank", "nctarank", "ctaid.x", "ctaid.y", "nctaid.x")]
    names += ["cluster_nctaid.y", "clusterid.x", "clusterid.y", "nclusterid.x"]
    body = "mov.u32 %r0, 0; mov.u32 %r10, %ctaid.x; mov.u32 %r11, %ctaid.y;"
    for name in names:
        body += f"mov.u32 %r1, %{name}; mad.lo.u32 %r0, %r0, 10, %r1;"
    body += "mad.lo.u32 %r1, %r11, 6, %r10; mul.wide.u32 %rd8, %r1, 4; add.u64 %rd9, %rd0, %rd8;"
    memory, result = Memory(), np.zeros((4, 6), np.uint32)
    launch(
        body + "st.global.u32 [%rd9], %r0;", memory.add(result, output=True),
        memory=memory, threads=1, grid=(6, 4), cluster=(3, 2),
    )  # fmt: skip
    for (y, x), got in np.ndenumerate(result):
        rank = x % 3 + y % 2 * 3
        assert f"{got:09}" == f"{rank}6{x % 3}{y % 2}32{x // 3}{y // 2}2"


PUT = "add.u32 %r1, %r10, 500; add.u32 %r1, %r1, %t; st.shared::cluster.u32 [%r12], %r1;"
GET = "ld.shared.u32 %r0, [%r13];"
# Warp 1 writes what warp 0 of the other CTA reads.
RELAXED = BARRIER.replace("arrive", "arrive.relaxed")


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize(
    "body",
    [
        PUT + BARRIER + GET,
        PUT + "fence.acq_rel.cluster;" + RELAXED + GET,
        # The other way round: to read there, and not to end before that was done.
        "add.u32 %r1, %r10, 500; add.u32 %r1, %r1, %t; st.shared.u32 [%r13], %r1;" + BARRIER
        + "ld.shared::cluster.u32 %r0, [%r12];" + BARRIER,
        PUT.replace("st.shared::cluster.u32 [%r12]", "cvt.u64.u32 %rd2, %r13; cvta.shared.u64 %rd2,"
                    " %rd2; mapa.u64 %rd3, %rd2, %r11; st.u32 [%rd3]") + BARRIER + GET,
    ],
)  # fmt: skip
def test_ctas_reach_the_memory_of_each_other(body: str, independent: bool) -> None:
    for seed in range(3):
        got = per_thread(body, 64, independent=independent, seed=seed)
        assert got.tolist() == [list(range(500 + rank, 564 + rank)) for rank in (1, 0)]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (PUT + GET, (Uninitialised, DataRace, Fault)),
        (PUT + RELAXED + GET, DataRace),
        (PUT + "fence.acq_rel.cta;" + RELAXED + GET, DataRace),
        (BARRIER + PUT + GET, (Uninitialised, DataRace, Fault)),
        ("@%p0 " + PUT + "setp.eq.u32 %p0, %r10, 0; @%p0 bra $e;" + BARRIER + "$e:", Fault),
        ("barrier.cluster.arrive.aligned;" + BARRIER, Divergent),
        ("barrier.cluster.wait.aligned;", Divergent),
        ("mapa.shared::cluster.u32 %r12, %r13, 2;" + PUT, OutOfBounds),
        ("mapa.shared::cluster.u32 %r12, %r13, 1000;" + PUT, OutOfBounds),
        ("add.u32 %r12, %r12, 1024;" + PUT, OutOfBounds),
        ("add.u32 %r12, %r12, 0x2000000;" + PUT, OutOfBounds),
    ],
)
def test_faults_between_ctas(body: str, fault: type[Exception]) -> None:
    body = "setp.lt.u32 %p0, %t, 99;" + body if body.startswith("@") else body
    with pytest.raises(fault):
        over_seeds(body, 64)


def test_who_has_ended_is_not_waited_for() -> None:
    body = "setp.eq.u32 %p0, %r10, 0; @%p0 ret; mov.u32 %r0, 9;" + BARRIER
    assert per_thread(body)[1].tolist() == [9] * 32


def test_memory_of_a_cta_ends_with_it() -> None:
    end = "setp.eq.u32 %p0, %r10, 0; @%p0 bra $e;" + PUT + "$e:"
    with pytest.raises(Fault, match="has ended"):
        over_seeds(end)
    assert (per_thread(end + BARRIER) == 7).all()


INIT = """
    setp.eq.u32 %p7, %t, 0; add.u32 %r21, %r20, 512;
    @%p7 mbarrier.init.shared::cta.b64 [%r21], {count};
    fence.mbarrier_init.release.cluster; barrier.cluster.arrive.relaxed; barrier.cluster.wait;
"""
SIGNAL = """
    mapa.shared::cluster.u32 %r22, %r21, %r11;
    mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r22];
"""
WAIT = """
    { .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r21], 0, 10000000;
      @P1 bra.uni DONE; bra.uni LAB_WAIT; DONE: }
"""


def test_an_arrival_tells_another_cta() -> None:
    got = per_thread(INIT.format(count=64) + PUT + SIGNAL + WAIT + GET + BARRIER, 64)
    assert got.tolist() == [list(range(500 + rank, 564 + rank)) for rank in (1, 0)]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (INIT.format(count=65) + PUT + SIGNAL + WAIT + GET + BARRIER, Deadlock),
        (INIT.format(count=64) + SIGNAL + PUT + WAIT + GET + BARRIER, (Uninitialised, DataRace)),
        (INIT.format(count=64) + PUT + SIGNAL + GET + BARRIER, (Uninitialised, DataRace)),
        (INIT.format(count=64) + PUT + SIGNAL + WAIT.replace("[%r21]", "[%r22]") + BARRIER, Fault),
        (INIT.format(count=64).replace("fence.mbarrier_init.release.cluster;", "") + SIGNAL,
         (DataRace, Uninitialised)),
        (INIT.format(count=64).split("barrier.cluster")[0] + SIGNAL + WAIT + BARRIER,
         (DataRace, Uninitialised, Fault)),
    ],
)  # fmt: skip
def test_faults_of_arrivals_in_another_cta(body: str, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        over_seeds(body, 64)


def test_a_grid_is_whole_clusters() -> None:
    with pytest.raises(ValueError, match="do not divide the grid"):
        per_thread("", grid=(3,))


def test_a_cta_that_is_picked_brings_its_cluster() -> None:
    body = PUT + BARRIER + GET
    memory, result = Memory(), np.zeros((4, 32), np.uint32)
    launch(
        HEAD + body + STORE, memory.add(result, output=True), memory=memory, threads=32,
        variables=SHARED, cluster=(2,), grid=(4,), ctas=[(3, 0, 0)],
    )  # fmt: skip
    assert (result[:2] == 0).all()
    assert (result[2:] >= 500).all()


@pytest.mark.parametrize("case", MULTICAST, ids=str)
def test_a_load_goes_to_both_ctas(case: BoxCase) -> None:
    memory, source = Memory(), tensor(case)
    want = expected_of_both(case, source)
    out = np.zeros_like(want)
    of = replace(case.map, address=memory.add(source, "tensor", writable=False))
    raw = memory.add(np.frombuffer(of.encode(), np.uint8).copy(), "map", writable=False)
    kernel = parse(multicast_module(case))
    run(kernel, memory, [raw, memory.add(out, output=True)], grid=(2,))
    np.testing.assert_array_equal(out, want)
    with pytest.raises(ValueError, match="not the kernel's"):
        run(kernel, memory, [raw, raw], grid=(2,), cluster=(1,))
