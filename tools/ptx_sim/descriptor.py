"""The 64-bit descriptor of a matrix in shared memory, as wgmma reads it (PTX ISA 9.7.15.5.1).

Bits 0-13 start address, 16-29 leading and 32-45 stride byte offset, all / 16; 49-51 base offset;
62-63 swizzle. With rows of the matrix along M or N, and T = 16 bytes, an element lies at

    K-major    no swizzle   8 rows of T, then every stride offset; T's of k every leading offset
               S bytes      rows of S bytes, 8 of them, then every stride offset
    MN-major   no swizzle   8 k of T, then every leading offset; T's of rows every stride offset
               S bytes      8 k of S bytes, then every stride offset; S's every leading offset

and a swizzle of S = 128, 64, 32 bytes exclusive-ors bits 4.. of the address with its bits 7..
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from .faults import Fault

_SWIZZLE = {0: 16, 1: 128, 2: 64, 3: 32}
_USED = 0x3FFF | 0x3FFF << 16 | 0x3FFF << 32 | 7 << 49 | 3 << 62


@dataclass(frozen=True)
class Descriptor:
    """A decoded descriptor: addresses and offsets in bytes; ``swizzle`` 16 is none.

    >>> describe(1 << 62 | 64 << 32 | 1 << 16 | 0x400 >> 4)
    Descriptor(start=1024, leading=16, stride=1024, swizzle=128)
    """

    start: int
    leading: int
    stride: int
    swizzle: int


def describe(bits: int) -> Descriptor:
    """Decode a descriptor; reserved bits are a fault, and so is a base offset (not modelled)."""
    if bits & ~_USED:
        raise Fault(f"matrix descriptor {bits:#x} has bits that mean nothing")
    if bits >> 49 & 7:
        raise Fault(f"matrix descriptor {bits:#x}: base offsets are not implemented")
    start, leading, stride = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    return Descriptor(start, leading, stride, _SWIZZLE[bits >> 62])


def addresses(
    matrix: Descriptor, rows: int, columns: int, size: int, transposed: bool
) -> NDArray[np.int64]:
    """Return element addresses: shape (rows along M or N, columns along K), ``size`` bytes each."""
    row, column = np.arange(rows)[:, None], np.arange(columns)
    width = matrix.swizzle
    if transposed:
        byte, line = row * size, column
        far, near = matrix.leading, matrix.stride
        if width == 16:
            far, near = near, far
    else:
        byte, line = column * size, row
        far, near = matrix.leading, matrix.stride
    at = matrix.start + line % 8 * width + line // 8 * near + byte // width * far + byte % width
    return np.asarray(at ^ (at >> 7 & (width // 16 - 1)) << 4, np.int64)


@lru_cache(256)
def places(
    bits: int, rows: int, columns: int, size: int, transposed: bool
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the 16-byte words that a matrix lies in, and each element's index in them."""
    at = addresses(describe(bits), rows, columns, size, transposed)
    words, number = np.unique(at >> 4, return_inverse=True)
    return words << 4, number.reshape(at.shape) * (16 // size) + (at & 15) // size
