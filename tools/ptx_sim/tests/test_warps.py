"""Lanes, warps and barriers: who sees what, who waits for whom, and who is stuck."""

from __future__ import annotations

import numpy as np
import pytest

from .. import (
    DataRace,
    Deadlock,
    Divergent,
    DivisionByZero,
    Memory,
    ParseError,
    Runaway,
    Trap,
    Uninitialised,
    UnsetRegister,
    UnsupportedInstruction,
    parse,
    run,
)
from .snippets import launch, module

LANE = np.arange(32)


def per_lane(body: str, threads: int = 32, **options) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Run ``body`` and return every thread's %r0."""
    memory = Memory()
    result = np.zeros(threads, np.uint32)
    store = "mul.wide.u32 %rd8, %t, 4; add.u64 %rd9, %rd0, %rd8; st.global.u32 [%rd9], %r0;"
    launch(body + store, memory.add(result, output=True), memory=memory, threads=threads, **options)
    return result


# ---- shuffles and votes


@pytest.mark.parametrize(
    ("mode", "offset", "control", "source"),
    [
        ("idx", 5, 31, lambda i: 5),
        ("idx", 3, 0x181F, lambda i: i // 8 * 8 + 3),
        ("up", 3, 0, lambda i: i - 3 if i >= 3 else i),
        ("up", 1, 0x1000, lambda i: i - 1 if i % 16 else i),
        ("down", 4, 31, lambda i: i + 4 if i < 28 else i),
        ("down", 1, 0x1C1F, lambda i: i + 1 if i % 4 < 3 else i),
        ("bfly", 1, 31, lambda i: i ^ 1),
        ("bfly", 16, 31, lambda i: i ^ 16),
    ],
)
def test_shuffle(mode: str, offset: int, control: int, source) -> None:  # type: ignore[no-untyped-def]
    body = "mul.lo.u32 %r1, %t, 7; "
    body += f"shfl.sync.{mode}.b32 %r0, %r1, {offset}, {control}, -1;"
    assert per_lane(body).tolist() == [7 * source(i) for i in LANE]


def test_shuffle_says_whether_the_source_was_in_range() -> None:
    got = per_lane("shfl.sync.down.b32 %r1|%p0, %t, 8, 31, -1; selp.u32 %r0, 1, 0, %p0;")
    assert got.tolist() == [1] * 24 + [0] * 8


def test_votes_and_masks() -> None:
    odd = "and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 1;"
    assert (per_lane(odd + "vote.sync.ballot.b32 %r0, %p0, -1;") == 0xAAAAAAAA).all()
    for mode, want in (("any", 1), ("all", 0), ("uni", 0)):
        vote = odd + f"vote.sync.{mode}.pred %p1, %p0, -1; selp.u32 %r0, 1, 0, %p1;"
        assert (per_lane(vote) == want).all()
    active = "mov.u32 %r0, 0;" + odd + "@%p0 activemask.b32 %r0;"
    assert per_lane(active).tolist() == [0xAAAAAAAA * (i % 2) for i in LANE]


def test_match_and_reduce() -> None:
    third = "rem.u32 %r1, %t, 3;"
    same = [sum(1 << j for j in LANE if j % 3 == i % 3) for i in LANE]
    assert per_lane(third + "match.any.sync.b32 %r0, %r1, -1;").tolist() == same
    all_same = "match.all.sync.b32 %r2|%p0, %r1, -1; selp.u32 %r0, %r2, 1, %p0;"
    assert (per_lane(third + all_same) == 1).all()
    assert (per_lane("mov.u32 %r1, 9;" + all_same) == 0xFFFFFFFF).all()
    assert (per_lane("redux.sync.add.u32 %r0, %t, -1;") == LANE.sum()).all()


def test_special_registers() -> None:
    body = "mov.u32 %r1, %laneid; mov.u32 %r2, %warpid; mad.lo.u32 %r0, %r2, 100, %r1;"
    assert per_lane(body, threads=96).tolist() == [i // 32 * 100 + i % 32 for i in range(96)]
    assert per_lane("mov.u32 %r0, %lanemask_lt;").tolist() == [(1 << i) - 1 for i in range(32)]


def test_threads_and_ctas_are_counted_x_first() -> None:
    ptx = module(
        ".reg .b32 %r<9>; .reg .b64 %rd<4>; ld.param.u64 %rd0, [p];"
        "mov.u32 %r0, %tid.x; mov.u32 %r1, %tid.y; mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ctaid.y;"
        "mov.u32 %r4, %ntid.x; mov.u32 %r5, %nctaid.x; mad.lo.u32 %r6, %r3, %r5, %r2;"
        "mad.lo.u32 %r7, %r1, %r4, %r0; mad.lo.u32 %r7, %r6, 8, %r7;"
        "mul.wide.u32 %rd1, %r7, 4; add.u64 %rd2, %rd0, %rd1; st.global.u32 [%rd2], %r7;",
        ".param .u64 p",
    ).replace(".reqntid 32, 1, 1", "")
    memory = Memory()
    result = np.zeros(48, np.uint32)
    run(parse(ptx), memory, [memory.add(result, output=True)], (3, 2), block=(4, 2))
    assert result.tolist() == list(range(48))


# ---- divergence

ODD = "and.b32 %r1, %t, 1; setp.eq.u32 %p0, %r1, 1;"


@pytest.mark.parametrize("independent", [True, False])
def test_loops_of_different_length_and_reconvergence(independent: bool) -> None:
    body = """
    mov.u32 %r0, 0; mov.u32 %r1, 0;
    $loop: setp.ge.u32 %p0, %r1, %t; @%p0 bra $done;
    add.u32 %r1, %r1, 1; and.b32 %r2, %r1, 1; setp.eq.u32 %p1, %r2, 0; @%p1 bra $even;
    add.u32 %r0, %r0, 10; bra.uni $loop;
    $even: add.u32 %r0, %r0, 1; bra $loop;
    $done: shfl.sync.idx.b32 %r3, %r0, 31, 31, -1; sub.u32 %r0, %r3, %r0;
    """
    total = np.array([sum(1 if k % 2 == 0 else 10 for k in range(1, t + 1)) for t in range(96)])
    last = total[31::32].repeat(32)
    got = per_lane(body, threads=96, independent=independent)
    np.testing.assert_array_equal(got, (last - total).astype(np.uint32))


def test_a_barrier_that_is_not_aligned_does_without_exited_lanes() -> None:
    body = "mov.u32 %r0, 3;" + ODD + "@%p0 bra $skip; {barrier} $skip:"
    assert (per_lane(body.format(barrier="barrier.sync 0;")) == 3).all()
    with pytest.raises(Divergent):
        per_lane(body.format(barrier="barrier.sync.aligned 0;"))


def test_early_exit_leaves_the_others() -> None:
    body = ODD + "@%p0 bra $go; exit; $go: activemask.b32 %r0;"
    assert per_lane(body).tolist() == [0xAAAAAAAA * (i % 2) for i in LANE]


def test_scopes_have_their_own_registers_and_labels() -> None:
    body = """
    mov.u32 %r0, 5;
    { .reg .b32 r; mov.u32 r, 1; bra L; mov.u32 r, 100; L: add.u32 %r0, %r0, r; }
    { .reg .b32 r; mov.u32 r, 2; bra L; mov.u32 r, 200; L: add.u32 %r0, %r0, r; }
    """
    assert (per_lane(body) == 8).all()


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        ("mov.u32 %r0, %r5;", UnsetRegister),
        (ODD + "@%p0 mov.u32 %r5, 1; mov.u32 %r0, %r5;", UnsetRegister),
        ("mov.u32 %r1, 0; div.u32 %r0, %t, %r1;", DivisionByZero),
        (ODD + "@%p0 shfl.sync.idx.b32 %r0, %t, 0, 31, -1;", Divergent),
        (ODD + "@%p0 bra $v; bar.sync 0; $v: vote.sync.ballot.b32 %r0, %p0, -1;", Divergent),
        (ODD + "@%p0 bra $skip; bar.sync 0; $skip: mov.u32 %r0, 0;", Divergent),
        ("$again: bra $again; mov.u32 %r0, 0;", Runaway),
        ("trap; mov.u32 %r0, 0;", Trap),
    ],
)
def test_faults_of_a_warp(body: str, fault: type[Exception]) -> None:
    with pytest.raises(fault):
        per_lane(body, limit=5000)


