"""Any GEMM view on the CPU: vectors are gathered as its layouts say, and multiplied.

Nothing here knows what a convolution is. The coordinate of (m, k) is the sum of a row's and a
column's part, and stays one through every affine map; so the rows' parts are computed once for all
columns, the columns' once for all rows, and only bounds that a sum can cross are looked at.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product as cartesian
from math import gcd
from typing import TYPE_CHECKING, Any

import torch

from ..algebra.composed import ComposedLayout
from ..algebra.int_tuple import IntTuple, crd2idx, flatten, map_leaves, rank
from ..algebra.layout import Layout, compact_stride
from ..algebra.stride import ArithmeticTuple, CustomStride, IndexedGather
from ..epilogue import Epilogue
from ..gemm_view import GemmView, OperandLayout, Stage, both, follow, gathers, inside
from ..vectors import recast, vector_extent
from .checks import allocate, columns_of
from .finish import FP8, Finish, accumulator_dtype

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
    left = _Operand(view.a, a, *_vectors(view.a))
    right = _Operand(view.b, b, *_vectors(view.b, left.vector if left.along == 1 else 0))
    target = _Target(view.d, out, 1, vector_extent(view.d, 1), finish)
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
            panel = _Panel(left, rows, columns[i])
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
    left = _Operand(layouts[0], a, 0, vector)
    right = _Operand(layouts[1], b, 0, right_vector)
    target = _Target(layouts[2], out, 0, vector, finish)

    def numbers(l: Tensor, operand: _Operand) -> Tensor:
        return l[:: operand.vector] // operand.vector

    depth = max(1, min(view.k, _COLUMNS))
    # Of every element: two numbers, their product, two offsets and what they were summed from.
    width = max(1, _WORKSPACE // (8 * 8 * depth) // vector) * vector
    sums = torch.arange(view.k).split(depth) if view.k else ()
    here = target.rows(torch.zeros(1, 1, dtype=torch.long))
    for l in torch.arange(view.l).split(width):
        acc = torch.zeros(1, len(l), dtype=kind)
        columns = left.columns(numbers(l, left)), right.columns(numbers(l, right))
        for k in sums:
            x, w = (
                _Panel(operand, operand.rows(k[:, None]), part).read().to(kind)
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


def _tile(view: GemmView, a: _Operand, itemsize: int) -> tuple[int, int, int]:
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

    def __init__(self, view: GemmView, a: _Operand, b: _Operand, width: int) -> None:
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
        return _Panel(self.a, self.a.rows(self._numbers(k, 1)[:, None]), columns).read().T

    def right(self, k: IntTuple) -> Tensor:
        """All of B at a block, as (k, n)."""
        b = self.b
        if b.along == 1:
            columns = b.columns(self._numbers(k, b.vector))
            return _Panel(b, b.rows(self.n[:, None]), columns).read().T
        columns = b.columns(self.n[:: b.vector] // b.vector)
        return _Panel(b, b.rows(self._numbers(k, 1)[:, None]), columns).read()

    def _numbers(self, k: IntTuple, vector: int) -> Tensor:
        """The numbers of a block's vectors of ``vector`` elements, in its order."""
        ratio = self.vector // vector
        first = torch.as_tensor(crd2idx(k, self.shape, compact_stride(self.shape))).reshape(-1, 1)
        return (first * ratio + torch.arange(ratio)).reshape(-1)


def _accumulate(acc: Tensor, a: _Operand, offset: Tensor, valid: Any, weights: Tensor) -> None:
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


@dataclass(frozen=True)
class _Part:
    """What some rows, or some columns, add to the coordinate before each map of a chain."""

    shape: tuple[int, ...]
    coords: list[Any]
    bounds: list[Any]  # (least, greatest) of every mode

    @classmethod
    def of(cls, shape: tuple[int, ...], coords: list[Any]) -> _Part:
        def bounds(c: Any) -> tuple[int, int]:
            low, high = torch.aminmax(c) if isinstance(c, torch.Tensor) else (c, c)
            return int(low), int(high)

        return cls(shape, coords, [[bounds(c) for c in flatten(crd)] for crd in coords])


