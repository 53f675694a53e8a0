"""Branches, exits, barriers, fences (PTX ISA 9.7.12, 9.7.13) and hints that change no value."""

from __future__ import annotations

import numpy as np

from ..faults import Fault, Trap
from ..masks import every
from ..operation import Operation, Run, instruction
from ..ptx import Name
from ..team import LEFT, Team


@instruction("bra")
def branch(op: Operation) -> Run:
    op.flag("uni")
    op.steer()
    label = op.operand(0)
    if not isinstance(label, Name) or label.name not in op.symbols.labels:
        raise op.unsupported("branch to an unknown label")
    target = op.symbols.labels[label.name]
    return lambda t: target


@instruction("ret", "exit")
def leave(op: Operation) -> Run:
    op.flag("uni")
    op.steer()

    def run(t: Team) -> int:
        t.retire(t.active)
        t.cta.check_barriers()
        t.cta.cluster.barrier.check()
        return LEFT

    return run


@instruction("trap")
def trap(op: Operation) -> Run:
    def run(t: Team) -> None:
        raise Trap("the kernel trapped")

    return run


@instruction(
    "bar.sync",
    "barrier.sync",
    "barrier.cta.sync",
    "bar.arrive",
    "barrier.arrive",
    "barrier.cta.arrive",
)
def barrier(op: Operation) -> Run:
    aligned = op.stem.startswith("bar.") or op.flag("aligned")
    op.steer()
    # Unless the instruction is aligned, some threads of a warp may have exited.
    op.collective(None if aligned else lambda team: team.alive)
    waits = not op.stem.endswith("arrive")
    number = op.read(0, "u4")
    count = op.read(1, "u4") if op.has(1) else None
    if count is None and not waits:
        raise op.unsupported("an arrival needs a thread count")

    def run(t: Team) -> int | None:
        which = t.pick(number(t))
        threads = None if count is None else t.pick(count(t))
        next_pc = t.pc + 1 if waits else None
        first = which[0]
        if every(which == first):
            expected = None if threads is None else int(threads[0])
            _check(int(first), expected)
            t.cta.arrive(t, int(first), expected, t.active, next_pc)
            return LEFT if waits else None
        # Warps may name different barriers in one instruction.
        for value in np.unique(which):
            here = which == value
            some = np.zeros_like(t.active)
            some[t.chosen[here]] = True
            expected = None if threads is None else int(threads[here][0])
            _check(int(value), expected)
            t.cta.arrive(t, int(value), expected, some, next_pc)
        return LEFT if waits else None

    return run


def _check(number: int, count: int | None) -> None:
    if not 0 <= number < 16:
        raise Fault(f"barrier {number} does not exist: there are 16")
    if count is not None and (count <= 0 or count % 32):
        raise Fault(f"the thread count of a barrier must be a multiple of 32, not {count}")


_SCOPES = ("cta", "cluster", "gpu", "sys", "gl")


@instruction("fence.proxy.async")
def fence_async(op: Operation) -> Run:
    op.one_of("global", "shared::cta", "shared::cluster", default="")
    return lambda t: t.cta.shared.fence(t.warps_in(t.active))


@instruction("setmaxnreg.inc.sync.aligned.u32", "setmaxnreg.dec.sync.aligned.u32")
def set_registers(op: Operation) -> Run:
    # How many registers a warp may use is the compiler's business; the numbers have rules.
    count = op.constant(0)
    if not 24 <= count <= 256 or count % 8:
        raise op.unsupported("a multiple of 8 from 24 to 256 is expected")
    op.collective()
    return lambda t: None


@instruction("membar", "fence", "fence.proxy", "fence.mbarrier_init")
def fence(op: Operation) -> Run:
    # Memory is sequentially consistent here, so a fence matters only to a relaxed arrival at a
    # cluster barrier, which releases everything before the last fence.
    scope = {"cluster", "gpu", "sys"} & set(op.modifiers)
    for allowed in (
        ("sc", "acq_rel", "acquire", "release"),
        ("alias", "tensormap::generic"),
        ("shared", "global", "shared::cta", "shared::cluster"),
        _SCOPES,
    ):
        op.one_of(*allowed, default="")
    if not scope or "proxy" in op.stem:
        return lambda t: None
    return lambda t: t.cta.cluster.barrier.fence(t.warps_in(t.active))


@instruction("barrier.cluster.arrive")
def arrive_in_cluster(op: Operation) -> Run:
    relaxed = op.one_of("release", "relaxed", default="release") == "relaxed"
    op.collective(None if op.flag("aligned") else lambda team: team.alive)

    def run(t: Team) -> None:
        for warp in np.unique(t.warp_of[t.chosen]).tolist():
            t.cta.cluster.barrier.arrive(warp, relaxed, int((t.warp_of == warp).argmax()))

    return run


@instruction("barrier.cluster.wait")
def wait_in_cluster(op: Operation) -> Run:
    op.one_of("acquire", default="")
    op.collective(None if op.flag("aligned") else lambda team: team.alive)
    op.steer()

    def run(t: Team) -> int | None:
        asleep = np.zeros_like(t.active)
        for warp in np.unique(t.warp_of[t.chosen]).tolist():
            lane = int((t.warp_of == warp).argmax())
            if not t.cta.cluster.barrier.wait(warp, lane):
                asleep |= t.active & (t.warp_of == warp)
        return t.sleep(asleep, "the other warps of the cluster to arrive")

    return run


@instruction("griddepcontrol.wait", "griddepcontrol.launch_dependents", "nanosleep", "pmevent")
def hint(op: Operation) -> Run:
    op.modifiers.clear()
    return lambda t: None


@instruction("prefetch", "prefetchu", "discard", "applypriority")
def cache_hint(op: Operation) -> Run:
    op.modifiers.clear()
    return lambda t: None
