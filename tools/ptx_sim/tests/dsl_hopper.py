"""A small CuTe DSL kernel for Hopper, built like an implicit GEMM, for tests of the machine.

D = A B^T in tiles of 128 x 64 x 64: one warpgroup fills three stages by cp.async with bounds
predicates and tells of them by mbarriers, two multiply by wgmma, and give the stages back. B may
come through a tensor map instead, at the same mbarrier.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Float16, Float32, Int64
from cutlass.cute.nvgpu import OperandMajorMode, cpasync, warpgroup
from cutlass.cute.runtime import make_fake_compact_tensor, make_fake_stream
from cutlass.utils import hopper_helpers

M, N, K, STAGES = 128, 64, 64, 3


@cute.kernel
def _kernel(
    a: Any, b: Any, d: Any, layout_a: Any, layout_b: Any, copies: Any, mma: Any, box: Any,
    boxes: Any, asynchronous: cutlass.Constexpr,
):  # fmt: skip
    tid, _, _ = cute.arch.thread_idx()
    tile_m, tile_n, _ = cute.arch.block_idx()
    smem = cutlass.memory.SmemAllocator()
    s_a = smem.allocate_tensor(a.element_type, layout_a.outer, 1024, layout_a.inner)
    s_b = smem.allocate_tensor(b.element_type, layout_b.outer, 1024, layout_b.inner)
    full = smem.allocate_array(Int64, STAGES)
    empty = smem.allocate_array(Int64, STAGES)
    if tid == 0:
        for stage in cutlass.range_constexpr(STAGES):
            count = 128 if cutlass.const_expr(box is None) else 129
            cute.arch.mbarrier_init(full + stage, count)
            cute.arch.mbarrier_init(empty + stage, 2)
    cute.arch.mbarrier_init_fence()
    cute.arch.sync_threads()
    rows, columns, depth = a.shape[0], b.shape[0], a.shape[1]
    tiles = cute.ceil_div(depth, K)
    if tid < 128:
        cute.arch.setmaxregister_decrease(40)
        g_a = cute.local_tile(a, (M, K), (tile_m, None))
        g_b = cute.local_tile(b, (N, K), (tile_n, None))
        c_a = cute.local_tile(cute.make_identity_tensor((rows, depth)), (M, K), (tile_m, None))
        c_b = cute.local_tile(cute.make_identity_tensor((columns, depth)), (N, K), (tile_n, None))
        thread = copies.get_slice(tid)
        from_a, from_b = thread.partition_S(g_a), thread.partition_S(g_b)
        to_a, to_b = thread.partition_D(s_a), thread.partition_D(s_b)
        at_a, at_b = thread.partition_S(c_a), thread.partition_S(c_b)
        n_a, n_b = cute.size(to_a, mode=[1]), cute.size(to_b, mode=[1])
        flags_a = cute.make_layout((1, n_a, 1), stride=(0, 1, 0))
        flags_b = cute.make_layout((1, n_b, 1), stride=(0, 1, 0))
        in_a = cute.make_rmem_tensor(flags_a, cutlass.Boolean)
        in_b = cute.make_rmem_tensor(flags_b, cutlass.Boolean)
        for i in cutlass.range_constexpr(n_a):
            in_a[0, i, 0] = at_a[0, i, 0, 0][0] < rows
        for i in cutlass.range_constexpr(n_b):
            in_b[0, i, 0] = at_b[0, i, 0, 0][0] < columns
        atom = cute.make_copy_atom(cpasync.CopyG2SOp(), a.element_type, num_bits_per_copy=128)
        if cutlass.const_expr(box is not None):
            to_b, from_b = cpasync.tma_partition(
                box, 0, cute.make_layout(1), cute.group_modes(s_b, 0, 2),
                cute.group_modes(cute.local_tile(boxes, (N, K), (tile_n, None)), 0, 2),
            )  # fmt: skip
        for tile in range(tiles):
            slot = tile % STAGES
            cute.arch.mbarrier_wait(empty + slot, (tile // STAGES + 1) % 2)
            cute.copy(atom, from_a[None, None, None, tile], to_a[None, None, None, slot], pred=in_a)
            if cutlass.const_expr(box is None):
                cute.copy(
                    atom, from_b[None, None, None, tile], to_b[None, None, None, slot], pred=in_b
                )
            elif tid < 32:
                with cute.arch.elect_one():
                    cute.arch.mbarrier_arrive_and_expect_tx(full + slot, N * K * 2)
                cute.copy(box, from_b[None, tile], to_b[None, slot], tma_bar_ptr=full + slot)
            if cutlass.const_expr(asynchronous):
                cute.arch.cp_async_mbarrier_arrive_noinc(full + slot)
            else:
                cute.arch.cp_async_commit_group()
                if tile > 0:
                    cute.arch.cp_async_wait_group(1)
                    cute.arch.fence_proxy("async.shared", space="cta")
                    cute.arch.mbarrier_arrive(full + (tile - 1) % STAGES)
        if cutlass.const_expr(not asynchronous):
            cute.arch.cp_async_wait_group(0)
            cute.arch.fence_proxy("async.shared", space="cta")
            cute.arch.mbarrier_arrive(full + (tiles - 1) % STAGES)
    else:
        cute.arch.setmaxregister_increase(232)
        math = mma.get_slice(tid - 128)
        r_a = mma.make_fragment_A(math.partition_A(s_a))
        r_b = mma.make_fragment_B(math.partition_B(s_b))
        g_d = cute.local_tile(d, (M, N), (tile_m, tile_n))
        c_d = cute.local_tile(cute.make_identity_tensor((rows, columns)), (M, N), (tile_m, tile_n))
        out, at_d = math.partition_C(g_d), math.partition_C(c_d)
        acc = cute.make_rmem_tensor(out.shape, Float32)
        # The first tile stands before the loop: behind a loop that might not run at all, the
        # compiler moves conversions of the sums into its rounds, before the wait.
        cute.arch.mbarrier_wait(full, 0)
        if cutlass.const_expr(asynchronous):
            cute.arch.fence_proxy("async.shared", space="cta")
        warpgroup.fence()
        for k in cutlass.range_constexpr(cute.size(r_a, mode=[2])):
            mma.set(warpgroup.Field.ACCUMULATE, k > 0)
            cute.gemm(mma, acc, r_a[None, None, k, 0], r_b[None, None, k, 0], acc)
        warpgroup.commit_group()
        for tile in range(1, tiles):
            slot = tile % STAGES
            cute.arch.mbarrier_wait(full + slot, (tile // STAGES) % 2)
            if cutlass.const_expr(asynchronous):
                cute.arch.fence_proxy("async.shared", space="cta")
            warpgroup.fence()
            for k in cutlass.range_constexpr(cute.size(r_a, mode=[2])):
                cute.gemm(mma, acc, r_a[None, None, k, slot], r_b[None, None, k, slot], acc)
            warpgroup.commit_group()
            warpgroup.wait_group(1)
            if tid % 128 == 0:
                cute.arch.mbarrier_arrive(empty + (tile - 1) % STAGES)
        warpgroup.wait_group(0)
        for i in cutlass.range_constexpr(cute.size(acc)):
            if cute.elem_less(at_d[i], (rows, columns)):
                out[i] = acc[i].to(d.element_type)


@cute.jit
def _host(
    a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, stream: Any, asynchronous: cutlass.Constexpr,
    by_map: cutlass.Constexpr,
):  # fmt: skip
    rows: Any = a.shape
    columns: Any = b.shape
    mma = hopper_helpers.make_trivial_tiled_mma(
        a.element_type, b.element_type, OperandMajorMode.K, OperandMajorMode.K, Float32,
        (2, 1, 1), (64, N),
    )  # fmt: skip
    major = cutlass.tensor_utils.LayoutEnum.ROW_MAJOR
    layout_a = hopper_helpers.make_smem_layout_a(major, (M, N, K), a.element_type, STAGES)
    layout_b = hopper_helpers.make_smem_layout_b(major, (M, N, K), b.element_type, STAGES)
    atom = cute.make_copy_atom(cpasync.CopyG2SOp(), a.element_type, num_bits_per_copy=128)
    copies = cute.make_tiled_copy_tv(
        atom, cute.make_layout((16, 8), stride=(8, 1)), cute.make_layout((1, 8))
    )
    grid = (cute.ceil_div(rows[0], M), cute.ceil_div(columns[0], N), 1)
    box, boxes = None, None
    if cutlass.const_expr(by_map):
        info = cpasync.make_tiled_tma_atom(cpasync.CopyBulkTensorTileG2SOp(), b, layout_b, (N, K))
        box, boxes = info.atom, info.tma_tensor
    _kernel(a, b, d, layout_a, layout_b, copies, mma, box, boxes, asynchronous).launch(
        grid=grid, block=(384, 1, 1), stream=stream
    )


@cache
def compile_hopper_gemm(folder: str, asynchronous: bool = False, by_map: bool = False) -> Any:
    """The kernel for sm_90a with dynamic extents; the compiler leaves its dumps in ``folder``.

    ``asynchronous``: the copies themselves arrive at the mbarriers, and the consumers fence.
    ``by_map``: one thread loads B through a tensor map.
    """
    m, n, k = cute.sym_int(), cute.sym_int(), cute.sym_int(divisibility=K)

    def tensor(*shape: Any) -> Any:
        return make_fake_compact_tensor(Float16, shape, stride_order=(1, 0), assumed_align=16)

    return cute.compile(
        _host, tensor(m, k), tensor(n, k), tensor(m, n), make_fake_stream(), asynchronous, by_map,
        options=f"--enable-tvm-ffi --keep-ptx --keep-cubin --dump-dir {folder} --gpu-arch sm_90a",
    )  # fmt: skip
