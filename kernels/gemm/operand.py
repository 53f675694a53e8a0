"""A layout of the algebra as a kernel operand: hoisted offsets, gathers and mask predicates.

An operand's layout is a chain of bounded maps (see ``layoutconv.view.gemm_view``). A layout is a
sum over its modes, so the coordinate of (row, column) is ``coordinate(row) + coordinate(column)``
through every affine map: up to the index buffer if there is one, else up to memory.

*Columns* are the contiguous mode, read in vectors; *rows* are the other mode. A K-major operand has
its rows along GEMM-M (or N); an M- or N-major operand has its columns there. The part of an address
that does not move along k is computed once, before the mainloop:

* K-major: the row's part of the coordinate, and whether row + column is in bounds. For each
  coordinate mode, the latter depends on a few deltas that are known at compile time, so a row
  carries one bit per tap, the *mask predicate*, or, with many taps, one bit per value of each digit
  of the tap;
* M- or N-major: the column's part. Bounds are then compared coordinate by coordinate.

An index entry is one more coordinate, checked against the storage like any other: an absent row is
-1, which is out of bounds.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import cutlass.cute as cute
from cutlass import Boolean, Int32, Int64, Uint32

from layoutconv.algebra.coalesce import coalesce
from layoutconv.algebra.int_tuple import (
    compact_stride,
    crd2idx,
    flatten,
    map_leaves,
    paired_leaves,
    product,
)
from layoutconv.algebra.layout import Layout
from layoutconv.algebra.stride import ArithmeticTuple, ScaledBasis
from layoutconv.algebra.symint import is_runtime
from layoutconv.view.gemm_view import OperandLayout, gathers, stages
from layoutconv.view.vectors import is_open_run

from ..common.runtime_integers import Extent, RuntimeIntegers

MASK_BITS = 64  # most bits of a row's mask


@dataclass(frozen=True)
class MaskField:
    """Bits of a row's mask: one for each value of one digit of the column."""

    first: int  # number of the field's first bit
    extent: int  # values of the digit
    length: int  # columns per unit of the digit
    modes: frozenset[int]  # coordinate modes that both the digit and the row move


@dataclass
class Row:
    """A row of an operand: the hoisted part of its address, and its tap mask."""

    linear: Any  # Int64 offset in memory, or Int32 position in the index buffer
    behind: Any  # row's part of the memory offset beside the index entry's; None: no index
    mask: Any  # bits of the fields: row + delta is in bounds
    coords: Any  # the row's part of the coordinate, for modes that the mask does not cover


@dataclass
class Column:
    """A column of an operand: the deltas that it adds to any row."""

    linear: Any  # added to Row.linear
    behind: Any  # added to Row.behind
    bits: list[Any]  # numbers of the bits of Row.mask that must be set, one per field
    valid: Any  # whether the column exists; None if every tile is full
    coords: Any  # the column's part of the coordinate; None if no mode needs it


