"""Properties of a layout's offsets: injective, surjective."""

from __future__ import annotations

from typing import Any

from .budget import Budget
from .checks import as_integer
from .composed import ComposedLayout
from .errors import (
    LayoutBudgetError,
    LayoutTypeError,
    wrong_argument,
)
from .extent import cosize, extremes
from .f2 import f2_layout, span_of
from .fold import folded, separated
from .inverse_composed import gives_integers, lengthened
from .layout import Layout, as_like
from .like import is_empty, is_symbolic, values_of
from .normal import (
    Arithmetic,
    arithmetic,
    by_stride,
    filtered,
    from_leaves,
    require_known,
    simplified,
)
from .packing import Packing
from .reached import values_apart, values_of_image
from .relations import known
from .sums import Mode, collision, interval, within
from .swizzle import Swizzle
from .symbols import same
from .value_tables import all_values
from .values_at_once import values_at_once
from .xor_image import MASK_BITS, XorImage


def asked(name: str, x: Any) -> Any:
    """Return a layout or composed layout to analyse, at the present values of symbols."""
    x = as_like(name, x)
    if not isinstance(x, Layout | ComposedLayout):
        x = x.layout
    if isinstance(x, Layout):
        if x._plain:
            return x
        x = values_of(x)
        require_known(name, x)
        return simplified(x)
    x = values_of(x)
    by_bits = isinstance(x.outer, Swizzle) and type(x.offset) is int and x.offset == 0
    if by_bits and isinstance(x.inner, Layout) and is_xor_matrix(x.inner):
        return f2_layout(x)  # the product of two matrices over F2 is one
    return x


def _modes(layout: Layout) -> list[Mode]:
    """Return the leaves, with each stride packed into an integer."""
    if layout._plain:
        return layout._leaves
    packing = Packing([d for _, d in layout._leaves], 2 * int(layout.size()))
    return [(int(s), packing.pack(d)) for s, d in layout._leaves]


def is_injective(layout: Any) -> bool:
    """Tell if no two coordinates share an offset.

    >>> is_injective(Layout((4, 8), (1, 5))), is_injective(Layout((4, 8), (1, 3)))
    (True, False)
    """
    a = asked("is_injective", layout)
    if is_empty(a):
        return True
    plain = folded(a) or separated(a)
    if plain is not None:
        return _is_injective(plain[0])
    if isinstance(a.outer, Swizzle) and isinstance(a.inner, Layout | ComposedLayout):
        return is_injective(a.inner)
    if isinstance(a.outer, Layout) and type(a.offset) is int and gives_integers(a.inner):
        low, high = extremes(a.inner)
        known_outer = low + a.offset >= 0 and arithmetic(a.outer) is Arithmetic.INTEGER
        if known_outer and is_injective(lengthened(a.outer, high + a.offset)):
            return is_injective(a.inner)
    found = values_at_once(a)
    if found is not None:
        return found.differ(Budget("is_injective", (layout,)))
    values = all_values("is_injective", a)
    return len(set(values)) == len(values)


def _is_injective(layout: Layout) -> bool:
    kind = arithmetic(layout)
    if kind is Arithmetic.XOR:
        return not span_of(layout).kernel
    budget = Budget("is_injective", (layout,))
    if kind is Arithmetic.OPAQUE:
        if any(type(d) is int and d == 0 and s > 1 for s, d in layout._leaves):
            return False
        return values_apart(layout, budget)
    if is_symbolic(layout):
        return _is_injective_by_order(layout)
    try:
        return collision(_modes(layout), budget) is None
    except LayoutBudgetError:
        found = values_at_once(layout)
        if found is None:
            raise
        return found.differ(Budget("is_injective", (layout,)))


def _is_injective_by_order(layout: Layout) -> bool:
    """Decide for symbols: yes if each stride provably exceeds the reach of all smaller ones."""
    if arithmetic(layout) is not Arithmetic.INTEGER:
        raise LayoutTypeError(f"is_injective: the coordinates that {layout} gives have no values")
    reach: Any = 0
    moving = [(s, abs(d)) for s, d in layout._leaves if not (type(s) is int and s == 1)]
    for s, d in by_stride(moving):
        if known(d == 0) and known(s > 1):
            return False
        if not known(d > reach) and not d > reach:
            raise LayoutTypeError(f"is_injective: cannot be decided for the symbols in {layout}")
        reach = reach + (s - 1) * d
    return True


