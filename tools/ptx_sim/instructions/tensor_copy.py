"""The tensor memory accelerator: copies of boxes and pixels of tensors (PTX ISA 9.7.9.27).

Elements lie in shared memory contiguously, mode 0 first; elements outside the tensor are zero. A
swizzle of S = 128, 64, 32 bytes exclusive-ors bits 4.. of the address with its bits 7.., as wgmma's
does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..access import load
from ..boxes import elements
from ..cta import CTA
from ..faults import Fault, Misaligned
from ..formats import encode
from ..mbarriers import MBarrier
from ..operation import Operation, Read, Run, instruction
from ..ptx import Address
from ..team import Team
from ..tensor_map import SIZE, TF32, TensorMap, decode
from .load_store import drop_hints
from .mbarrier import SPACES

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


def swizzled(found: TensorMap, start: int, count: int) -> NDArray[np.int64]:
    """The addresses in shared memory of a box's ``count`` words of 16 bytes."""
    at = start + 16 * np.arange(count)
    return at ^ (at >> 7 & found.swizzle // 16 - 1) << 4


def _loaded(
    t: Team, lane: int, found: TensorMap, corner: tuple[int, ...], offsets: tuple[int, ...]
) -> NDArray:
    """Return the 16-byte words that a load brings, without a swizzle."""
    at, inside = elements(found, corner, offsets)
    words = np.zeros(at.size, f"u{found.size}")
    lanes = np.full(int(inside.sum()), lane)
    words[inside] = t.cta.memory.load(at[inside], found.size, lanes)
    if found.type == TF32:
        words = encode(words.view(np.float32), "tf32")
    return words.view("V16")


def _check_place(found: TensorMap, rank: int, shared: int, lane: int) -> None:
    if rank != found.rank:
        raise Fault(f"a copy with {rank} coordinates, of a tensor with {found.rank} modes", lane)
    if shared % _ALIGNMENT:
        raise Misaligned(f"a box is aligned to {_ALIGNMENT} bytes", lane, shared)


def _rank(op: Operation, position: int) -> int:
    """Return the number of modes; consume its modifier, and check the coordinates."""
    rank = int(op.one_of("1d", "2d", "3d", "4d", "5d")[0])
    if len(_coordinates(op, position)) != rank:
        raise op.unsupported(f"{rank} coordinates expected")
    return rank


def _spaces(op: Operation, target: tuple[str, ...], source: tuple[str, ...]) -> None:
    """Consume the two state spaces of a copy, in their order."""
    if op.modifiers[0] not in target or op.modifiers[1] not in source:
        raise op.unsupported(f"a copy to {target[0]} from {source[0]} is expected")
    del op.modifiers[:2]


def _each(
    t: Team, target: Read, source: Read, places: list[Read]
) -> Iterator[tuple[int, int, int, tuple[int, ...]]]:
    """Yield the active lanes in turn: lane, target, source, coordinates."""
    corners = np.stack([t.pick(c(t)) for c in places], axis=1).tolist()
    each = zip(t.chosen, t.pick(target(t)), t.pick(source(t)), corners, strict=True)
    for lane, to, since, corner in each:
        yield int(lane), int(to), int(since), tuple(corner)


@instruction("cp.async.bulk.tensor")
def copy_tensor(op: Operation) -> Run:
    drop_hints(op)
    if op.flag("bulk_group"):
        return _store(op)
    if op.flag("mbarrier::complete_tx::bytes"):
        return _load(op)
    raise op.unsupported("this tensor copy is not implemented")


def _load(op: Operation) -> Run:
    rank = _rank(op, 1)
    _spaces(op, SPACES, ("global",))
    im2col = op.one_of("tile", "im2col", default="tile") == "im2col"
    multicast = op.flag("multicast::cluster")
    target, source, address = op.address(0), op.address(1), op.address(2)
    mask = op.read(4 if im2col else 3, "u2") if multicast else None
    places = _coordinates(op, 1)
    offsets = [op.reader(item, np.dtype("u2")) for item in op.items(3)] if im2col else []
    if im2col and len(offsets) != rank - 2:
        raise op.unsupported(f"{rank - 2} offsets expected")

    def run(t: Team) -> None:
        taps = np.zeros((t.numbers.size, len(offsets)), np.int64)
        for mode, offset in enumerate(offsets):
            taps[t.active, mode] = t.pick(offset(t))
        masks = t.pick(mask(t)).tolist() if mask else [None] * t.chosen.size
        signals = t.pick(address(t)).tolist()
        each = zip(_each(t, target, source, places), signals, masks, strict=True)
        for (lane, start, at, corner), signal, ranks in each:
            cta, to = t.cta.cluster.locate(t.cta, start, lane)
            found = tensor_map(t, lane, at)
            _check_place(found, rank, to, lane)
            if (found.im2col is None) == im2col:
                raise Fault("tiled and im2col copies have tensor maps of their own", lane)
            words = _loaded(t, lane, found, corner, tuple(taps[lane].tolist()))
            units = swizzled(found, to, words.size)
            for receiver, barrier in _receivers(t, lane, cta, signal, ranks):
                t.copies.issue_bulk(lane, units, words, barrier, receiver)

    return run


def _receivers(
    t: Team, lane: int, to: CTA, signal: int, ranks: int | None
) -> list[tuple[CTA, MBarrier]]:
    """Yield each CTA that a load goes to, and the mbarrier there that counts the bytes."""
    cta, near = t.cta.cluster.locate(t.cta, signal, lane)
    if ranks is None:
        if cta is not to:
            raise Fault("the mbarrier of a load must be in the CTA that is loaded to", lane)
        return [(to, to.mbarriers.at(t, lane, near))]
    ctas = t.cta.cluster.ctas
    if not ranks or ranks >> len(ctas):
        raise Fault(f"CTA mask {ranks:#x} in a cluster of {len(ctas)}", lane)
    chosen = [cta for cta in ctas if ranks >> cta.rank & 1]
    if not all(cta.alive for cta in chosen):
        raise Fault("a load to a CTA of the cluster that has ended", lane)
    # At the same place in every CTA.
    return [(cta, cta.mbarriers.at(t, lane, near)) for cta in chosen]


def _store(op: Operation) -> Run:
    rank = _rank(op, 0)
    _spaces(op, ("global",), ("shared", "shared::cta"))
    op.one_of("tile", default="")
    target, source, places = op.address(0), op.address(1), _coordinates(op, 0)
    op.steer()

    def run(t: Team) -> None:
        for lane, at, since, corner in _each(t, target, source, places):
            found = tensor_map(t, lane, at)
            _check_place(found, rank, since, lane)
            if found.im2col is not None:
                raise Fault("tiled and im2col copies have tensor maps of their own", lane)
            if found.type == TF32:
                raise Fault("a store that makes tf32 is not implemented", lane)
            # What an H200 does; loads may start below 0, and end within 16 bytes.
            if min(corner) < 0:
                raise Fault(f"a store of a box that starts at {corner}: an illegal instruction")
            if found.shape[0] * found.size % 16:
                raise Fault("a store to lines that end within 16 bytes would write all of these")
            addresses, inside = elements(found, corner)
            count = addresses.size * found.size // 16
            # Words with bytes that are stored; the others may hold anything.
            used = inside.reshape(count, -1).any(axis=1)
            units = swizzled(found, since, count)[used]
            words = np.zeros(count, "V16")
            words[used] = t.stores.read(lane, units)
            t.stores.issue(lane, addresses[inside], words.view(f"u{found.size}")[inside], units)

    return run


@instruction("cp.async.bulk.commit_group")
def commit(op: Operation) -> Run:
    return lambda t: t.stores.commit()


@instruction("cp.async.bulk.wait_group")
def wait(op: Operation) -> Run:
    only_read, newest = op.flag("read"), op.constant(0)
    return lambda t: t.stores.wait(newest, only_read)


@instruction("prefetch.tensormap")
def prefetch_map(op: Operation) -> Run:
    address = op.address(0)

    def run(t: Team) -> None:
        for lane, at in zip(t.chosen.tolist(), t.pick(address(t)).tolist(), strict=True):
            tensor_map(t, lane, at)

    return run
