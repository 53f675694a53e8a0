"""A small CuTe DSL kernel that uses what an implicit GEMM uses, for tests of the machine.

D = A B^T in tiles of 64 x 64 x 32: three cp.async stages with bounds predicates, swizzled shared
memory, ldmatrix, mma.sync, guarded stores.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float16, Float32
from cutlass.cute.nvgpu import cpasync, warp
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream

M, N, K, STAGES = 64, 64, 32, 3


@cute.kernel
def _kernel(a: Any, b: Any, d: Any, layout: Any, copies: Any, mma: Any):
    tid, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    smem = cutlass.memory.SmemAllocator()
    s_a = smem.allocate_tensor(a.element_type, layout, 128)
    s_b = smem.allocate_tensor(a.element_type, layout, 128)
    rows, columns, depth = a.shape[0], b.shape[0], a.shape[1]
    g_a = cute.local_tile(a, (M, K), (tile_m, None))
    g_b = cute.local_tile(b, (N, K), (tile_n, None))
    g_d = cute.local_tile(d, (M, N), (tile_m, tile_n))
    c_a = cute.local_tile(cute.make_identity_tensor((rows, depth)), (M, K), (tile_m, None))
    c_b = cute.local_tile(cute.make_identity_tensor((columns, depth)), (N, K), (tile_n, None))
    c_d = cute.local_tile(cute.make_identity_tensor((rows, columns)), (M, N), (tile_m, tile_n))

    thread = copies.get_slice(tid)
    from_a, to_a, at_a = thread.partition_S(g_a), thread.partition_D(s_a), thread.partition_S(c_a)
    from_b, to_b, at_b = thread.partition_S(g_b), thread.partition_D(s_b), thread.partition_S(c_b)
    count = cute.size(to_a, mode=[1])
    flags = cute.make_layout((1, count, 1), stride=(0, 1, 0))
    in_a = cute.make_rmem_tensor(flags, cutlass.Boolean)
    in_b = cute.make_rmem_tensor(flags, cutlass.Boolean)
    for i in cutlass.range_constexpr(count):
        in_a[0, i, 0] = at_a[0, i, 0, 0][0] < rows
        in_b[0, i, 0] = at_b[0, i, 0, 0][0] < columns

    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), a.element_type, num_bits_per_copy=128)
    tiles = cute.size(g_a, mode=[2])
    for stage in cutlass.range_constexpr(STAGES - 1):
        if stage < tiles:
            cute.copy(
                atom, from_a[None, None, None, stage], to_a[None, None, None, stage], pred=in_a
            )
            cute.copy(
                atom, from_b[None, None, None, stage], to_b[None, None, None, stage], pred=in_b
            )
        cute.arch.cp_async_commit_group()

    math = mma.get_slice(tid)
    r_a = mma.make_fragment_A(math.partition_A(s_a)[None, None, None, 0])
    r_b = mma.make_fragment_B(math.partition_B(s_b)[None, None, None, 0])
    out, at_d = math.partition_C(g_d), math.partition_C(c_d)
    acc = cute.make_rmem_tensor(out.shape, Float32)
    acc.fill(0.0)
    matrices = cute.make_copy_atom(warp.LdMatrix8x8x16bOp(False, 4), a.element_type)
    load_a, load_b = cute.make_tiled_copy_A(matrices, mma), cute.make_tiled_copy_B(matrices, mma)
    lane_a, lane_b = load_a.get_slice(tid), load_b.get_slice(tid)
    view_a, view_b = lane_a.partition_S(s_a), lane_b.partition_S(s_b)
    into_a, into_b = lane_a.retile(r_a), lane_b.retile(r_b)
    for tile in range(tiles):
        cute.arch.cp_async_wait_group(STAGES - 2)
        cute.arch.sync_threads()
        ahead = tile + STAGES - 1
        if ahead < tiles:
            slot = ahead % STAGES
            cute.copy(
                atom, from_a[None, None, None, ahead], to_a[None, None, None, slot], pred=in_a
            )
            cute.copy(
                atom, from_b[None, None, None, ahead], to_b[None, None, None, slot], pred=in_b
            )
        cute.arch.cp_async_commit_group()
        here = tile % STAGES
        for k in cutlass.range_constexpr(cute.size(r_a, mode=[2])):
            cute.copy(load_a, view_a[None, None, k, here], into_a[None, None, k])
            cute.copy(load_b, view_b[None, None, k, here], into_b[None, None, k])
            cute.gemm(mma, acc, r_a[None, None, k], r_b[None, None, k], acc)
    for i in cutlass.range_constexpr(cute.size(acc)):
        if cute.elem_less(at_d[i], (rows, columns)):
            out[i] = acc[i].to(d.element_type)


@cute.jit
def _host(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, stream: Any):
    rows: Any = a.shape
    columns: Any = b.shape
    swizzled = cute.make_composed_layout(
        cute.make_swizzle(2, 3, 3), 0, cute.make_layout((8, 32), stride=(32, 1))
    )
    layout = cute.tile_to_shape(swizzled, (M, K, STAGES), (0, 1, 2))
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), a.element_type, num_bits_per_copy=128)
    copies = cute.make_tiled_copy_tv(
        atom, cute.make_layout((32, 4), stride=(4, 1)), cute.make_layout((1, 8))
    )
    mma = cute.make_tiled_mma(
        warp.MmaF16BF16Op(a.element_type, Float32, (16, 8, 16)),
        cute.make_layout((2, 2, 1)),
        permutation_mnk=(32, 32, 16),
    )
    grid = (cute.ceil_div(rows[0], M), cute.ceil_div(columns[0], N), 1)
    _kernel(a, b, d, layout, copies, mma).launch(grid=grid, block=(128, 1, 1), stream=stream)


@cache
def compile_gemm(folder: str) -> Any:
    """The kernel for sm_80 with dynamic extents; the compiler leaves its dumps in ``folder``."""
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int(divisibility=K)

    def tensor(*shape: Any) -> Any:
        return make_fake_compact_tensor(Float16, shape, stride_order=(1, 0), assumed_align=16)

    return cute.compile(
        _host, tensor(m, k), tensor(n, k), tensor(m, n), make_fake_stream(),
        options=f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch sm_80",
    )  # fmt: skip
