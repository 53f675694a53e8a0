"""Asynchronous copies from global to shared memory (PTX ISA 9.7.9.25.3)."""

from __future__ import annotations

import numpy as np

from ..faults import Fault
from ..masks import every, some
from ..memory import word_dtype
from ..operation import Operation, Run, instruction
from ..ptx import Register
from ..team import Team
from .load_store import drop_hints


@instruction("cp.async.ca", "cp.async.cg")
def copy(op: Operation) -> Run:
    has_policy = drop_hints(op)
    op.one_of("shared", "shared::cta")
    op.one_of("global")
    width = op.constant(2)
    if width not in ((16,) if op.stem.endswith("cg") else (4, 8, 16)):
        raise op.unsupported(f"a copy of {width} bytes does not exist")
    target, source = op.address(0), op.address(1)
    extra = len(op.operands) - 3 - has_policy
    # After the size: bytes to read (the rest is zero), or a predicate that ignores the source.
    read_size = ignored = None
    if extra > 0:
        operand = op.operand(3)
        if isinstance(operand, Register) and operand.bits == 1:
            ignored = op.read(3, np.bool_)
        else:
            read_size = op.read(3, "u4")

    def run(t: Team) -> None:
        lanes = t.chosen
        addresses = t.pick(source(t))
        if ignored is not None:
            size = np.where(t.pick(ignored(t)), 0, width)
        elif read_size is not None:
            size = t.pick(read_size(t)).astype(np.int64)
        else:
            size = np.full(lanes.size, width)
        words = np.zeros(lanes.size, word_dtype(width))
        whole = size == width
        if every(whole):
            words[:] = t.cta.memory.load(addresses, width, lanes)
        else:
            if some(size > width):
                lane = int(lanes[(size > width).argmax()])
                raise Fault(f"a copy of {width} bytes reads more than that", lane)
            if some(whole):
                words[whole] = t.cta.memory.load(addresses[whole], width, lanes[whole])
            _load_parts(t, words, addresses, size, lanes)
        t.copies.issue(t.pick(target(t)), words)

    return run


def _load_parts(
    t: Team, words: np.ndarray, addresses: np.ndarray, size: np.ndarray, lanes: np.ndarray
) -> None:
    """Load copies that read some, but not all, of their bytes."""
    width = words.dtype.itemsize
    raw = words.view(np.uint8).reshape(-1, width)
    off = (size > 0) & (addresses % width != 0)
    if some(off):
        # The machine wants the source aligned to the whole copy, however little of it is read.
        t.cta.memory.load(addresses[off], width, lanes[off])
    for at in range(width):
        reads = (size > at) & (size < width)
        if some(reads):
            raw[reads, at] = t.cta.memory.load(addresses[reads] + at, 1, lanes[reads]).view(
                np.uint8
            )


@instruction("cp.async.commit_group")
def commit(op: Operation) -> Run:
    return lambda t: t.copies.commit()


@instruction("cp.async.wait_group", "cp.async.wait_all")
def wait(op: Operation) -> Run:
    newest = op.constant(0) if op.stem.endswith("group") else None
    return lambda t: t.copies.wait(newest)
