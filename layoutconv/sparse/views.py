"""Sparse convolutions as GEMM views: an index buffer names the rows of neighbours.

The forward pass gathers the inputs through a kernel map. The gradient of the inputs gathers that of
the outputs through the inverse map; or through the map itself with the taps of the filter
backwards, if tap ``taps - 1 - t`` of the map is opposite to tap ``t``. The gradient of the filter
is a sum over pairs of rows, tap by tap.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import index
from typing import TYPE_CHECKING, Any

from ..algebra import ComposedLayout, E, Layout
from ..algebra.int_tuple import product
from ..errors import ArgumentError, ArgumentTypeError
from ..view.gemm_view import GemmView
from ..view.operands import (
    filter_operand,
    flat_index,
    indexed_rows,
    row_count,
    row_major,
    runtime,
    static,
    with_mode,
)

if TYPE_CHECKING:
    from torch import Tensor

    from .maps.tap_pairs import Pairs


def kernel_map_view(
    kernel_map: Tensor,
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: int | Sequence[int] = 3,
    in_rows: int | None = None,
    scatter_index: Tensor | None = None,
    out_rows: int | None = None,
    groups: int = 1,
) -> GemmView:
    """Sparse convolution: ``D[row, k] = sum A[kernel_map[row, tap], c] * B[k, tap, c]``.

    Args:
        kernel_map: int32 (rows, taps) of any strides: the row of ``a`` that a tap of an output row
            reads, -1 for none. Tap ``s + S*(r + R*t)`` of a T x R x S filter, as
            :func:`~layoutconv.sparse.submanifold_map` numbers them.
        in_channels, out_channels: C and K.
        kernel_size: taps as ``(T, R, S)``, up to four modes; an int is a cube; ``(taps,)`` for a
            set of offsets.
        in_rows: how many rows ``a`` has; as many as ``kernel_map`` by default (a submanifold
            convolution).
        scatter_index: int32 (rows,): the row of the result to which an output row is written, no
            row twice; -1 is not written. By default the row itself.
        out_rows: how many rows the result has; with a ``scatter_index``, by default as many as
            ``kernel_map``.
        groups: each has C / groups channels of ``a`` and K / groups of the result; the third mode
            of the view.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` (in_rows, C), ``b`` (K, T, R, S,
    C / groups), and the result is (rows, K), or (out_rows, K).

    Raises :class:`~layoutconv.errors.ArgumentError` for a wrong dtype or rank, a number of taps
    that is not ``kernel_size``'s, channels below 1 or no multiple of ``groups``.

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
    taps = _taps(kernel_size)
    C, Cg = _split("in_channels", in_channels, groups, "C")
    K, Kg = _split("out_channels", out_channels, groups, "K")
    M, a = _gathered(kernel_map, taps, C, Cg, "in_rows", in_rows)
    b = filter_operand(Kg, taps, Cg, row_major((K, *taps, Cg)))
    d = _output(M, K, Kg, scatter_index, "out_rows", out_rows)
    return _in_groups(groups, (a, Cg * E(2)), (b, Kg * E(0)), (d, Kg * E(1)))


def kernel_map_dgrad_view(
    kernel_map: Tensor,
    in_channels: int,
    out_channels: int,
    *,
    kernel_size: int | Sequence[int] = 3,
    mirrored: bool = False,
    out_rows: int | None = None,
    scatter_index: Tensor | None = None,
    in_rows: int | None = None,
    groups: int = 1,
) -> GemmView:
    """The gradient of a sparse convolution's input, or the transposed convolution.

    Args:
        kernel_map: int32 (rows, taps): the row of the output that a tap of an input row feeds, -1
            for none: the inverse of the forward pass's map.
        in_channels, out_channels: C and K of the forward pass.
        kernel_size: as for :func:`kernel_map_view`.
        mirrored: whether ``kernel_map`` is the forward pass's own, whose tap ``taps - 1 - t`` is
            the inverse of tap ``t``: the taps of the filter then run backwards.
        out_rows: how many rows the gradient of the output has; as many as ``kernel_map`` by
            default.
        scatter_index, in_rows: the row of the result to which a row is written, and their number.
        groups: of the forward pass.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` (out_rows, K), the gradient of the
    output; ``b`` (K, T, R, S, C / groups), the filter; the result is (rows, C), or (in_rows, C).

    Raises :class:`~layoutconv.errors.ArgumentError` like :func:`kernel_map_view`.

    >>> import torch
    >>> kernel_map = torch.full((27, 5), -1, dtype=torch.int32).T
    >>> view = kernel_map_dgrad_view(kernel_map, 16, 32, mirrored=True)
    >>> print(view.a.inner)
    (M,(K,S,R,T)):(1@0,(1@2,1@1,S@1,R*S@1))
    >>> print(view.b)
    (K,T,R,S,C):(T*R*S*C,R*S*C,S*C,C,1) o (0,2,2,2,0) o (C,(K,S,R,T)):(1@4,(1@0,-1@3,-1@2,-1@1))
    """
    taps = _taps(kernel_size)
    C, Cg = _split("in_channels", in_channels, groups, "C")
    K, Kg = _split("out_channels", out_channels, groups, "K")
    M, a = _gathered(kernel_map, taps, K, Kg, "out_rows", out_rows)
    rank = len(taps)
    sign = -1 if mirrored else 1
    last = tuple(int(extent) - 1 if mirrored else 0 for extent in taps)
    steps = tuple(sign * E(mode) for mode in range(rank, 0, -1))
    inner = Layout((Cg, (Kg, *reversed(taps))), (E(rank + 1), (E(0), *steps)))
    b = ComposedLayout(row_major((K, *taps, Cg)), (0, *last, 0) if mirrored else 0, inner)
    d = _output(M, C, Cg, scatter_index, "in_rows", in_rows)
    return _in_groups(groups, (a, Kg * E(2)), (b, Kg * E(0)), (d, Cg * E(1)))


def pairs_wgrad_view(
    pairs: Pairs,
    in_channels: int,
    out_channels: int,
    *,
    in_rows: int,
    out_rows: int,
    groups: int = 1,
) -> GemmView:
    """The gradient of a sparse convolution's filter: a product per chunk of pairs.

    Args:
        pairs: of the kernel map, each chunk of one tap: the third mode of the view.
        in_channels, out_channels: C and K.
        in_rows, out_rows: how many rows the input and the gradient of the output have.
        groups: of the forward pass; they run before the chunks.

    The operands of ``execute(view, a, b)`` are contiguous: ``a`` (out_rows, K), the gradient of the
    output; ``b`` (in_rows, C), the input. The result is (chunks, K, C / groups), to be summed over
    the chunks of a tap; that of a chunk without pairs is undefined. Neither operand is contiguous
    along the sum.

    Raises :class:`~layoutconv.errors.ArgumentError` for channels below 1 or no multiple of
    ``groups``.

    >>> import torch
    >>> from layoutconv.sparse.maps.tap_pairs import pairs_of
    >>> index = torch.tensor([[4, -1], [5, 0], [6, -1]], dtype=torch.int32)
    >>> print(pairs_wgrad_view(pairs_of(index, 2), 16, 32, in_rows=7, out_rows=3))
    A: (out_rows,K):(K,1) o 0 o (L*P,K):(gather*1@0,1@1) o 0 o (K,P,L):(1@1,1@0,P@0)
    B: (in_rows,C):(C,1) o 0 o (L*P,C):(gather*1@0,1@1) o 0 o (C,P,L):(1@1,1@0,P@0)
    D: (L,K,C):(K*C,C,1) o 0 o (K,C,L):(1@1,1@2,1@0)
    """
    C, Cg = _split("in_channels", in_channels, groups, "C")
    K, Kg = _split("out_channels", out_channels, groups, "K")
    chunks, chunk = pairs.outputs.shape
    L, P = runtime(chunks, "L"), runtime(chunk, "P")

    def gathered(index: Tensor, letter: str, rows: int, channels: Any, group: Any) -> Any:
        stored = indexed_rows(index.view(-1), L * P, runtime(rows, letter), channels)
        shape, steps = (group, P), (E(1), E(0))
        if groups == 1:
            return ComposedLayout(stored, 0, Layout((*shape, L), (*steps, P * E(0))))
        modes = (static(groups, "G"), L), (group * E(1), P * E(0))
        return ComposedLayout(stored, 0, Layout((*shape, modes[0]), (*steps, modes[1])))

    a = gathered(pairs.outputs, "out_rows", out_rows, K, Kg)
    b = gathered(pairs.inputs, "in_rows", in_rows, C, Cg)
    modes = (L, E(0)) if groups == 1 else ((static(groups, "G"), L), (Kg * E(1), E(0)))
    inner = Layout((Kg, Cg, modes[0]), (E(1), E(2), modes[1]))
    d = ComposedLayout(row_major((L, K, Cg)), 0, inner)
    return GemmView(a, b, d, empty_sums=True)


def _gathered(
    kernel_map: Tensor, taps: tuple[Any, ...], C: Any, Cg: Any, name: str, rows: int | None
) -> tuple[Any, ComposedLayout]:
    """Return the rows of a kernel map, and ``(row, (c, s, r, t))`` of what it gathers."""
    M, tap_row, tap_step, index = _described(kernel_map)
    count = product(taps)
    if count != kernel_map.shape[1]:
        raise ArgumentError(
            "kernel_map",
            f"{int(count)} taps, as kernel_size {tuple(map(int, taps))} has",
            f"shape {tuple(kernel_map.shape)}",
        )
    stored = indexed_rows(index, runtime(len(index), "L"), row_count(name, rows, M), C)
    fold = Layout((M, count, C), (tap_row * E(0), tap_step * E(0), E(1)))
    neighbours = Layout((M, (Cg, *reversed(taps))), (E(0), (E(2), *_tap_numbers(taps))))
    return M, ComposedLayout(ComposedLayout(stored, 0, fold), 0, neighbours)


def _in_groups(groups: int, *operands: tuple[Any, Any]) -> GemmView:
    """Return the view of operands of two modes, each with the step of a group in its coordinate."""
    if groups == 1:
        return GemmView(*(operand for operand, _ in operands))
    return GemmView(*(with_mode(of, static(groups, "G"), step) for of, step in operands))


def _described(kernel_map: Tensor) -> tuple[Any, Any, Any, Tensor]:
    """Return a kernel map's rows, its strides of rows and taps under their letters, and its memory.

    A tap-major map, which is the default, has the stride M between taps; other outer strides are
    arguments of a compiled kernel.
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
    if rows <= 1 and tap_stride == 1:  # memory of either order; take the usual one
        return M, 1, M, index
    if row_stride == 1:
        return M, 1, M if tap_stride == rows or taps == 1 else runtime(tap_stride, "ld"), index
    tap_step = 1 if tap_stride == 1 else runtime(tap_stride, "ld_tap")
    return M, runtime(row_stride, "ld"), tap_step, index


