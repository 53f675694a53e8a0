"""Tensor maps: the 128 bytes that describe a tensor to the tensor memory accelerator.

The driver makes them (cuTensorMapEncodeTiled, cuTensorMapEncodeIm2col), and so does the host code
of the CuTe DSL. Their bits are not documented: they were inferred from the DSL's maps of many
tensors, and test_gpu.py compares them with the driver's. As words of 32 bits,

    0-1    address
    2      0 im2col, 1 always set, 4-6 rank - 1, 7-10 type, 11-12 interleave, 13-14 swizzle,
           15 fill with NaN, 16 round to tf32; hints from there on
    3-6    strides of modes 1 to 4 in units of 16 bytes, their bits 32-35 in word 7
    8-12   extents - 1
    13     element strides - 1, 3 bits each; 24-31 box of mode 0 - 1 (im2col: channels - 1)
    14     box of modes 1 to 4 - 1, 8 bits each; im2col: both corners, 16 bits each, of one number
           of 16 bits, two of 8 or three of 5 as the rank is 3, 4 or 5
    15     im2col: pixels - 1

and the rest are unused. Mode 0 is contiguous; in im2col the modes are c, w, h, d, n.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from .faults import Fault

SIZE = 128
# The types in the order of their numbers, with the bytes of an element.
_TYPES = {
    "u8": 1, "u16": 2, "u32": 4, "s32": 4, "u64": 8, "s64": 8, "f16": 2, "f32": 4, "f32.ftz": 4,
    "f64": 8, "bf16": 2,
}  # fmt: skip
_NUMBERS = {name: number for number, name in enumerate(_TYPES)}
# fp32 data that loads round to nearest, ties to even: the number of f32, and a bit.
TF32 = "tf32"
_SWIZZLE = (16, 32, 64, 128)
_KEPT = 1 << 1  # compilers set it, the driver does not; hardware accepts both
_NAN, _TF32 = 1 << 15, 1 << 16
# The driver's default: L2 lines of 128 bytes.
_HINTS = 2 << 17


@dataclass(frozen=True)
class Im2col:
    """Bounding box of an im2col map: ``lower`` and ``upper`` corners in w, h, d, and its column."""

    lower: tuple[int, ...]
    upper: tuple[int, ...]
    channels: int
    pixels: int


@dataclass(frozen=True)
class TensorMap:
    """A decoded tensor map: extents and boxes in elements, mode 0 first, ``strides`` in bytes.

    ``strides`` has one entry less than ``shape``: mode 0 is contiguous. ``swizzle`` is its span in
    bytes, 16 for none. A tiled map has a ``box``, and ``im2col`` is None.

    >>> t = TensorMap(0x1000, "f16", (64, 100), (128,), box=(64, 8), swizzle=128)
    >>> decode(t.encode()) == t
    True
    """

    address: int
    type: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...] = ()
    element_strides: tuple[int, ...] = ()
    swizzle: int = 16
    im2col: Im2col | None = None

    def __post_init__(self) -> None:
        if not self.element_strides:
            object.__setattr__(self, "element_strides", (1,) * self.rank)

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def size(self) -> int:
        """Bytes of an element."""
        return 4 if self.type == TF32 else _TYPES[self.type]

    def encode(self) -> bytes:
        """Return the 128 bytes."""
        number = _NUMBERS["f32" if self.type == TF32 else self.type]
        kind = number << 7 | (self.rank - 1) << 4 | _KEPT | (self.im2col is not None)
        kind |= _SWIZZLE.index(self.swizzle) << 13 | _HINTS | (self.type == TF32 and _TF32)
        steps = sum(step - 1 << 3 * i for i, step in enumerate(self.element_strides))
        units = [stride >> 4 for stride in self.strides] + [0] * (5 - self.rank)
        high = sum((unit >> 32) << 4 * i for i, unit in enumerate(units))
        words = [unit & 0xFFFFFFFF for unit in units] + [high]
        words += [extent - 1 for extent in self.shape] + [0] * (5 - self.rank)
        if self.im2col is None:
            words += [steps | self.box[0] - 1 << 24]
            words += [sum(b - 1 << 8 * i for i, b in enumerate(self.box[1:])), 0]
        else:
            words += [steps | self.im2col.channels - 1 << 24]
            words += [_pack(self.im2col.lower) | _pack(self.im2col.upper) << 16]
            words += [self.im2col.pixels - 1]
        return struct.pack("<QI13I", self.address, kind, *words).ljust(SIZE, b"\0")


def decode(raw: bytes) -> TensorMap:
    """Decode 128 bytes; a map that the hardware cannot use, or that is not implemented, is a fault.

    Rules: CUDA driver API, cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col.
    """
    address, kind, *words = struct.unpack_from("<QI13I", raw)
    rank, number = (kind >> 4 & 7) + 1, kind >> 7 & 15
    if not any(raw) or rank > 5 or number >= len(_TYPES):
        raise Fault("these 128 bytes are no tensor map")
    for bits, what in ((3 << 11, "interleaves"), (_NAN, "fills with NaN")):
        if kind & bits:
            raise Fault(f"a tensor map that {what} is not implemented")
    if kind & _TF32 and number != _NUMBERS["f32"]:
        raise Fault("a tensor map that makes tf32 of another type than fp32")
    units = [low | (words[4] >> 4 * i & 15) << 32 for i, low in enumerate(words[: rank - 1])]
    column = None
    box = (words[10] >> 24, *(words[11] >> 8 * i & 255 for i in range(4)))[:rank]
    if kind & 1:
        if rank < 3:
            raise Fault("an im2col tensor map has three to five modes")
        corners = (_unpack(words[11] >> at, rank - 2) for at in (0, 16))
        column = Im2col(*corners, channels=box[0] + 1, pixels=(words[12] & 1023) + 1)
    found = TensorMap(
        address,
        TF32 if kind & _TF32 else list(_TYPES)[number],
        tuple(extent + 1 for extent in words[5 : 5 + rank]),
        tuple(unit << 4 for unit in units),
        () if kind & 1 else tuple(extent + 1 for extent in box),
        tuple((words[10] >> 3 * i & 7) + 1 for i in range(rank)),
        _SWIZZLE[kind >> 13 & 3],
        column,
    )
    _check(found)
    return found


def _check(found: TensorMap) -> None:
    if found.address % 16:
        raise Fault(f"a tensor map of an address, {found.address:#x}, that 16 does not divide")
    inner = (found.im2col.channels if found.im2col else found.box[0]) * found.size
    if inner % 16:
        raise Fault(f"a tensor map whose box has {inner} bytes in mode 0, not a multiple of 16")
    if found.swizzle > 16 and inner > found.swizzle:
        raise Fault(f"a tensor map whose box has {inner} bytes in a swizzle of {found.swizzle}")
    if found.swizzle > max(16, inner):
        raise Fault("a tensor map whose box is narrower than its swizzle is not implemented")


def _pack(corner: tuple[int, ...]) -> int:
    """Pack one to three signed numbers into 16 bits."""
    bits = (16, 8, 5)[len(corner) - 1]
    return sum((c & (1 << bits) - 1) << bits * i for i, c in enumerate(corner))


def _unpack(word: int, count: int) -> tuple[int, ...]:
    bits = (16, 8, 5)[count - 1]
    sign = 1 << bits - 1
    return tuple(((word >> bits * i & (1 << bits) - 1) ^ sign) - sign for i in range(count))
