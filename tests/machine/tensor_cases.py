"""Copies of boxes by the tensor memory accelerator, with their meaning as plain Python loops.

Written from the documentation of the driver's cuTensorMapEncodeTiled, not from the machine's code.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product

import numpy as np
from numpy.typing import NDArray

from .snippets import module
from .tensor_map import TensorMap

THREADS = 128
# Where the box lies in shared memory, and the mbarrier before it.
START = 1024
BUFFERS = ".shared .align 1024 .b8 sm[33792];"
HEAD = """
    .reg .b32 %t, %r<8>, %c<5>, %v<4>; .reg .b64 %rd<8>; .reg .pred %p<4>; .reg .b16 %h<4>;
    ld.param.u64 %rd0, [p0]; ld.param.u64 %rd1, [p1];
    mov.u32 %t, %tid.x; setp.eq.u32 %p0, %t, 0; mov.u32 %r0, sm;
    @%p0 mbarrier.init.shared::cta.b64 [%r0], 1;
    fence.mbarrier_init.release.cluster; bar.sync 0;
"""
WAIT = """
    { .reg .pred P1; LAB_WAIT: mbarrier.try_wait.parity.shared.b64 P1, [%r0], 0, 10000000;
      @P1 bra.uni DONE; bra.uni LAB_WAIT; DONE: }
