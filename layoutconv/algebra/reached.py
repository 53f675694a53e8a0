"""The set of values of a layout that is not a sum of multiples: index buffers, functions."""

from __future__ import annotations

from math import gcd
from typing import Any

from .bit_planes import scattered_bits
from .budget import EVALUATIONS, Budget
from .errors import LayoutTypeError, whole
from .fold import separated
from .layout import Layout
from .lookups import known_values
from .normal import Arithmetic, arithmetic
from .packing import Packing
from .plane_values import Values
from .protocol import terms
from .stride import finished
from .value_tables import all_values
from .values_at_once import leaf_values, values_at_once

Table = list[int] | range  # the values of a leaf


def values_of_image(name: str, a: Any) -> set[Any]:
    """Return the set of all values; each leaf of a sum is evaluated only once.

    >>> from layoutconv.algebra import CustomStride, IndexedGather
    >>> sorted(values_of_image("", Layout((3, 2), (CustomStride(IndexedGather([4, 0, 4])), 1))))
    [0, 1, 4, 5]
    """
    plain = separated(a)
    if plain is None or arithmetic(plain[0]) is Arithmetic.XOR or not isinstance(plain[1], int):
        return set(map(_hashable, all_values(name, a)))
    layout, constant = plain
    if values_at_once(layout) is not None:
        return {x + constant for x in all_values(name, layout)}
    budget = Budget(name, (a,), EVALUATIONS)
    sums: set[Any] = {constant}
    for extent, d in layout._leaves:
        s = whole(name, extent)
        if type(d) is int:
            values: Any = range(0, s * d, d) if d else (0,)
        else:
            budget.spend(s)
            values = {finished(c * d) for c in range(s)}
        # Integer additions cost an eighth of others.
        count = s if isinstance(values, range) else len(values)
        budget.spend(count * len(sums) // (16 if type(d) is int else 2))
        sums = {_hashable(x + v) for x in sums for v in values}
    return sums


def block_of_leaves(layout: Layout) -> int:
    """Return a width of aligned blocks that the values fall into, judged leaf by leaf.

    Leaves whose values continue a run, in any order, lengthen it; the others move it.

    >>> from layoutconv.algebra import CustomStride, IndexedGather
    >>> gather = CustomStride(IndexedGather([7, 2, 5]), 4)
    >>> block_of_leaves(Layout((3, 2, 2), (gather, 1, 2)))
    4
    """
    leaves: dict[int, Values] = {}
    for i, (s, d) in enumerate(layout._leaves):
        found = leaf_values(s, d)
        if found is None:
            return 1
        leaves[i] = found
    steps = {leaf.step(): i for i, leaf in leaves.items()}
    block, start = 1, 0
    while block in steps:
        leaf = leaves.pop(steps[block])
        start += leaf.extremes()[0]
        block *= leaf.count
    for leaf in leaves.values():
        while others := leaf.beside(block):
            block = gcd(block, leaf.at(next(scattered_bits(others))))
    return gcd(block, start)


def _hashable(x: Any) -> Any:
    if not isinstance(x, int | tuple):
        raise LayoutTypeError(f"a layout gives {x!r}, which is not an integer")
    return x


def values_apart(layout: Layout, budget: Budget) -> bool:
    """Tell if no two coordinates share a value, for a layout with functions as strides.

    A leaf determines its own coordinate if its values differ and are either further apart than all
    other leaves reach together, or distinct modulo the others' common divisor.
    """
    if any(s > EVALUATIONS and terms(d) is None for s, d in layout._leaves):
        at_once = values_at_once(layout)
        return budget.give_up() if at_once is None else at_once.differ(budget)
    leaves = [leaf for leaf in layout._leaves if leaf[0] != 1]
    tables = _packed([_table(s, d, budget) for s, d in leaves])
    if not all(isinstance(table, range) or len(set(table)) == len(table) for table in tables):
        return False
    changed = True
    while changed and tables:
        changed = False
        for i, table in enumerate(tables):
            if _decides(table, tables[:i] + tables[i + 1 :]):
                del tables[i], leaves[i]
                changed = True
                break
    if not tables:
        return True
    answer = _apart_at_once(leaves, tables, budget)
    if answer is not None:
        return answer
    sums = {0}
    count = 1
    for table in tables:
        budget.spend(len(sums) * _count(table))
        sums = {x + v for x in sums for v in table}
        count *= len(table)
        if len(sums) < count:
            return False
    return True


def _apart_at_once(leaves: list[Any], tables: list[Table], budget: Budget) -> bool | None:
    """Tell if all sums of leaf values differ; None if values are not known at once.

    The longest progression is not expanded: the sums of the others are compared along its step.
    """
    progressions = [table for table in tables if isinstance(table, range)]
    if not progressions:
        values = values_at_once(_of_leaves(leaves))
        return None if values is None else values.differ(budget)
    longest = max(progressions, key=_count)
    at = tables.index(longest)
    values = values_at_once(_of_leaves(leaves[:at] + leaves[at + 1 :]))
    return None if values is None else values.apart_along(longest, budget)


def _of_leaves(leaves: list[Any]) -> Layout:
    return Layout(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))


def _decides(table: Table, others: list[Table]) -> bool:
    if not others or _apart(table) > sum(_reach(other) for other in others):
        return True
    common = gcd(*map(_divisor, others))
    if isinstance(table, range):
        return common > 0 and _count(table) <= common // gcd(table.step, common)
    return common > 0 and len({v % common for v in table}) == len(table)


def _count(table: Table) -> int:
    """Return the length of a table; len() may overflow."""
    if isinstance(table, range):
        return (table[-1] - table[0]) // table.step + 1
    return len(table)


def _apart(table: Table) -> int:
    """Return the smallest distance of two values in a table."""
    if isinstance(table, range):
        return abs(table.step)
    ordered = sorted(table)
    return min(y - x for x, y in zip(ordered, ordered[1:]))  # noqa: B905, RUF007


def _reach(table: Table) -> int:
    """Return the largest distance of two values in a table."""
    if isinstance(table, range):
        return abs(table[-1] - table[0])
    return max(table) - min(table)


def _divisor(table: Table) -> int:
    """Return the common divisor of the differences of a table's values."""
    if isinstance(table, range):
        return table.step
    return gcd(*[v - table[0] for v in table])


def _table(s: int, d: Any, budget: Budget) -> Any:
    if type(d) is int:
        return range(0, s * d, d) if d else [0] * s
    if terms(d) is None and (found := known_values(d, s)) is not None:
        return list(found.listed())
    if terms(d) is None:
        budget.spend(s)
    else:
        budget.spend(s // 8)
    return [finished(c * d) for c in range(s)]


def _packed(tables: list[Any]) -> list[Table]:
    """Turn tables of coordinates into tables of integers whose sums are equal iff theirs are."""
    if all(isinstance(v, int) for t in tables if not isinstance(t, range) for v in t):
        return tables
    flat = [v for table in tables for v in table]
    for v in flat:
        _hashable(v)
    if not all(isinstance(v, tuple) or v == 0 for v in flat):
        raise LayoutTypeError("a layout gives integers at some coordinates and tuples at others")
    packing = Packing(flat, 4 * max(1, len(tables)))
    return [[packing.pack(v) for v in table] for table in tables]