def test_bytes_of_what_was_never_written_may_be_moved_and_are_noise() -> None:
    written = "mov.u32 %r1, 0x11223344;"
    assert (per_lane(written + "prmt.b32 %r0, %r1, %r5, 0x3210;") == 0x11223344).all()
    mixed = per_lane(written + "prmt.b32 %r0, %r5, %r1, 0x7610;")
    assert (mixed >> 16 == 0x1122).all()
    assert (mixed & 0xFFFF != 0).all()
    some = per_lane(ODD + "@%p0 mov.u32 %r5, 9; prmt.b32 %r0, %r5, %r5, 0x3210;")
    assert [value == 9 for value in some.tolist()] == [bool(i % 2) for i in LANE]


def test_a_collective_of_the_named_lanes_only() -> None:
    body = "mov.u32 %r0, 77;" + ODD + "@%p0 shfl.sync.idx.b32 %r0, %t, 3, 31, 0xAAAAAAAA;"
    assert per_lane(body).tolist() == [3 if i % 2 else 77 for i in LANE]


# ---- barriers

SHARED = ".shared .align 16 .b8 sm[4096];"
PLACE = "mov.u32 %r9, sm; shl.b32 %r8, %t, 2; add.u32 %r9, %r9, %r8;"
# A thread writes its word and reads that of the thread 32 further on, round the CTA of 128.
EXCHANGE = (
    PLACE + "st.shared.u32 [%r9], %t; {barrier}"
    "add.u32 %r7, %t, 32; and.b32 %r7, %r7, 127; mov.u32 %r6, sm; shl.b32 %r5, %r7, 2;"
    "add.u32 %r6, %r6, %r5; ld.shared.u32 %r0, [%r6];"
)


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize(
    "barrier",
    ["bar.sync 0;", "barrier.sync 3;", "bar.sync 1, 128;", "barrier.cta.sync.aligned 2, 128;"],
)
def test_a_barrier_lets_warps_exchange(barrier: str, independent: bool) -> None:
    body = EXCHANGE.format(barrier=barrier)
    for seed in range(4):
        got = per_lane(body, threads=128, variables=SHARED, independent=independent, seed=seed)
        np.testing.assert_array_equal(got, (np.arange(128) + 32) % 128)


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("barrier", ["", "bar.warp.sync -1;", "membar.cta;"])
def test_a_missing_barrier_is_found(barrier: str, independent: bool) -> None:
    body = EXCHANGE.format(barrier=barrier)
    with pytest.raises((DataRace, Uninitialised)):
        per_lane(body, threads=128, variables=SHARED, independent=independent)


