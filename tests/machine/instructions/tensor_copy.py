"""The tensor memory accelerator: copies of boxes of tensors (PTX ISA 9.7.9.27).

A box lies in shared memory with mode 0 first and nothing between its elements; what is outside the
tensor is zero. A swizzle of S = 128, 64, 32 bytes exclusive-ors bits 4.. of the address with its
bits 7.., as wgmma's does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..access import load
from ..faults import Fault, Misaligned
from ..operation import Operation, Read, Run, instruction
from ..ptx import Address
from ..team import Team
from ..tensor_map import SIZE, TensorMap, decode
from .load_store import drop_hints
from .mbarrier import SPACES, objects

_ALIGNMENT = 128


def tensor_map(t: Team, lane: int, address: int) -> TensorMap:
    """The map at a generic address."""
    if address % 64:
        raise Misaligned("a tensor map is aligned to 64 bytes", lane, address)
    at = address + 16 * np.arange(SIZE // 16)
    raw = load(t, "", at, 16, np.full(at.size, lane)).tobytes()
    try:
        return decode(raw)
    except Fault as fault:
        raise Fault(fault.what, lane, address) from None


def _coordinates(op: Operation, position: int) -> list[Read]:
    operand = op.operand(position)
    assert isinstance(operand, Address)
    return [op.reader(item, np.dtype("i4")) for item in operand.coordinates]


def _box(found: TensorMap, corner: tuple[int, ...]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Where a box's elements are in global memory, mode 0 first, and which of them exist."""
    at, inside = np.array([found.address]), np.array([True])
    strides = (found.size, *found.strides)
    modes = zip(corner, found.box, found.element_strides, found.shape, strides, strict=True)
    for number, (first, extent, step, limit, stride) in enumerate(modes):
        # The step of mode 0 is ignored.
        step = step if number else 1
        c = first + np.arange(0, extent, step)
        at = (c * stride)[:, None] + at
        inside = ((c >= 0) & (c < limit))[:, None] & inside
        at, inside = at.ravel(), inside.ravel()
    return at, inside


def swizzled(found: TensorMap, start: int, count: int) -> NDArray[np.int64]:
    """The addresses in shared memory of a box's ``count`` words of 16 bytes."""
    at = start + 16 * np.arange(count)
    return at ^ (at >> 7 & found.swizzle // 16 - 1) << 4


def _load_box(t: Team, lane: int, found: TensorMap, corner: tuple[int, ...]) -> NDArray:
    at, inside = _box(found, corner)
    words = np.full(at.size, found.fill, f"u{found.size}")
    lanes = np.full(int(inside.sum()), lane)
    words[inside] = t.cta.memory.load(at[inside], found.size, lanes)
    return words.view("V16")


def _check_place(found: TensorMap, rank: int, shared: int, lane: int) -> None:
    if rank != found.rank:
        raise Fault(f"a copy with {rank} coordinates, of a tensor with {found.rank} modes", lane)
    if shared % _ALIGNMENT:
        raise Misaligned(f"a box is aligned to {_ALIGNMENT} bytes", lane, shared)


def _rank(op: Operation, position: int) -> int:
    """The number of modes; consumes the modifier that says so, and checks the coordinates."""
    rank = int(op.one_of("1d", "2d", "3d", "4d", "5d")[0])
    if len(_coordinates(op, position)) != rank:
        raise op.unsupported(f"{rank} coordinates expected")
    return rank


@instruction("cp.async.bulk.tensor")
def copy_tensor(op: Operation) -> Run:
    drop_hints(op)
    if "mbarrier::complete_tx::bytes" not in op.modifiers:
        raise op.unsupported("this tensor copy is not implemented")
    return _load(op)


def _load(op: Operation) -> Run:
    rank = _rank(op, 1)
    if op.modifiers[0] not in SPACES or op.modifiers[1] != "global":
        raise op.unsupported("from global to shared memory is expected")
    op.one_of(*SPACES)
    op.flag("global")
    op.one_of("tile", default="")
    op.flag("mbarrier::complete_tx::bytes")
    target, source, address = op.address(0), op.address(1), op.address(2)
    places = _coordinates(op, 1)

    def run(t: Team) -> None:
        corners = np.stack([np.broadcast_to(t.pick(c(t)), t.chosen.shape) for c in places], 1)
        where = zip(t.pick(target(t)).tolist(), t.pick(source(t)).tolist(), corners, strict=True)
        for (to, at, corner), (lane, barrier) in zip(where, objects(t, address), strict=True):
            found = tensor_map(t, lane, at)
            _check_place(found, rank, to, lane)
            words = _load_box(t, lane, found, tuple(corner.tolist()))
            t.copies.issue_bulk(lane, swizzled(found, to, words.size), words, barrier)

    return run


@instruction("prefetch.tensormap")
def prefetch_map(op: Operation) -> Run:
    address = op.address(0)

    def run(t: Team) -> None:
        for lane, at in zip(t.chosen.tolist(), t.pick(address(t)).tolist(), strict=True):
            tensor_map(t, lane, at)

    return run