class Operand:
    """One operand while a kernel is traced: addresses and predicates of its elements.

    Args:
        layout: from (m, k), or (m, k, l), to memory; (n, k) for B, (m, n) for D.
        args: the runtime integers of the launch.
        pointer: to the memory of the operand.
        index: int32 pointer to its index buffer; None without one.
        along: the contiguous mode, 1 or 0.
        vector: elements of one access along that mode.
        column_tile: columns of a CTA's tile.
        group: the coordinate of the mode l.

    Attributes:
        hoist_rows: whether rows stay fixed for the whole mainloop: k (n of D) is contiguous.
    """

    def __init__(
        self,
        layout: OperandLayout,
        args: RuntimeIntegers,
        pointer: Any,
        index: Any,
        *,
        along: int,
        vector: int,
        column_tile: int,
        group: Any,
    ) -> None:
        self.args, self.pointer, self.index, self.vector = args, pointer, index, vector
        self.along, self.hoist_rows = along, along == 1
        domain, *rest = stages(layout)
        at = next((i for i, s in enumerate(rest) if gathers(s)), len(rest) - 1)
        self.fold, self.gather, self.storage = rest[:at], rest[at:-1], rest[-1]
        self.bounds = rest[0].layout.shape
        self.start = domain.offset
        self.row_shape, columns = (domain.layout.shape[i] for i in (1 - along, along))
        self.row_stride, self.col_stride = (domain.layout.stride[i] for i in (1 - along, along))
        self.group = self._group(domain.layout, group)
        self.row_count = _count(self.row_shape, args)
        self.col_shape = map_leaves(int, columns)
        self.col_count = product(self.col_shape)
        self.is_open = self.hoist_rows and is_open_run(layout, along)
        whole = self.col_count
        if self.is_open:
            last, whole = flatten(columns)[-1], product(flatten(self.col_shape)[:-1])
            self.col_count = whole * args.integer(last, Int32)
        self.vector_extent = flatten(self.col_shape)[0]
        self.vector_layout = cute.make_layout(((vector, 1),))
        self.col_linear = self._column_strides()
        self.ragged = whole % column_tile != 0
        self.fields, self.by_row, self.live = self._checks()
        self.mask_bits = sum(field.extent for field in self.fields) or 1
        self.strays = self._strays()
        self.row_step = self._row_step()
        self.uniform = self._uniform()

    # -- while compiling: which bounds are checked, and how --------------------------------------

    def _checks(self) -> tuple[list[MaskField], list[int], list[int]]:
        """Return the fields of the mask, the coordinate modes that the row alone decides, and the
        modes to compare at each access.

        A mode that the row does not move is in bounds by construction (``check_view`` ensures it).
        """
        vector, *digits = flatten(self.col_stride)
        moved = _modes(self.row_stride)
        by_digit = [_modes(d) & moved for d in digits]
        tapped = set().union(*by_digit)
        fields = self._fields(by_digit) if self.hoist_rows else []
        live = moved & _modes(vector)
        many = sum(f.extent for f in fields) > MASK_BITS
        if not self.hoist_rows or many or any(is_runtime(d.value) for d in digits):
            live, fields = live | tapped, []
        return fields, sorted(moved - tapped - live), sorted(live)

    def _fields(self, by_digit: list[set[int]]) -> list[MaskField]:
        """Return one field for all taps if they fit, else one per digit if no two digits move the
        same mode.
        """
        tapped = frozenset().union(*by_digit)
        if not tapped:
            return []
        extents = flatten(self.col_shape)[1:]
        alone = sum(map(len, by_digit)) == len(tapped)
        if product(extents) <= MASK_BITS or not alone:
            return [MaskField(0, product(extents), self.vector_extent, tapped)]
        fields, first, length = [], 0, self.vector_extent
        for extent, modes in zip(extents, by_digit, strict=True):
            if modes:
                fields.append(MaskField(first, extent, length, frozenset(modes)))
                first += extent
            length *= extent
        return fields

    def _deltas(self, field: MaskField, mode: int) -> dict[int, int]:
        """Return the distinct deltas of a coordinate mode over a digit, each with the bits of the
        values that give it.
        """
        deltas: dict[int, int] = {}
        for value in range(field.extent):
            delta = self._col_coords(value * field.length)[mode]
            deltas[delta] = deltas.get(delta, 0) | 1 << value
        return deltas

    def _strays(self) -> bool:
        """Return whether a row can be out of bounds by itself, whatever the column.

        It cannot if one mode of the row moves the coordinate in steps of 1 from 0 to its extent.
        """
        extents: dict[int, list[str]] = {mode: [] for mode in self.by_row}
        for extent, d in paired_leaves(self.row_shape, self.row_stride):
            if d.path[0] in extents:
                extents[d.path[0]].append(str(extent) if d.value == 1 else "")
        if self.group is not None:
            return True
        return any(
            found != [str(self.bounds[mode])] or (self.start and self.start[mode])
            for mode, found in extents.items()
        )

    def _column_strides(self) -> tuple[Any, Any]:
        """Shape and stride of the column's part of an offset (if gathered, an index position)."""
        shape, of_domain = self._columns()
        stride = self.args.stride(of_domain, Int32)
        for stage in (*self.fold, *(() if self.gather else (self.storage,))):
            kind = Int64 if stage is self.storage else Int32
            after = self.args.stride(stage.layout.stride, kind)
            stride = map_leaves(lambda d, after=after: d.value * after[d.path[0]], stride)
        static = all(isinstance(d, int) for d in flatten(stride))
        if static and stride == compact_stride(shape):
            return self.col_count, 1  # weights, say: the column is the offset
        return shape, stride

    def _columns(self) -> tuple[Any, Any]:
        """Shape and stride of the columns in the domain. If the operand gathers, taps that move one
        mode are coalesced: a kernel map's index has them side by side, so that an entry's position
        takes no division by the filter's extents.
        """
        vector, *taps = flatten(self.col_shape)
        first, *steps = flatten(self.col_stride)
        several = self.gather and product(tuple(taps)) > 1
        if not several or any(is_runtime(d.value) for d in steps):
            return self.col_shape, self.col_stride
        plain = tuple(ScaledBasis(int(d.value), d.path) for d in steps)
        found = coalesce(Layout(tuple(taps), plain))
        return (vector, *flatten(found.shape)), (first, *flatten(found.stride))

    def _row_step(self) -> Any:
        """Return the distance of neighbouring rows in memory if it is constant, else None. Derived
        from symbolic extents, it holds for every size that the kernel serves.
        """
        if self.gather or self.live or self.fields or self.strays or self.group is not None:
            return None
        offsets = (self.start, *(stage.offset for stage in self.fold))
        if any(any(offset) for offset in offsets if offset):
            return None
        shape, stride = flatten(self.row_shape), list(flatten(self.row_stride))
        for stage in (*self.fold, self.storage):
            stride = [d.value * stage.layout.stride[d.path[0]] for d in stride]
        apart = stride[0]
        for extent, step in zip(shape, stride, strict=True):
            if str(step) != str(apart):
                return None
            apart = extent * apart
        return self.args.stride(stride[0], Int64)

    def _uniform(self) -> bool:
        """Return whether the columns of one tap are contiguous in memory and share one predicate.

        This is always so if a vector has several elements.
        """
        step = flatten(self.col_linear[1])[0]
        if self.gather and isinstance(step, ScaledBasis):
            (mode,) = step.path
            step = step.value * self.storage.layout.stride[mode] if mode else 0
        alone = not _modes(flatten(self.col_stride)[0]) & _modes(self.row_stride)
        return alone and isinstance(step, int) and step == 1

    # -- the two parts of every coordinate -------------------------------------------------------

    def _group(self, domain: Layout, group: Any) -> Any:
        """Return the offset of the group's coordinate, mode L; None without groups."""
        if len(domain.shape) < 3:
            return None
        shape = map_leaves(self.args.divisor, domain.shape[2])
        return crd2idx(group, shape, self.args.stride(domain.stride[2], Int32))

    def _row_coords(self, m: Any) -> tuple[Any, ...]:
        shape = map_leaves(self.args.divisor, self.row_shape)
        part = crd2idx(m, shape, self.args.stride(self.row_stride, Int32))
        every: tuple[Any, ...] = self._all_modes(part) + _offset(self.start)
        return every if self.group is None else every + self.group

    def _col_coords(self, k: Any) -> tuple[Any, ...]:
        shape = map_leaves(Extent, self.col_shape)
        part = crd2idx(k, shape, self.args.stride(self.col_stride, Int32))
        every: tuple[Any, ...] = self._all_modes(part)
        return every

    def _all_modes(self, part: Any) -> Any:
        return ArithmeticTuple((0,) * len(self.bounds)) + part

    def _folded(self, coords: Any) -> Any:
        """The row's part after all maps in front of memory, or of the index buffer."""
        for stage in self.fold:
            stride = self.args.stride(stage.layout.stride, Int32)
            coords = crd2idx(tuple(coords), stage.layout.shape, stride) + _offset(stage.offset)
        return coords

    def _memory(self, coords: Any) -> Any:
        """The 64-bit offset in memory, in elements, of a coordinate of the storage."""
        wide = tuple(c if isinstance(c, int) else Int64(c) for c in coords)
        shape = self.storage.layout.shape
        return crd2idx(wide, shape, self.args.stride(self.storage.layout.stride, Int64))

    # -- in the kernel ---------------------------------------------------------------------------

    def row(self, m: Any) -> Row:
        """Compute everything about row ``m`` that does not depend on the column."""
        if self.row_step is not None:
            return Row(Int64(m) * self.row_step, None, self._mask(m, None), None)
        coords = self._row_coords(m)
        mask = self._mask(m, coords)
        folded = self._folded(coords)
        if not self.gather:
            return Row(self._memory(folded), None, mask, coords)
        # A row past the last uses position 0: its entries may be read, so no branch is needed.
        position = folded[0] & ~_outside(m, self.row_count, Int32)
        return Row(position, self._memory((0, *folded[1:])), mask, coords)

    def _mask(self, m: Any, coords: Any) -> Any:
        """The row's mask: a bit per value of every field; without fields one bit, for the row."""
        word = Int64 if self.mask_bits > 32 else Int32
        everything = (1 << self.mask_bits) - 1
        mask = word(_signed(everything, word)) & ~_outside(m, self.row_count, word)
        for i in self.by_row if self.strays else ():
            mask = mask & ~_outside(coords[i], self.args.integer(self.bounds[i], Int32), word)
        for field in self.fields:
            others = everything & ~(((1 << field.extent) - 1) << field.first)
            for i in sorted(field.modes):
                extent = self.args.integer(self.bounds[i], Int32)
                inside = word(_signed(others, word))
                for delta, bits in self._deltas(field, i).items():
                    outside = _outside(coords[i] + delta, extent, word)
                    inside = inside | (_signed(bits << field.first, word) & ~outside)
                mask = mask & inside
        return mask

    def column(self, k: Any) -> Column:
        """Compute everything about column ``k`` that does not depend on the row."""
        linear, behind = (
            crd2idx(k, map_leaves(Extent, self.col_linear[0]), self.col_linear[1]),
            None,
        )
        if self.gather:
            linear, *coords = ArithmeticTuple((0,) * len(self.storage.layout.shape)) + linear
            behind = self._memory((0, *coords))
        valid = k < self.col_count if self.ragged else None
        coords = self._col_coords(k) if self.live else None
        return Column(linear, behind, [self._bit(field, k) for field in self.fields], valid, coords)

    def _bit(self, field: MaskField, k: Any) -> Any:
        """The number of a field's bit for column ``k``."""
        digit = divmod(k, Extent(field.length))[0]
        if field.length * field.extent < self.col_count:
            digit = divmod(digit, Extent(field.extent))[1]
        elif self.ragged:  # past the last column any bit will do, but it must be in the mask
            digit = digit & ~((Int32(field.extent - 1) - digit) >> 31)
        return field.first + digit

    def absent(self, row: Row, col: Column) -> Any:
        """Return a negative number if row + column is out of the first map's bounds, else >= 0."""
        first, *rest = col.bits or [0]
        bits = row.mask >> first
        for position in rest:
            bits = bits & (row.mask >> position)
        word = Int32(bits & 1) - 1
        for i in self.live:  # one sign bit tests both bounds
            x = row.coords[i] + col.coords[i]
            word = word | x | (self.args.integer(self.bounds[i], Int32) - 1 - x)
        return word if col.valid is None else word | (Int32(col.valid) - 1)

    def load_index(self, row: Row, col: Column, *, written: bool) -> Int32:
        """Return the index entry of row + column, -1 if that is out of bounds.

        There is no branch, so that many loads are in flight: a predicated-off look-up reads entry
        0. Rows past the last must get -1 only if rows are ``written``.
        """
        position = row.linear + col.linear
        unchecked = self.hoist_rows and not (written or self.fields or self.live or self.strays)
        if unchecked and col.valid is None:
            return self._entry(position)
        absent = self.absent(row, col) >> 31
        entry: Int32 = self._entry(position & ~absent) | absent
        return entry

    def _entry(self, position: Any) -> Int32:
        entry: Int32 = cute.make_tensor(self.index + Int64(position), cute.make_layout(1))[0]
        return entry

    def offset(self, row: Row, col: Column, index: Any = None) -> tuple[Any, Boolean]:
        """The offset in memory of the vector at (row, column), in elements, and its predicate.

        ``index`` is the entry that ``load_index`` returned, if there is an index buffer.
        """
        if not self.gather:
            return row.linear + col.linear, self.absent(row, col) >= 0
        named, there = self._named(index)
        return named + row.behind + col.behind, there

    def _named(self, index: Any) -> tuple[Any, Boolean]:
        """The offset of the row that an index entry names, and its predicate."""
        extent = self.args.integer(self.storage.layout.shape[0], Int32)
        named = self._memory((index, *(0 for _ in self.storage.layout.shape[1:])))
        return named, Uint32(index) < Uint32(extent)  # -1 is the largest unsigned number

    @property
    def lacks_first(self) -> Any:
        """Return whether the index buffer lacks the first element of the first row."""
        return self.load_index(self.row(Int32(0)), self.column(0), written=True) < 0

    def locate(self, row: Row, col: Column, index: Any = None) -> tuple[Any, Boolean]:
        """A pointer to the vector at (row, column), and its predicate."""
        if not self.gather:
            offset, there = self.offset(row, col)
            return self.at(self.pointer, offset), there
        # Add the part that all rows share first: each row then takes one multiply-add.
        named, there = self._named(index)
        behind = self.at(self.pointer, col.behind)
        return self.at(self.at(behind, row.behind), named), there

    def at(self, pointer: Any, offset: Any) -> Any:
        """Add an offset to a pointer, assumed to be a multiple of the vector."""
        return pointer + cute.assume(Int64(offset), divby=self.vector)


def _count(shape: Any, args: RuntimeIntegers) -> Any:
    return product(map_leaves(lambda s: args.integer(s, Int32), shape))


def _modes(stride: Any) -> set[int]:
    return {d.path[0] for d in flatten(stride)}


def _offset(offset: Any) -> Any:
    return ArithmeticTuple(offset) if offset else 0


def _outside(x: Any, extent: Any, word: Any) -> Any:
    """All ones if x is not in [0, extent), else zero: one sign bit tests both bounds."""
    return word((x | (extent - 1 - x)) >> 31)


def _signed(bits: int, word: Any) -> int:
    """A bit pattern as the signed integer that the word holds."""
    width = word.width
    return bits - (1 << width) if bits >> (width - 1) else bits
