"""A small CuTe DSL kernel for tests of the machine: tiles that two CTAs of a cluster load together.

Each CTA brings half of every 64 x 64 tile of A to both, through one buffer, and copies the whole
tile to its own half of D. It tells both CTAs when it has done so.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float16, Int16, Int64
from cutlass.cute.nvgpu import cpasync, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

TILE = 64


@cute.kernel
def _kernel(load: cute.CopyAtom, tiles: cute.Tensor, d: cute.Tensor, layout: cute.ComposedLayout):
    tid, _, _ = cute.arch.thread_idx()
    _, row, _ = cute.arch.block_idx()
    rank = cute.arch.make_warp_uniform(cute.arch.block_idx_in_cluster())
    smem = cutlass.memory.SmemAllocator()
    tile = smem.allocate_tensor(Float16, layout.outer, 1024, layout.inner)
    full, empty = smem.allocate_array(Int64, 1), smem.allocate_array(Int64, 1)
    if tid == 0:
        cute.arch.mbarrier_init(full, 1)
        cute.arch.mbarrier_init(empty, 2)
    cute.arch.mbarrier_init_fence()
    cute.arch.cluster_arrive_relaxed()
    cute.arch.cluster_wait()
    source = cute.local_tile(tiles, (TILE, TILE), (row, None))
    target = cute.local_tile(d, (TILE, TILE), (row, None, rank))
    to, since = cpasync.tma_partition(
        load, rank, cute.make_layout(2), cute.group_modes(tile, 0, 2),
        cute.group_modes(source, 0, 2),
    )  # fmt: skip
    for k in range(cute.size(source, mode=[2])):
        cute.arch.mbarrier_wait(empty, (k + 1) % 2)
        if tid == 0:
            cute.arch.mbarrier_arrive_and_expect_tx(full, TILE * TILE * 2)
        if tid < 32:
            cute.copy(load, since[None, k], to, tma_bar_ptr=full, mcast_mask=Int16(3))
        cute.arch.mbarrier_wait(full, k % 2)
        for i in cutlass.range(TILE, unroll=1):
            target[i, tid, k] = tile[i, tid]
        cute.arch.sync_threads()
        if tid < 2:
            cute.arch.mbarrier_arrive(empty, tid)
    cute.arch.cluster_arrive()
    cute.arch.cluster_wait()


@cute.jit
def _host(a: cute.Tensor, d: cute.Tensor, stream: Any):
    atom = warpgroup.make_smem_layout_atom(warpgroup.SmemLayoutAtomKind.K_SW128, Float16)
    layout = cute.tile_to_shape(atom, (TILE, TILE), (0, 1))
    info = cpasync.make_tiled_tma_atom(
        cpasync.CopyBulkTensorTileG2SMulticastOp(), a, layout, (TILE, TILE), num_multicast=2
    )
    shape: Any = a.shape
    _kernel(info.atom, info.tma_tensor, d, layout).launch(
        grid=(2, shape[0] // TILE, 1), block=(TILE, 1, 1), cluster=(2, 1, 1), stream=stream
    )


def compile_multicast(folder: str) -> Any:
    """The kernel for sm_90a: A of shape (M, K), D (M, K, 2); dumps are left in ``folder``."""
    m, k = cute.sym_int(divisibility=TILE), cute.sym_int(divisibility=TILE)
    a = make_fake_compact_tensor(Float16, (m, k), stride_order=(1, 0), assumed_align=16)
    d = make_fake_compact_tensor(Float16, (m, k, 2), stride_order=(1, 0, 2), assumed_align=16)
    return cute.compile(
        _host, a, d, make_fake_stream(),
        options=f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch sm_90a",
    )  # fmt: skip
