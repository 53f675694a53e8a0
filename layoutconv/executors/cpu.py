"""Any GEMM view on the CPU: vectors are gathered as its layouts say, and multiplied.

Nothing here knows what a convolution is.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product as cartesian
from math import gcd
from typing import TYPE_CHECKING, Any

import torch

from ..algebra.composed import ComposedLayout
from ..algebra.int_tuple import IntTuple, crd2idx, flatten, map_leaves
from ..algebra.layout import Layout, compact_stride
from ..epilogue import Epilogue
from ..gemm_view import GemmView, OperandLayout
from ..vectors import vector_extent
from .checks import allocate, columns_of
from .finish import Finish, accumulator_dtype
from .panels import Operand, Panel, Target

if TYPE_CHECKING:
    from torch import Tensor

_WORKSPACE = 64 << 20  # bytes, about: what all temporary tensors take together
_PANEL = 4 << 20  # bytes of A that one product multiplies: still in the cache when it does
_COLUMNS = 128  # vectors of A that one product multiplies, at most
_ROWS = 32768  # rows at once, at most: fewer cost calls, more fall out of the caches
_DEPTH = 32  # numbers in a row of a product, at least: fewer cost more to call than to multiply
_SPARSE = 0.8  # share of rows that a tap has, below which the others are left out of its product


@torch.no_grad()
def execute_cpu(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    epilogue: Epilogue | None = None,
    statistics: Tensor | None = None,
) -> Tensor:
    """``D = A B^T`` of a GEMM view, for tensors that :func:`~layoutconv.execute` has checked.

    Sums are in fp64 for fp64, exact for int8 and in fp32 for all else. ``statistics`` is fp64 (2,
    columns), to which those of an epilogue are added. Memory beyond the operands is bounded by
    about 64 MB, and ``b`` once more. Elements of ``out`` that the view does not write keep what
    they had.
    """
    if out is None:
        out = allocate(view, a)
    finish = Finish(epilogue, a.dtype, out.dtype, statistics)
    kind = accumulator_dtype(a.dtype, view.k)
    if len(view.a.shape) == 2:
        _multiply(view, a, b, out, kind, finish)
    elif view.m == view.n == 1 and view.l:
        _dot(view, a, b, out, kind, finish, columns_of(view))
    else:
        for l in range(view.l):
            _multiply(view.at(l), a, b, out, kind, finish, l * view.n)
    return out


def _multiply(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    kind: torch.dtype,
    finish: Finish,
    first: int = 0,
) -> None:
    """One matrix product, whose columns are those of D from the ``first`` one on."""
    left = Operand(view.a, a, *_vectors(view.a))
    right = Operand(view.b, b, *_vectors(view.b, left.vector if left.along == 1 else 0))
    target = Target(view.d, out, 1, vector_extent(view.d, 1), finish)
    chunk, block, width = _tile(view, left, kind.itemsize)

    blocks = _Blocks(view, left, right, width)
    keep = view.n * view.k <= b.numel()  # else it is stored once, but read many times
    weights = [blocks.right(k).to(kind) for k in blocks] if keep else None
    columns = [left.columns(k) for k in blocks] if left.along == 1 else None
    written = target.columns(torch.arange(view.n // target.vector))
    every_column = slice(first, first + view.n)
    for m in torch.arange(view.m).split(chunk):
        acc = torch.zeros(len(m), view.n, dtype=kind)
        if columns is not None:
            rows = left.rows(m.view(-1, *[1] * len(flatten(left.column_shape))))
        for i, k in enumerate(blocks):
            weight = weights[i] if weights is not None else blocks.right(k).to(kind)
            if columns is None:
                acc.addmm_(blocks.left(m, k).to(kind), weight)
                continue
            panel = Panel(left, rows, columns[i])
            for start in range(0, len(m), block):
                part = slice(start, start + block)
                _accumulate(acc[part], left, *panel.locate(part), weight)
        target.write(target.rows(m[:, None]), written, acc, every_column)


def _dot(
    view: GemmView,
    a: Tensor,
    b: Tensor,
    out: Tensor,
    kind: torch.dtype,
    finish: Finish,
    channels: int,
) -> None:
    """Products of one row and one column each, all problems at once: sums element by element.

    Problems run along memory if they can, as the channels of a depthwise convolution do; those are
    the columns of an epilogue.
    """
    layouts = [_problems_by_row(layout) for layout in (view.a, view.b, view.d)]
    vector = gcd(vector_extent(layouts[0], 0), vector_extent(layouts[2], 0))
    right_vector = gcd(vector, vector_extent(layouts[1], 0))
    left = Operand(layouts[0], a, 0, vector)
    right = Operand(layouts[1], b, 0, right_vector)
    target = Target(layouts[2], out, 0, vector, finish)

    def numbers(l: Tensor, operand: Operand) -> Tensor:
        return l[:: operand.vector] // operand.vector

    depth = max(1, min(view.k, _COLUMNS))
    # Of every element: two numbers, their product, two offsets and what they were summed from.
    width = max(1, _WORKSPACE // (8 * 8 * depth) // vector) * vector
    sums = torch.arange(view.k).split(depth) if view.k else ()
    here = target.rows(torch.zeros(1, 1, dtype=torch.long))
    for first in range(0, view.l, width):
        l = torch.arange(first, min(first + width, view.l))
        acc = torch.zeros(1, len(l), dtype=kind)
        columns = left.columns(numbers(l, left)), right.columns(numbers(l, right))
        for k in sums:
            x, w = (
                Panel(operand, operand.rows(k[:, None]), part).read().to(kind)
                for operand, part in zip((left, right), columns, strict=True)
            )
            acc += (x * w).sum(0)
        target.write(here, target.columns(numbers(l, target)), acc, l % channels)


def _problems_by_row(layout: OperandLayout) -> OperandLayout:
    """``(l, k)`` of an operand whose rows are one: the matrix with a row for every problem."""
    if isinstance(layout, ComposedLayout):
        return ComposedLayout(layout.outer, layout.offset, _problems_by_row(layout.inner))
    (_, shape, problems), (_, stride, step) = layout.shape, layout.stride
    return Layout((problems, shape), (step, stride))


def _vectors(layout: OperandLayout, columns: int = 0) -> tuple[int, int]:
    """The mode of an operand that runs along memory, and how many of its elements are a vector.

    A vector along GEMM-K divides ``columns``, those that the other operand reads at once.
    """
    rows, along_k = vector_extent(layout, 0), vector_extent(layout, 1)
    return (0, rows) if rows > along_k else (1, gcd(along_k, columns))


def _tile(view: GemmView, a: Operand, itemsize: int) -> tuple[int, int, int]:
    """Rows of the output at once; rows and vectors of A that one product multiplies.

    Wide where A is dense: few calls, and the product sums in registers. One tap at a time where A
    goes through an index, which most rows may lack. Where A runs along its rows the vectors are of
    one column each, and what one product reads of A and B is as large as a panel.
    """
    along_rows = a.along == 0
    if along_rows:
        width = min(_ROWS, max(_COLUMNS, _PANEL // (itemsize * (view.m + view.n))))
    else:
        width = -(-_DEPTH // a.vector) if a.rest else _COLUMNS
    vector = 1 if along_rows else a.vector
    width = max(1, min(width, view.k // vector))
    per_row = width * vector * itemsize
    chunk = max(1, min(_ROWS, _WORKSPACE // 2 // (per_row + 2 * view.n * itemsize)))
    if along_rows:
        chunk = max(a.vector, chunk - chunk % a.vector)
    block = chunk if a.rest else min(chunk, max(256, _PANEL // per_row))
    return chunk, block, width


class _Blocks:
    """GEMM-K in blocks, each a coordinate of ranges as :func:`_blocks` makes them.

    They are blocks of vectors of the operand that runs along K, A before B, if one does.
    """

    def __init__(self, view: GemmView, a: Operand, b: Operand, width: int) -> None:
        self.a, self.b, self.n = a, b, torch.arange(view.n)
        operand = next((operand for operand in (a, b) if operand.along == 1), None)
        self.vector = operand.vector if operand else 1
        self.shape = operand.column_shape if operand else map_leaves(int, view.a.shape[1])
        self.blocks = list(_blocks(self.shape, width)) if view.k else []

    def __iter__(self) -> Iterator[IntTuple]:
        return iter(self.blocks)

    def left(self, m: Tensor, k: IntTuple) -> Tensor:
        """A at some rows and a block, as (m, k), where A runs along its rows."""
        columns = self.a.columns(m[:: self.a.vector] // self.a.vector)
        return Panel(self.a, self.a.rows(self._numbers(k, 1)[:, None]), columns).read().T

    def right(self, k: IntTuple) -> Tensor:
        """All of B at a block, as (k, n)."""
        b = self.b
        if b.along == 1:
            columns = b.columns(self._numbers(k, b.vector))
            return Panel(b, b.rows(self.n[:, None]), columns).read().T
        columns = b.columns(self.n[:: b.vector] // b.vector)
        return Panel(b, b.rows(self._numbers(k, 1)[:, None]), columns).read()

    def _numbers(self, k: IntTuple, vector: int) -> Tensor:
        """The numbers of a block's vectors of ``vector`` elements, in its order."""
        ratio = self.vector // vector
        first = torch.as_tensor(crd2idx(k, self.shape, compact_stride(self.shape))).reshape(-1, 1)
        return (first * ratio + torch.arange(ratio)).reshape(-1)


