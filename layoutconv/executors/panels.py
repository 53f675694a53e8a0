"""Operands on the CPU: where the vectors of a stored tensor lie, read and written as matrices.

The coordinate of (row, column) is the sum of a row's and a column's part, and stays one through
every affine map; so the rows' parts are computed once for all columns, the columns' once for all
rows, and only bounds that a sum can cross are looked at.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from ..algebra.int_tuple import IntTuple, flatten, map_leaves, rank
from ..algebra.layout import Layout
from ..algebra.stride import ArithmeticTuple, CustomStride, IndexedGather
from ..gemm_view import OperandLayout, Stage, both, follow, gathers, inside
from ..vectors import recast
from .finish import FP8, Finish

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Part:
    """What some rows, or some columns, add to the coordinate before each map of a chain."""

    shape: tuple[int, ...]
    coords: list[Any]
    bounds: list[Any]  # (least, greatest) of every mode

    @classmethod
    def of(cls, shape: tuple[int, ...], coords: list[Any]) -> Part:
        def bounds(c: Any) -> tuple[int, int]:
            low, high = torch.aminmax(c) if isinstance(c, torch.Tensor) else (c, c)
            return int(low), int(high)

        return cls(shape, coords, [[bounds(c) for c in flatten(crd)] for crd in coords])


class Operand:
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

    def rows(self, m: Tensor) -> Part:
        """What rows add; the offsets of the maps are theirs. Along the first axis of ``m``."""
        coords: list[Any] = [(m, 0)]
        for stage, modes in zip(self.sums, self.modes, strict=True):
            image = _in_all_modes(stage.layout(coords[-1]), modes)
            coords.append(image + stage.offset if stage.offset else image)
        return Part.of(tuple(m.shape[:1]), coords)

    def columns(self, k: IntTuple) -> Part:
        """What columns add. Along axes that follow the rows'."""
        coords: list[Any] = [(0, k)]
        for stage, modes in zip(self.sums, self.modes, strict=True):
            coords.append(_in_all_modes(stage.layout(coords[-1]), modes))
        leaves = reversed(flatten(k))
        return Part.of(tuple(1 if isinstance(i, int) else len(i) for i in leaves), coords)

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


class Panel:
    """Some rows of an operand and some of its columns."""

    def __init__(self, operand: Operand, rows: Part, columns: Part) -> None:
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


class Target(Operand):
    """D, and what is like it: what an epilogue adds."""

    def __init__(
        self, layout: OperandLayout, out: Tensor, along: int, vector: int, finish: Finish
    ) -> None:
        super().__init__(layout, out, along, vector)
        self.finish = finish
        self.sources = [Operand(layout, source, along, vector) for source in finish.sources]

    def write(self, rows: Part, columns: Part, acc: Tensor, numbers: Any) -> None:
        """Finish the accumulators of some rows and columns; ``numbers`` are those of the latter."""
        place = Panel(self, rows, columns)
        sources = [Panel(source, rows, columns).read() for source in self.sources]
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