"""
FENCE = "fence.proxy.async.shared::cta;"


@dataclass(frozen=True)
class BoxCase:
    """A tiled load: the map (its address is the tensor's), the corner of the box, where it goes."""

    name: str
    map: TensorMap
    corner: tuple[int, ...]
    start: int = START

    def __str__(self) -> str:
        return self.name

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements of the box, mode 0 first; strides of elements leave some out, but of mode 0."""
        steps = (1, *self.map.element_strides[1:])
        return tuple(-(-b // s) for b, s in zip(self.map.box, steps, strict=True))

    @property
    def bytes(self) -> int:
        return int(np.prod(self.extents)) * self.map.size


def _tiled(
    name: str,
    type: str,
    shape: tuple[int, ...],
    box: tuple[int, ...],
    corner: tuple[int, ...],
    start: int = START,
    strides: tuple[int, ...] | None = None,
    **rest: object,
) -> BoxCase:
    """A case over a tensor whose rows are padded to 16 bytes, and 16 more of each mode."""
    bare = TensorMap(0, type, shape, (), box)
    if strides is None:
        strides, end = (), shape[0] * bare.size
        for extent in shape[1:]:
            end += 16 + -end % 16
            strides += (end,)
            end *= extent
    return BoxCase(name, replace(bare, strides=strides, **rest), corner, start)


TILED = [
    _tiled("1d", "f32", (40,), (8,), (4,)),
    _tiled("1d past the end", "u8", (100,), (64,), (68,)),
    _tiled("1d before the start", "u16", (100,), (32,), (-5,)),
    _tiled("2d", "f16", (24, 10), (16, 4), (8, 3)),
    _tiled("2d, all four sides outside", "u32", (5, 3), (16, 7), (-3, -2)),
    _tiled("2d, nothing inside", "f16", (24, 10), (16, 4), (0, 10)),
    _tiled("2d, 32-byte swizzle", "f16", (64, 40), (16, 32), (8, 3), swizzle=32),
    _tiled("2d, 64-byte swizzle", "f16", (64, 40), (32, 32), (8, 3), swizzle=64),
    _tiled("2d, 128-byte swizzle", "f16", (80, 40), (64, 32), (8, 13), swizzle=128),
    _tiled("2d, 128-byte swizzle of bytes", "u8", (300, 40), (128, 20), (256, 3), swizzle=128),
    _tiled("2d, off the swizzle's period", "f32", (32, 9), (32, 9), (0, 0), 1152, swizzle=128),
    _tiled("2d, rows shorter than the swizzle", "f16", (80, 40), (32, 16), (8, 13), swizzle=128),
    _tiled("2d, mode 1 of stride 0", "u32", (8, 6), (8, 4), (0, 1), strides=(0,)),
    _tiled("3d", "bf16", (40, 7, 5), (8, 3, 4), (16, 2, -1)),
    _tiled("3d, steps", "f16", (40, 9, 9), (8, 5, 7), (8, 1, 2), element_strides=(1, 2, 3)),
    _tiled("4d", "f32", (12, 4, 5, 6), (4, 2, 3, 2), (4, 3, 1, 5)),
    _tiled("4d, swizzled", "f16", (64, 4, 5, 3), (32, 4, 3, 2), (32, -1, 1, 2), swizzle=64),
    _tiled("5d", "u8", (40, 3, 4, 5, 6), (16, 2, 2, 3, 2), (32, 2, -1, 3, 4)),
    _tiled("NaN outside", "f16", (24, 10), (16, 4), (16, 8), fill_nan=True),
    _tiled("NaN outside, 4 bytes", "f32", (24, 10), (16, 4), (16, 8), fill_nan=True),
    _tiled("the largest box", "u8", (300, 300), (64, 256), (7, 9)),
]  # fmt: skip
# A store writes whole boxes, and each element once.
STORED = [c for c in TILED if max(c.map.element_strides) == 1 and 0 not in c.map.strides]


def tensor(case: BoxCase) -> NDArray[np.uint8]:
    """Memory for the tensor, from its first element on, all bytes different from zero."""
    m = case.map
    end = sum((e - 1) * s for e, s in zip(m.shape, (m.size, *m.strides), strict=True)) + m.size
    return np.random.default_rng(0).integers(1, 256, end + -end % 16).astype(np.uint8)


def expected(case: BoxCase, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of shared memory from ``case.start`` on."""
    m = case.map
    out = np.zeros(case.bytes, np.uint8)
    strides = (m.size, *m.strides)
    for number, box in enumerate(product(*(range(e) for e in reversed(case.extents)))):
        place = [
            first + i * (step if mode else 1)
            for mode, (first, i, step) in enumerate(
                zip(case.corner, reversed(box), m.element_strides, strict=True)
            )
        ]
        at = case.start + number * m.size
        chunk, line = at // 16 % 8, at // 128
        at += 16 * ((chunk ^ line % (m.swizzle // 16)) - chunk) - case.start
        if all(0 <= c < e for c, e in zip(place, m.shape, strict=True)):
            source = sum(c * s for c, s in zip(place, strides, strict=True))
            out[at : at + m.size] = memory[source : source + m.size]
        elif m.fill_nan:
            nan = {2: 0x7FFF, 4: 0x7FFFFFFF}[m.size]
            out[at : at + m.size] = list(nan.to_bytes(m.size, "little"))
    return out


def load_module(case: BoxCase, arch: str = "sm_90", expects: int | None = None) -> str:
    """A kernel that loads the box of the map at p0 and copies it to p1."""
    expects = case.bytes if expects is None else expects
    rank = case.map.rank
    corner = "".join(f"mov.u32 %c{i}, {c};" for i, c in enumerate(case.corner))
    places = ", ".join(f"%c{i}" for i in range(rank))
    body = f"""
    {HEAD} {corner} add.u32 %r1, %r0, {case.start};
    @%p0 prefetch.tensormap [%rd0];
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], {expects};
    @%p0 cp.async.bulk.tensor.{rank}d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        [%r1], [%rd0, {{{places}}}], [%r0];
    {WAIT} {copy_out(case.bytes)}
    """
    return module(body, ".param .u64 p0, .param .u64 p1", THREADS, BUFFERS, arch)


def stored(case: BoxCase, box: NDArray[np.uint8], memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Global memory after the bytes of a box were stored to it."""
    memory, numbers = memory.copy(), np.arange(memory.size)
    case = replace(case, map=replace(case.map, fill_nan=False))
    # Loading the number of every byte, 8 bits a time, says where the bytes of the box belong.
    parts = [expected(case, (numbers >> at & 255).astype(np.uint8)) for at in (0, 8, 16)]
    places = sum(part.astype(np.int64) << at for part, at in zip(parts, (0, 8, 16), strict=True))
    inside = expected(case, np.ones_like(memory)) == 1
    memory[places[inside]] = box[inside]
    return memory


def store_module(case: BoxCase, arch: str = "sm_90") -> str:
    """A kernel that stores the bytes at p1 through the map at p0."""
    rank = case.map.rank
    corner = "".join(f"mov.u32 %c{i}, {c};" for i, c in enumerate(case.corner))
    places = ", ".join(f"%c{i}" for i in range(rank))
    body = f"""
    {HEAD} {corner} add.u32 %r1, %r0, {case.start};
    {copy_in(case.bytes)}
    {FENCE} bar.sync 0;
    @%p0 cp.async.bulk.tensor.{rank}d.global.shared::cta.tile.bulk_group
        [%rd0, {{{places}}}], [%r1];
    @%p0 cp.async.bulk.commit_group;
    @%p0 cp.async.bulk.wait_group.read 0;
    """
    return module(body, ".param .u64 p0, .param .u64 p1", THREADS, BUFFERS, arch)


def copy_in(size: int) -> str:
    """To shared memory at %r1 from %rd1, 16 bytes a thread and round."""
    return _rounds(size, "ld.global", "[%rd2]", "st.shared", "[%r4]")


def copy_out(size: int) -> str:
    """From shared memory at %r1 to %rd1, 16 bytes a thread and round."""
    return _rounds(size, "ld.shared", "[%r4]", "st.global", "[%rd2]")


def _rounds(size: int, load: str, source: str, store: str, target: str) -> str:
    text = "mul.lo.u32 %r2, %t, 16;"
    for at in range(0, size, 16 * THREADS):
        text += f"""
        add.u32 %r3, %r2, {at}; setp.lt.u32 %p1, %r3, {size};
        add.u32 %r4, %r1, %r3; cvt.u64.u32 %rd2, %r3; add.u64 %rd2, %rd1, %rd2;
        @%p1 {load}.v4.u32 {{%v0, %v1, %v2, %v3}}, {source};
        @%p1 {store}.v4.u32 {target}, {{%v0, %v1, %v2, %v3}};
        """
    return text