def _accumulate(acc: Tensor, a: Operand, offset: Tensor, valid: Any, weights: Tensor) -> None:
    """``acc += A @ weights`` for a tile of A; through an index, only the rows that are there."""
    if a.rest and valid is not True:
        alone = offset.shape[1] == 1
        rows = (valid[:, 0] if alone else valid.any(1)).nonzero().squeeze(1)
        if len(rows) < _SPARSE * len(acc):
            there = True if alone else valid.index_select(0, rows)
            found = a.gather(offset.index_select(0, rows), there)
            acc.index_add_(0, rows, found.to(acc.dtype) @ weights)
            return
    acc.addmm_(a.gather(offset, valid).to(acc.dtype), weights)


def _blocks(shape: IntTuple, limit: int) -> Iterator[IntTuple]:
    """The coordinates of ``shape`` in blocks of at most ``limit``.

    A block is a coordinate whose leaves are ranges, each along an axis of its own, the first
    leaf's last: flattened, it is in the order of the coordinates. A range of one is an int.
    """
    ranges: list[list[Any]] = []
    for leaf, extent in enumerate(flatten(shape)):
        step = max(1, min(limit, extent))
        limit //= step
        starts = torch.arange(extent).view(-1, *[1] * leaf).split(step)
        ranges.append([start if len(start) > 1 else int(start) for start in starts])
    for block in cartesian(*ranges):
        leaves = iter(block)
        yield map_leaves(lambda _, leaves=leaves: next(leaves), shape)
