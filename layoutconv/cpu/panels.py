"""Operands on the CPU: where a stored tensor's vectors lie, read and written as matrices.

The coordinate of (row, column) is the sum of a row's part and a column's part, and stays a sum
through every affine map. So the rows' parts are computed once for all columns, the columns' once
for all rows, and only bounds that a sum can cross are checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..algebra.int_tuple import IntTuple, flatten, map_leaves, rank
from ..algebra.layout import Layout
from ..algebra.stride import ArithmeticTuple, CustomStride, IndexedGather, ScaledBasis
from ..tensors.epilogue_in_torch import FP8
from ..tensors.spans import span
from ..view.gemm_view import OperandLayout, Stage, both, follow, gathers, inside
from ..view.vectors import recast


@dataclass(frozen=True)
class CoordinatePart:
    """The part that some rows, or columns, add to the coordinate before each map of a chain."""

    shape: tuple[int, ...]
    coords: list[Any]
    bounds: list[Any]  # (least, greatest) of every mode

    @classmethod
    def of(cls, shape: tuple[int, ...], coords: list[Any]) -> CoordinatePart:
        def bounds(c: Any) -> tuple[int, int]:
            low, high = torch.aminmax(c) if isinstance(c, torch.Tensor) else (c, c)
            return int(low), int(high)

        return cls(shape, coords, [[bounds(c) for c in flatten(crd)] for crd in coords])


class PanelOperand:
    """A stored operand whose elements are vectors along its columns, without its tensor.

    Columns are counted by mode ``along``; if that is its rows, the operand is transposed. Its chain
    of maps is cut where coordinates stop being sums, usually at an index buffer.
    """

    def __init__(self, layout: OperandLayout, along: int, vector: int) -> None:
        chain = tuple(map(_prepared, recast(layout, along, vector)))
        chain = (*map(_of_coordinates, chain[:-1]), chain[-1])
        if along == 0:
            chain = (_transposed(chain[0]), *chain[1:])
        cut = 0
        while cut < len(chain) and not gathers(chain[cut]) and (not cut or _is_flat(chain[cut])):
            cut += 1
        self.sums, self.rest = chain[:cut], chain[cut:]
        self.modes = [rank(stage.layout.shape) for stage in chain[1 : cut + 1]]
        self.modes += [0] * (cut - len(self.modes))  # for an offset in memory
        self.column_shape = chain[0].layout.shape[1]
        self.along, self.vector = along, vector

    def rows(self, m: Tensor) -> CoordinatePart:
        """Return the part that rows add, with the offsets of the maps; along the first axis of
        ``m``.
        """
        coords: list[Any] = [(m, 0)]
        for stage, modes in zip(self.sums, self.modes, strict=True):
            image = _in_all_modes(stage.layout(coords[-1]), modes)
            coords.append(image + stage.offset if stage.offset else image)
        return CoordinatePart.of(tuple(m.shape[:1]), coords)

    def columns(self, k: IntTuple) -> CoordinatePart:
        """Return the part that columns add, along axes that follow the rows'."""
        coords: list[Any] = [(0, k)]
        for stage, modes in zip(self.sums, self.modes, strict=True):
            coords.append(_in_all_modes(stage.layout(coords[-1]), modes))
        leaves = reversed(flatten(k))
        return CoordinatePart.of(tuple(1 if isinstance(i, int) else len(i) for i in leaves), coords)

    def memory(self, tensor: Tensor) -> Tensor:
        """Return a tensor's memory as a matrix with one vector per row; fp8 as bytes."""
        if tensor.dtype in FP8:  # torch does not index fp8 on a CPU
            tensor = tensor.view(torch.uint8)
        size = span(tensor) // self.vector, self.vector
        return tensor.as_strided(size, (self.vector, 1))