def test_a_read_before_someone_elses_write_is_a_race() -> None:
    # Between the loads and the overwriting of what others loaded there must be a barrier too.
    twice = EXCHANGE.format(barrier="bar.sync 0;") + "{barrier} st.shared.u32 [%r9], %r0;"
    per_lane(twice.format(barrier="bar.sync 0;"), threads=128, variables=SHARED)
    with pytest.raises(DataRace):
        per_lane(twice.format(barrier=""), threads=128, variables=SHARED)


def test_two_warps_writing_one_word_is_a_race() -> None:
    for independent in (True, False):
        with pytest.raises(DataRace):
            per_lane(
                "mov.u32 %r1, sm; mov.u32 %r0, 1; st.shared.u32 [%r1], %r0;",
                threads=64, variables=SHARED, independent=independent,
            )  # fmt: skip


PRODUCER_CONSUMER = """
    mov.u32 %r1, sm; shl.b32 %r2, %t, 2; and.b32 %r2, %r2, 127; add.u32 %r1, %r1, %r2;
    setp.lt.u32 %p0, %t, 32; mov.u32 %r0, 0; @!%p0 bra $consumer;
    add.u32 %r3, %t, 500; st.shared.u32 [%r1], %r3; {arrive} bra $end;
    $consumer: {wait} ld.shared.u32 %r0, [%r1];
    $end:
"""


@pytest.mark.parametrize("independent", [True, False])
@pytest.mark.parametrize("arrive", ["bar.arrive 1, 64;", "barrier.cta.arrive.aligned 1, 64;"])
def test_arrive_does_not_wait_but_orders(arrive: str, independent: bool) -> None:
    body = PRODUCER_CONSUMER.format(arrive=arrive, wait="bar.sync 1, 64;")
    got = per_lane(body, threads=64, variables=SHARED, independent=independent)
    assert got.tolist() == [0] * 32 + list(range(500, 532))


@pytest.mark.parametrize("independent", [True, False])
def test_deadlock_names_the_barrier(independent: bool) -> None:
    body = PRODUCER_CONSUMER.format(arrive="bar.arrive 2, 64;", wait="bar.sync 1, 64;")
    with pytest.raises(Deadlock, match="barrier 1 has 32 of 64 threads"):
        per_lane(body, threads=64, variables=SHARED, independent=independent)


def test_a_spin_lock_between_warps_makes_progress() -> None:
    body = """
    mov.u32 %r1, sm; mov.u32 %r0, 4; setp.eq.u32 %p0, %t, 0; @%p0 st.shared.u32 [%r1], 0;
    bar.sync 0; setp.ge.u32 %p1, %t, 32; @%p1 bra $wait;
    @%p0 atom.shared.exch.b32 %r2, [%r1], %r0; bra $end;
    $wait: atom.shared.add.u32 %r2, [%r1], 0; setp.eq.u32 %p2, %r2, 0; @%p2 bra $wait;
    $end:
    """
    for seed in range(3):
        assert (per_lane(body, threads=64, variables=SHARED, races=False, seed=seed) == 4).all()


# ---- what is not understood

UNKNOWN = [
    ("frobnicate.b32 %r0, %r1;", UnsupportedInstruction, "frobnicate.b32 is not implemented"),
    ("add.frob.s32 %r0, %r1, %r2;", UnsupportedInstruction, "modifier frob"),
    ("add.rz.f32 %f0, %f1, %f2;", UnsupportedInstruction, "nearest"),
    ("mov.u32 %r0, nothing;", UnsupportedInstruction, "no variable 'nothing'"),
    ("bra $nowhere;", ParseError, "nowhere"),
    ("add.s64 %rd1, %r1, %rd2;", UnsupportedInstruction, "register of 32 bits"),
    ("mov.u32 %r0, %clock;", UnsupportedInstruction, "%clock"),
]


@pytest.mark.parametrize(("statement", "error", "says"), UNKNOWN)
def test_what_is_not_implemented_is_refused_before_anything_runs(
    statement: str, error: type[Exception], says: str
) -> None:
    # Control never gets there.
    with pytest.raises(error, match=says):
        launch("bra $end;" + statement + "$end:")
