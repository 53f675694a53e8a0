"""Sparse convolutions as GEMM views: an index buffer names the rows that neighbours lie in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..algebra import ComposedLayout, E, Layout
from ..algebra.int_tuple import product
from ..errors import ArgumentError, ArgumentTypeError
from ..gemm_view import GemmView
from ..operands import (
    filter_operand,
    flat_index,
    indexed_rows,
    row_count,
    row_major,
    runtime,
    static,
)

if TYPE_CHECKING:
    from torch import Tensor


def kernel_map_view(
    kernel_map: Tensor,
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: int | Sequence[int] = 3,
    in_rows: int | None = None,
    scatter_index: Tensor | None = None,
    out_rows: int | None = None,
) -> GemmView:
    """Sparse convolution: ``D[row, k] = sum A[kernel_map[row, tap], c] * B[k, tap, c]``.

    Args:
        kernel_map: int32 (rows, taps) of any strides: the row of ``a`` that a tap of an output row
            reads, -1 where there is none. Tap ``s + S*(r + R*t)`` of a T x R x S filter, as
            :func:`~layoutconv.sparse.submanifold_map` numbers them.
        in_channels, out_channels: C and K.
        kernel_size: taps as ``(T, R, S)``, ``(R, S)`` or ``(S,)``; an int is a cube.
        in_rows: how many rows ``a`` has; as many as ``kernel_map`` by default (a submanifold
            convolution).
        scatter_index: int32 (rows,): the row of the result that an output row is written to, no row
            twice; -1 is not written. None: the row itself.
        out_rows: how many rows the result has; with a ``scatter_index``, by default as many as
            ``kernel_map``.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` (in_rows, C), ``b`` (K, T, R, S,
    C), and the result is (rows, K), or (out_rows, K).

    Raises :class:`~layoutconv.errors.ArgumentError` for a wrong dtype or rank, a number of taps
    that is not ``kernel_size``'s, channels below 1.

    >>> import torch
    >>> kernel_map = torch.full((27, 5), -1, dtype=torch.int32).T
    >>> view = kernel_map_view(kernel_map, 16, 32)
    >>> print(view.a.inner)
    (M,(C,S,R,T)):(1@0,(1@2,1@1,S@1,R*S@1))
    >>> print(view.a.outer)
    (in_rows,C):(C,1) o 0 o (L,C):(gather*1@0,1@1) o 0 o (M,T*R*S,C):(1@0,M@0,1@1)
    >>> print(view.d)
    (M,K):(K,1) o 0 o (M,K):(1@0,1@1)
    """
    M, tap_row, tap_step, index = _described(kernel_map)
    C = static(_channels("in_channels", in_channels), "C")
    K = static(_channels("out_channels", out_channels), "K")
    taps = _taps(kernel_size)
    count = product(taps)
    if count != kernel_map.shape[1]:
        raise ArgumentError(
            "kernel_map",
            f"{int(count)} taps, as kernel_size {kernel_size} has",
            f"shape {tuple(kernel_map.shape)}",
        )
    stored = indexed_rows(index, runtime(len(index), "L"), row_count("in_rows", in_rows, M), C)
    fold = Layout((M, count, C), (tap_row * E(0), tap_step * E(0), E(1)))
    neighbours = Layout((M, (C, *reversed(taps))), (E(0), (E(2), *_tap_numbers(taps))))
    return GemmView(
        a=ComposedLayout(ComposedLayout(stored, 0, fold), 0, neighbours),
        b=filter_operand(K, taps, C),
        d=_output(M, K, scatter_index, out_rows),
    )


def _described(kernel_map: Tensor) -> tuple[Any, Any, Any, Tensor]:
    """Rows, the strides of rows and taps under their letters, and the flat memory of a kernel map.

    The tap-major map that kernel maps are by default has the stride M between taps; other outer
    strides are arguments of a compiled kernel.
    """
    shape = tuple(getattr(kernel_map, "shape", ()))
    dtype = str(getattr(kernel_map, "dtype", type(kernel_map).__name__))
    if dtype != "torch.int32":
        raise ArgumentTypeError("kernel_map", "a torch tensor of int32", dtype)
    if len(shape) != 2:
        raise ArgumentError("kernel_map", "2 modes, (rows, taps)", f"shape {shape}")
    rows, taps = shape
    row_stride, tap_stride = kernel_map.stride()
    span = (rows - 1) * row_stride + (taps - 1) * tap_stride + 1 if rows and taps else 0
    index = kernel_map.as_strided((span,), (1,))
    M = runtime(rows, "M")
    if rows <= 1 and tap_stride == 1:  # the memory of either order; take the usual one
        return M, 1, M, index
    if row_stride == 1:
        return M, 1, M if tap_stride == rows or taps == 1 else runtime(tap_stride, "ld"), index
    tap_step = 1 if tap_stride == 1 else runtime(tap_stride, "ld_tap")
    return M, runtime(row_stride, "ld"), tap_step, index


def _tap_numbers(taps: tuple[Any, ...]) -> tuple[Any, ...]:
    """The strides of ``(S, R, T)`` in the number of a tap, the last spatial mode fastest."""
    return tuple(stride * E(1) for stride in reversed(row_major(taps).stride))


def _output(M: Any, K: Any, scatter_index: Any, out_rows: int | None) -> ComposedLayout:
    rows_and_channels = Layout((M, K), (E(0), E(1)))
    if scatter_index is not None:
        index = flat_index("scatter_index", scatter_index, M)
        stored = indexed_rows(index, M, row_count("out_rows", out_rows, M), K)
        return ComposedLayout(stored, 0, rows_and_channels)
    if out_rows is not None:
        raise ArgumentError("out_rows", "a scatter_index beside it", out_rows)
    return ComposedLayout(row_major((M, K)), 0, rows_and_channels)


def _channels(name: str, channels: int) -> int:
    if channels < 1:
        raise ArgumentError(name, "a number of channels >= 1", channels)
    return channels


def _taps(kernel_size: int | Sequence[int]) -> tuple[Any, ...]:
    sizes = (kernel_size,) * 3 if isinstance(kernel_size, int) else tuple(kernel_size)
    if not 1 <= len(sizes) <= 3 or any(size < 1 for size in sizes):
        raise ArgumentError("kernel_size", "an int >= 1, or 1 to 3 of them", kernel_size)
    return tuple(map(static, sizes, "TRS"[-len(sizes) :]))
