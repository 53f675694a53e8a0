"""mbarriers: when a phase completes, what it orders, who waits in vain, what is refused."""

from __future__ import annotations

import numpy as np
import pytest

from .. import DataRace, Deadlock, Fault, InFlight, Memory, Misaligned, Uninitialised
from .snippets import launch

SHARED = ".shared .align 16 .b8 sm[4096];"
INIT = """
    mov.u32 %r20, sm; setp.eq.u32 %p7, %t, 0; mov.u32 %r0, 0;
    @%p7 mbarrier.init.shared::cta.b64 [%r20], {count};
    fence.mbarrier_init.release.cluster; bar.sync 0;
"""
STORE = "mul.wide.u32 %rd8, %t, 4; add.u64 %rd9, %rd0, %rd8; st.global.u32 [%rd9], %r0;"


def per_lane(body: str, count: int, threads: int = 32, **options) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Run ``body`` with an mbarrier of ``count`` arrivals at [%r20]; every thread's %r0."""
    memory = Memory()
    result, source = np.zeros(threads, np.uint32), np.arange(700, 700 + threads, dtype=np.uint32)
    launch(
        INIT.format(count=count) + body + STORE,
        memory.add(result, output=True), memory.add(source),
        memory=memory, threads=threads, variables=SHARED, **options,
    )  # fmt: skip
    return result


def ask(bit: int, parity: int) -> str:
    """Add 2^bit to %r0 if the phase of that parity is done."""
    return (
        f"mbarrier.test_wait.parity.shared.b64 %p1, [%r20], {parity};"
        f"@%p1 add.u32 %r0, %r0, {1 << bit};"
    )


def test_a_phase_completes_with_its_last_arrival() -> None:
    # The phase before the first counts as done: whoever waits for a free stage goes on.
    body = ask(0, 1) + ask(1, 0) + "bar.sync 0; mbarrier.arrive.shared.b64 %rd5, [%r20];"
    body += "bar.sync 0;" + ask(2, 0) + ask(3, 1)
    assert per_lane(body, 64, 64).tolist() == [0b0101] * 64
    assert per_lane(body, 65, 64).tolist() == [0b1001] * 64
    # Half the threads a time: two phases, so the parity is as at first.
    assert per_lane(body, 32, 64).tolist() == [0b1001] * 64


def test_bytes_are_waited_for_too() -> None:
    body = "setp.eq.u32 %p0, %t, 5;"
    body += "@%p0 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r20], 48;" + ask(0, 0)
    body += "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 16;" + ask(1, 0)
    body += "@%p0 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r20], 32;" + ask(2, 0)
    assert per_lane(body, 1).tolist() == [0b100] * 32


def test_a_token_names_its_phase() -> None:
    body = "mbarrier.arrive.shared.b64 %rd5, [%r20]; bar.sync 0;"
    body += "mbarrier.test_wait.shared.b64 %p1, [%r20], %rd5; selp.u32 %r0, 1, 0, %p1;"
    assert (per_lane(body, 32) == 1).all()
    assert (per_lane(body, 33) == 0).all()


def test_who_drops_out_is_not_expected_again() -> None:
    arrive = "mbarrier.arrive{drop}.shared.b64 %rd5, [%r20]; bar.sync 0;"
    half = "setp.lt.u32 %p0, %t, 16; @%p0 " + arrive.format(drop="")
    first = arrive.format(drop="") + ask(0, 0) + half + ask(1, 1)
    assert (per_lane(first, 32) == 0b01).all()
    first = "setp.lt.u32 %p0, %t, 16; @%p0 mbarrier.arrive.shared.b64 %rd5, [%r20];"
    first += "@!%p0 mbarrier.arrive_drop.shared.b64 %rd5, [%r20];" + ask(0, 0) + half + ask(1, 1)
    assert (per_lane(first, 32) == 0b11).all()


WAIT = """
    { .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r20], 0, 10000000;
      @P1 bra.uni DONE; bra.uni LAB_WAIT; DONE: }
"""
# Warp 0 fills a table for warp 1.
HAND_OVER = """
    shl.b32 %r2, %t, 2; and.b32 %r2, %r2, 127; add.u32 %r1, %r20, %r2;
    setp.ge.u32 %p0, %t, 32; @%p0 bra $consumer; {produce} bra $end;
    $consumer: {wait} ld.shared.u32 %r0, [%r1+128];
    $end:
"""
STORES = "add.u32 %r3, %t, 500; st.shared.u32 [%r1+128], %r3;"
COPIES = (
    "cvt.u64.u32 %rd6, %r2; add.u64 %rd6, %rd1, %rd6;"
    "cp.async.ca.shared.global [%r1+128], [%rd6], 4;"
)
ARRIVE = "mbarrier.arrive.shared.b64 %rd5, [%r20];"
NOINC = "cp.async.mbarrier.arrive.noinc.shared.b64 [%r20];"


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize(
    ("produce", "count", "first"),
    [
        (STORES + ARRIVE, 32, 500),
        (STORES + "bar.warp.sync -1; setp.eq.u32 %p0, %t, 9; @%p0 " + ARRIVE, 1, 500),
        (COPIES + NOINC, 32, 700),
        (COPIES + "cp.async.wait_all;" + ARRIVE, 32, 700),
        (COPIES + NOINC.replace(".noinc", "") + ARRIVE, 32, 700),
    ],
)
def test_a_wait_sees_what_was_done_before_the_arrivals(
    produce: str, count: int, first: int, late: bool, independent: bool
) -> None:
    body = HAND_OVER.format(produce=produce, wait=WAIT)
    for seed in range(3):
        got = per_lane(body, count, 64, late=late, independent=independent, seed=seed)
        assert got.tolist() == [0] * 32 + list(range(first, first + 32))


