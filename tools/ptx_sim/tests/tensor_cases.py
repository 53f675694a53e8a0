"""Copies of boxes by the tensor memory accelerator, with their meaning as plain Python loops.

Written from the documentation of the driver's cuTensorMapEncodeTiled and cuTensorMapEncodeIm2col,
not from the machine's code.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..tensor_map import Im2col, TensorMap
from .snippets import module

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
    offsets: tuple[int, ...] = ()

    def __str__(self) -> str:
        return self.name

    @property
    def extents(self) -> tuple[int, ...]:
        """Elements of the box, mode 0 first; strides of elements leave some out, but of mode 0."""
        if self.map.im2col is not None:
            return self.map.im2col.channels, self.map.im2col.pixels
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
    **rest: Any,
) -> BoxCase:
    """A case over a tensor with room behind every mode, in mode 0 up to a multiple of 16 bytes.

    Its strides grow from mode to mode, unless others are given.
    """
    bare = TensorMap(0, type, shape, (), box)
    end = shape[0] * bare.size
    end += 16 + -end % 16
    strides = []
    for extent in shape[1:]:
        strides.append(end)
        end *= extent + 1
    return BoxCase(name, replace(bare, **{"strides": tuple(strides), **rest}), corner, start)


TILED = [
    _tiled("1d", "f32", (40,), (8,), (4,)),
    _tiled("1d past the end", "u8", (100,), (64,), (80,)),
    _tiled("1d before the start", "u16", (100,), (32,), (-8,)),
    _tiled("2d", "f16", (24, 10), (16, 4), (8, 3)),
    _tiled("2d, all four sides outside", "u32", (5, 3), (16, 7), (-4, -2)),
    _tiled("2d, nothing inside", "f16", (24, 10), (16, 4), (0, 10)),
    _tiled("2d, 32-byte swizzle", "f16", (64, 40), (16, 32), (8, 3), swizzle=32),
    _tiled("2d, 64-byte swizzle", "f16", (64, 40), (32, 32), (8, 3), swizzle=64),
    _tiled("2d, 128-byte swizzle", "f16", (80, 40), (64, 32), (8, 13), swizzle=128),
    _tiled("2d, 128-byte swizzle of bytes", "u8", (300, 40), (128, 20), (256, 3), swizzle=128),
    _tiled("2d, off the swizzle's period", "f32", (32, 9), (32, 9), (0, 0), 1152, swizzle=128),
    _tiled("3d", "bf16", (40, 7, 5), (8, 3, 4), (16, 2, -1)),
    _tiled("3d, lines from before", "f16", (96, 40, 3), (64, 16, 1), (-32, 8, 2), swizzle=128),
    _tiled("3d, lines to beyond", "f16", (96, 40, 3), (64, 16, 1), (64, 8, 2), swizzle=128),
    _tiled("3d, steps", "f16", (40, 9, 9), (8, 5, 7), (8, 1, 2), element_strides=(1, 2, 3)),
    _tiled("4d", "f32", (12, 4, 5, 6), (4, 2, 3, 2), (4, 3, 1, 5)),
    _tiled("4d, swizzled", "f16", (64, 4, 5, 3), (32, 4, 3, 2), (32, -1, 1, 2), swizzle=64),
    _tiled(
        "4d, in another order, wider than the tensor", "tf32", (32, 8, 3, 3), (32, 4, 5, 1),
        (0, 2, -1, 1), swizzle=128, strides=(1168, 128, 400),
    ),
    _tiled("5d", "u8", (40, 3, 4, 5, 6), (16, 2, 2, 3, 2), (32, 2, -1, 3, 4)),
    _tiled("2d, rounded to tf32", "tf32", (40, 9), (32, 8), (12, 2), swizzle=128),
    _tiled("the largest box", "u8", (300, 300), (64, 256), (16, 9)),
]  # fmt: skip


def _im2col(
    name: str,
    type: str,
    shape: tuple[int, ...],
    padding: tuple[tuple[int, ...], tuple[int, ...]],
    taps: tuple[int, ...],
    column: tuple[int, int],
    corner: tuple[int, ...],
    offsets: tuple[int, ...],
    step: tuple[int, ...] = (),
    dilation: tuple[int, ...] = (1, 1, 1),
    **rest: Any,
) -> BoxCase:
    """A convolution's view of a tensor of modes c, w, h, d, n: padding near and far, in w, h, d."""
    reach = [d * (t - 1) for d, t in zip(dilation, taps, strict=False)]
    box = Im2col(
        tuple(-p for p in padding[0]),
        tuple(p - r for p, r in zip(padding[1], reach, strict=True)),
        *column,
    )
    steps = (1, *(step or (1,) * len(taps)), 1)
    of = _tiled(name, type, shape, (), corner, element_strides=steps, **rest)
    return replace(of, map=replace(of.map, im2col=box), offsets=offsets)


