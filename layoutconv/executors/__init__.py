"""Executors of GEMM views: torch on the CPU, the kernel template on a GPU.

May import every room below it (``conv``, ``sparse``, ``kernels``, ``gemm_view``, ``algebra``).
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from ..gemm_view import GemmView
from .checks import allocate, check_indices, check_tensors
from .cpu import execute_cpu

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["execute", "execute_cpu"]


def execute(
    view: GemmView, a: Tensor, b: Tensor, out: Tensor | None = None, *, check: bool = False
) -> Tensor:
    """Compute ``D[m, n] = sum_k A[m, k] * B[n, k]`` of a GEMM view, where the tensors are.

    Args:
        view: the layouts of A, B and D; :mod:`layoutconv.conv` and :mod:`layoutconv.sparse` make
            them, or a user.
        a, b: float16, bfloat16, float32 or float64, with the shape and the strides of the last map
            of the view's ``a`` and ``b``.
        out: where D is written, with the shape and strides of the last map of ``d``; what the view
            does not write is left as it is. Without it, a new tensor, zero where none is written.
        check: compare the entries of index buffers with the rows there are. Always done on the CPU;
            on a GPU it waits for the device.

    Returns ``out``. Sums are in fp32 (fp64 for float64). Not differentiable by itself.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``, for another shape, stride,
    dtype or device, naming the argument; in the checked mode, for an index entry outside
    ``[-1, rows)`` and for two that write to one row.

    >>> import torch
    >>> from layoutconv.conv import ConvProblem, fprop_view
    >>> view = fprop_view(ConvProblem((1, 4, 1), (1, 3), padding=1))
    >>> x, w = torch.tensor([1.0, 2, 3, 4]), torch.tensor([1.0, 10, 100])
    >>> execute(view, x.view(1, 4, 1), w.view(1, 3, 1)).flatten()
    tensor([210., 321., 432.,  43.])
    """
    check_tensors(view, a, b, out)
    if out is None:
        out = allocate(view, a)
    on_cpu = a.is_cpu
    if check or on_cpu:
        check_indices(view)
    if view.m == 0 or view.n == 0:
        return out
    if on_cpu:
        return execute_cpu(view, a, b, out)
    if a.is_cuda:
        return _execute_gpu()(view, a, b, out)
    raise ArgumentError("a", "a tensor on the CPU or on a CUDA device", str(a.device))


@cache
def _execute_gpu() -> Any:
    from .gpu import execute_gpu

    return execute_gpu
