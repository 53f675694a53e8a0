"""Compile one kernel of the template. Needs no GPU, no driver, no CUDA toolkit."""

from __future__ import annotations

from typing import Any

import cutlass
import cutlass.cute as cute
from cutlass.cute.runtime import make_fake_stream, make_fake_tensor

from layoutconv.gemm_view import GemmView, OperandLayout, stages

from .implicit_gemm import ImplicitGemm
from .structure import index_buffer
from .tile import Tile

TYPES = {
    "float16": cutlass.Float16,
    "bfloat16": cutlass.BFloat16,
    "tfloat32": cutlass.TFloat32,
    "float32": cutlass.Float32,
}


def build(
    view: GemmView, dtype: str, out_dtype: str, tile: Tile, arch: str, dump: str | None = None
) -> Any:
    """The compiled kernel, a TVM-FFI function ``f(a, b, d, index_a, index_d, integers)``.

    ``dtype`` is a name in ``TYPES``: "tfloat32" reads float32 data. ``arch`` is a name such as
    "sm_80". With a folder ``dump``, the function has ``__ptx__`` (str) and ``__cubin__`` (bytes).
    """
    keep = f" --keep-ptx --keep-cubin --dump-dir {dump}" if dump else ""
    number = int(arch.removeprefix("sm_").rstrip("a"))
    kernel = ImplicitGemm(view, TYPES[dtype], TYPES[out_dtype], tile, number)
    memory = TYPES["float32" if dtype == "tfloat32" else dtype]
    return cute.compile(
        kernel,
        _tensor(view.a, memory),
        _tensor(view.b, memory),
        _tensor(view.d, TYPES[out_dtype]),
        _index(view.a),
        _index(view.d),
        tuple(cutlass.Int64(0) for _ in kernel.names),
        make_fake_stream(use_tvm_ffi_env_stream=True),
        options=f"--enable-tvm-ffi --gpu-arch {arch}{keep}",
    )


def _tensor(layout: OperandLayout, element: Any) -> Any:
    """A tensor argument of any extents and strides, 16-byte aligned: the view has the layout."""
    rank = len(stages(layout)[-1].layout.shape)
    shape: Any = tuple(cute.sym_int() for _ in range(rank))
    stride: Any = tuple(cute.sym_int64() for _ in range(rank))
    return make_fake_tensor(element, shape, stride, assumed_align=16)


def _index(layout: OperandLayout) -> Any:
    chain_has_index = index_buffer(layout) is not None
    return make_fake_tensor(cutlass.Int32, (cute.sym_int64(),), (1,)) if chain_has_index else None