IM2COL = [
    _im2col("w", "f16", (32, 9, 3), ((1,), (1,)), (3,), (16, 12), (8, -1, 0), (0,)),
    _im2col("w, last tap", "f16", (32, 9, 3), ((1,), (1,)), (3,), (16, 12), (8, 3, 1), (2,)),
    _im2col(
        "w, past the last image", "f32", (8, 5, 2), ((0,), (0,)), (1,), (8, 12), (0, 3, 0), (0,),
    ),
    _im2col(
        "w, every second", "u8", (32, 9, 3), ((2,), (2,)), (3,), (16, 9), (16, 0, 0), (1,), (2,),
    ),
    _im2col("wh", "bf16", (24, 5, 4, 3), ((1, 1), (1, 1)), (3, 3), (8, 40), (8, -1, -1, 0), (1, 2)),
    _im2col(
        "wh, channels outside", "f16", (24, 5, 4, 3), ((1, 0), (1, 2)), (3, 2), (16, 16),
        (16, 2, 3, 1), (0, 1),
    ),
    _im2col(
        "wh, strides and dilations", "f16", (8, 11, 9, 3), ((2, 1), (1, 2)), (3, 2), (8, 30),
        (0, 0, 2, 0), (4, 3), (2, 3), (2, 3),
    ),
    _im2col(
        "wh, swizzled", "f16", (64, 7, 6, 2), ((1, 1), (1, 1)), (3, 3), (64, 32), (0, 3, 2, 0),
        (2, 0), swizzle=128,
    ),
    _im2col(
        "whd", "f32", (12, 4, 3, 3, 2), ((1, 1, 1), (1, 1, 1)), (3, 3, 3), (4, 60),
        (4, 1, 0, -1, 0), (2, 1, 0),
    ),
    _im2col("w, rounded to tf32", "tf32", (32, 9, 3), ((1,), (1,)), (3,), (8, 9), (8, 1, 0), (1,)),
    _im2col(
        "whd, strides and dilations", "f16", (64, 7, 6, 5, 2), ((2, 1, 0), (3, 2, 1)), (2, 3, 2),
        (32, 32), (32, 0, 1, 0, 0), (3, 4, 1), (2, 2, 3), (3, 2, 1), swizzle=64,
    ),
]  # fmt: skip
# Boxes of two modes whose bytes are whole periods of their swizzle.
MULTICAST = [c for c in TILED if c.map.rank == 2 and c.bytes % 1024 == 0 and c.start % 1024 == 0]
# A store writes whole boxes, and each element once.
STORED = [
    c
    for c in TILED
    if max(c.map.element_strides) == 1
    and c.map.type != "tf32"
    and min(c.corner) >= 0
    and c.map.shape[0] * c.map.size % 16 == 0
]


def tensor(case: BoxCase) -> NDArray[np.uint8]:
    """Memory for the tensor, from its first element on, all bytes different from zero."""
    m = case.map
    end = sum((e - 1) * s for e, s in zip(m.shape, (m.size, *m.strides), strict=True)) + m.size
    memory = np.random.default_rng(0).integers(1, 256, end + -end % 16).astype(np.uint8)
    if m.type == "tf32":  # numbers, of which every third is between two of tf32
        words = memory.view(np.uint32)
        words &= 0xBFFFFFFF
        words[::3] = words[::3] & 0xFFFFE000 | 0x1000
    return memory


