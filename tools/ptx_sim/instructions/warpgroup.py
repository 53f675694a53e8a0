"""wgmma (PTX ISA 9.7.15): four warps multiply matrices that lie in shared memory.

D is 64 x N, A is 64 x K, B is K x N, with 32 bytes of K. Warp w of the warpgroup has 16 rows of D
from 16 w on, and of A where that is in registers. Fragments of those 16 rows are those of mma.sync,
D's one after the other for every 8 columns.
"""

from __future__ import annotations

import re

import numpy as np
from numpy.typing import NDArray

from .. import descriptor
from ..faults import Divergent
from ..masks import some
from ..operation import Operation, Read, Run, instruction
from ..ptx import Operand, Register
from ..team import WARP, Team
from ..warpgroup import GROUP
from .tensor_core import _BITS, _INTEGERS, _a_places, _accumulators, _c_places, _values

_DEPTH = {32: 8, 16: 16, 8: 32}


@instruction("wgmma.fence.sync.aligned")
def fence(op: Operation) -> Run:
    op.collective()
    return lambda t: t.fence_registers()


@instruction("wgmma.commit_group.sync.aligned")
def commit(op: Operation) -> Run:
    op.collective()

    def run(t: Team) -> None:
        for warp in np.unique(t.warp_of[t.chosen]).tolist():
            t.cta.warpgroups.commit(warp)

    return run


@instruction("wgmma.wait_group.sync.aligned")
def wait(op: Operation) -> Run:
    newest = op.constant(0)
    op.collective()
    op.steer()

    def run(t: Team) -> int | None:
        asleep = np.zeros_like(t.active)
        for warp in np.unique(t.warp_of[t.chosen]).tolist():
            if not t.cta.warpgroups.wait(t, warp, newest):
                asleep |= t.warp_of == warp
        return t.sleep(asleep, "the other warps of a warpgroup to issue a wgmma")

    return run


def _registers(op: Operation, items: tuple[Operand, ...]) -> tuple[int, ...]:
    """The numbers of registers of 32 bits."""
    found = [item.index for item in items if isinstance(item, Register) and item.bits == 32]
    if len(found) != len(items) or len(set(found)) != len(found):
        raise op.unsupported("different registers of 32 bits are expected")
    return tuple(found)


