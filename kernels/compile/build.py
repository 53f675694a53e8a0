"""Compile one kernel of the template. Needs no GPU, no driver, no CUDA toolkit."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_tensor, make_ptr

from layoutconv.planning.group_sums import GroupSumTile
from layoutconv.planning.group_tile import GroupTile
from layoutconv.planning.kernel_key import index_buffer
from layoutconv.planning.kernel_spec import VECTOR_BYTES, KernelSpec
from layoutconv.view.gemm_view import GemmView, OperandLayout, stages

from ..common.compiled import compiled
from ..gemm.gemm_kernel import GemmKernel
from ..gemm.grouped import GroupedConv
from ..gemm.grouped_sums import GroupedSums
from ..gemm.implicit_gemm import ImplicitGemm
from ..gemm.mma_atoms import MULTIPLY, OUTPUT


def build(view: GemmView, spec: KernelSpec, dump: str | None = None) -> Any:
    """Compile a kernel to a TVM-FFI function.

    ``f(a, b, d, index_a, index_b, index_d, integers, numbers, columns, sources, statistics)``.
    Arguments that the kernel does not have, such as index buffers, are None. ``integers``: the
    number of split-K slices and the elements between their results (1, 0 without split-K); for a
    concurrent kernel, its place; for a persistent one, its maximum number of CTAs; then the view's
    ``runtime_integers``.
    The rest is what the epilogue reads and writes, tuples but for ``statistics``. With a folder
    ``dump``, the function has ``__ptx__`` (str) and ``__cubin__`` (bytes).

    Memory is passed as an address, an int: a tensor costs 0.1 us of host time per call, and the
    view has its extents. Only ``d`` is a tensor, which gives the launch its device and stream.
    """
    # Else ptxas holds what is invariant over tiles in registers that the accumulators need.
    sparing = " --ptxas-options '--register-usage-level=2'" if spec.tile.persistent else ""
    kernel, count = _kernel_of(view, spec), 2 + spec.concurrent + spec.tile.persistent
    data, out, steps = MULTIPLY[spec.dtype], OUTPUT[spec.out_dtype], kernel.steps
    vector_a, vector_b, vector_d = spec.vectors
    return compiled(
        kernel,
        _address(data.argument, vector_a),
        _address(data.argument, vector_b),
        _tensor(view.d, out.argument, max(vector_d, spec.run)),
        *(_index(layout) for layout in (view.a, view.b, view.d)),
        tuple(cutlass.Int64(0) for _ in range(count + len(kernel.names))),
        tuple(cutlass.Float32(0) for _ in range(steps.numbers)) or None,
        tuple(_address(OUTPUT[name].element) for name in steps.vectors) or None,
        tuple(_address(OUTPUT[name].element, vector_d) for name in steps.sources) or None,
        _address(cutlass.Float32) if steps.statistics else None,
        arch=spec.arch,
        dump=dump,
        options=sparing,
    )


def _kernel_of(view: GemmView, spec: KernelSpec) -> GemmKernel:
    """Return the template, or the kernel for tiles of several groups."""
    if isinstance(spec.tile, GroupSumTile):
        return GroupedSums(view, spec)
    if isinstance(spec.tile, GroupTile):
        return GroupedConv(view, spec)
    return ImplicitGemm(view, spec)


def _tensor(layout: OperandLayout, element: Any, vector: int) -> Any:
    """A tensor argument of any extents and strides (the view has the layout), vector-aligned."""
    rank = len(stages(layout)[-1].layout.shape)
    shape: Any = tuple(cute.sym_int() for _ in range(rank))
    stride: Any = tuple(cute.sym_int64() for _ in range(rank))
    return make_fake_tensor(element, shape, stride, assumed_align=_alignment(element, vector))


def _address(element: Any, vector: int = 1) -> Any:
    """A pointer argument, vector-aligned."""
    return make_ptr(element, 0, cute.AddressSpace.gmem, assumed_align=_alignment(element, vector))


def _alignment(element: Any, vector: int) -> int:
    bits: int = vector * element.width
    return min(VECTOR_BYTES, bits // 8)


def _index(layout: OperandLayout) -> Any:
    return _address(cutlass.Int32) if index_buffer(layout) is not None else None