def _rounded(raw: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of a number of fp32 as one of tf32, the nearest, of two the even one."""
    bits = int(raw.view(np.uint32)[0])
    nearest = bits + 0xFFF + (bits >> 13 & 1) & 0xFFFFE000
    return np.array([nearest], np.uint32).view(np.uint8)


def _places(case: BoxCase) -> Iterator[list[int]]:
    """Coordinates of the elements of a box, in their order in shared memory."""
    m, column = case.map, case.map.im2col
    if column is None:
        steps = (1, *m.element_strides[1:])
        for box in product(*(range(e) for e in reversed(case.extents))):
            yield [f + i * s for f, i, s in zip(case.corner, reversed(box), steps, strict=True)]
        return
    # All pixels that there are, images first, and as many images more as a column could reach.
    spatial = zip(column.lower, column.upper, m.shape[1:-1], m.element_strides[1:-1], strict=True)
    lines = [range(low, extent + up, step) for low, up, extent, step in spatial]
    pixels = list(product(range(m.shape[-1] + column.pixels), *lines[::-1]))
    first = pixels.index(case.corner[:0:-1])
    for n, *pixel in pixels[first : first + column.pixels]:
        taps = [p + o for p, o in zip(reversed(pixel), case.offsets, strict=True)]
        for channel in range(column.channels):
            yield [case.corner[0] + channel, *taps, n]


def expected(case: BoxCase, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """The bytes of shared memory from ``case.start`` on."""
    m = case.map
    out = np.zeros(case.bytes, np.uint8)
    strides = (m.size, *m.strides)
    for number, place in enumerate(_places(case)):
        at = case.start + number * m.size
        chunk, line = at // 16 % 8, at // 128
        at += 16 * ((chunk ^ line % (m.swizzle // 16)) - chunk) - case.start
        if all(0 <= c < e for c, e in zip(place, m.shape, strict=True)):
            source = sum(c * s for c, s in zip(place, strides, strict=True))
            element = memory[source : source + m.size]
            out[at : at + m.size] = _rounded(element) if m.type == "tf32" else element
    return out


def load_module(case: BoxCase, arch: str = "sm_90", expects: int | None = None) -> str:
    """A kernel that loads the box of the map at p0 and copies it to p1."""
    expects = case.bytes if expects is None else expects
    rank = case.map.rank
    corner = "".join(f"mov.u32 %c{i}, {c};" for i, c in enumerate(case.corner))
    places = ", ".join(f"%c{i}" for i in range(rank))
    mode, offsets = "tile", ""
    if case.offsets:
        mode = "im2col"
        offsets = ", {" + ", ".join(f"%h{i}" for i in range(rank - 2)) + "}"
        corner += "".join(f"mov.u16 %h{i}, {o};" for i, o in enumerate(case.offsets))
    body = f"""
    {HEAD} {corner} add.u32 %r1, %r0, {case.start};
    @%p0 prefetch.tensormap [%rd0];
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], {expects};
    @%p0 cp.async.bulk.tensor.{rank}d.shared::cluster.global.{mode}.mbarrier::complete_tx::bytes
        [%r1], [%rd0, {{{places}}}], [%r0]{offsets};
    {WAIT} {copy_out(case.bytes)}
    """
    return module(body, ".param .u64 p0, .param .u64 p1", THREADS, BUFFERS, arch)


def stored(case: BoxCase, box: NDArray[np.uint8], memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Global memory after the bytes of a box were stored to it."""
    memory, numbers = memory.copy(), np.arange(memory.size)
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


def multicast_module(case: BoxCase, arch: str = "sm_90") -> str:
    """Two CTAs that each load the box, one step along mode 1 on for CTA 1, into both.

    CTA r's loads lie in shared memory one after the other by r, and its result at p1 + r times
    their bytes. CTA 1 tells CTA 0 when it is done, which then writes 1 behind all results.
    """
    head, _, _ = load_module(case, arch).rpartition("@%p0 prefetch")
    head = head[head.index("{") + 1 :].replace(
        "bar.sync 0;", "barrier.cluster.arrive.release.aligned; barrier.cluster.wait.aligned;"
    )
    head = head.replace("%r0], 1;", "%r0], 1; @%p0 mbarrier.init.shared::cta.b64 [%r0+8], 64;", 1)
    body = f"""
    {head} mov.u32 %r5, %cluster_ctarank; add.u32 %c1, %c1, %r5; mov.u16 %h0, 3;
    mad.lo.u32 %r6, %r5, {case.bytes}, %r1;
    @%p0 mbarrier.arrive.expect_tx.shared.b64 _, [%r0], {2 * case.bytes};
    @%p0 cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes
        .multicast::cluster [%r6], [%rd0, {{%c0, %c1}}], [%r0], %h0;
    {WAIT}
    mul.wide.u32 %rd3, %r5, {2 * case.bytes}; add.u64 %rd1, %rd1, %rd3;
    {copy_out(2 * case.bytes)}
    setp.eq.u32 %p2, %r5, 0; setp.lt.u32 %p3, %t, 64; and.pred %p3, %p3, !%p2;
    add.u32 %r7, %r0, 8; mapa.shared::cluster.u32 %r6, %r7, 0;
    @%p3 mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%r6];
    @!%p2 bra $end;
    {WAIT.replace("[%r0]", "[%r7]")}
    mov.u32 %r3, 1;
    @%p0 st.global.u32 [%rd1+{4 * case.bytes}], %r3;
    $end:
    barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;
    """
    body = body.replace("bytes\n        .multi", "bytes.multi")
    params = ".param .u64 p0, .param .u64 p1"
    return module(
        body, params, THREADS, BUFFERS, arch, ".explicitcluster .reqnctapercluster 2, 1, 1"
    )


def expected_of_both(case: BoxCase, memory: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Reference of what :func:`multicast_module` writes."""
    on = replace(case, corner=(case.corner[0], case.corner[1] + 1), start=case.start + case.bytes)
    both = np.concatenate([expected(case, memory), expected(on, memory)])
    return np.concatenate([both, both, np.array([1], np.uint32).view(np.uint8)])