class _Operand:
    """A stored operand with vectors along its columns for elements.

    Columns are what mode ``along`` counts: of the operand's transpose, if that is its rows. Its
    chain of maps is cut where coordinates stop being sums: at an index buffer, as a rule.
    """

    def __init__(self, layout: OperandLayout, tensor: Tensor, along: int, vector: int) -> None:
        chain = tuple(map(_with_lookup, recast(layout, along, vector)))
        if along == 0:
            chain = (_transposed(chain[0]), *chain[1:])
        cut = 0
        while cut < len(chain) and not gathers(chain[cut]) and (not cut or _is_flat(chain[cut])):
            cut += 1
        self.sums, self.rest = chain[:cut], chain[cut:]
        self.modes = [rank(stage.layout.shape) for stage in chain[1 : cut + 1]]
        self.modes += [0] * (cut - len(self.modes))  # of an offset in memory
        self.column_shape = map_leaves(int, chain[0].layout.shape[1])
        self.along, self.vector = along, vector
        self.memory, self.dtype = _in_vectors(tensor, vector), tensor.dtype

    def rows(self, m: Tensor) -> _Part:
        """What rows add; the offsets of the maps are theirs. Along the first axis of ``m``."""
        coords: list[Any] = [(m, 0)]
        for stage, modes in zip(self.sums, self.modes, strict=True):
            image = _in_all_modes(stage.layout(coords[-1]), modes)
            coords.append(image + stage.offset if stage.offset else image)
        return _Part.of(tuple(m.shape[:1]), coords)

    def columns(self, k: IntTuple) -> _Part:
        """What columns add. Along axes that follow the rows'."""
        coords: list[Any] = [(0, k)]
        for stage, modes in zip(self.sums, self.modes, strict=True):
            coords.append(_in_all_modes(stage.layout(coords[-1]), modes))
        leaves = reversed(flatten(k))
        return _Part.of(tuple(1 if isinstance(i, int) else len(i) for i in leaves), coords)

    def gather(self, offset: Tensor, valid: Any) -> Tensor:
        """What is at (rows, columns) as the matrix (rows, columns * vector), 0 where not valid."""
        return self._gather(offset, valid).view(self.dtype)

    def _gather(self, offset: Tensor, valid: Any) -> Tensor:
        rows, columns = offset.shape
        at = offset.reshape(-1)
        absent = None if valid is True else (~valid).reshape(-1).nonzero().squeeze(1)
        if absent is None or not len(absent):
            return self.memory.index_select(0, at).view(rows, columns * self.vector)
        if not len(self.memory):
            return self.memory.new_zeros(rows, columns * self.vector)
        found = self.memory.index_select(0, at.index_fill(0, absent, 0))
        return found.index_fill_(0, absent, 0).view(rows, columns * self.vector)


class _Panel:
    """Some rows of an operand and some of its columns."""

    def __init__(self, operand: _Operand, rows: _Part, columns: _Part) -> None:
        self.operand, self.rows, self.columns = operand, rows, columns
        self.masks = [
            inside(rows.coords[at][mode] + columns.coords[at][mode], extent)
            for at, stage in enumerate((*operand.sums, *operand.rest[:1]))
            for mode, extent in enumerate(stage.layout.shape if at else ())
            if self._may_leave(at, mode, extent)
        ]

    def _may_leave(self, at: int, mode: int, extent: int) -> bool:
        """Whether a sum can be outside the bounds of a mode of map ``at``."""
        (low, high), (least, most) = self.rows.bounds[at][mode], self.columns.bounds[at][mode]
        return bool(low + least < 0 or high + most >= extent)

    def locate(self, part: slice = slice(None)) -> tuple[Tensor, Any]:
        """Offsets in memory, in vectors, (rows, columns) of a part; True, or whether each is valid.

        An offset that is not valid means nothing.
        """
        valid: Any = True
        for mask in self.masks:
            valid = both(_rows(mask, part), valid)
        offset = _sum(_rows(self.rows.coords[-1], part), self.columns.coords[-1])
        if self.operand.rest:
            offset, valid = follow(self.operand.rest, offset, valid)
        size = len(range(*part.indices(*self.rows.shape)))

        def table(t: Any) -> Tensor:
            return torch.as_tensor(t).expand(size, *self.columns.shape).reshape(size, -1)

        return table(offset), valid if valid is True else table(valid)

    def read(self) -> Tensor:
        """The panel as a matrix."""
        return self.operand.gather(*self.locate())

    def write(self, values: Tensor) -> None:
        """Store a matrix of the operand's dtype in the panel's place."""
        memory = self.operand.memory
        vectors = values.view(memory.dtype).view(-1, self.operand.vector)
        offset, valid = self.locate()
        at = offset.reshape(-1)
        first, count = int(at[0]), len(at)
        if valid is True and torch.equal(at, torch.arange(first, first + count)):
            memory[first : first + count] = vectors
            return
        if valid is not True:
            written = valid.reshape(-1).nonzero().squeeze(1)
            at, vectors = at[written], vectors[written]
        memory.index_copy_(0, at, vectors)