def is_surjective(layout: Any, bound: int | None = None) -> bool:
    """Tell if the offsets include every integer from smallest to largest, or all below ``bound``.

    >>> is_surjective(Layout((4, 2), (2, 1))), is_surjective(Layout((4, 2), (1, 8)))
    (True, False)
    >>> is_surjective(Layout((4, 2), (1, 8)), 4)
    True
    """
    a = asked("is_surjective", layout)
    if bound is not None and as_integer(bound) is None:
        raise wrong_argument("is_surjective", "bound", "an int", bound)
    if is_empty(a):
        return bound is None or bound <= 0
    plain = folded(a)
    if plain is not None and arithmetic(plain[0]) is Arithmetic.INTEGER:
        return _covers(plain[0], plain[1], bound)
    if isinstance(a, Layout) and arithmetic(a) is Arithmetic.COORDINATE:
        raise LayoutTypeError(f"is_surjective: {layout} gives coordinates; pass their shape")
    if isinstance(a, Layout) and arithmetic(a) is Arithmetic.XOR:
        return _covers_by_xor(a, bound)
    found = values_at_once(a)
    if found is not None:
        low, high = (0, bound - 1) if bound is not None else found.extremes()
        budget = Budget("is_surjective", (layout,))
        if found.count == high - low + 1 and bound is None:
            return found.differ(budget)
        return found.count > high - low and found.cover(range(low, high + 1), budget)
    if bound is None and swizzles_integers(a) and is_injective(a.inner):
        return bool(cosize(a) == a.size())
    values: set[int] = values_of_image("is_surjective", a)
    if bound is not None:
        return len(values) >= bound and set(range(bound)) <= values
    return len(values) == max(values) - min(values) + 1


def is_xor_matrix(a: Layout) -> bool:
    """Tell if a layout is a matrix over F2: XOR strides, and extents that are powers of two."""
    return arithmetic(a) is Arithmetic.XOR and all(s & (s - 1) == 0 for s, _ in a._leaves)


def _covers_by_xor(a: Layout, bound: int | None) -> bool:
    rows = span_of(a).rows
    if is_xor_matrix(a):
        top = max(rows, default=0) if bound is None else max(bound - 1, 0).bit_length()
        return all(bit in rows for bit in range(1, top + 1))
    count = max(0, int(cosize(a)) if bound is None else bound)
    if count > a.size() or not all(
        bit in rows for bit in range(1, max(0, count - 1).bit_length() + 1)
    ):
        return False
    image = XorImage(a)
    if image.bits <= MASK_BITS:
        wanted = (1 << count) - 1
        return image.mask() & wanted == wanted
    return len({v for v in values_of_image("is_surjective", a) if v < count}) == count


def swizzles_integers(a: Any) -> bool:
    return (
        isinstance(a, ComposedLayout) and isinstance(a.outer, Swizzle) and gives_integers(a.inner)
    )


def _covers(layout: Layout, constant: Any, bound: int | None) -> bool:
    modes = [(s, abs(d)) for s, d in layout._leaves]
    if not all(type(x) is int for mode in modes for x in mode):
        return _covers_of_names(layout, constant, bound)
    reach = interval(modes)
    largest: int = sum((s - 1) * d for s, d in modes)
    if bound is None:
        return reach == largest + 1
    start = -constant - sum((s - 1) * d for s, d in layout._leaves if d < 0)
    if bound < 1:
        return True
    if start < 0 or start + bound > largest + 1:
        return False
    if start + bound <= reach or largest - start < reach:  # the set of sums is symmetric
        return True
    if start <= reach < start + bound or start <= largest - reach < start + bound:
        return False  # no sum has that value
    budget = Budget("is_surjective", (layout, bound))
    budget.spend(bound)
    return len(set(within(start, start + bound - 1, modes, budget))) == bound


def _covers_of_names(layout: Layout, constant: Any, bound: Any) -> bool:
    """Decide for symbols, if offsets are distinct apart from modes of stride 0."""
    moving = from_leaves(filtered(layout))
    if is_injective(moving) and (bound is None or same(bound, moving.size())):
        lowest = constant + sum([(s - 1) * d for s, d in moving._leaves if d < 0])
        return bool(cosize(moving) == moving.size()) and (bound is None or bool(lowest == 0))
    raise LayoutTypeError(f"is_surjective: cannot be decided for the symbols in {layout}")
