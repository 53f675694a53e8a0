"""Layouts that are linear over F2, the field of two elements: swizzles, Triton's linear layouts.

A function of the bits of a position is linear if XOR of positions gives XOR of values. It is then a
matrix over F2, kept here as its columns: the value of each bit, lowest first. A layout is linear if
its extents are powers of two and its strides are :class:`F2`, or integers whose sums never carry.
"""

from __future__ import annotations

from typing import Any

from .basis import is_sequence
from .budget import Budget
from .checks import as_integer
from .composed import ComposedLayout
from .errors import LayoutTypeError, LayoutValueError, inexact, shortly, text, whole
from .f2_linear import bit_columns, is_linear_below
from .f2_span import Columns, Span, apply_columns
from .int_tuple import IntTuple, flatten, product, unflatten
from .layout import Layout, as_like, make
from .like import values_of
from .normal import Arithmetic, arithmetic, from_leaves, merge, simplified
from .protocol import xor
from .swizzle import Swizzle
from .values_at_once import values_at_once
from .xor import F2


def to_f2(layout: Any) -> Columns:
    """Return the matrix of a layout over F2: column i is the offset of position ``1 << i``.

    ``layout`` is a layout, a composed layout (of a swizzle), a tensor or a Swizzle. Columns are
    the bases of Triton's linear layouts (Zhou et al., *Linear Layouts*, 2025).

    Raises :class:`LayoutValueError` if it is not linear, with two positions whose XOR shows it.

    >>> to_f2(Layout((4, 2), (2, 1)))
    (2, 4, 1)
    >>> to_f2(ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 2))))
    (1, 2, 5)
    """
    if not isinstance(layout, Swizzle):
        layout = values_of(as_like("to_f2", layout))
        layout = layout if isinstance(layout, Layout | ComposedLayout) else layout.layout
    size = whole("to_f2", layout.size())
    if size & (size - 1):
        raise LayoutValueError(f"to_f2: the size {size} of {layout} is not a power of two")
    columns = _columns(layout)
    if columns is not None:
        return columns
    first = layout(0)
    if not isinstance(first, int):
        raise LayoutTypeError(f"to_f2: {layout} gives {first}, not integers")
    found = tuple([int(layout(1 << i)) for i in range(size.bit_length() - 1)])
    for x, y in _pairs(layout, found, size):
        at = layout(x ^ y)
        if at != apply_columns(found, x ^ y):
            inexact(
                "to_f2",
                (layout,),
                f"it is not linear: at {x} ^ {y} it is {at}, the XOR {layout(x) ^ layout(y)}",
                witness=(x, y),
                exact=at,
            )
    return found


def _columns(layout: Any) -> Columns | None:
    """Return the columns if the kind of layout shows that it is linear; None otherwise."""
    if isinstance(layout, Swizzle):
        return tuple([layout(1 << i) for i in range(layout.size().bit_length() - 1)])
    if isinstance(layout, ComposedLayout):
        inner = _columns(layout.inner)
        if inner is None or type(layout.offset) is not int or layout.offset:
            return None
        outer, reach = layout.outer, 0
        for column in inner:
            reach |= column
        if isinstance(outer, Swizzle) or (
            isinstance(outer, Layout) and _adds(outer) and is_linear_below(outer, reach)
        ):
            return tuple([int(outer(column)) for column in inner])
        return None
    if isinstance(layout, Layout) and _adds(layout):
        if any(s & (s - 1) for s, _ in layout._leaves):
            return None
        leaves = bit_columns(simplified(layout))
        return None if leaves is None else tuple([c for leaf in leaves for c in leaf])
    return None


def _adds(layout: Layout) -> bool:
    return arithmetic(layout) in (Arithmetic.INTEGER, Arithmetic.XOR)


def _pairs(layout: Any, columns: Columns, size: int) -> Any:
    """Yield pairs of positions: of bits first, where integers show their carries, then the rest.

    If all values are known at once, the rest is only the first position that is not linear.
    """
    yield 0, 0
    bits = [1 << i for i in range(size.bit_length() - 1)]
    for i, x in enumerate(bits):
        for y in bits[:i]:
            yield x, y
    values = values_at_once(layout)
    rest: Any = range(1, size)
    if values is not None and min(columns, default=0) >= 0:
        shape = (2,) * len(columns)
        linear = values_at_once(make(shape, tuple(map(F2, columns))))
        at = None if linear is None else values.first_difference(linear)
        rest = () if at is None else (at,)
    budget = Budget("to_f2", (layout,))
    for i in rest:
        budget.spend(4)
        yield i & -i, i & (i - 1)


