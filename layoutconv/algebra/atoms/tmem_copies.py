"""``tcgen05.ld``, ``.st``, ``.cp``: copies between tensor memory and registers, or into it.

The tensor-memory side counts the bits of the moved block, lane after lane. PTX ISA, "Tensor Memory
Load and Store Instructions" and "tcgen05.cp"; CUTLASS: cute/atom/copy_traits_sm100.hpp.
"""

from __future__ import annotations

from ..layout import Layout
from .atom import CopyAtom

# Shapes: the bits of a row of one repetition, and the most repetitions.
_SHAPES = {
    "32x32b": (32, 128),
    "16x64b": (64, 128),
    "16x128b": (128, 64),
    "16x256b": (256, 32),
    "16x32bx2": (64, 128),
}
# tcgen05.cp: bits of a row, then the rows in shared memory as a layout of lanes: the extents of the
# lanes, and the rows that each step of them moves by.
_CP = {
    "128x256b": (256, (128,), (1,)),
    "128x128b": (128, (128,), (1,)),
    "64x128b.warpx2::02_13": (128, (64, 2), (1, 0)),
    "64x128b.warpx2::01_23": (128, (32, 2, 2), (1, 0, 32)),
    "32x128b.warpx4": (128, (32, 4), (1, 0)),
}


def tmem_names() -> tuple[str, ...]:
    """Return the names of the copies of tensor memory.

    >>> "tcgen05.ld.32x32b.x8" in tmem_names()
    True
    """
    moves = [
        f"tcgen05.{way}.{shape}.x{1 << i}"
        for way in ("ld", "st")
        for shape, (_, most) in _SHAPES.items()
        for i in range(most.bit_length())
    ]
    return (*moves, *[f"tcgen05.cp.{shape}" for shape in (*_CP, "4x256b")])


def tmem_copy(name: str) -> CopyAtom:
    """Return the copy of this name, one of :func:`tmem_names`.

    >>> print(tmem_copy("tcgen05.ld.16x256b.x2").destination)
    ((4,8),(64,2,2)):((64,512),(1,4096,256))
    """
    _, way, shape = name.split(".", 2)
    if way == "cp":
        return _from_smem(name, shape)
    shape, repetitions = shape.split(".x")
    times = int(repetitions)
    bits = _SHAPES[shape][0]
    row = bits * times
    registers = _registers(shape, row, times)
    block = Layout((32, int(registers.size())), (0, 1))  # the block that all threads see together
    sides = (block, registers) if way == "ld" else (registers, block)
    return CopyAtom(name, 32, *sides, row, 32)


def _registers(shape: str, row: int, times: int) -> Layout:
    """Return (thread, bit of its registers) -> bit of the block, in which each lane has a row."""
    if shape == "32x32b":  # a thread has a lane
        return Layout((32, row), (row, 1))
    if shape == "16x32bx2":  # half of the threads have the second half of each row
        return Layout(((16, 2), row // 2), ((row, row // 2), 1))
    if shape == "16x64b":
        return Layout(((2, 2, 8), (32, times)), ((8 * row, 32, row), (1, 64)))
    word = 32 if shape == "16x128b" else 64  # neighbouring columns in one thread
    return Layout(((4, 8), (word, 2, times)), ((word, row), (1, 8 * row, 4 * word)))


def _from_smem(name: str, shape: str) -> CopyAtom:
    """Return a copy that one thread starts; rows in shared memory lie one after the other."""
    if shape == "4x256b":  # one lane of each warp
        source = Layout((1, (256, 4)), (0, (1, 256)))
        return CopyAtom(name, 1, source, Layout((1, (256, 4)), (0, (1, 32 * 256))), 256, 32)
    row, lanes, rows = _CP[shape]
    source = Layout((1, (row, *lanes)), (0, (1, *[row * r for r in rows])))
    return CopyAtom(name, 1, source, Layout((1, 128 * row), (0, 1)), row, 32)
