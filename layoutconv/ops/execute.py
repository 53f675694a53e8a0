"""``execute``: run a GEMM view, with torch on a CPU and with the kernel template on a GPU."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import TYPE_CHECKING, Any

import torch

from ..algebra import Layout
from ..cpu.cpu_executor import execute_cpu
from ..errors import ArgumentError, truth_of
from ..tensors.packed_int4 import INT4, in_pairs, unpacked
from ..tensors.tensor_checks import (
    allocate,
    check_epilogue,
    check_indices,
    check_packed,
    check_precision,
    check_tensors,
    columns_of,
)
from ..view.epilogue import Epilogue, EpilogueStep
from ..view.gemm_view import GemmView

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["execute", "execute_cpu"]


def execute(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    *,
    epilogue: Epilogue | EpilogueStep | Iterable[EpilogueStep] | None = None,
    out_dtype: torch.dtype | None = None,
    dtype: str | None = None,
    precision: str | None = None,
    atomic: bool = False,
    check: bool = False,
) -> Any:
    """Compute ``D[m, n] = sum_k A[m, k] * B[n, k]`` of a GEMM view, on the tensors' device.

    A view with a third mode is a batch of such products, ``D[m, n, l]``.

    Args:
        view: the layouts of A, B and D; :mod:`layoutconv.conv` and :mod:`layoutconv.sparse` make
            them, or a user.
        a, b: float16, bfloat16, float32, float64, int8, float8_e4m3fn or float8_e5m2, one dtype,
            with the shape and the strides of the last map of the view's ``a`` and ``b``.
        out: where D is written, with the shape and strides of the last map of ``d``, not in the
            memory of ``a`` or ``b``; elements that the view does not write keep their values. By
            default a new tensor, with zeros there.
        epilogue: the steps between a sum and its store, an :class:`~layoutconv.Epilogue`, a step
            or several; they are in fp32 (fp64 for float64).
        out_dtype: the dtype of D: float16, bfloat16, float32, int8, float8_e4m3fn or float8_e5m2;
            int32 for int8 only, float64 for float64 only. By default that of ``out``; without it,
            that of ``a``, int32 for int8, float16 for float8. Conversion rounds to nearest even,
            and saturates in integers and float8.
        dtype: "int4" for int4 that :func:`~layoutconv.pack_int4` has packed, two in a byte of ``a``
            and ``b``: half as many elements where the view's k runs along memory, all else as for
            int8. On a GPU, of compute capability 8.0 to 8.9; a CPU unpacks it first.
        precision: how a GPU multiplies float32: "tf32", or "fp32", which is exact to fp32; by
            default as ``torch.backends.cudnn.conv.fp32_precision`` says, before torch 2.9
            ``allow_tf32``. A CPU always has fp32.
        atomic: let a GPU that splits a sum add its parts in any order: faster, but not the same
            bits every time.
        check: check the entries of index buffers against the number of rows. Always done on the
            CPU; on a GPU it waits for the device.
    Returns ``out``, or ``(out, statistics)`` for an epilogue with statistics, fp32 (2, columns).
    Sums are in fp32 (fp64 for float64, int32 for int8, exact). Not differentiable by itself.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, for another shape, stride,
    dtype or device, naming the argument; in the checked mode, for an index entry outside
    ``[-1, rows)`` and for two that write to one row.

    >>> import torch
    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> from layoutconv.view.epilogue import Clamp, Scale
    >>> view = fprop_view(ConvProblem((1, 4, 1), (1, 3), padding=1))
    >>> x, w = torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 10, 100])
    >>> execute(view, x.view(1, 4, 1), w.view(1, 3, 1)).flatten()
    tensor([210., 321., 432.,  43.])
    >>> steps = Scale(0.5), Clamp(0, 200)
    >>> y = execute(view, x.view(1, 4, 1), w.view(1, 3, 1), epilogue=steps, out_dtype=torch.int8)
    >>> y.flatten()
    tensor([105, 127, 127,  22], dtype=torch.int8)
    """
    if dtype is None:
        check_tensors(view, a, b, out, out_dtype)
    else:
        check_packed(dtype, a)
        check_tensors(in_pairs(view), a, b, out, out_dtype)
    if epilogue is not None:
        epilogue = Epilogue.of(epilogue) or None
        if epilogue is not None:
            check_epilogue(view, epilogue, a)
    if precision is not None:
        check_precision(precision)
    if out is None:
        out = allocate(view, a, out_dtype)
    on_cpu = a.is_cpu
    if not on_cpu and not a.is_cuda:
        raise ArgumentError("a", "a tensor on the CPU or on a CUDA device", str(a.device))
    if dtype is not None:
        if on_cpu:
            a, b = unpacked(view.a, a), unpacked(view.b, b)
        else:
            view, precision = in_pairs(view), INT4
    if check is not False:
        check = truth_of("check", check)
    if atomic is not False:
        atomic = truth_of("atomic", atomic)
    if check or on_cpu:
        check_indices(view)
    if epilogue is not None and epilogue.statistics:
        return out, _with_statistics(view, a, b, out, epilogue, precision, atomic)
    if not (view.m and view.n and view.l):
        return out
    if on_cpu:
        return execute_cpu(view, a, b, out, epilogue)
    if epilogue is None and precision is None and not atomic:
        return _execute_gpu()(view, a, b, out)
    return _execute_gpu()(view, a, b, out, epilogue, precision, atomic, None)


def _with_statistics(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    epilogue: Epilogue,
    precision: str | None,
    atomic: bool,
) -> Tensor:
    """Write ``out``; return the statistics, which a GPU overwrites and a CPU adds to."""
    shape = 2, columns_of(view)
    empty = not (view.m and view.n and view.l)
    if a.is_cpu or empty:
        sums = a.new_zeros(shape, dtype=torch.float64)
        if not empty:
            execute_cpu(view, a, b, out, epilogue, sums)
        return sums.float()
    if view.columns is not None:
        shape = 2, view.n * view.l
    statistics = a.new_empty(shape, dtype=torch.float32)
    _execute_gpu()(view, a, b, out, epilogue, precision, atomic, statistics)
    return statistics if view.columns is None else _of_entries(view.columns, statistics)


def _of_entries(columns: Layout, statistics: Tensor) -> Tensor:
    """Sum column statistics by the bias entry that each column reads, in a fixed order."""
    entries = torch.as_tensor(columns(torch.arange(columns.size()))).to(statistics.device)
    chosen = entries[:, None] == torch.arange(columns.cosize(), device=statistics.device)
    return (statistics.double() @ chosen.double()).float()


@cache
def _execute_gpu() -> Any:
    from ..gpu.plan import execute_gpu

    return execute_gpu
