"""Sparse convolutions on a CPU: rows are gathered, multiplied and added, tap by tap.

    GatherPlan(index, rows)
        .forward(x, w)      x (inputs, C),  w (K, taps, C / groups)  ->  (outputs, K)
        .backward(y, w)     y (outputs, K)                           ->  (inputs, C)
        .filter(y, x)                                                ->  (K, taps, C / groups)

The plan of a kernel map is the pairs of rows of each tap, found once in a few milliseconds. A view
of the map is planned by its layouts in tens of them (:mod:`~layoutconv.cpu.cpu_executor`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..errors import ArgumentError

if TYPE_CHECKING:
    from torch import Tensor

_NARROW = 32  # columns, up to which products are listed and summed by row: index_add_ takes longer


class Tap(NamedTuple):
    """The pairs of a tap: rows of the outputs, ascending, and of the inputs that they read.

    None stands for all rows in order: they are read and written where they are.
    """

    outputs: Tensor | None
    inputs: Tensor | None
    size: int


class _Bags(NamedTuple):
    """Some taps whose products are listed, and by ``order`` and ``starts`` summed by row."""

    taps: range
    order: Tensor
    starts: Tensor


class GatherPlan:
    """The pairs of rows that every tap of a kernel map multiplies. It holds no tensor of the map.

    Args:
        index: int32 (outputs, taps), rows of the inputs; -1 where there is none.
        rows: how many inputs there are.
        listed: bytes of products that are listed before they are summed. Memory beside operands and
            results is as much, and that of the rows that one tap gathers and multiplies.

    Raises :class:`~layoutconv.errors.ArgumentError` for an entry outside ``[-1, rows)``.

    >>> index = torch.tensor([[1, -1], [0, 1]], dtype=torch.int32)
    >>> x, w = torch.tensor([[1.0], [2.0]]), torch.tensor([[[10.0], [100.0]]])
    >>> GatherPlan(index, 2).forward(x, w)
    tensor([[ 20.],
            [210.]])
    """

    def __init__(self, index: Tensor, rows: int, listed: int = 16 << 20) -> None:
        self.outputs, self.inputs, self.listed = len(index), rows, listed
        if index.numel():
            low, high = (int(entry) for entry in torch.aminmax(index))
            if low < -1 or high >= rows:
                raise ArgumentError("index", f"entries in [-1, {rows})", low if low < -1 else high)
        self.taps = [_tap(column, rows) for column in index.T]
        self._bags: dict[tuple[bool, int], list[_Bags]] = {}

    def forward(self, x: Tensor, w: Tensor, groups: int = 1) -> Tensor:
        """The sums of the outputs, of the dtype of ``x`` and ``w``, a floating one."""
        K, taps, C = w.shape
        by_tap = w.view(groups, K // groups, taps, C).permute(2, 0, 3, 1)  # (taps, g, C, K)
        return self._sums(x, by_tap, backward=False)

    def backward(self, y: Tensor, w: Tensor, groups: int = 1) -> Tensor:
        """The gradient of the inputs."""
        K, taps, C = w.shape
        by_tap = w.view(groups, K // groups, taps, C).permute(2, 0, 1, 3)  # (taps, g, K, C)
        return self._sums(y, by_tap, backward=True)

    def filter(self, y: Tensor, x: Tensor, groups: int = 1) -> Tensor:
        """The gradient of the filter."""
        K, C = y.shape[1] // groups, x.shape[1] // groups
        found = x.new_zeros(groups, K, len(self.taps), C)
        for number, tap in enumerate(self.taps):
            if tap.size:
                left, right = _rows(y, tap.outputs), _rows(x, tap.inputs)
                found[:, :, number] = _by_group(left, groups).mT @ _by_group(right, groups)
        return found.view(groups * K, len(self.taps), C)

    @property
    def nbytes(self) -> int:
        """Bytes of the pairs, and of what sums their products."""
        kept = [rows for tap in self.taps for rows in tap[:2] if rows is not None]
        kept += [part for bags in self._bags.values() for one in bags for part in one[1:]]
        return sum(part.nbytes for part in kept)

    def _sums(self, a: Tensor, by_tap: Tensor, *, backward: bool) -> Tensor:
        taps = [Tap(t.inputs, t.outputs, t.size) for t in self.taps] if backward else self.taps
        rows = self.inputs if backward else self.outputs
        columns = by_tap.shape[1] * by_tap.shape[3]
        sums, begun = a.new_empty(rows, columns), False
        for number, tap in enumerate(taps):
            if tap.outputs is None and tap.size:  # every row, in order: no list, and no zeros
                product = _product(_rows(a, tap.inputs), by_tap[number])
                sums = sums.add_(product) if begun else product
                begun = True
        if not begun:
            sums.zero_()
        if columns > _NARROW:
            for number, tap in enumerate(taps):
                if tap.outputs is not None and tap.size:
                    product = _product(_rows(a, tap.inputs), by_tap[number])
                    sums.index_add_(0, tap.outputs.long(), product)  # of int64: as fast again
            return sums
        for bags in self._bags_of(taps, rows, columns * a.element_size(), backward):
            listed = [number for number in bags.taps if taps[number].outputs is not None]
            products = torch.cat(
                [_product(_rows(a, taps[n].inputs), by_tap[n]) for n in listed if taps[n].size]
            )
            sums += torch.embedding_bag(
                products, bags.order, bags.starts, mode=0, include_last_offset=True
            )[0]
        return sums

    def _bags_of(self, taps: Sequence[Tap], rows: int, width: int, backward: bool) -> list[_Bags]:
        """The listed taps, as many at once as their products of ``width`` bytes may be."""
        most = 1 << (self.listed // width).bit_length()
        key = backward, most
        if key not in self._bags:
            found, first, size = [], 0, 0
            for number, tap in enumerate(taps):
                own = 0 if tap.outputs is None else tap.size
                if size and size + own > most:
                    found.append(range(first, number))
                    first, size = number, 0
                size += own
            found += [range(first, len(taps))] if size else []
            self._bags[key] = [_bags_of(part, taps, rows) for part in found]
        return self._bags[key]


def _tap(column: Tensor, rows: int) -> Tap:
    """The pairs of a tap, int32."""
    present = (column >= 0).nonzero().view(-1)
    size = len(present)
    everywhere = size == len(column)
    inputs = column if everywhere else column.index_select(0, present)
    in_order = everywhere and size == rows and bool((inputs.diff() == 1).all())
    outputs = None if everywhere else present.int()
    return Tap(outputs, None if in_order else inputs.clone() if everywhere else inputs, size)


def _bags_of(part: range, taps: Sequence[Tap], rows: int) -> _Bags:
    row = torch.cat([t.outputs for t in taps[part.start : part.stop] if t.outputs is not None])
    starts = torch.zeros(rows + 1, dtype=torch.int32)
    torch.cumsum(torch.bincount(row, minlength=rows), 0, out=starts[1:])
    return _Bags(part, torch.sort(row, stable=True).indices.int(), starts)


def _rows(tensor: Tensor, rows: Tensor | None) -> Tensor:
    return tensor if rows is None else tensor.index_select(0, rows)


def _by_group(rows: Tensor, groups: int) -> Tensor:
    """(rows, groups * C) as (groups, rows, C)."""
    return rows.view(len(rows), groups, -1).transpose(0, 1)


def _product(rows: Tensor, weight: Tensor) -> Tensor:
    """The rows (n, groups * C) times a weight (groups, C, K): (n, groups * K)."""
    groups, C, K = weight.shape
    if groups == 1:
        return rows @ weight[0]
    if C == K == 1:
        return rows * weight.view(-1)
    return (_by_group(rows, groups) @ weight).transpose(0, 1).reshape(len(rows), -1)