class MatrixPlace:
    """Where a matrix of some rows and columns of an operand lies: the indices of its vectors.

    Args:
        offset: the index of each vector in memory, (rows, columns).
        valid: True, or whether each vector exists, like ``offset``.

    Contiguous rows at equal steps in memory are recognised, as they need no copy.
    """

    def __init__(self, offset: Tensor, valid: Any = True) -> None:
        self.rows, self.columns = offset.shape
        at = offset.reshape(-1)
        absent = None if valid is True else (~valid).reshape(-1).nonzero().squeeze(1)
        self.absent = absent if absent is not None and len(absent) else None
        self.steps = _steps(offset) if self.absent is None else None
        if self.absent is not None:
            at = at.index_fill(0, self.absent, 0)
        self.at = None if self.steps else at

    def kept(self) -> MatrixPlace:
        """Return the same in half the memory, if the indices fit in int32."""
        at = self.at
        if at is not None and at.numel() and int(at.max()) < 1 << 31:
            self.at = at.int()
        return self

    @property
    def nbytes(self) -> int:
        """The bytes of its tables."""
        tables = (t for t in (self.at, self.absent) if t is not None)
        return _OBJECT + sum(t.numel() * t.element_size() for t in tables)

    def view(self, memory: Tensor) -> Tensor | None:
        """Return the matrix in place if its rows have equal steps, (rows, columns * vector)."""
        if self.steps is None:
            return None
        vector = memory.shape[1]
        shape, (first, step) = (self.rows, self.columns * vector), self.steps
        return memory.as_strided(
            shape, (step * vector, 1), memory.storage_offset() + first * vector
        )

    def read(self, memory: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the matrix in a dtype, (rows, columns * vector): 0 for vectors not there."""
        at = self.at
        if at is None:
            found: Any = self.view(memory)
        elif self.absent is None:
            found = memory.index_select(0, at)
        elif len(memory):
            found = memory.index_select(0, at).index_fill_(0, self.absent, 0)
        else:
            found = memory.new_zeros(len(at), memory.shape[1])
        if self.columns != 1 and at is not None:
            found = found.view(self.rows, self.columns * memory.shape[1])
        matrix: Tensor = found if found.dtype is dtype else found.view(dtype)
        return matrix

    def write(self, memory: Tensor, values: Tensor) -> None:
        """Store a matrix in the place, except for vectors that are not there."""
        values = values.view(memory.dtype)
        target = self.view(memory)
        if target is not None:
            target.copy_(values)
            return
        at, vectors = self.at, values.reshape(-1, memory.shape[1])
        if self.absent is not None:
            there = torch.ones(len(vectors), dtype=torch.bool).index_fill_(0, self.absent, False)
            written = there.nonzero().squeeze(1)
            at, vectors = at[written], vectors[written]  # type: ignore[index]
        memory.index_copy_(0, at.long(), vectors)  # type: ignore[union-attr]

    def there(self) -> Any:
        """Return True, or whether each vector is there, (rows, columns)."""
        if self.absent is None:
            return True
        there = torch.ones(self.rows * self.columns, dtype=torch.bool)
        return there.index_fill_(0, self.absent, False).view(self.rows, self.columns)


_OBJECT = 512  # bytes, about, of a place besides its tables


def _steps(offset: Tensor) -> tuple[int, int] | None:
    """Return the first vector and the vectors from row to row, if rows are evenly spaced pieces."""
    rows, columns = offset.shape
    if not rows or not columns:
        return None
    first = int(offset[0, 0])
    step = int(offset[1, 0]) - first if rows > 1 else columns
    # The last vector almost always decides, before a pass over all.
    if step < columns or int(offset[-1, -1]) != first + (rows - 1) * step + columns - 1:
        return None
    expected = torch.arange(rows).view(-1, 1) * step + torch.arange(first, first + columns)
    return (first, step) if torch.equal(offset.long(), expected) else None


class MatrixPanel:
    """Some rows of an operand and some of its columns."""

    def __init__(
        self, operand: PanelOperand, rows: CoordinatePart, columns: CoordinatePart
    ) -> None:
        self.operand, self.rows, self.columns = operand, rows, columns
        self.masks = [
            inside(rows.coords[at][mode] + columns.coords[at][mode], extent)
            for at, stage in enumerate((*operand.sums, *operand.rest[:1]))
            for mode, extent in enumerate(stage.layout.shape if at else ())
            if self._may_leave(at, mode, extent)
        ]

    def _may_leave(self, at: int, mode: int, extent: int) -> bool:
        """Return whether a sum can leave the bounds of a mode of map ``at``."""
        (low, high), (least, most) = self.rows.bounds[at][mode], self.columns.bounds[at][mode]
        return bool(low + least < 0 or high + most >= extent)

    def locate(self, part: slice = slice(None)) -> tuple[Tensor, Any]:
        """Return the offsets in memory, in vectors, (rows, columns) of a part; True, or validity.

        An invalid offset has no meaning.
        """
        valid: Any = True
        for mask in self.masks:
            # A mask that rows do not move has no row axis, and holds for all.
            of_rows = isinstance(mask, torch.Tensor) and mask.dim() > len(self.columns.shape)
            valid = both(mask[part] if of_rows else mask, valid)
        offset = _sum(_rows(self.rows.coords[-1], part), self.columns.coords[-1])
        if self.operand.rest:
            offset, valid = follow(self.operand.rest, offset, valid)
        size = len(range(*part.indices(*self.rows.shape)))

        def table(t: Any) -> Tensor:
            return torch.as_tensor(t).expand(size, *self.columns.shape).reshape(size, -1)

        return table(offset), valid if valid is True else table(valid)

    def place(self, part: slice = slice(None)) -> MatrixPlace:
        """Return where a part of the rows, and all columns, lie."""
        return MatrixPlace(*self.locate(part))


def _in_all_modes(crd: Any, modes: int) -> Any:
    """Pad a coordinate with zeros for trailing modes that only an offset moves."""
    missing = modes - len(crd) if isinstance(crd, tuple) else 0
    return ArithmeticTuple((*crd, *[0] * missing)) if missing > 0 else crd


def _rows(coord: Any, part: slice) -> Any:
    """Return a part of the rows of a coordinate, or of a value computed from it."""
    if isinstance(coord, tuple):
        return ArithmeticTuple(_rows(c, part) for c in coord)
    return coord[part] if isinstance(coord, torch.Tensor) and coord.dim() > 0 else coord


def _sum(row: Any, column: Any) -> Any:
    """Add two coordinates, without a pass over memory for a mode that one does not move."""
    if isinstance(row, tuple):
        return ArithmeticTuple(map(_sum, row, column))
    return row if _is_zero(column) else column if _is_zero(row) else row + column


def _is_zero(c: Any) -> bool:
    return isinstance(c, int) and c == 0


def _is_flat(stage: Stage) -> bool:
    """Return whether no mode is split into digits, between which a sum would carry."""
    return not any(isinstance(extent, tuple) for extent in stage.layout.shape)


def _transposed(stage: Stage) -> Stage:
    """Return the same map for (column, row)."""
    return Stage(Layout(stage.layout.shape[::-1], stage.layout.stride[::-1]), stage.offset)


def _prepared(stage: Stage) -> Stage:
    """Return the same map with plain numbers, which have no names in sums, for whole tensors.

    Index buffers are read with whole tensors, and widened to 64 bits.
    """
    layout, offset = stage.layout, stage.offset
    made = Layout(map_leaves(_plain, layout.shape), map_leaves(_plain, layout.stride))
    if isinstance(offset, tuple):
        return Stage(made, ArithmeticTuple(map_leaves(_plain, offset)))
    return Stage(made, _plain(offset))


def _of_coordinates(stage: Stage) -> Stage:
    """Return the same map with strides of 0 as coordinates, if its values are coordinates.

    The image of a whole tensor is then a tensor, too, for rows or columns that move nothing.
    """
    shape, stride = stage.layout.shape, stage.layout.stride
    kinds = (*flatten(stride), stage.offset)
    if not any(isinstance(kind, ScaledBasis | CustomStride | tuple) for kind in kinds):
        return stage
    zero = ScaledBasis(0, (0,))
    made = map_leaves(lambda step: zero if isinstance(step, int) and not step else step, stride)
    return Stage(Layout(shape, made), stage.offset)


def _plain(leaf: Any) -> Any:
    if isinstance(leaf, CustomStride):
        function = leaf.func
        if isinstance(function, IndexedGather):
            function = _Lookup(function.index)
        return CustomStride(function, _plain(leaf.stride))
    if isinstance(leaf, ScaledBasis):
        return ScaledBasis(_plain(leaf.value), leaf.path)
    return int(leaf) if leaf and isinstance(leaf, int) else leaf  # an extent of 0 keeps its name


@dataclass(frozen=True)
class _Lookup:
    index: Tensor

    def __call__(self, i: Tensor) -> Tensor:
        i = torch.as_tensor(i)
        return self.index.index_select(0, i.reshape(-1)).view(i.shape).long()
