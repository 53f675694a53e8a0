"""Meeting of a cloud's cells with the taps of a strided or a transposed convolution.

A cell x and a tap t of offset o meet at y: forwards if x = y * stride + o, transposed at
y = x * stride + o. Both are ``floor(x * m / d) + shift[t]``, with (m, d) = (1, stride) or
(stride, 1), if the remainder of the division is the tap's: one division serves all taps.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..common.cells import inside
from ..common.walk import at
from .device_tables import Table, device_table
from .per_rank import PerRank


class MetTaps:
    """The tap arguments of kernels on a device, made once per set of taps and stride.

    Attributes:
        table: int32 (count, 2 * rank), from :func:`shifts_and_rests`; ``address`` is its own.
        at_once: how many of the taps one cell meets at most.
        steps: the factors of cells, and their divisors.
    """

    def __init__(self, taps: Table, stride: tuple[int, ...], transposed: bool, device: Any) -> None:
        ones = (1,) * len(stride)
        times, over = (stride, ones) if transposed else (ones, stride)
        rows, self.at_once = shifts_and_rests(taps, over, transposed)
        self.table, self.count, self.steps = device_table(rows, device), len(rows), times + over
        self.address = self.table.data_ptr()


def shifts_and_rests(taps: Table, over: tuple[int, ...], transposed: bool) -> tuple[Table, int]:
    """Return each tap's shift of the quotient and required remainder, per axis, without duplicates.

    Also return how many of them one cell meets at most: the most that share their remainders.

    >>> shifts_and_rests(((-1,), (0,), (1,)), (2,), False)  # y is x // 2 + 1, x // 2 and x // 2
    (((1, 1), (0, 0), (0, 1)), 2)
    >>> shifts_and_rests(((-1,), (0,), (1,)), (1,), True)
    (((-1, 0), (0, 0), (1, 0)), 3)
    """
    rows = []
    for tap in taps:
        parts = [divmod(c, d) for c, d in zip(tap, over, strict=True)]
        shifts = tap if transposed else tuple(-quotient for quotient, _ in parts)
        rows.append((*shifts, *(rest for _, rest in parts)))
    table = tuple(dict.fromkeys(rows))
    return table, max(Counter(row[len(over) :] for row in table).values(), default=0)


class Meet(PerRank):
    """Base of kernels that compute where cells meet taps; one thread per cell."""

    def divided(self, cell: Any, times: Any, over: Any) -> tuple[Any, Any]:
        """Return the quotients of a cell, behind its batch, and their remainders."""
        starts, rests = [cell[0]], []
        for axis in range(self.rank):
            product = cell[1 + axis] * times[axis]
            quotient = product // over[axis]
            starts.append(quotient)
            rests.append(product - quotient * over[axis])
        return starts, rests

    def meet(self, table: Any, starts: Any, rests: Any, grid: Any, tap: Any) -> Any:
        """Return where a cell meets a tap, and whether it does so in the grid."""
        to = [starts[0]]
        differ: Any = 0
        for axis in range(self.rank):
            to.append(starts[1 + axis] + at(table, tap * (2 * self.rank) + axis))
            wanted = at(table, tap * (2 * self.rank) + self.rank + axis)
            differ = (rests[axis] ^ wanted) | differ
        return to, inside(to, grid) & (differ == 0)
