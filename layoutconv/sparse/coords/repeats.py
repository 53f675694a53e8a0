"""Repeated cells, where allowed: the sums of their rows become additional rows.

A convolution over such cells is one over *extended* rows: the N rows, and after them a row for each
of the G repeated cells. As an input, that row is the sum of the cell's rows; as an output, it is
added to each of them. So at one tap no row feeds two rows, and no two rows feed one: code that runs
over kernel maps need not know of repeated cells.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from .rows import add_rows, take

if TYPE_CHECKING:
    from torch import Tensor

    from .coordinates import Coordinates


@dataclass(frozen=True, eq=False)
class Repeats:
    """The repeated cells of some :class:`Coordinates` of N rows, G of them.

    Attributes:
        distinct: the cells, each once, in the order of their first rows.
        first: int64 (cells,), the first row of each of ``distinct``.
        extended: int64 (cells,), the extended row of each of ``distinct``: the row that has the
            cell, or that of its sum, N and up.
        rows: int64 (M,), the rows of repeated cells, cell after cell, each cell's in their order.
        group: int64 (M,), the number of the cell of each of ``rows``, ascending from 0 to G - 1.
        lengths: int64 (G,), how many of ``rows`` each of these cells has.
        stand_in: coordinates of N + G rows, the cells of all extended rows.
    """

    distinct: Coordinates
    first: Tensor
    extended: Tensor
    rows: Tensor
    group: Tensor
    lengths: Tensor
    stand_in: Coordinates

    @property
    def count(self) -> int:
        """The number G of repeated cells."""
        return len(self.lengths)

    @property
    def last(self) -> Tensor:
        """The last row with the cell of each row, int64 (N,)."""
        count = len(self.stand_in) - self.count
        last = torch.arange(count, device=self.rows.device)
        last[self.rows] = self.rows[self.lengths.cumsum(0) - 1][self.group]
        return last

    def with_sums(self, features: Tensor) -> Tensor:
        """Append the sum of each repeated cell's rows to features (N, C): (N + G, C).

        Sums are in float64, in the order of the rows. It has gradients of any order.
        """
        chosen = features.index_select(0, self.rows)
        return torch.cat([features, add_rows(chosen, self.group, self.count, self.lengths)])

    def with_maxima(self, features: Tensor) -> Tensor:
        """Append the maximum of each repeated cell's rows to features (N, C): (N + G, C).

        The gradient goes to the first row that has it. A NaN is always the maximum.
        """
        group = self.group[:, None].expand(-1, features.shape[1])
        chosen = features.detach().index_select(0, self.rows)
        low = chosen.new_full((self.count, chosen.shape[1]), -torch.inf)
        largest = low.scatter_reduce(0, group, chosen, "amax").index_select(0, self.group)
        is_largest = (chosen == largest) | chosen.isnan()
        candidates = torch.where(is_largest, self.rows[:, None], len(features))
        past = candidates.new_full(low.shape, len(features))
        winners = past.scatter_reduce(0, group, candidates, "amin")
        return torch.cat([features, features.gather(0, winners)])

    def onto_rows(self, extended: Tensor) -> Tensor:
        """Add the row of each repeated cell to the cell's rows: (N, C) from (N + G, C).

        The transpose of :meth:`with_sums`.
        """
        rows = len(extended) - self.count
        of_cells = take(extended[rows:], self.group, self.lengths)
        return extended[:rows].index_add(0, self.rows, of_cells)


def repeats_of(coordinates: Coordinates, first_rows: Tensor) -> Repeats:
    """Return the repeated cells; ``first_rows``, int (N,), is the first row that has the cell of
    each row, -1 for padding.

    >>> from layoutconv.sparse import Coordinates
    >>> cells = torch.tensor([[0, 7], [0, 5], [0, 7]], dtype=torch.int32)
    >>> found = repeats_of(Coordinates(cells, (9,), 1), torch.tensor([0, 1, 0]))
    >>> x = torch.tensor([[1.0], [2.0], [4.0]])
    >>> found.with_sums(x).T, found.onto_rows(found.with_sums(x)).T
    (tensor([[1., 2., 4., 5.]]), tensor([[6., 2., 9.]]))
    """
    cells, count = coordinates.cells, len(coordinates)
    numbers = torch.arange(count, device=cells.device)
    first_rows = first_rows.long()
    there = (first_rows >= 0).nonzero()[:, 0]
    first = (first_rows == numbers).nonzero()[:, 0]
    cell_of_first = torch.zeros_like(numbers)
    cell_of_first[first] = numbers[: len(first)]
    cell_of = cell_of_first[first_rows[there]]  # of the rows that have a cell

    times = torch.bincount(cell_of, minlength=len(first))
    lengths = times[times > 1]
    number = torch.where(times > 1, torch.cumsum(times > 1, 0) - 1, -1)
    group = number[cell_of]
    group, order = torch.sort(group, stable=True)
    single = len(group) - int(lengths.sum())
    rows = there[order[single:]]

    extended = torch.where(number < 0, first, number + count)
    first_of_groups = first[times > 1]
    grid = coordinates.spatial_shape, coordinates.batch_size
    kind = type(coordinates)
    with_groups = torch.cat([cells, cells.index_select(0, first_of_groups)])
    return Repeats(
        distinct=kind(cells.index_select(0, first), *grid, valid=True, corner=coordinates.corner),
        first=first,
        extended=extended,
        rows=rows,
        group=group[single:],
        lengths=lengths,
        stand_in=kind(with_groups, *grid, padded=coordinates.padded, valid=True),
    )
