"""The table of a layout: all of its offsets, as nested lists."""

from __future__ import annotations

from itertools import repeat
from typing import Any

from .budget import EVALUATIONS, SET, Budget, table_size
from .composed import ComposedLayout
from .errors import whole
from .f2_compose import evaluator
from .layout import Layout
from .like import values_of
from .normal import Arithmetic, arithmetic, merge, simplified
from .protocol import terms, xor
from .stride import finished, shifted
from .swizzle import Swizzle
from .values_at_once import values_at_once

_FEW = 256  # values for which evaluating one by one is as fast
_LISTED = SET // EVALUATIONS + 1  # values that a set takes in the time of one evaluation


def nested_offsets(layout: Layout) -> Any:
    """Return nested lists of the offsets of a layout, one level per mode.

    Raises :class:`LayoutBudgetError` for more than 2^20 offsets.

    >>> nested_offsets(Layout((2, 3), (3, 1)))
    [[0, 1, 2], [3, 4, 5]]
    """
    table_size("offsets", layout, layout.size())
    if layout._plain:
        columns = [_column(mode) for mode in layout]
        return _outer_sum(columns) if columns else 0
    sums = _sums([[mode.raw(i) for i in range(int(mode.size()))] for mode in layout])
    return _mapped(finished, sums)


def flat_table(layout: Any) -> list[Any]:
    """Return a layout's values at all linear coordinates, in order, at present values of symbols.

    >>> flat_table(Layout((2, 3), (3, 1)))
    [0, 3, 1, 4, 2, 5]
    """
    size = table_size("offsets", layout, layout.size())
    return _values(values_of(layout), size)


def all_values(name: str, layout: Any) -> list[Any] | memoryview:
    """Return all values for an operation that cannot decide otherwise, within its time budget.

    They are computed at once if possible.

    Raises :class:`LayoutBudgetError` if there are too many.

    >>> all_values("is_injective", Layout((2, 3), (3, 1)))
    [0, 3, 1, 4, 2, 5]
    """
    size = whole(name, layout.size())
    f = values_of(layout)
    at_once = values_at_once(f) if size > _FEW else None
    budget = Budget(name, (layout,), EVALUATIONS)
    budget.spend(size // _LISTED if at_once is not None else _price(f, size))
    if at_once is not None:
        return at_once.listed()
    return _values(f, size)


def steps_of(f: Any) -> int:
    """Return the cost of one evaluation of a layout, in steps of a search.

    An entry of an index buffer, or a call of a function, takes 1 to 1.5 us.

    >>> steps_of(Layout((2, 3), (3, 1)))
    2
    """
    steps = 2
    for part in f.parts():
        leaves, kind = part._leaves, arithmetic(part)
        steps += len(leaves) if kind is Arithmetic.XOR else len(leaves) // 4
        if kind is Arithmetic.OPAQUE:
            steps += sum([terms(d) is None for _, d in leaves])
    return steps


def _price(f: Any, size: int) -> int:
    """Return the cost of all values of a layout, in evaluations."""
    if isinstance(f, Layout):
        kind = arithmetic(f)
        if kind is Arithmetic.COORDINATE:
            return size
        leaves = f._leaves if kind is Arithmetic.OPAQUE else []
        extents: int = sum(s for s, _ in leaves)
        return extents + size // 17
    if not isinstance(f, ComposedLayout) or type(f.offset) is not int:
        return size
    outer = f.outer
    if isinstance(outer, Swizzle):
        return _price(f.inner, size) + size // 17
    if isinstance(outer, Layout) and arithmetic(outer) is not Arithmetic.OPAQUE:
        return _price(f.inner, size) + size * (1 + len(outer._leaves)) // (
            16 if outer._plain else 4
        )
    return _price(f.inner, size) + size


def _values(f: Any, size: int) -> list[Any]:
    if isinstance(f, Layout):
        if f._plain:
            return list(_column(f))
        return _sums_of_leaves(f) or [f(i) for i in range(size)]
    if not isinstance(f, ComposedLayout) or type(f.offset) is not int:
        return [f(i) for i in range(size)]
    inner = _values(f.inner, size)
    if not all(type(x) is int for x in inner):
        return [f.outer(shifted(x, f.offset)) for x in inner]
    outer, offset = f.outer, f.offset
    if isinstance(outer, Swizzle):
        outer = outer.of_integers()
    elif isinstance(outer, Layout):
        outer = evaluator(outer)
    return [outer(x + offset) for x in inner] if offset else list(map(outer, inner))


def _sums_of_leaves(layout: Layout) -> list[int] | None:
    """Return the values of a layout whose leaves give integers of one kind of sum; None otherwise.

    Each leaf is evaluated on its own; the rest are sums of integers.
    """
    by_xor = arithmetic(layout) is Arithmetic.XOR
    plus = int.__xor__ if by_xor else int.__add__
    sums = [0]
    for s, d in simplified(layout)._leaves:
        steps = _xor_steps(s, xor(d) or 0) if by_xor else [finished(c * d) for c in range(s)]
        if not all(type(step) is int for step in steps) or (not by_xor and xor(d)):
            return None
        sums = [value for step in steps for value in map(plus, sums, repeat(step))]
    return sums


def _xor_steps(s: int, d: int) -> list[int]:
    """Return the carry-less multiples of d; each bit doubles the list."""
    steps = [0]
    while len(steps) < s:
        bit = len(steps) * d
        steps += [step ^ bit for step in steps]
    return steps[:s]


def _column(mode: Layout) -> list[int] | range:
    """Return the offsets of one mode, in the order of its linear coordinate."""
    column: list[int] | range = range(1)
    for s, d in merge(mode._leaves):
        if len(column) == 1:
            column = range(0, s * d, d) if d else [0] * s
        else:
            column = [offset for i in range(s) for offset in _moved(column, i * d)]
    return column


def _moved(column: list[int] | range, offset: int) -> list[int] | range:
    if type(column) is range:  # no additions needed
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
