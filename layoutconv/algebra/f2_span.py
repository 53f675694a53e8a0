"""Linear algebra over F2: matrices as columns of bits, and the span of their XORs."""

from __future__ import annotations

Columns = tuple[int, ...]


def apply_columns(columns: Columns, x: int) -> int:
    """Return the matrix times the bits of x."""
    result = 0
    for i, column in enumerate(columns):
        if x >> i & 1:
            result ^= column
    return result


class Span:
    """The values that XORs of some columns reach, and the columns that reach each of them.

    ``rows`` has a value for each leading bit, with the columns that make it up; ``kernel`` has the
    choices of columns whose XOR is 0.

    >>> span = Span((1, 2, 3))
    >>> span.kernel, span.reduced(7)
    ([7], (4, 3))
    """

    def __init__(self, columns: Columns) -> None:
        self.rows: dict[int, tuple[int, int]] = {}  # leading bit -> value, columns
        self.kernel: list[int] = []
        for i, column in enumerate(columns):
            value, used = self.reduced(column)
            used ^= 1 << i
            if value:
                self.rows[value.bit_length()] = value, used
            else:
                self.kernel.append(used)

    def reduced(self, value: int) -> tuple[int, int]:
        """Reduce ``value`` by the span: return the rest, and the columns of the removed part."""
        rest = used = 0
        while value > 0:  # the span has no negative values
            lead = value.bit_length()
            if lead in self.rows:
                row, columns = self.rows[lead]
                value ^= row
                used ^= columns
            else:
                rest |= 1 << (lead - 1)
                value ^= 1 << (lead - 1)
        return rest ^ value, used

    def largest(self, base: int) -> int:
        """Return the largest XOR of ``base`` and a value of the span."""
        for lead in sorted(self.rows, reverse=True):
            base = max(base, base ^ self.rows[lead][0])
        return base