@pytest.mark.parametrize(
    ("produce", "count", "wait", "fault"),
    [
        (STORES + ARRIVE, 32, "", (DataRace, Uninitialised)),
        (ARRIVE + STORES, 32, WAIT, (DataRace, Uninitialised)),
        (STORES + ARRIVE, 33, WAIT, Deadlock),
        (STORES + ARRIVE, 31, WAIT, DataRace),
        (COPIES + ARRIVE, 32, WAIT, InFlight),
        (NOINC + COPIES, 32, WAIT, (InFlight, Uninitialised)),
        # A wait may answer that it took too long, and someone must look at that.
        (
            STORES + ARRIVE,
            33,
            WAIT.replace("@P1 bra.uni DONE; bra.uni LAB_WAIT;", ""),
            (DataRace, Uninitialised),
        ),
    ],
)
@pytest.mark.parametrize("independent", [True, False])
def test_what_a_wait_does_not_see(
    produce: str, count: int, wait: str, fault: type[Exception], independent: bool
) -> None:
    if count == 31:
        produce = STORES + "setp.ne.u32 %p0, %t, 0; @%p0 " + ARRIVE + STORES
    body = HAND_OVER.format(produce=produce, wait=wait)
    with pytest.raises(fault):
        per_lane(body, count, 64, independent=independent)


EXPECT = "mbarrier.arrive.expect_tx.shared.b64 _, [%r20], 128;"
BULK = (
    "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r20+128], [%rd1], 64,"
    " [%r20]; add.u64 %rd6, %rd1, 64; cp.async.bulk.shared::cta.global.mbarrier::complete_tx::bytes"
    " [%r20+192], [%rd6], 64, [%r20];"
)
ONE = "setp.ne.u32 %p0, %t, 3; @%p0 bra $end;"


@pytest.mark.parametrize("late", [True, False])
@pytest.mark.parametrize("produce", [EXPECT + BULK, BULK + EXPECT])
def test_bulk_copies_arrive_as_bytes(produce: str, late: bool) -> None:
    body = HAND_OVER.format(produce=ONE + produce, wait=WAIT)
    for seed in range(4):
        got = per_lane(body, 1, 64, late=late, seed=seed)
        assert got.tolist() == [0] * 32 + list(range(700, 732))


@pytest.mark.parametrize(
    ("produce", "wait", "fault"),
    [
        (EXPECT + BULK, "", (InFlight, Uninitialised)),
        (EXPECT.replace("128", "64") + BULK, WAIT, (InFlight, DataRace)),
        (EXPECT.replace("128", "144") + BULK, WAIT, Deadlock),
        (EXPECT + BULK.replace("64, [", "56, ["), WAIT, Fault),
        (EXPECT + BULK.replace("+192", "+200"), WAIT, Misaligned),
        (EXPECT + BULK.replace("+192", "+176"), WAIT, InFlight),
    ],
)
def test_faults_of_bulk_copies(produce: str, wait: str, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        per_lane(HAND_OVER.format(produce=ONE + produce, wait=wait), 1, 64)


@pytest.mark.parametrize(
    ("body", "fault", "says"),
    [
        ("mbarrier.arrive.shared.b64 %rd5, [%r20+8];", Uninitialised, "nothing has written"),
        ("mbarrier.arrive.shared.b64 %rd5, [%r20+4];", Misaligned, "8 aligned bytes"),
        ("mbarrier.arrive.shared.b64 %rd5, [%r20], 3;", Fault, "too many"),
        ("mbarrier.inval.shared.b64 [%r20];" + ARRIVE, Fault, "no mbarrier here"),
        ("st.shared.u32 [%r20+4], %t;", Fault, "holds an mbarrier, which was not ended"),
        ("mbarrier.init.shared.b64 [%r20+8], 0;", Fault, "does not exist"),
        ("mbarrier.init.shared.b64 [%r20], 1;", Fault, "already"),
        (
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 1048575;"
            "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r20], 1;",
            Fault,
            "too many bytes",
        ),
    ],
)
def test_faults_of_an_mbarrier(body: str, fault: type[Exception], says: str) -> None:
    with pytest.raises(fault, match=says):
        per_lane(f"setp.ne.u32 %p0, %t, 0; @%p0 bra $end; {body} $end:", 2)


def test_the_bytes_of_an_mbarrier_that_ended_can_be_another() -> None:
    body = "@%p7 mbarrier.inval.shared.b64 [%r20]; @%p7 mbarrier.init.shared.b64 [%r20], 1;"
    body += "bar.sync 0; @%p7 " + ARRIVE + "bar.sync 0;" + ask(0, 0)
    assert (per_lane(body, 7) == 1).all()


def test_an_mbarrier_needs_a_barrier_behind_its_initialisation() -> None:
    body = INIT.format(count=64).replace("bar.sync 0;", "") + ARRIVE
    with pytest.raises((DataRace, Uninitialised)):
        launch(body, threads=64, variables=SHARED)


def test_registers_are_given_in_eights() -> None:
    launch("setmaxnreg.dec.sync.aligned.u32 40; setmaxnreg.inc.sync.aligned.u32 232;", threads=128)
    for wrong in (20, 44, 264):
        with pytest.raises(Exception, match="multiple of 8 from 24 to 256"):
            launch(f"setmaxnreg.inc.sync.aligned.u32 {wrong};", threads=128)
