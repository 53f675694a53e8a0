"""The widest aligned vectors that the offsets of a layout fill."""

from __future__ import annotations

from math import gcd
from typing import Any

from .analysis import asked, is_xor_matrix
from .budget import MARKS, SET, Budget
from .composed import ComposedLayout
from .errors import (
    LayoutValueError,
)
from .f2 import span_of
from .fold import folded
from .layout import Layout, as_like
from .like import is_symbolic
from .normal import (
    Arithmetic,
    arithmetic,
    by_stride,
    normal_form,
    simplified,
)
from .plane_values import planes_of_bytes
from .protocol import divisor
from .reached import block_of_leaves, values_of_image
from .relations import known
from .sums import interval, within
from .swizzle import Swizzle
from .values_at_once import values_at_once
from .xor_image import MASK_BITS, XorImage, common_block, mask_of_sums

_LOOKS = 32  # values at which to check if a run begins or ends


def vector_width(layout: Any, limit: int | None = None) -> int:
    """Return the largest n such that the offsets fill aligned blocks of n consecutive ones.

    The order of coordinates does not matter, so n is the widest possible load or store, in
    elements, for a base that is aligned to it. A swizzle keeps blocks of ``1 << base``; an offset
    must be a multiple of the width. For symbols, the width holds for all their values. ``limit``
    bounds the answer. CUTLASS: ``max_alignment``.

    >>> vector_width(Layout((4, 8), (8, 1))), vector_width(Layout((4, 6), (10, 1)))
    (32, 2)
    >>> vector_width(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    8
    """
    like = as_like("vector_width", layout)
    width = _width(asked("vector_width", layout))
    offset = getattr(like, "offset", 0) if not isinstance(like, ComposedLayout) else 0
    if isinstance(offset, int):
        width = gcd(width, offset)
    if limit is not None and width > _at_least_one("vector_width", limit):
        budget = Budget("vector_width", (layout, limit))
        if limit <= budget.steps:
            return next(n for n in range(limit, 0, -1) if width % n == 0)
        parts = -(-width // limit)  # the smallest number of parts that are short enough
        while width % parts:
            budget.spend()
            parts += 1
        width //= parts
    return width


def _at_least_one(name: str, limit: Any) -> int:
    if type(limit) is not int or limit < 1:
        raise LayoutValueError(f"{name}: expected a limit >= 1, got {limit!r}")
    return limit


def _width(a: Any) -> int:
    if isinstance(a, Layout):
        return _aligned_block(a)
    plain = folded(a)
    if plain is not None:
        return gcd(_aligned_block(plain[0]), plain[1]) if isinstance(plain[1], int) else 1
    width = _width(a.inner) if isinstance(a.inner, Layout | ComposedLayout) else 1
    if isinstance(a.offset, int) and isinstance(a.outer, Swizzle):
        width = gcd(width, a.offset)
        return gcd(width, 1 << a.outer.base) if a.outer.bits else width
    if isinstance(a.outer, Layout) and isinstance(a.offset, int):
        outer = simplified(a.outer)
        form = normal_form(outer) if arithmetic(outer) is Arithmetic.INTEGER else []
        if not form or form[0][1] != 1:
            return 1
        ends = [form[0][0]] if len(form) > 1 else []
        return gcd(width, a.offset, *ends, *[d for _, d in form[1:]])
    return 1


def _aligned_block(layout: Layout) -> int:
    layout = simplified(layout)
    kind = arithmetic(layout)
    if kind is Arithmetic.COORDINATE:
        return 1
    if is_xor_matrix(layout):
        span = span_of(layout)
        width = 1
        while span.reduced(width)[0] == 0:
            width *= 2
        return width
    if kind is Arithmetic.XOR:
        return _block_of_xors(layout)
    if kind is not Arithmetic.INTEGER:
        return _block_of_values(layout, block_of_leaves(layout))
    if is_symbolic(layout):
        return 1 if not any(known(d == 1) for _, d in layout._leaves) else _symbolic_block(layout)
    return _block_of_sums(layout)


def _block_of_xors(layout: Layout) -> int:
    """Return the block of XOR strides: a bound from their bits, refined by runs if needed."""
    image = XorImage(layout)
    block = image.block()
    if image.first(block, Budget("vector_width", (layout,))) is None:
        return block  # the first run ends there
    if image.bits <= MASK_BITS:
        return common_block(image.mask(), block)
    return _block_of_values(layout, block)


def _block_of_values(layout: Layout, block: int) -> int:
    """Return the block of a set of values, which ``block`` is known to divide and usually equals.

    Therefore it first looks at the ends of some runs, and at all values only if needed.
    """
    values = values_at_once(layout)
    if values is not None:
        low, high = values.extremes()
        found = gcd(low, high + 1)
        corners, place = [0], 1  # most runs end where coordinates do
        for s, _ in layout._leaves:
            corners += [i + (s - 1) * place for i in corners] if s > 1 else []
            place *= s
        for i in corners[:_LOOKS]:
            v = values.at(i)
            found = gcd(found, v if values.place_of(v - 1) is None else 0)
            found = gcd(found, v + 1 if values.place_of(v + 1) is None else 0)
            if found == block:
                return block
        if high - low < MARKS:
            marks = values.marks(range(low, high + 1))
            return common_block(planes_of_bytes(marks)[0], block, low)
        if values.count > SET // 2:
            Budget("vector_width", (layout,)).give_up()
    image = values_of_image("vector_width", layout)
    found = 0
    for v in image:
        if not isinstance(v, int):
            return 1
        found = gcd(found, 0 if v - 1 in image else v, 0 if v + 1 in image else v + 1)
        if found == block:
            break
    return found


def _symbolic_block(layout: Layout) -> int:
    """Return a width that holds for all symbols: integer strides, and divisors of the others."""
    block, others = 1, []
    for s, d in by_stride([leaf for leaf in layout._leaves if not known(leaf[1] == 0)]):
        if known(d == block) and type(s) is int:
            block *= s
        else:
            others.append(divisor(d) if type(d) is int else _known_factor(d))
    return gcd(block, *others)


def _known_factor(d: Any) -> int:
    return gcd(*[c for _, c in d.terms])


def _block_of_sums(layout: Layout) -> int:
    """Return the common divisor of the starts and lengths of all runs of offsets.

    The first run is known; with the larger strides it gives a divisor of all runs. Further runs are
    enumerated from the first on until the bounds meet.
    """
    modes = [(s, abs(d)) for s, d in layout._leaves if d and s > 1]
    first = interval(modes)
    base = sum((s - 1) * d for s, d in layout._leaves if d < 0)
    rest: list[int] = []
    reach = 1
    for d, s in sorted((d, s) for s, d in modes):
        if d <= reach and not rest:
            reach += (s - 1) * d
        else:
            rest.append(d)
    low, high = gcd(first, base, *rest), gcd(first, base)
    total = sum((s - 1) * d for s, d in modes)
    if low != high and not total >> MASK_BITS:
        return gcd(base, common_block(mask_of_sums(modes), low))
    budget = Budget("vector_width", (layout,))
    window = 2 * max(rest, default=0) + 2 * first
    while low != high:
        sums = sorted(set(within(0, min(window, total), modes, budget)))
        high = gcd(base, _common(sums, whole=window >= total))
        if window >= total:
            return high
        window *= 4
    return low


def _common(values: list[int], *, whole: bool = True) -> int:
    """Return the common divisor of the starts and lengths of the runs in sorted integers."""
    starts = [v for i, v in enumerate(values) if i == 0 or values[i - 1] != v - 1]
    ends = [v + 1 for i, v in enumerate(values) if i + 1 == len(values) or values[i + 1] != v + 1]
    if not whole:
        ends = ends[:-1]
    return gcd(*starts, *ends)
