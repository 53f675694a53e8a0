"""The whole table of a layout: every offset, as nested lists."""

from __future__ import annotations

from typing import Any

from .budget import table_size
from .layout import Layout
from .normal import merge
from .stride import finished


def table_of(layout: Layout) -> Any:
    """Nested lists of the offsets of a layout, one level a mode.

    Raises :class:`LayoutBudgetError` for more than 2^20 offsets.

    >>> table_of(Layout((2, 3), (3, 1)))
    [[0, 1, 2], [3, 4, 5]]
    """
    table_size("offsets", layout, layout.size())
    if layout._plain:
        columns = [_column(mode) for mode in layout]
        return _outer_sum(columns) if columns else 0
    sums = _sums([[mode.raw(i) for i in range(int(mode.size()))] for mode in layout])
    return _mapped(finished, sums)


def flat_table(layout: Any) -> list[Any]:
    """The values of a layout at its linear coordinates, in order."""
    size = table_size("offsets", layout, layout.size())
    if isinstance(layout, Layout) and layout._plain:
        return list(_column(layout))
    return [layout(i) for i in range(size)]


def _column(mode: Layout) -> list[int] | range:
    """The offsets of one mode, in the order of its linear coordinate."""
    column: list[int] | range = range(1)
    for s, d in merge(mode._leaves):
        if len(column) == 1:
            column = range(0, s * d, d) if d else [0] * s
        else:
            column = [offset for i in range(s) for offset in _moved(column, i * d)]
    return column


def _moved(column: list[int] | range, offset: int) -> list[int] | range:
    if type(column) is range:  # which needs no additions
        return range(column.start + offset, column.stop + offset, column.step)
    return list(map(offset.__add__, column))


def _outer_sum(columns: list[list[int] | range]) -> Any:
    first, *rest = columns
    if not rest:
        return list(first)
    if len(rest) == 1:
        if type(first) is range and type(rest[0]) is not range:
            return [list(row) for row in zip(*[_moved(first, b) for b in rest[0]])]  # noqa: B905
        return [list(_moved(rest[0], a)) for a in first]
    inner = _outer_sum(rest)
    return [_shifted(inner, a) for a in first]


def _shifted(table: Any, offset: int) -> Any:
    if isinstance(table, list):
        return [_shifted(row, offset) for row in table]
    return offset + table


def _sums(columns: list[list[Any]]) -> Any:
    if not columns:
        return 0
    first, *rest = columns
    if not rest:
        return first
    inner = _sums(rest)
    return [_mapped(lambda x, a=a: a + x, inner) for a in first]


def _mapped(fn: Any, table: Any) -> Any:
    return [_mapped(fn, row) for row in table] if isinstance(table, list) else fn(table)
