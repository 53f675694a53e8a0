"""Composition in which a side adds by XOR, and bits or digits show the modes of the result.

By bits: if both sides are linear in the bits of their coordinates, so is the result, and its
columns are those of the matrix product. By digits: if no mode of ``b`` leaves its digit of ``a``
and no sum carries, each mode is scaled on its own.
"""

from __future__ import annotations

from typing import Any

from .errors import LayoutTypeError
from .f2_span import Span
from .layout import Layout, make
from .normal import Arithmetic, arithmetic, simplified
from .protocol import xor
from .xor import carryless

Columns = list[int]  # the value of each bit of a coordinate
Mode = tuple[int, int]  # an extent and the value of a stride


def bit_columns(layout: Layout) -> list[Columns] | None:
    """Return the columns of each leaf if the layout is linear in the bits of its coordinates.

    None otherwise: for integers whose sums carry, and for negative strides.

    >>> bit_columns(Layout((4, 2), (1, 8))), bit_columns(Layout((4, 2), (1, 2)))
    ([[1, 2], [8]], None)
    """
    by_xor = arithmetic(layout) is Arithmetic.XOR
    taken = 0
    result = []
    for s, d in layout._leaves:
        value: Any = xor(d) if by_xor else d
        bits = (s - 1).bit_length()
        columns = [value << k for k in range(bits)]
        if not by_xor and value:
            mask = 0
            for column in columns:
                mask |= column
            if value < 0 or not is_carry_free(value, s) or taken & mask:
                return None
            taken |= mask
        result.append(columns)
    return result


def without_carry(layout: Any) -> Any:
    """Return ``layout``, made mode by mode from an XOR layout; raise if it adds with carries."""
    if not isinstance(layout, Layout) or arithmetic(layout) is Arithmetic.XOR:
        return layout
    if arithmetic(layout) is not Arithmetic.INTEGER or bit_columns(simplified(layout)) is None:
        raise LayoutTypeError(f"the modes of {layout} add with carries")
    return layout


def is_carry_free(d: int, extent: int) -> bool:
    """Tell if ``c * d`` is the carry-less product for every ``c < extent``.

    The smallest number that overlaps itself shifted by g bits is ``1 + 2^g``.

    >>> is_carry_free(8, 100), is_carry_free(5, 4), is_carry_free(5, 6)
    (True, True, False)
    """
    while d:
        low = d & -d
        d ^= low
        if d and extent > (d & -d) // low + 1:
            return False
    return True


def by_bits(a: Layout, b: Layout) -> list[list[Mode] | None] | None:
    """Return the modes of each leaf of b, None for a leaf without; None if this does not apply."""
    columns = bit_columns(b)
    if columns is None:
        return None
    reach = 0
    for leaf in columns:
        for column in leaf:
            reach |= column
    if not is_linear_below(a, reach):
        return None
    return [
        runs([int(a(column)) for column in leaf], s)
        for leaf, (s, _) in zip(columns, b._leaves, strict=True)
    ]


def is_linear_below(a: Layout, reach: int) -> bool:
    """Tell if ``a`` is linear in the bits of all positions whose bits are in ``reach``."""
    used: list[tuple[Any, Any]] = []
    for i, (s, d) in enumerate(a._leaves):
        if reach < s or i == len(a._leaves) - 1:
            used.append((reach + 1, d))
            break
        if s & (s - 1):
            return False
        used.append((s, d))
        reach >>= s.bit_length() - 1
    shape, stride = tuple([s for s, _ in used]), tuple([d for _, d in used])
    return bit_columns(make(shape, stride)) is not None


def runs(columns: Columns, extent: int) -> list[Mode] | None:
    """Return the modes of a leaf from the columns of its bits, or None: only the last may be odd.

    A mode continues while each column is twice the one before.
    """
    modes: list[Mode] = []
    at = 0
    while at < len(columns):
        end = at + 1
        while end < len(columns) and columns[end] == 2 * columns[end - 1]:
            end += 1
        if end == len(columns):
            return [*modes, (extent, columns[at])]
        if extent % (1 << (end - at)):
            return None
        modes.append((1 << (end - at), columns[at]))
        extent >>= end - at
        at = end
    return modes or [(extent, 0)]


