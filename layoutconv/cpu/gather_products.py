"""Sparse convolutions on a CPU: gather rows, multiply and add, tap by tap.

    GatherPlan(index, rows)
        .forward(x, w)      x (inputs, C),  w (K, taps, C / groups)  ->  (outputs, K)
        .backward(y, w)     y (outputs, K)                           ->  (inputs, C)
        .filter(y, x)                                                ->  (K, taps, C / groups)
        .gradients(y, x, w)      the last two

The plan of a kernel map is the pairs of rows of each tap, found once in a few milliseconds. To plan
a view of the map by its layouts takes tens of them (:mod:`~layoutconv.cpu.cpu_executor`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from ..errors import ArgumentError

_NARROW = 32  # columns up to which products are listed and summed by row: index_add_ is slower


class Tap(NamedTuple):
    """The pairs of a tap: output rows, ascending, and the input rows that they read.

    None stands for all rows in order, which are read and written in place.
    """

    outputs: Tensor | None
    inputs: Tensor | None
    size: int


class _Bags(NamedTuple):
    """Some taps with listed products, which ``order`` and ``starts`` sum by row."""

    taps: range
    order: Tensor
    starts: Tensor


class GatherPlan:
    """The pairs of rows that each tap of a kernel map multiplies. It holds no tensor of the map.

    Args:
        index: int32 (outputs, taps), rows of the inputs; -1 for none.
        rows: the number of inputs.
        listed: bytes of products that are listed before they are summed. Memory beside operands and
            results is that, plus the rows that one tap gathers and multiplies.

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
        """Return the sums of the outputs, in the floating dtype of ``x`` and ``w``."""
        K, taps, C = w.shape
        by_tap = w.view(groups, K // groups, taps, C).permute(2, 0, 3, 1)  # (taps, g, C, K)
        return self._sums(x, by_tap.contiguous(), backward=False)

    def backward(self, y: Tensor, w: Tensor, groups: int = 1) -> Tensor:
        """Return the gradient of the inputs."""
        return self._sums(y, _backward(w, groups), backward=True)

    def filter(self, y: Tensor, x: Tensor, groups: int = 1) -> Tensor:
        """Return the gradient of the filter."""
        found, rows = _Filter(self.taps, y, x, groups), _Gathered(y, self.taps)
        for number, tap in enumerate(self.taps):
            if tap.size:
                found.add(number, rows.of(tap.outputs, tap.size))
        return found.result()

    def gradients(self, y: Tensor, x: Tensor, w: Tensor, groups: int = 1) -> tuple[Tensor, Tensor]:
        """Return the gradients of inputs and filter, gathering the rows of ``y`` only once."""
        found = _Filter(self.taps, y, x, groups)
        return self._sums(y, _backward(w, groups), backward=True, seen=found.add), found.result()

    @property
    def nbytes(self) -> int:
        """The bytes of the pairs, and of the tables that sum their products."""
        kept = [rows for tap in self.taps for rows in tap[:2] if rows is not None]
        kept += [part for bags in self._bags.values() for one in bags for part in one[1:]]
        return sum(part.nbytes for part in kept)

    def _sums(
        self,
        a: Tensor,
        by_tap: Tensor,
        *,
        backward: bool,
        seen: Callable[[int, Tensor], None] | None = None,
    ) -> Tensor:
        """Return the sums of all taps; ``seen`` is called with the rows that each reads."""
        taps = [Tap(t.inputs, t.outputs, t.size) for t in self.taps] if backward else self.taps
        rows = self.inputs if backward else self.outputs
        columns = by_tap.shape[1] * by_tap.shape[3]
        gathered, weights = _Gathered(a, taps), by_tap.unbind()

        def multiply(number: int, out: Tensor) -> Tensor:
            read = gathered.of(taps[number].inputs, taps[number].size)
            if seen is not None:
                seen(number, read)
            return _product(read, weights[number], out)

        there = [number for number, tap in enumerate(taps) if tap.size]
        if len(there) == 1 and taps[there[0]].outputs is None:
            return multiply(there[0], a.new_empty(rows, columns))
        # Taps are added in order, so that rows of padding do not change the bits of others.
        sums = a.new_zeros(rows, columns)
        if columns > _NARROW:
            products = a.new_empty(max((tap.size for tap in taps), default=0), columns)
            for number in there:
                to, own = taps[number].outputs, multiply(number, products[: taps[number].size])
                # int64 is twice as fast.
                sums = sums.add_(own) if to is None else sums.index_add_(0, to.long(), own)
            return sums
        for bags in self._bags_of(taps, rows, columns * a.element_size(), backward):
            products, first = a.new_empty(bags.order.shape[0], columns), 0
            for number in bags.taps:
                if taps[number].size:
                    multiply(number, products[first : first + taps[number].size])
                    first += taps[number].size
            sums += torch.embedding_bag(
                products, bags.order, bags.starts, mode=0, include_last_offset=True
            )[0]
        return sums

    def _bags_of(self, taps: Sequence[Tap], rows: int, width: int, backward: bool) -> list[_Bags]:
        """Split all taps into groups whose products of ``width`` bytes per row fit."""
        most = 1 << (self.listed // width).bit_length()
        key = backward, most
        if key not in self._bags:
            found, first, size = [], 0, 0
            for number, tap in enumerate(taps):
                if size and size + tap.size > most:
                    found.append(range(first, number))
                    first, size = number, 0
                size += tap.size
            found += [range(first, len(taps))] if size else []
            self._bags[key] = [_bags_of(part, taps, rows) for part in found]
        return self._bags[key]


def _tap(column: Tensor, rows: int) -> Tap:
    """Return the pairs of a tap, int32."""
    present = (column >= 0).nonzero().view(-1)
    size = len(present)
    everywhere = size == len(column)
    inputs = column if everywhere else column.index_select(0, present)
    in_order = everywhere and size == rows and bool((inputs.diff() == 1).all())
    outputs = None if everywhere else present.int()
    return Tap(outputs, None if in_order else inputs.clone() if everywhere else inputs, size)


def _bags_of(part: range, taps: Sequence[Tap], rows: int) -> _Bags:
    every = torch.arange(rows, dtype=torch.int32)
    own = [tap for tap in taps[part.start : part.stop] if tap.size]
    listed = [every if tap.outputs is None else tap.outputs for tap in own]
    starts = torch.zeros(rows + 1, dtype=torch.int32)
    counts = torch.bincount(torch.cat(listed), minlength=rows)
    torch.cumsum(counts, 0, out=starts[1:])
    # Half the time of a stable sort, if no row occurs twice in a tap.
    place, first = starts[:-1].clone(), 0
    order = torch.empty(int(starts[-1]), dtype=torch.int32)
    numbers = torch.arange(len(order), dtype=torch.int32)
    for row in listed:
        to, size = row.long(), len(row)
        at = place.index_select(0, to)
        order.scatter_(0, at.long(), numbers[first : first + size])
        place.scatter_(0, to, at.add_(1))
        first += size
    if not torch.equal(place, starts[1:]):
        order = torch.sort(torch.cat(listed), stable=True).indices.int()
    return _Bags(part, order, starts)


class _Gathered:
    """Rows of a tensor that taps read, one tap after the other, in one buffer."""

    def __init__(self, tensor: Tensor, taps: Sequence[Tap]) -> None:
        self._tensor, self._taps = tensor, taps
        self._memory: Tensor | None = None

    def of(self, rows: Tensor | None, size: int) -> Tensor:
        """Return the rows of a tap, valid until the next call; for None, the tensor itself."""
        if rows is None:
            return self._tensor
        if self._memory is None:
            most = max(tap.size for tap in self._taps)
            self._memory = self._tensor.new_empty(most, self._tensor.shape[1])
        return torch.index_select(self._tensor, 0, rows, out=self._memory[:size])


class _Filter:
    """The gradient of a filter, tap by tap."""

    def __init__(self, taps: Sequence[Tap], y: Tensor, x: Tensor, groups: int) -> None:
        self._taps, self._groups, self._right = taps, groups, _Gathered(x, taps)
        sizes = len(taps), groups, y.shape[1] // groups, x.shape[1] // groups
        every = all(tap.size for tap in taps)
        self._found = x.new_empty(sizes) if every else x.new_zeros(sizes)
        self._own = self._found.unbind()

    def add(self, number: int, rows: Tensor) -> None:
        """Multiply a tap's rows of the output gradient, which are given, by the input rows."""
        tap, groups = self._taps[number], self._groups
        others = self._right.of(tap.inputs, tap.size)
        if groups == 1:
            torch.mm(rows.T, others, out=self._own[number][0])
        else:
            left, right = _by_group(rows, groups).mT, _by_group(others, groups)
            torch.bmm(left, right, out=self._own[number])

    def result(self) -> Tensor:
        """Return the gradient, (K, taps, C / groups)."""
        taps, groups, K, C = self._found.shape
        return self._found.permute(1, 2, 0, 3).contiguous().view(groups * K, taps, C)


def _backward(w: Tensor, groups: int) -> Tensor:
    """Arrange a filter (K, taps, C / groups) by tap: (taps, groups, K / groups, C / groups)."""
    K, taps, C = w.shape
    return w.view(groups, K // groups, taps, C).permute(2, 0, 1, 3).contiguous()


def _by_group(rows: Tensor, groups: int) -> Tensor:
    """View (rows, groups * C) as (groups, rows, C)."""
    return rows.view(rows.shape[0], groups, -1).transpose(0, 1)


def _product(rows: Tensor, weight: Tensor, out: Tensor) -> Tensor:
    """Multiply rows (n, groups * C) by a weight (groups, C, K) into ``out`` (n, groups * K)."""
    groups, C, K = weight.shape
    if groups == 1:
        return torch.mm(rows, weight[0], out=out)
    if C == K == 1:
        return torch.mul(rows, weight.view(-1), out=out)
    # Into a given tensor: autocast rounds the operands of a product that allocates its own.
    products = rows.new_empty(groups, len(rows), K)
    torch.bmm(_by_group(rows, groups), weight, out=products)
    out.view(-1, groups, K).copy_(products.transpose(0, 1))
    return out
