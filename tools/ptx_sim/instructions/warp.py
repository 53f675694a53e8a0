"""Instructions that exchange data between the lanes of a warp (PTX ISA 9.7.9.6, 9.7.13.9 ff.)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from ..masks import some
from ..operation import Operation, Read, Run, instruction
from ..team import WARP, Lanes, Team


def _members(read: Read) -> Callable[[Team], Lanes]:
    """Return a function of the team: the lanes that a member mask names, without exited ones."""

    def members(t: Team) -> Lanes:
        mask = np.broadcast_to(read(t), t.numbers.shape)
        # Per warp, the mask of its first active lane: the others' must be the same.
        rows = np.where(t.active, mask, np.uint32(0)).reshape(-1, WARP).max(axis=1)
        lane = np.arange(WARP, dtype=np.uint32)
        return (rows[:, None] >> lane & np.uint32(1)).astype(np.bool_).reshape(-1) & t.alive

    return members


def _sync(op: Operation, position: int) -> None:
    """Declare that the lanes of the member mask at ``position`` run this together."""
    op.flag("aligned")
    op.collective(_members(op.read(position, "u4")))


@instruction("shfl.sync")
def shuffle(op: Operation) -> Run:
    mode = op.one_of("idx", "up", "down", "bfly")
    if op.type() != "b32":
        raise op.unsupported("shfl has type b32")
    first, second = op.pair(0)
    write, write_valid = (
        op.writer(first, np.dtype(np.uint32)),
        op.writer(second, np.dtype(np.bool_)),
    )
    a, b, c = op.read(1, "u4"), op.read(2, "u4"), op.read(3, "u4")
    _sync(op, 4)

    def run(t: Team) -> None:
        value = np.broadcast_to(a(t), t.numbers.shape)
        offset, control = b(t).astype(np.int64) & 31, c(t).astype(np.int64)
        lane = t.numbers % WARP
        clamp, segment = control & 31, control >> 8 & 31
        low = lane & segment
        high = low | (clamp & ~segment)
        match mode:
            case "up":
                source = lane - offset
                valid = source >= high
            case "down":
                source = lane + offset
                valid = source <= high
            case "bfly":
                source = lane ^ offset
                valid = source <= high
            case _:
                source = low | (offset & ~segment)
                valid = source <= high
        source = t.numbers - lane + np.where(valid, source, lane)
        write(t, value[source])
        write_valid(t, np.broadcast_to(valid, t.numbers.shape))

    return run


@instruction("vote.sync")
def vote(op: Operation) -> Run:
    mode = op.one_of("all", "any", "uni", "ballot")
    op.type()
    predicate = op.read(1, np.bool_)
    write = op.write(0, np.uint32 if mode == "ballot" else np.bool_)
    _sync(op, 2)

    def run(t: Team) -> None:
        holds = predicate(t) & t.active
        if mode == "ballot":
            write(t, t.mask_bits(holds))
            return
        some = holds.reshape(-1, WARP).any(axis=1)
        every = (holds | ~t.active).reshape(-1, WARP).all(axis=1)
        result = {"all": every, "any": some, "uni": every | ~some}[mode]
        write(t, result.repeat(WARP))

    return run


@instruction("activemask")
def active_mask(op: Operation) -> Run:
    op.type()
    write = op.write(0, np.uint32)
    return lambda t: write(t, t.mask_bits(t.active))


@instruction("match.any.sync", "match.all.sync")
def match_values(op: Operation) -> Run:
    dtype = op.dtype("b")
    first, second = op.pair(0)
    write, write_valid = (
        op.writer(first, np.dtype(np.uint32)),
        op.writer(second, np.dtype(np.bool_)),
    )
    value = op.read(1, dtype)
    every = op.stem == "match.all.sync"
    _sync(op, 2)

    def run(t: Team) -> None:
        rows = np.broadcast_to(value(t), t.numbers.shape).reshape(-1, WARP)
        active = t.active.reshape(-1, WARP)
        same = (rows[:, :, None] == rows[:, None, :]) & active[:, None, :]
        lane = np.arange(WARP, dtype=np.uint32)
        masks = (same.astype(np.uint32) << lane).sum(axis=2, dtype=np.uint32)
        if every:
            whole = (same == active[:, None, :]).all(axis=2)
            write(t, np.where(whole, masks, np.uint32(0)).reshape(-1))
            write_valid(t, whole.reshape(-1))
        else:
            write(t, masks.reshape(-1))

    return run


REDUCTIONS = {
    "add": np.add,
    "min": np.minimum,
    "max": np.maximum,
    "and": np.bitwise_and,
    "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}


@instruction("redux.sync")
def reduce(op: Operation) -> Run:
    ufunc = REDUCTIONS[op.one_of(*REDUCTIONS)]
    dtype = op.dtype()
    value, write = op.read(1, dtype), op.write(0, dtype)
    _sync(op, 2)

    def run(t: Team) -> None:
        rows = np.broadcast_to(value(t), t.numbers.shape).reshape(-1, WARP)
        result = np.zeros_like(rows)
        for row, active in enumerate(t.active.reshape(-1, WARP)):
            if some(active):
                result[row] = ufunc.reduce(rows[row][active])
        write(t, result.reshape(-1))

    return run


@instruction("bar.warp.sync")
def synchronise_warp(op: Operation) -> Run:
    _sync(op, 0)
    return lambda t: None


@instruction("elect.sync")
def elect(op: Operation) -> Run:
    first, second = op.pair(0)
    write, write_elected = (
        op.writer(first, np.dtype(np.uint32)),
        op.writer(second, np.dtype(np.bool_)),
    )
    _sync(op, 1)

    def run(t: Team) -> None:
        leader: NDArray[np.intp] = t.active.reshape(-1, WARP).argmax(axis=1).repeat(WARP)
        write(t, leader.astype(np.uint32))
        write_elected(t, t.numbers % WARP == leader)

    return run
