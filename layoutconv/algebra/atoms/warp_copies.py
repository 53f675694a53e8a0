"""``ldmatrix``, ``stmatrix``, ``movmatrix``, copies of one thread, and TMA boxes.

The shared-memory side counts the bits of the rows that threads point at, 128 per row. PTX ISA,
"Warp-level matrix instructions"; CUTLASS: cute/atom/copy_traits_sm75.hpp to copy_traits_sm100.hpp.
"""

from __future__ import annotations

from math import prod
from typing import Any

from ..checks import plain_shape
from ..composed import ComposedLayout
from ..errors import LayoutValueError, expect
from ..layout import Layout
from ..notation import parse
from ..swizzle import Swizzle
from .atom import CopyAtom
from .smem import SWIZZLES

# The swizzles of a box, which XOR address bits: in units of 16 bytes, then of larger units.
_BOX_SWIZZLES = {name: (bits, 7, 3) for name, bits in SWIZZLES.items()} | {
    "SW128_32B": (2, 8, 2),
    "SW128_64B": (1, 9, 1),
}
_BOX_BITS = (4, 8, 16, 32, 64)
_ROWS_OF = {8: "((8,4),128):((128,0),1)", 16: "((16,2),128):((128,0),1)", 32: "(32,128):(128,1)"}
# Registers of 8-row matrices, then of transposed bytes, of which a thread has a column.
_STRAIGHT, _ACROSS = "(32,(32,{0})):(32,(1,1024))", "((4,8),(16,2,{0})):((256,16),(1,128,1024))"
_BYTES_16 = "((4,8),(8,4,2,{0})):((512,8),(1,128,64,2048))"
_BYTES_8 = "((4,8),(8,2,2,{0})):((256,8),(1,128,64,1024))"
# Names with the number of matrices, the possible numbers, their rows, and the registers.
_LOADS = {
    "ldmatrix.x{0}": ((1, 2, 4), 8, _STRAIGHT, 16),
    "ldmatrix.x{0}.trans": ((1, 2, 4), 8, _ACROSS, 16),
    "ldmatrix.m8n16.x{0}.b6": ((1, 2, 4), 8, _STRAIGHT, 8),
    "ldmatrix.m8n16.x{0}.b4": ((1, 2, 4), 8, _STRAIGHT, 8),
    "ldmatrix.m16n16.x{0}.trans.b8": ((1, 2), 16, _BYTES_16, 8),
    "ldmatrix.m16n16.x{0}.trans.b6": ((1, 2), 16, _BYTES_16, 8),
    "ldmatrix.m16n16.x{0}.trans.b4": ((1, 2), 16, _BYTES_16, 8),
    "stmatrix.x{0}": ((1, 2, 4), 8, _STRAIGHT, 16),
    "stmatrix.x{0}.trans": ((1, 2, 4), 8, _ACROSS, 16),
    "stmatrix.m16n8.x{0}.trans.b8": ((1, 2, 4), 8, _BYTES_8, 8),
}
_OF_MATRICES = {
    name.format(count): (rows * count, registers.format(count), bits)
    for name, (counts, rows, registers, bits) in _LOADS.items()
    for count in counts
}
_OF_ONE_THREAD = {f"cp.async.{n}": 8 * n for n in (4, 8, 16)} | {
    f"universal.{bits}b": bits for bits in (8, 16, 32, 64, 128, 256)
}


def warp_names() -> tuple[str, ...]:
    """Return the names of matrix copies and of copies of single threads.

    >>> "ldmatrix.x4" in warp_names()
    True
    """
    return (*_OF_MATRICES, "movmatrix.trans", *_OF_ONE_THREAD)


