"""THE template: ``D[m, n] = sum_k A[m, k] * B[n, k]`` over three operands that are layouts.

Dense convolution, gather/scatter, kernel maps: what differs is read off the operands' layouts
(``Operand``); there is one prologue, one main loop and one epilogue.
"""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutconv.algebra.int_tuple import map_leaves, product
from layoutconv.gemm_view import GemmView

from .arguments import Arguments
from .epilogue import Epilogue
from .mainloop_sm80 import MainloopSm80
from .operand import Operand
from .structure import divisors, runtime_integers
from .tile import Tile


class ImplicitGemm:
    """The kernel of one kind of ``GemmView``: its structure and static integers, types and tile.

    The values of the view's runtime integers (image count, spatial extents, rows) do not matter.
    """

    def __init__(self, view: GemmView, dtype: Any, out_dtype: Any, tile: Tile, arch: int) -> None:
        self.view, self.dtype, self.out_dtype = view, dtype, out_dtype
        self.tile, self.arch = tile, arch
        self.names = list(runtime_integers(view))
        self.dividing = divisors(view)

    @cute.jit
    def __call__(
        self,
        a: cute.Tensor,
        b: cute.Tensor,
        d: cute.Tensor,
        index_a: cute.Tensor,
        index_d: cute.Tensor,
        integers: tuple,
        stream: Any,
    ):
        values = {name: Int64(v) for name, v in zip(self.names, integers, strict=True)}
        fast = {
            name: cute.fast_divmod_create_divisor_v2(Int32(values[name])) for name in self.dividing
        }
        args = Arguments(values, fast)
        m = product(map_leaves(lambda s: args.integer(s, Int64), self.view.a.shape[0]))
        n_tiles = -(-self.view.n // self.tile.n)
        m_tiles = (m + self.tile.m - 1) // self.tile.m
        self.kernel(
            _pointer(a, self.dtype),
            _pointer(b, self.dtype),
            _pointer(d, self.out_dtype),
            _pointer(index_a, Int32),
            _pointer(index_d, Int32),
            args,
        ).launch(
            grid=[Int32(m_tiles * n_tiles), 1, 1],
            block=[self.tile.threads, 1, 1],
            min_blocks_per_mp=1,
            smem=self.tile.shared_bytes(self.dtype.width // 8, self.out_dtype.width // 8),
            stream=stream,
        )

    @cute.kernel
    def kernel(self, a: Any, b: Any, d: Any, index_a: Any, index_d: Any, args: Arguments):
        tile = self.tile
        mainloop = MainloopSm80(tile, self.dtype, self.arch)
        epilogue = Epilogue(tile, self.out_dtype)
        tid, _, _ = cute.arch.thread_idx()
        cta, _, _ = cute.arch.block_idx()
        # CTAs that share rows of A run side by side: their gathers meet in L2.
        n_tiles = -(-self.view.n // tile.n)
        m0, n0 = (cta // n_tiles) * tile.m, (cta % n_tiles) * tile.n

        operand_a = Operand(self.view.a, args, a, index_a, mainloop.vector, tile.k)
        operand_b = Operand(self.view.b, args, b, None, mainloop.vector, tile.k)
        operand_d = Operand(self.view.d, args, d, index_d, epilogue.vector, tile.n)

        smem = cutlass.memory.SmemAllocator()
        s_a = mainloop.allocate(smem, tile.m)
        s_b = mainloop.allocate(smem, tile.n)
        acc = mainloop.mma.make_fragment_C(mainloop.mma.partition_shape_C((tile.m, tile.n)))
        if cutlass.const_expr(self.view.k == 0):  # sums of nothing
            acc.fill(0.0)
        else:
            mainloop(
                mainloop.producer(operand_a, s_a, m0, tid),
                mainloop.producer(operand_b, s_b, n0, tid),
                s_a, s_b, tid, acc,
            )  # fmt: skip
        epilogue(acc, mainloop.mma, operand_d, s_a.tensor.iterator, m0, n0, tid)


def _pointer(tensor: Any, dtype: Any) -> Any:
    """The memory behind a tensor argument, read as ``dtype`` (fp32 data as tf32)."""
    if tensor is None:
        return None
    return cute.recast_ptr(tensor.iterator, dtype=dtype)