class _Target(_Operand):
    """D, and what is like it: what an epilogue adds."""

    def __init__(
        self, layout: OperandLayout, out: Tensor, along: int, vector: int, finish: Finish
    ) -> None:
        super().__init__(layout, out, along, vector)
        self.finish = finish
        self.sources = [_Operand(layout, source, along, vector) for source in finish.sources]

    def write(self, rows: _Part, columns: _Part, acc: Tensor, numbers: Any) -> None:
        """Finish the accumulators of some rows and columns; ``numbers`` are those of the latter."""
        place = _Panel(self, rows, columns)
        sources = [_Panel(source, rows, columns).read() for source in self.sources]
        written = place.locate()[1] if self.finish.statistics is not None else True
        place.write(self.finish(acc, numbers, sources, written))


def _in_all_modes(crd: Any, modes: int) -> Any:
    """A coordinate with zeros for trailing modes that an offset alone moves."""
    missing = modes - len(crd) if isinstance(crd, tuple) else 0
    return ArithmeticTuple((*crd, *[0] * missing)) if missing > 0 else crd


def _rows(coord: Any, part: slice) -> Any:
    """A part of the rows of a coordinate, or of what was computed from it."""
    if isinstance(coord, tuple):
        return ArithmeticTuple(_rows(c, part) for c in coord)
    return coord[part] if isinstance(coord, torch.Tensor) and coord.dim() > 0 else coord


def _sum(row: Any, column: Any) -> Any:
    """The sum of two coordinates, without a pass over memory for a mode that one does not move."""
    if isinstance(row, tuple):
        return ArithmeticTuple(map(_sum, row, column))
    return row if _is_zero(column) else column if _is_zero(row) else row + column


def _is_zero(c: Any) -> bool:
    return isinstance(c, int) and c == 0


def _is_flat(stage: Stage) -> bool:
    """Whether no mode is split into digits, between which a sum would carry."""
    return not any(isinstance(extent, tuple) for extent in stage.layout.shape)


def _transposed(stage: Stage) -> Stage:
    """The same map of (column, row)."""
    return Stage(Layout(stage.layout.shape[::-1], stage.layout.stride[::-1]), stage.offset)


def _with_lookup(stage: Stage) -> Stage:
    """The same map with index buffers that are read at whole tensors, and widened to 64 bits."""

    def lookup(stride: Any) -> Any:
        if isinstance(stride, CustomStride) and isinstance(stride.func, IndexedGather):
            return CustomStride(_Lookup(stride.func.index), stride.stride)
        return stride

    layout = stage.layout
    return Stage(Layout(layout.shape, map_leaves(lookup, layout.stride)), stage.offset)


@dataclass(frozen=True)
class _Lookup:
    index: Tensor

    def __call__(self, i: Tensor) -> Tensor:
        i = torch.as_tensor(i)
        return self.index.index_select(0, i.reshape(-1)).view(i.shape).long()


def _in_vectors(tensor: Tensor, vector: int) -> Tensor:
    """The memory that a tensor spans as a matrix with a vector in each row; fp8 as its bytes."""
    if tensor.dtype in FP8:  # which torch does not index on a CPU
        tensor = tensor.view(torch.uint8)
    reach = sum((s - 1) * d for s, d in zip(tensor.shape, tensor.stride(), strict=True))
    span = reach + 1 if tensor.numel() else 0
    return tensor.as_strided((span // vector, vector), (vector, 1))