def from_f2(columns: Any, shape: IntTuple = None) -> Layout:
    """Return the layout of a matrix over F2, given its columns; ``shape`` is one mode by default.

    Strides are integers if sums cannot carry, else :class:`F2`. Raises :class:`LayoutValueError`
    if the shape is not made of powers of two with that many bits.

    >>> print(from_f2((1, 2, 4)), from_f2((1, 2, 5), (4, 2)), from_f2((2, 4, 1)))
    8:1 (4,2):(f1,f5) (4,2):(2,1)
    """
    if not is_sequence(columns):
        raise LayoutTypeError(f"from_f2: expected a sequence of columns, got {shortly(columns)}")
    columns = tuple([_integer(c) for c in columns])
    if shape is None:
        shape = 1 << len(columns)
    if product(shape) != 1 << len(columns) or any(s & (s - 1) for s in flatten(shape)):
        raise LayoutValueError(
            f"from_f2: expected powers of two with the product 2^{len(columns)}, as there are "
            f"{len(columns)} columns, got the shape {text(shape)}"
        )
    taken = 0
    carry_free = True
    for column in columns:
        carry_free = carry_free and not taken & column
        taken |= column
    rest = list(columns)
    shapes: list[Any] = []
    strides: list[Any] = []
    for extent in flatten(shape):
        bits = int(extent).bit_length() - 1
        s, d = _leaf_of(rest[:bits], F2 if not carry_free else int)
        shapes.append(s)
        strides.append(d)
        rest = rest[bits:]
    return make(unflatten(iter(shapes), shape), unflatten(iter(strides), shape))


def f2_layout(layout: Any) -> Layout:
    """Turn a composed layout of a swizzle, or a Swizzle, into a plain layout with XOR strides.

    >>> print(f2_layout(ComposedLayout(Swizzle(3, 0, 3), 0, Layout((8, 8)))))
    (8,8):(f1,f9)
    """
    if isinstance(layout, Swizzle):
        return from_f2(to_f2(layout), layout.size())
    layout = as_like("f2_layout", layout)
    return from_f2(to_f2(layout), layout.shape)


def _integer(column: Any) -> int:
    found = as_integer(column)
    if not isinstance(found, int) or found < 0:
        raise LayoutTypeError(f"from_f2: the column {column!r} is not an integer >= 0")
    return int(found)


def _leaf_of(columns: list[int], kind: Any) -> tuple[IntTuple, IntTuple]:
    """Group columns into modes: a mode continues while each column is twice the one before."""
    modes: list[tuple[int, int]] = []
    for column in columns:
        if modes and column == modes[-1][1] * modes[-1][0]:
            modes[-1] = (2 * modes[-1][0], modes[-1][1])
        else:
            modes.append((2, column))
    if not modes:
        return 1, kind(0)
    if len(modes) == 1:
        return modes[0][0], kind(modes[0][1])
    return tuple([s for s, _ in modes]), tuple([kind(d) for _, d in modes])


def as_f2(layout: Layout) -> Layout:
    """Turn integer strides into F2 strides, as the operands have some.

    Each leaf must give the same values by XOR.
    """
    if arithmetic(layout) is Arithmetic.XOR:
        return layout
    strides = iter([F2(_column_of(d)) for _, d in layout._leaves])
    return make(layout.shape, unflatten(strides, layout.shape))


def span_of(a: Layout) -> Span:
    """Return the span of the values of an XOR layout, with extents rounded up to powers of two.

    Rounding keeps which values differ: the differences of coordinates below 3, for example, are
    all numbers below 4.
    """
    return Span(tuple([c for leaf in bit_columns(a) or [] for c in leaf]))


def is_bitwise(a: Layout) -> bool:
    """Tell if the bits of a position are the bits of its coordinates.

    All extents but the last are powers of two, not counting extents of 1.
    """
    extents = [s for s, _ in a._leaves if s != 1]
    return all(s & (s - 1) == 0 for s in extents[:-1])


def integer_strides(a: Layout) -> Layout | None:
    """Turn an XOR layout into one of integers if no sum carries; None otherwise."""
    strides = [_column_of(d) for _, d in a._leaves]
    same = make(a.shape, unflatten(iter(strides), a.shape))
    return same if bit_columns(same) is not None else None


def _column_of(d: Any) -> int:
    """Return the bits of an XOR stride, or of a plain 0 among them."""
    return int(d.value) if isinstance(d, F2) else int(d)


def right_inverse_f2(a: Layout) -> Layout:
    """Return the longest R with ``a(R(k)) == k``, solved bit by bit of k."""
    span = span_of(a)
    columns: list[int] = []
    while True:
        value, used = span.reduced(1 << len(columns))
        if value:
            break
        columns.append(used)
    size = 1
    for s, _ in a._leaves:
        size *= s
    return as_f2(_shortened(columns, size))