@instruction("wgmma.mma_async.sync.aligned")
def multiply_accumulate(op: Operation) -> Run:
    shape = re.fullmatch(r"m64n(\d+)k(\d+)", op.modifiers.pop(0))
    satfinite = op.flag("satfinite")
    d_type, a_type, b_type = op.modifiers
    op.modifiers.clear()
    bits = _BITS.get(a_type)
    if shape is None or bits is None or bits != _BITS.get(b_type) or bits < 8:
        raise op.unsupported("this wgmma is not implemented")
    columns, depth, size = int(shape[1]), int(shape[2]), bits // 8
    integers = a_type in _INTEGERS
    sums = {"f16": ("f32", "f16"), "e4m3": ("f32", "f16"), "e5m2": ("f32", "f16")}
    if depth != _DEPTH[bits] or columns % 8 or not 8 <= columns <= 256:
        raise op.unsupported("this shape does not exist")
    if d_type not in (("s32",) if integers else sums.get(a_type, ("f32",))):
        raise op.unsupported("these accumulators do not exist")
    if bits >= 16 and a_type != b_type:
        raise op.unsupported("these types do not go together")
    elements = 2 if d_type == "f16" else 1
    d = _registers(op, op.items(0))
    if len(d) != columns // 2 // elements:
        raise op.unsupported("wrong number of accumulators")
    in_registers = len(op.items(1)) > 1
    a = _registers(op, op.items(1)) if in_registers else ()
    if in_registers and len(a) != 4:
        raise op.unsupported("wrong number of registers of A")
    read_a = None if in_registers else op.read(1, "u8")
    read_b, accumulate = op.read(2, "u8"), op.read(3, np.bool_)
    rest = [op.constant(i) for i in range(4, len(op.operands))]
    signs = [] if integers else rest[:2]
    transposed = rest[len(signs) :]
    if len(transposed) != (0 if bits != 16 else 1 if in_registers else 2):
        raise op.unsupported("wrong number of operands")
    if any(s not in (1, -1, 2**32 - 1) for s in signs) or any(x not in (0, 1) for x in transposed):
        raise op.unsupported("a scale is 1 or -1, a transposition 0 or 1")
    sign = float(np.prod([1 if s == 1 else -1 for s in signs]))
    trans_a, trans_b = (x == 1 for x in [0, 0, *transposed][-2:])
    if in_registers:
        trans_a = False
    op.collective()
    place = hash(op.source)
    use = f"{d_type} m64n{columns}"
    a_places, c_places = _a_places(4, 32 // bits), _c_places(elements)

    def matrix(t: Team, code: int, rows: int, name: str, trans: bool, warp: int) -> NDArray:
        """A matrix of shape (rows, depth) behind a descriptor, as float64."""
        words, number = descriptor.places(code, rows, depth, size, trans)
        lane = int((t.warp_of == warp).argmax())
        lanes = np.full(words.size, lane)
        raw = t.cta.shared.load_async(words, 16, lanes, t.warp_of[lanes])
        codes = np.ascontiguousarray(raw).view(f"u{size}")[number]
        return _elements(codes, name)

    def run(t: Team) -> None:
        # Before registers are lent or memory is held, so that a fault names its lane.
        for warp in np.unique(t.warp_of[t.chosen]).tolist():
            lanes = slice(WARP * (warp - int(t.warp_of[0])), None)
            code_b, adds = _same(t, read_b, lanes), bool(_same(t, accumulate, lanes))
            code_a = None if read_a is None else _same(t, read_a, lanes)
            local = warp - int(t.warp_of[0])
            given = [t.lend(i, "A", local, True) for i in a]
            old = [t.lend(i, use, local, adds) for i in d]
            units = [descriptor.places(code_b, columns, depth, size, trans_b)[0]]
            if code_a is None:
                left = np.empty((1, 16, depth))
                left[a_places] = _values(_stack(given), a_type)
                left = left[0]
            else:
                left = matrix(t, code_a, 64, a_type, trans_a, warp)
                left = left[16 * (warp % GROUP) :][:16]
                units.append(descriptor.places(code_a, 64, depth, size, trans_a)[0])
            right = matrix(t, code_b, columns, b_type, trans_b, warp)
            product = sign * (left @ right.T)
            # Every 8 columns are a fragment of their own.
            fragments = product.reshape(16, -1, 8).swapaxes(0, 1)[c_places]
            if adds:
                before = _stack(old).reshape(-1, 4 // elements, WARP)
                fragments = fragments + _values(before, d_type)
            result = _accumulators(fragments, d_type, satfinite).reshape(-1, WARP)
            for index, value in zip(d, result, strict=True):
                t.give(index, local, value)
            t.cta.warpgroups.issue(
                warp, (place, code_a or 0, code_b, adds), d + a, np.unique(np.concatenate(units))
            )

    return run


def _stack(values: list[NDArray | None]) -> NDArray[np.uint32]:
    """Registers of a warp: shape (1, registers, lanes)."""
    return np.stack([v for v in values if v is not None])[None]


def _same(t: Team, read: Read, lanes: slice) -> int:
    """An operand that must be the same in all lanes of a warp."""
    value = np.broadcast_to(read(t), t.numbers.shape)[lanes][:WARP]
    if some(value != value[0]):
        raise Divergent("an operand of wgmma differs between lanes", lanes.start)
    return int(value[0])


def _elements(codes: NDArray, name: str) -> NDArray[np.float64]:
    """Elements of 8, 16 or 32 bits as float64."""
    if codes.dtype.itemsize == 4:
        return _values(codes, name)[..., 0]
    # Registers of equal elements: take the first.
    wide = codes.astype(np.uint32)
    return _values(wide, name)[..., 0]
