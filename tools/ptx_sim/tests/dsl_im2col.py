"""A small CuTe DSL kernel for tests of the machine: the im2col matrix of a tensor, by tensor maps.

Every CTA loads 64 pixels of 64 channels at one tap through an im2col map and stores them as a tile
of the matrix, of shape (n z p q, t r s c), through a tiled one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float16, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

TILE = 64


@dataclass(frozen=True)
class Window:
    """The taps of a convolution in w, h, d, or the first one or two of them."""

    taps: tuple[int, ...]
    near: tuple[int, ...]
    far: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def upper(self) -> tuple[int, ...]:
        """The upper corner of the pixels that the first tap meets, from the far end."""
        each = zip(self.far, self.taps, self.dilation, strict=True)
        return tuple(far - (taps - 1) * dilation for far, taps, dilation in each)


@cute.kernel
def _kernel(
    load: cute.CopyAtom, pixels: cute.Tensor, store: cute.CopyAtom, matrix: cute.Tensor,
    layout: cute.ComposedLayout, taps: cutlass.Constexpr,
):  # fmt: skip
    tid, _, _ = cute.arch.thread_idx()
    row, column, _ = cute.arch.block_idx()
    smem = cutlass.memory.SmemAllocator()
    tile = smem.allocate_tensor(Float16, layout.outer, 1024, layout.inner)
    done = smem.allocate_array(Int64, 1)
    if tid == 0:
        cpasync.prefetch_descriptor(load)
        cute.arch.mbarrier_init(done, 1)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    rest = column // (cute.size(pixels, mode=[1, 0]) // TILE)
    place: Any = (column % (cute.size(pixels, mode=[1, 0]) // TILE),)
    for extent in taps:
        place = (*place, rest % extent)
        rest = rest // extent
    ones = (1,) * len(taps)
    source = cute.local_tile(pixels, (TILE, (TILE, *ones)), (row, place))
    target = cute.local_tile(matrix, (TILE, TILE), (row, column))
    flat, one = cute.group_modes(tile, 0, 2), cute.make_layout(1)
    to, since = cpasync.tma_partition(load, 0, one, flat, cute.group_modes(source, 0, 2))
    box, out = cpasync.tma_partition(store, 0, one, flat, cute.group_modes(target, 0, 2))
    if tid == 0:
        cute.arch.mbarrier_arrive_and_expect_tx(done, TILE * TILE * 2)
    if tid < 32:
        cute.copy(load, since, to, tma_bar_ptr=done)
    cute.arch.mbarrier_wait(done, 0)
    # Unlike a load, a store is not issued by one elected thread.
    if tid == 0:
        cute.copy(store, box, out)
        cute.arch.cp_async_bulk_commit_group()
        cute.arch.cp_async_bulk_wait_group(0, read=True)


@cute.jit
def _host(x: cute.Tensor, d: cute.Tensor, stream: Any, window: cutlass.Constexpr):
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Float16)
    layout = cute.tile_to_shape(atom, (TILE, TILE), (0, 1))
    shape: Any = x.shape
    stride: Any = x.stride
    view = cute.make_layout(
        ((*shape[1:-1][::-1], shape[0]), shape[-1]), stride=((*stride[1:-1][::-1], stride[0]), 1)
    )
    load = cpasync.make_im2col_tma_atom(
        cpasync.CopyBulkTensorIm2ColG2SOp(), cute.make_tensor(x.iterator, view), layout,
        (TILE, TILE), tuple(-p for p in window.near), window.upper, window.near, window.far,
        window.stride, (0,) * len(window.taps), window.dilation,
    )  # fmt: skip
    store = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileS2GOp(), d, layout, (TILE, TILE))
    grid = (cute.ceil_div(d.shape[0], TILE), d.shape[1] // TILE, 1)  # type: ignore[index]
    _kernel(load.atom, load.tma_tensor, store.atom, store.tma_tensor, layout, window.taps).launch(
        grid=grid, block=(64, 1, 1), stream=stream
    )


def compile_im2col(folder: str, window: Window) -> Any:
    """The kernel for sm_90a with dynamic extents; the compiler leaves its dumps in ``folder``."""

    def tensor(*shape: Any) -> Any:
        order = tuple(reversed(range(len(shape))))
        return make_fake_compact_tensor(Float16, shape, stride_order=order, assumed_align=16)

    extents = [cute.sym_int() for _ in range(1 + len(window.taps))]
    channels, columns = cute.sym_int(divisibility=TILE), cute.sym_int(divisibility=TILE)
    return cute.compile(
        _host, tensor(*extents, channels), tensor(cute.sym_int(), columns), make_fake_stream(),
        window,
        options=f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch sm_90a",
    )  # fmt: skip