def warp_copy(name: str) -> CopyAtom:
    """Return the copy of this name, one of :func:`warp_names`.

    >>> print(warp_copy("stmatrix.x1").source)
    (32,32):(32,1)
    """
    if name in _OF_ONE_THREAD:
        bits = _OF_ONE_THREAD[name]
        layout = Layout((1, bits), (0, 1))
        return CopyAtom(name, 1, layout, layout, min(bits, 128), 8)
    if name == "movmatrix.trans":
        straight, across = parse("(32,32):(32,1)"), parse("((4,8),(16,2)):((256,16),(1,128))")
        return CopyAtom(name, 32, straight, across)
    pointed, text, element_bits = _OF_MATRICES[name]
    rows, registers = parse(_ROWS_OF[pointed]), _without_ones(parse(text))
    if name.startswith("st"):
        return CopyAtom(name, 32, registers, rows, element_bits=element_bits)
    return CopyAtom(name, 32, rows, registers, element_bits=element_bits)


def tma_atom(box: tuple[int, ...], element_bits: int = 16, *, swizzle: str = "INTER") -> CopyAtom:
    """Return a TMA box, copied by one thread: bits of the tensor's box to bits of shared memory.

    ``box`` has the extents of the box, the contiguous one first. In shared memory it is compact,
    and swizzled in units of 16 bytes: ``SW32``, ``SW64`` or ``SW128``; ``SW128_32B`` and
    ``SW128_64B`` keep 32 and 64 bytes together. PTX ISA, "Swizzling Modes"; shared memory begins
    where the pattern does.

    Raises :class:`LayoutValueError` for a box that the hardware does not take. Extents go up to
    256; the first is a multiple of 16 bytes and no wider than its swizzle; elements have 4 to 64
    bits. Narrower rows begin where full rows would: the manuals do not say so, but a copy on an
    H200 did so. ``SW128_32B`` and ``SW128_64B`` were not tried, so their rows must have 128 bytes.

    >>> print(tma_atom((64, 8), 16, swizzle="SW128").destination)
    S<3,7,3> o 0 o (1,8192):(0,1)
    >>> print(tma_atom((16, 8), 16, swizzle="SW128").destination)
    S<3,7,3> o 0 o (1,(256,8)):(0,(1,1024))
    """
    if swizzle not in _BOX_SWIZZLES:
        raise LayoutValueError(
            f"tma_atom: expected one of the swizzles {', '.join(_BOX_SWIZZLES)}, got {swizzle!r}"
        )
    if type(element_bits) is not int or element_bits not in _BOX_BITS:
        raise LayoutValueError(
            f"tma_atom: expected elements of {_BOX_BITS} bits, got {element_bits!r}"
        )
    expect("tma_atom", tuple | list, "the extents of a box", box)
    box = plain_shape(tuple(box))
    if not 1 <= len(box) <= 5 or not all(type(e) is int and 1 <= e <= 256 for e in box):
        raise LayoutValueError(f"tma_atom: expected 1 to 5 extents of at most 256, got {box!r}")
    bits, base, shift = _BOX_SWIZZLES[swizzle]
    row, width = box[0] * element_bits, 1 << (bits + base) if bits else 0
    if row % 128 or (bits and (row > width or (base > 7 and row != width))):
        of_all = "a multiple of 16 bytes"
        of_swizzle = f"{of_all}, at most {width // 8} for {swizzle}"
        wanted = of_all if not bits else of_swizzle if base == 7 else f"{width // 8} bytes"
        raise LayoutValueError(f"tma_atom: expected rows of {wanted}, got {row / 8:g}")
    rows = prod(box[1:])
    source: Any = Layout((1, row * rows), (0, 1))
    apart = source if row == width or not bits else Layout((1, (row, rows)), (0, (1, width)))
    swizzled = ComposedLayout(Swizzle(bits, base, shift), 0, apart) if bits else source
    shown = "x".join(map(str, box))
    return CopyAtom(f"tma.{shown}.{swizzle}", 1, source, swizzled, row, element_bits)


def _without_ones(layout: Layout) -> Layout:
    """Return the registers of one matrix, without the mode of matrices."""
    values = layout.shape[1]
    if not isinstance(values, tuple) or values[-1] != 1:
        return layout
    shape, stride = values[:-1], layout.stride[1][:-1]
    if len(shape) == 1:
        shape, stride = shape[0], stride[0]
    return Layout((layout.shape[0], shape), (layout.stride[0], stride))
