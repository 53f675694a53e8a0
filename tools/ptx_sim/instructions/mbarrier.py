"""mbarrier instructions (PTX ISA 9.7.13.15), and copies that complete at an mbarrier."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..faults import Fault, Misaligned
from ..layout import GENERIC_WINDOW
from ..masks import every
from ..mbarriers import MBarrier
from ..operation import Operation, Read, Run, instruction
from ..team import LEFT, WARP, Team
from .load_store import drop_hints

SPACES = ("shared", "shared::cta", "shared::cluster")


def _address(op: Operation, position: int) -> Read:
    """The addresses of mbarriers, in the shared window whether or not the space is named."""
    generic = not op.one_of(*SPACES, default="")
    read = op.address(position)
    return (lambda t: read(t) - GENERIC_WINDOW["shared"]) if generic else read


def _common(op: Operation) -> None:
    """Modifiers that change nothing here: order and scope."""
    op.one_of("release", "acquire", "relaxed", default="")
    op.one_of("cta", "cluster", default="")
    op.one_of("b64", default="")


def objects(t: Team, address: Read, remote: bool = False) -> Iterator[tuple[int, MBarrier]]:
    """Yield the active lanes in turn, and the mbarrier that each names.

    ``remote``: it may belong to another CTA of the cluster.
    """
    for lane, at in zip(t.chosen.tolist(), t.pick(address(t)).tolist(), strict=True):
        yield lane, _object(t, lane, at, remote)


def _object(t: Team, lane: int, at: int, remote: bool = False) -> MBarrier:
    cta, near = t.cta.cluster.locate(t.cta, at, lane)
    if cta is not t.cta and not remote:
        raise Fault("this wants an mbarrier of the CTA itself", lane, at)
    return cta.mbarriers.at(t, lane, near)


def looks(t: Team, address: Read) -> Iterator[tuple[int, MBarrier]]:
    """:func:`objects` of lanes that only test: one lane of a warp tests for all alike.

    A waiting kernel tests hundreds of times: lane by lane, that took most of its time.
    """
    seen: dict[tuple[int, int], MBarrier] = {}
    warps = t.warp_of[t.chosen].tolist()
    lanes, places = t.chosen.tolist(), t.pick(address(t)).tolist()
    for lane, warp, at in zip(lanes, warps, places, strict=True):
        barrier = seen.get((warp, at))
        if barrier is None:
            barrier = seen[warp, at] = _object(t, lane, at)
        yield lane, barrier


@instruction("mbarrier.init", "mbarrier.inval")
def initialise(op: Operation) -> Run:
    address = _address(op, 0)
    _common(op)
    count = op.read(1, "u4") if op.stem.endswith("init") else None

    def run(t: Team) -> None:
        counts = None if count is None else t.pick(count(t)).tolist()
        for i, (lane, at) in enumerate(zip(t.chosen.tolist(), t.pick(address(t)), strict=True)):
            if counts is None:
                t.cta.mbarriers.invalidate(t, lane, int(at))
            else:
                t.cta.mbarriers.init(t, lane, int(at), counts[i])

    return run


@instruction("mbarrier.arrive", "mbarrier.arrive_drop")
def arrive(op: Operation) -> Run:
    drops = op.stem.endswith("drop")
    expects = op.flag("expect_tx")
    remote = "shared::cta" not in op.modifiers
    address = _address(op, 1)
    _common(op)
    state = op.write(0, "u8")
    operand = op.read(2, "u4") if op.has(2) else None
    if expects and operand is None:
        raise op.unsupported("the number of bytes is missing")

    def run(t: Team) -> None:
        given = None if operand is None else t.pick(operand(t)).tolist()
        phases = np.zeros(t.chosen.size, np.uint64)
        for i, (lane, barrier) in enumerate(objects(t, address, remote)):
            phases[i] = barrier.phase
            number = 1 if given is None else given[i]
            if expects:
                t.cta.mbarriers.expect(barrier, number, lane)
                number = 1
            if drops:
                barrier.expected -= number
            t.cta.mbarriers.arrive(barrier, int(t.warp_of[lane]), number, lane)
        state(t, t.spread(phases, np.dtype(np.uint64)))

    return run


@instruction("mbarrier.expect_tx", "mbarrier.complete_tx")
def expect(op: Operation) -> Run:
    address = _address(op, 0)
    _common(op)
    count = op.read(1, "u4")
    sign = 1 if op.stem.endswith("expect_tx") else -1

    def run(t: Team) -> None:
        counts = t.pick(count(t)).tolist()
        for i, (lane, barrier) in enumerate(objects(t, address, remote=True)):
            t.cta.mbarriers.expect(barrier, sign * counts[i], lane)

    return run


@instruction("mbarrier.test_wait", "mbarrier.try_wait")
def wait(op: Operation) -> Run:
    # try_wait may block: the lanes sleep until a phase completes, or until nothing else can happen.
    # At random it gives up at once, as it may, which exposes code that ignores its result.
    patient = op.stem.endswith("try_wait")
    by_parity = op.flag("parity")
    address = _address(op, 1)
    _common(op)
    write, which = op.write(0, np.bool_), op.read(2, "u4" if by_parity else "u8")
    op.steer()

    def run(t: Team) -> int | None:
        told = t.pick(which(t)).tolist()
        done = np.zeros(t.numbers.shape, np.bool_)
        asked, learnt = None, None
        for i, (lane, barrier) in enumerate(looks(t, address)):
            done[lane] = barrier.phase & 1 != told[i] & 1 if by_parity else barrier.phase != told[i]
            if not done[lane]:
                asked = barrier
            elif learnt != (id(barrier), lane // WARP):
                learnt = id(barrier), lane // WARP
                t.cta.mbarriers.learn(barrier, int(t.warp_of[lane]))
        if asked is None:
            write(t, done)
            return None
        asleep = t.active & ~done
        if not patient:
            t.cta.cluster.pass_time()
        elif not t.cta.cluster.gives_up(t, asleep):
            if every(asleep == t.active):
                t.cta.cluster.sleep(t, t.pc, asleep, str(asked))
                return LEFT
            # Lanes whose phase is complete go on; the others run this again.
            t.cta.cluster.sleep(t, t.pc, asleep, str(asked))
            t.active, t.full = done, False
        write(t, done)
        t.push(t.pc + 1, t.active)
        return LEFT

    return run


@instruction("cp.async.mbarrier.arrive")
def arrive_with_copies(op: Operation) -> Run:
    noinc = op.flag("noinc")
    address = _address(op, 0)
    _common(op)

    def run(t: Team) -> None:
        barriers = [barrier for _, barrier in looks(t, address)]
        if not noinc:
            for barrier in barriers:
                barrier.pending += 1
        t.copies.arrive(t.chosen, barriers)

    return run


@instruction("cp.async.bulk")
def copy_bulk(op: Operation) -> Run:
    drop_hints(op)
    if op.modifiers[1:] != ["global", "mbarrier::complete_tx::bytes"]:
        raise op.unsupported("this bulk copy is not implemented")
    op.one_of(*SPACES)
    op.modifiers.clear()
    target, source, size, address = op.address(0), op.address(1), op.read(2, "u4"), op.address(3)

    def run(t: Team) -> None:
        which = zip(t.pick(target(t)), t.pick(source(t)), t.pick(size(t)).tolist(), strict=True)
        for (to, since, count), (lane, barrier) in zip(which, objects(t, address), strict=True):
            if count % 16 or not count:
                raise Fault(f"a bulk copy of {count} bytes does not exist", lane)
            if to % 16 or since % 16:
                raise Misaligned("a bulk copy is between aligned words of 16 bytes", lane, int(to))
            words = 16 * np.arange(count // 16)
            loaded = t.cta.memory.load(since + words, 16, np.full(words.size, lane))
            t.copies.issue_bulk(lane, to + words, loaded, barrier)

    return run