def _tap_numbers(taps: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the strides of ``(S, R, T)`` in the number of a tap, the last spatial mode fastest."""
    return tuple(stride * E(1) for stride in reversed(row_major(taps).stride))


def _output(
    M: Any, K: Any, Kg: Any, scatter_index: Any, name: str, rows: int | None
) -> ComposedLayout:
    rows_and_channels = Layout((M, Kg), (E(0), E(1)))
    if scatter_index is not None:
        index = flat_index("scatter_index", scatter_index, M)
        stored = indexed_rows(index, M, row_count(name, rows, M), K)
        return ComposedLayout(stored, 0, rows_and_channels)
    if rows is not None:
        raise ArgumentError(name, "None without a scatter_index", rows)
    return ComposedLayout(row_major((M, K)), 0, rows_and_channels)


def _split(name: str, channels: int, groups: int, letter: str) -> tuple[Any, Any]:
    """Return the number of all channels, and of those of a group."""
    channels, groups = _whole(name, channels), _whole("groups", groups)
    if channels < 1:
        raise ArgumentError(name, "a number of channels >= 1", channels)
    if groups < 1 or channels % groups:
        raise ArgumentError(name, f"a multiple of groups = {groups}", channels)
    every = static(channels, letter)
    return every, every if groups == 1 else static(channels // groups, f"{letter}g")


def _taps(kernel_size: int | Sequence[int]) -> tuple[Any, ...]:
    given: Any = kernel_size
    several = isinstance(given, Iterable) and not isinstance(given, str)
    sizes = tuple(_whole("kernel_size", size) for size in (given if several else (given,) * 3))
    if not 1 <= len(sizes) <= 4 or any(size < 1 for size in sizes):
        raise ArgumentError("kernel_size", "an int >= 1, or 1 to 4 of them", kernel_size)
    return tuple(map(static, sizes, "UTRS"[-len(sizes) :]))


def _whole(name: str, value: Any) -> int:
    try:
        return index(value)
    except (TypeError, RuntimeError):
        raise ArgumentTypeError(name, "an integer", type(value).__name__) from None
