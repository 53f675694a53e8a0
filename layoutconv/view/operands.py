"""Building blocks of GEMM view operands, dense and sparse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ..algebra import ComposedLayout, CustomStride, E, IndexedGather, Layout, SymInt
from ..algebra.int_tuple import product
from ..errors import ArgumentError, ArgumentTypeError
from .gemm_view import OperandLayout


def runtime(value: int, letter: str) -> SymInt:
    """Return an extent that a compiled kernel takes as an argument: images, rows, a height."""
    return SymInt(value, letter)


def static(value: int, letter: str) -> SymInt:
    """Return an extent that a compiled kernel has as a constant: channels, taps."""
    return SymInt(value, letter, runtime=False)


def row_major(shape: Sequence[Any]) -> Layout:
    """Return the memory of a contiguous tensor of ``shape``: the last mode is fastest.

    >>> print(row_major((2, 3, 4)))
    (2,3,4):(12,4,1)
    """
    strides: list[Any] = [1]
    for extent in reversed(shape[1:]):
        strides.append(extent * strides[-1])
    return Layout(tuple(shape), tuple(reversed(strides)))


def arranged(operand: OperandLayout, modes: Callable[..., tuple[Any, ...]]) -> OperandLayout:
    """Rearrange an operand's modes by ``modes``, extents and steps alike.

    >>> print(arranged(Layout((4, 3, 2), (6, 2, 1)), lambda m, k, l: (m, (k, l))))
    (4,(3,2)):(6,(2,1))
    """
    if isinstance(operand, ComposedLayout):
        return ComposedLayout(operand.outer, operand.offset, arranged(operand.inner, modes))
    return Layout(modes(*operand.shape), modes(*operand.stride))


def transposed(operand: OperandLayout) -> OperandLayout:
    """Swap the first two modes of an operand.

    >>> print(transposed(Layout((4, 3), (3, 1))))
    (3,4):(1,3)
    """
    return arranged(operand, lambda rows, columns, *rest: (columns, rows, *rest))


def with_mode(operand: ComposedLayout, extent: Any, step: Any) -> ComposedLayout:
    """Append a mode to an operand: its extent, and its step in the first coordinate."""
    inner = Layout((*operand.inner.shape, extent), (*operand.inner.stride, step))
    return ComposedLayout(operand.outer, operand.offset, inner)


def indexed_rows(index: Any, length: Any, rows: Any, channels: Any) -> ComposedLayout:
    """Map ``(position, c)`` to channel ``c`` of row ``index[position]`` of a tensor.

    The tensor is ``(rows, channels)``, contiguous, and ``index`` a contiguous vector. A position
    whose index is outside ``[0, rows)``, -1 above all, is not stored: this is the gather tensor of
    CUTLASS's example 59, with bounds.

    >>> print(indexed_rows([2, -1], 2, 5, 8))
    (5,8):(8,1) o 0 o (2,8):(gather*1@0,1@1)
    """
    gather = Layout((length, channels), (CustomStride(IndexedGather(index), E(0)), E(1)))
    return ComposedLayout(row_major((rows, channels)), 0, gather)


def indexed_grid(
    name: str, index: Any, shape: Sequence[Any], rows_name: str, rows: int | None
) -> ComposedLayout:
    """Map ``(*cell, c)`` of a grid of ``shape`` to the row that ``index`` has for the cell.

    ``name`` and ``rows_name`` are the caller's argument names, for errors. ``index`` is an int32
    tensor or array with an entry per cell, of any shape, in the memory order of a contiguous grid.
    """
    *grid, channels = shape
    cells = row_major(grid)
    length = product(tuple(grid))
    index = flat_index(name, index, length)
    fold = Layout(tuple(shape), (*(stride * E(0) for stride in cells.stride), E(1)))
    stored = indexed_rows(index, length, row_count(rows_name, rows, length), channels)
    return ComposedLayout(stored, 0, fold)


def row_count(name: str, rows: int | None, default: int) -> SymInt:
    """Return the number of rows of a stored tensor, named like the caller's argument."""
    count = int(default if rows is None else rows)
    if count < 0:
        raise ArgumentError(name, "a number of rows >= 0", count)
    return runtime(count, name)


def flat_index(name: str, index: Any, length: int) -> Any:
    """Return ``index`` as a contiguous vector, after checks of its dtype and length."""
    dtype = str(getattr(index, "dtype", type(index).__name__))
    if not dtype.endswith("int32") or dtype.endswith("uint32"):
        raise ArgumentTypeError(name, "a tensor or array of int32", dtype)
    entries = product(tuple(index.shape))
    if entries != length:
        expected = f"{length} = {int(length)} entries"
        raise ArgumentError(name, expected, f"shape {tuple(index.shape)}")
    return index.reshape(-1)


def indexed_images(index: Any, memory: Layout, images: int) -> ComposedLayout:
    """Map ``(n, *cell)`` to that cell of image ``index[n]`` in ``memory``.

    An image whose index is -1 is not stored. ``images`` is the length of the index.

    >>> print(indexed_images([1, -1, 0], row_major((2, 8, 4)), 3))
    (2,8,4):(32,4,1) o 0 o (3,8,4):(gather*1@0,1@1,1@2) o 0 o (3,8,4):(1@0,1@1,1@2)
    """
    shape = (images, *memory.shape[1:])
    unit = tuple(map(E, range(1, len(shape))))
    gather = Layout(shape, (CustomStride(IndexedGather(index), E(0)), *unit))
    return ComposedLayout(ComposedLayout(memory, 0, gather), 0, Layout(shape, (E(0), *unit)))


def filter_operand(
    K: Any,
    taps: Sequence[Any],
    C: Any,
    memory: Layout | None = None,
    channels: tuple[tuple[Any, ...], tuple[Any, ...]] | None = None,
) -> ComposedLayout:
    """Return ``(k, (c, s, r, t))`` of a filter that is stored as ``(K, T, R, S, C)``, C fastest.

    ``taps`` are the extents in memory order, ``(T, R, S)``; the logical order is the reverse, so
    that channels, then taps along the fastest spatial mode, are fastest in GEMM-K.

    For a filter stored in another order, pass its ``memory`` and ``channels``: the extents of the
    digits of ``c``, and the coordinate step of each.

    >>> print(filter_operand(16, (3, 5), 8))
    (16,3,5,8):(120,40,8,1) o 0 o (16,(8,5,3)):(1@0,(1@3,1@2,1@1))
    """
    if memory is None:
        memory = row_major((K, *taps, C))
    channel = len(taps) + 1
    extents, steps = channels or ((C,), (E(channel),))
    modes = (*steps, *(E(mode) for mode in range(channel - 1, 0, -1)))
    rank = len(memory.shape)
    offset = 0 if rank == channel + 1 else (0,) * rank  # where a digit may never move
    return ComposedLayout(memory, offset, Layout((K, (*extents, *reversed(taps))), (E(0), modes)))
