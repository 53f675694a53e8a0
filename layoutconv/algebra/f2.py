"""Layouts that are linear over F2, the field of two elements: swizzles, Triton's linear layouts.

A function of the bits of a position is linear if XOR of positions gives XOR of values. It is then a
matrix over F2, kept here as its columns: the value of each bit, lowest first. A layout is one if
its extents are powers of two and its strides are :class:`F2`, or integers whose sums never carry.
"""

from __future__ import annotations

from typing import Any

from .coalesce import has_f2
from .errors import LayoutTypeError, LayoutValueError, inexact, text
from .int_tuple import IntTuple, flatten, idx2crd, product, unflatten
from .layout import Layout, make
from .stride import F2

Columns = tuple[int, ...]


def to_f2(layout: Any) -> Columns:
    """The matrix of a layout over F2: column i is the offset of position ``1 << i``.

    ``layout`` is a layout, a composed layout (of a swizzle) or a Swizzle. These are the bases of
    Triton's linear layouts (Zhou et al., *Linear Layouts*, 2025).

    Raises :class:`LayoutValueError` if it is not linear, with two positions whose XOR shows it.

    >>> to_f2(Layout((4, 2), (2, 1)))
    (2, 4, 1)
    >>> from .composed import ComposedLayout
    >>> from .swizzle import Swizzle
    >>> to_f2(ComposedLayout(Swizzle(1, 0, 2), 0, Layout((4, 2))))
    (1, 2, 5)
    """
    size = layout.size()
    if not isinstance(size, int) or size & (size - 1):
        raise LayoutValueError(f"to_f2: the size {size} of {layout} is not a power of two")
    columns = tuple([int(layout(1 << i)) for i in range(size.bit_length() - 1)])
    if isinstance(layout, Layout) and is_linear(layout):
        return columns
    for i in range(size):  # a composed layout: nothing is known of its outer map
        value = apply_columns(columns, i)
        if layout(i) != value:
            low = i & -i
            inexact(
                "to_f2",
                (layout,),
                f"it is not linear: at {low} ^ {i ^ low} it is {layout(i)}, the XOR {value}",
                witness=(low, i ^ low),
                exact=layout(i),
            )
    return columns