def by_digits(a: Layout, b: Layout) -> list[list[Mode] | None] | None:
    """Return the modes of each leaf of b, each within a digit of ``a``; None if not applicable."""
    if arithmetic(a) is not Arithmetic.XOR or arithmetic(b) is Arithmetic.XOR or not a._leaves:
        return None
    extents = [s for s, _ in a._leaves]
    values = [xor(d) or 0 for _, d in a._leaves]
    taken = [0] * len(extents)
    used = [0] * len(extents)
    result: list[list[Mode] | None] = []
    for s, d in b._leaves:
        steps = _steps(extents, s, d)
        if steps is None:
            return None
        modes = []
        for digit, extent, step in steps:
            mask = 0
            for k in range((extent - 1).bit_length()):
                mask |= step << k
            used[digit] += (extent - 1) * step
            if digit < len(extents) - 1 and used[digit] >= extents[digit]:
                return None
            if values[digit] and (not is_carry_free(step, extent) or taken[digit] & mask):
                return None
            taken[digit] |= mask
            modes.append((extent, carryless(step, values[digit])))
        result.append(modes)
    return result


def _steps(extents: list[int], s: int, d: int) -> list[tuple[int, int, int]] | None:
    """Return the moves of ``s:d`` as triples (digit, extent, step); None if it is too irregular."""
    if d == 0 or s == 1:
        return [(0, s, 0)]
    if d < 0:
        return None
    steps: list[tuple[int, int, int]] = []
    for i, extent in enumerate(extents):
        if i == len(extents) - 1 or (s - 1) * d < extent:
            return [*steps, (i, s, d)]
        if d >= extent:
            if d % extent:
                return None
            d //= extent
            continue
        if extent % d or s % (extent // d):
            return None
        steps.append((i, extent // d, d))
        s, d = s // (extent // d), 1
    return steps


def tells_bits(a: Layout, s: int, d: Any) -> bool:
    """Tell if ``a`` is linear and injective in the bits of positions along a leaf of ``b``.

    Modes of XOR strides are then those of :func:`runs`, or there are none: an extent before the
    last is a power of two, as ``x * e ^ y`` is ``x * e + y`` for every y below it.
    """
    columns = bit_columns(make(s, d))
    if not columns:
        return False
    reach = 0
    for column in columns[0]:
        reach |= column
    if arithmetic(a) is not Arithmetic.XOR or not is_linear_below(a, reach):
        return False
    return not Span(tuple([int(a(column)) for column in columns[0]])).kernel


def integers_for(a: Layout, b: Layout) -> Layout | None:
    """Turn an XOR layout ``a`` into integers, for a ``b`` of integers that carry; None if it fails.

    It works if ``a`` moves every bit of the positions of ``b`` to a place of its own: then ``a`` of
    ``b`` adds by XOR only where ``b`` does.

    >>> from layoutconv.algebra import F2
    >>> print(integers_for(Layout((4, 8), (F2(2), F2(16))), Layout((3, 4), (1, 1))))
    (4,2):(2,16)
    """
    if arithmetic(a) is not Arithmetic.XOR or not b._plain or bit_columns(b) is not None:
        return None
    a, b = simplified(a), simplified(b)
    if arithmetic(a) is not Arithmetic.XOR or any(d < 0 for _, d in b._leaves):
        return None
    reach = (1 << sum((s - 1) * d for s, d in b._leaves).bit_length()) - 1
    if not is_linear_below(a, reach):
        return None
    leaves, taken = [], 0
    for i, (s, d) in enumerate(a._leaves):
        bits = reach.bit_length() if i == len(a._leaves) - 1 else min(reach, s - 1).bit_length()
        reach >>= bits
        for k in range(bits):
            column = (xor(d) or 0) << k
            if column & (column - 1) or not column or taken & column:
                return None
            taken |= column
        leaves.append((1 << bits, xor(d) or 0))
        if not reach:
            break
    return make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves]))