def _shortened(columns: list[int], size: int) -> Layout:
    """Return the layout of the columns, cut where its values stop being below ``size``."""
    layout = from_f2(tuple(columns))
    reach = 0
    for column in columns:
        reach |= column
    if reach < size:
        return layout
    if not size:
        raise LayoutValueError("right_inverse: a layout without coordinates has no inverse")
    good = first_reaching(columns, size)
    leaves: list[tuple[int, int]] = []
    for s, d in layout._leaves:
        s = min(s, good)
        good //= s
        leaves.append((s, _column_of(d)))
        if s < layout._leaves[len(leaves) - 1][0]:
            break
    return from_leaves([(s, F2(d)) for s, d in leaves])


def first_reaching(columns: list[int], bound: int) -> int:
    """Return the first choice of columns whose XOR reaches ``bound``; one past all if none does.

    >>> first_reaching([1, 2, 5], 5), first_reaching([1, 2], 4)
    (4, 4)
    """

    if Span(tuple(columns)).largest(0) < bound:
        return 1 << len(columns)
    choice = base = 0
    for i in reversed(range(len(columns))):
        if Span(tuple(columns[:i])).largest(base) < bound:  # out of reach without this column
            choice, base = choice | 1 << i, base ^ columns[i]
    return choice


def left_inverse_f2(a: Layout) -> Layout:
    """Return the L with ``L(a(i)) == i``, which is 0 on a complement of the image."""
    span = refuse_clashing_bits(a)
    width = max((row.bit_length() for row, _ in span.rows.values()), default=0)
    result = [0] * width  # bits that lead no row of the span are free
    for lead in sorted(span.rows):
        row, used = span.rows[lead]
        result[lead - 1] = used ^ apply_columns(tuple(result), row)  # its own bit is still 0
    return as_f2(from_f2(result))


def left_inverse_of_coordinates(a: Layout) -> ComposedLayout:
    """Return the left inverse of XOR strides for any extents: to bits, then to positions.

    The bits of the coordinates are linear in the bits of the offset, but their positions are not if
    extents are not powers of two.

    >>> print(left_inverse_of_coordinates(Layout((6, 3), (F2(1), F2(9)))))
    (8,4):(1,6) o 0 o (8,4):(f1,f9)
    """
    extents = [1 << (s - 1).bit_length() for s, _ in a._leaves]
    bits = left_inverse_f2(make(tuple(extents), tuple([d for _, d in a._leaves])))
    places, place = [], 1
    for s, _ in a._leaves:
        places.append(place)
        place *= s
    positions = from_leaves(merge(list(zip(extents, places, strict=True))))
    return ComposedLayout(positions, 0, bits)


def refuse_clashing_bits(a: Layout) -> Span:
    """Return the span of an XOR layout; raise if two positions have the same offset."""
    span = span_of(a)
    still = _still(a)
    moving = [difference for difference in span.kernel if difference & ~still]
    if moving:
        i, j = _meeting(a, moving[0])
        why = f"its positions {i} and {j} have the same offset"
        inexact("left_inverse", (a,), why, witness=(i, j))
    return span


def _still(a: Layout) -> int:
    """Return the bits of coordinates that have a stride of 0."""
    found = at = 0
    for s, d in a._leaves:
        bits = (s - 1).bit_length()
        if not xor(d):
            found |= ((1 << bits) - 1) << at
        at += bits
    return found


def _meeting(a: Layout, difference: int) -> tuple[int, int]:
    """Return two positions whose coordinates differ by the bits of ``difference``."""
    i = j = 0
    place = 1
    for s, _ in a._leaves:
        bits = (s - 1).bit_length()
        part = difference & ((1 << bits) - 1)
        difference >>= bits
        low = part if part < s else 1 << (bits - 1)
        i, j = i + place * low, j + place * (low ^ part)
        place *= s
    return i, j


def nullspace_f2(a: Layout) -> Layout:
    """Return the kernel of the matrix."""
    return as_f2(from_f2(span_of(a).kernel))


def complement_f2(a: Layout, bound: int | None) -> Layout:
    """Return the bits below ``bound`` that lead no value of ``a``: with ``a`` they reach all once.

    Without a bound, a last mode ``1:d`` continues after them.
    """
    span = span_of(a)
    top = max((bound or 1) - 1, *[row for row, _ in span.rows.values()], 0).bit_length()
    found = as_f2(from_f2([1 << bit for bit in range(top) if bit + 1 not in span.rows]))
    if bound is not None:
        return found
    return from_leaves([*merge([*found._leaves]), (1, F2(1 << top))])