def from_f2(columns: Any, shape: IntTuple = None) -> Layout:
    """The layout of a matrix over F2, its columns given; on ``shape``, by default all of it.

    Strides are integers where sums cannot carry, else :class:`F2`. Raises
    :class:`LayoutValueError` if the shape is not made of powers of two with that many bits.

    >>> print(from_f2((1, 2, 4)), from_f2((1, 2, 5), (4, 2)), from_f2((2, 4, 1)))
    8:1 (4,2):(f1,f5) (4,2):(2,1)
    """
    columns = tuple([int(c) for c in columns])
    if shape is None:
        shape = 1 << len(columns)
    if product(shape) != 1 << len(columns) or any(s & (s - 1) for s in flatten(shape)):
        raise LayoutValueError(
            f"from_f2: {text(shape)} is not made of the {len(columns)} bits of the matrix"
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
    """A composed layout of a swizzle, or a Swizzle, as a plain layout with XOR strides.

    >>> from .composed import ComposedLayout
    >>> from .swizzle import Swizzle
    >>> print(f2_layout(ComposedLayout(Swizzle(3, 0, 3), 0, Layout((8, 8)))))
    (8,8):(f1,f9)
    """
    shape = layout.shape if hasattr(layout, "shape") else layout.size()
    return from_f2(to_f2(layout), shape)


def apply_columns(columns: Columns, x: int) -> int:
    """The matrix times the bits of x."""
    result = 0
    for i, column in enumerate(columns):
        if x >> i & 1:
            result ^= column
    return result


def _leaf_of(columns: list[int], kind: Any) -> tuple[IntTuple, IntTuple]:
    """Consecutive columns as modes: a mode goes on while each column is twice the one before."""
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


def is_linear(layout: Layout) -> bool:
    """Whether a layout is linear by the look of it: powers of two, and XOR or no carries."""
    taken = 0
    kinds = set()
    for s, d in layout._leaves:
        if not isinstance(s, int) or s & (s - 1):
            return False
        if isinstance(d, int):
            if d < 0:
                return False
            for bit in range(s.bit_length() - 1):
                if taken & d << bit:
                    return False
                taken |= d << bit
        kinds.add(isinstance(d, F2))
    return len(kinds) == 1


def compose_f2(a: Layout, b: Layout) -> Layout:
    """Composition where a side has F2 strides: the strides are forced, then all is verified.

    By bits where both sides are linear; else each leaf of b is split where its function leaves the
    multiples of its first value, as far as its divisors allow, and every coordinate is compared.
    """
    if is_linear(b) and _linear_up_to(a, b):
        columns = [int(a(int(b(1 << i)))) for i in range(b.size().bit_length() - 1)]
        return _as_f2(from_f2(columns, b.shape))
    extents = [s for s, _ in b._leaves]
    best = []
    for i, s in enumerate(extents):
        crd = [0] * len(extents)
        values = []
        for x in range(s):
            crd[i] = x
            values.append(int(a(_plain(b(unflatten(iter(crd), b.shape))))))
        best.append(_factored(values))
    shapes = [tuple(s for s, _ in m) if len(m) > 1 else m[0][0] for m in best]
    strides = [tuple(d for _, d in m) if len(m) > 1 else m[0][1] for m in best]
    result = make(unflatten(iter(shapes), b.shape), unflatten(iter(strides), b.shape))
    for i in range(b.size()):
        crd_b = idx2crd(i, b.shape)
        exact = int(a(_plain(b(crd_b))))
        if result(crd_b) != exact:
            inexact(
                "composition",
                (a, b),
                f"at {text(crd_b)} the function is {exact}, the XOR over modes {result(crd_b)}",
                witness=crd_b,
                exact=exact,
                best=result,
            )
    return result


def _plain(x: Any) -> Any:
    return x if isinstance(x, tuple) else int(x)


def _linear_up_to(a: Layout, b: Layout) -> bool:
    """Whether ``a`` is linear on all values of ``b``, which may exceed its last extent."""
    reach = 0
    for i in range(b.size().bit_length() - 1):
        value = b(1 << i)
        if not isinstance(value, int):
            return False
        reach |= value
    extents = [s for s, _ in a._leaves]
    if not extents:
        return True
    place = 1
    for s in extents[:-1]:
        place *= s
    last = max(extents[-1], 1 << (reach // place).bit_length())
    leaves = [*a._leaves[:-1], (last, a._leaves[-1][1])]
    return is_linear(make(tuple([s for s, _ in leaves]), tuple([d for _, d in leaves])))


def _as_f2(layout: Layout) -> Layout:
    """Integer strides as F2 strides: the operands had some, so the result keeps to them."""
    if has_f2(layout):
        return layout
    strides = iter([F2(d) for _, d in layout._leaves])
    return make(layout.shape, unflatten(strides, layout.shape))


def _factored(values: list[int]) -> list[tuple[int, F2]]:
    """Modes with F2 strides for a table, if there are any; one mode of its first step otherwise."""

    def search(step: int) -> list[tuple[int, F2]] | None:
        """Modes for the table from place ``step`` on."""
        rest = len(values) // step
        if rest == 1:
            return []
        stride = F2(values[step])
        for extent in range(rest, 1, -1):
            if rest % extent or any(int(x * stride) != values[x * step] for x in range(extent)):
                continue
            outer = search(step * extent)
            if outer is not None and _matches(values, step, [(extent, stride), *outer]):
                return [(extent, stride), *outer]
        return None

    if len(values) == 1:
        return [(1, F2(0))]
    return search(1) or [(len(values), F2(values[1]))]


def _matches(values: list[int], step: int, modes: list[tuple[int, F2]]) -> bool:
    for x in range(len(values) // step):
        total, rest = 0, x
        for extent, stride in modes:
            total ^= int(rest % extent * stride)
            rest //= extent
        if total != values[x * step]:
            return False
    return True


class _Span:
    """The values that XORs of some columns reach, and which columns reach each of them."""

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
        """``value`` less what the span holds of it, and the columns that make up that part."""
        used = 0
        for lead in sorted(self.rows, reverse=True):
            if value.bit_length() == lead:
                row, columns = self.rows[lead]
                value ^= row
                used ^= columns
        return value, used


def _linear_columns(name: str, a: Layout) -> Columns:
    if not is_linear(a):
        raise LayoutTypeError(f"{name}: {a} is not linear over F2 (extents not powers of two?)")
    return to_f2(a)


def right_inverse_f2(a: Layout) -> Layout:
    """The longest R with ``a(R(k)) == k``: solve for bit after bit of k."""
    span = _Span(_linear_columns("right_inverse", a))
    columns: list[int] = []
    while True:
        value, used = span.reduced(1 << len(columns))
        if value:
            return _as_f2(from_f2(columns))
        columns.append(used)


def left_inverse_f2(a: Layout) -> Layout:
    """The L with ``L(a(i)) == i``, 0 on a complement of the image."""
    columns = _linear_columns("left_inverse", a)
    span = _Span(columns)
    if span.kernel:
        inexact(
            "left_inverse",
            (a,),
            f"its positions 0 and {span.kernel[0]} have the same offset",
            witness=(0, span.kernel[0]),
        )
    width = max((c.bit_length() for c in columns), default=0)
    result = [0] * width  # bits that lead no row of the span are free
    for lead in sorted(span.rows):
        row, used = span.rows[lead]
        result[lead - 1] = used ^ apply_columns(tuple(result), row)  # its own bit is still 0
    return _as_f2(from_f2(result))


def nullspace_f2(a: Layout) -> Layout:
    """The kernel of the matrix."""
    return _as_f2(from_f2(_Span(_linear_columns("nullspace", a)).kernel))


def complement_f2(a: Layout, bound: int) -> Layout:
    """The bits below ``bound`` that lead no value of ``a``: together they reach each once."""
    columns = _linear_columns("complement", a)
    span = _Span(columns)
    top = max([bound - 1, *columns], default=0).bit_length()
    return _as_f2(from_f2([1 << bit for bit in range(top) if bit + 1 not in span.rows]))
