"""Properties of a layout's offsets: injective, surjective, contiguous, aligned."""

from __future__ import annotations

from math import gcd
from typing import Any

from .budget import MARKS, SET, Budget
from .checks import as_integer
from .composed import ComposedLayout
from .errors import (
    LayoutBudgetError,
    LayoutTypeError,
    LayoutValueError,
    whole,
    wrong_argument,
)
from .extent import cosize, extremes
from .f2 import f2_layout, span_of
from .fold import folded, separated
from .inverse_composed import gives_integers, lengthened
from .layout import Layout, as_like
from .like import is_empty, is_symbolic, values_of
from .lookups import counted, known_values
from .normal import (
    Arithmetic,
    arithmetic,
    by_stride,
    filtered,
    from_leaves,
    normal_form,
    require_known,
    simplified,
)
from .packing import Packing
from .plane_values import planes_of_bytes
from .protocol import divisor, terms
from .reached import block_of_leaves, values_apart, values_of_image
from .relations import known
from .stride import finished
from .sums import Mode, collision, interval, within
from .swizzle import Swizzle
from .symbols import Symbolic, same
from .value_tables import all_values, steps_of
from .values_at_once import values_at_once
from .xor import F2
from .xor_image import MASK_BITS, XorImage, common_block, mask_of_sums

_LOOKS = 32  # values at which to check if a run begins or ends


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
    if by_bits and isinstance(x.inner, Layout) and _is_matrix(x.inner):
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
    if bound is None and _swizzles_integers(a) and is_injective(a.inner):
        return bool(cosize(a) == a.size())
    values: set[int] = values_of_image("is_surjective", a)
    if bound is not None:
        return len(values) >= bound and set(range(bound)) <= values
    return len(values) == max(values) - min(values) + 1


def _is_matrix(a: Layout) -> bool:
    """Tell if a layout is a matrix over F2: XOR strides, and extents that are powers of two."""
    return arithmetic(a) is Arithmetic.XOR and all(s & (s - 1) == 0 for s, _ in a._leaves)


def _covers_by_xor(a: Layout, bound: int | None) -> bool:
    rows = span_of(a).rows
    if _is_matrix(a):
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


def _swizzles_integers(a: Any) -> bool:
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


def contiguity(layout: Any) -> Any:
    """Return the number of leading coordinates with consecutive offsets.

    >>> contiguity(Layout((4, 8), (1, 4))), contiguity(Layout((4, 8), (8, 1)))
    (32, 1)
    """
    a = asked("contiguity", layout)
    if is_empty(a):
        return 0
    plain = folded(a)
    if plain is not None:
        return _run(plain[0])
    start = 1
    if _swizzles_integers(a) and type(a.offset) is int:
        start, moved = _run(a.inner), _swizzled_run(a.outer, a.offset)
        if moved < start:
            return moved
    values = values_at_once(a)
    if values is not None:
        return counted(values, a(0))
    budget = Budget("contiguity", (layout,))
    n, size, first, price = start, whole("contiguity", a.size()), a(0), steps_of(a)
    while n < size and a(n) == first + n:
        budget.spend(price)
        n += 1
    return n


def _run(layout: Layout) -> Any:
    """Return the length of a layout's first run: each leaf continues where those before it end."""
    by_xor = arithmetic(layout) is Arithmetic.XOR
    budget = Budget("contiguity", (layout,))
    run: Any = 1
    for s, d in layout._leaves:
        if type(s) is int and s == 1:
            continue
        found = None if by_xor else terms(d)
        if found is not None:
            if len(found) != 1 or found[0][0] != () or found[0][1] != run:
                if s == 1:
                    continue
                return _number(run)
            run = run * s
            continue
        ints = type(s) is int and type(run) is int and not by_xor
        values = known_values(d, s) if ints else None
        if values is not None:
            end = counted(values, values.at(0), run)
            run = run * end
            if end < values.count:
                return run
            continue
        first = finished(0 * d)
        for c in range(1, whole("contiguity", s)):
            budget.spend(2)
            moved = finished(c * d)
            if not isinstance(moved, int) or moved - first != c * run:
                return int(c * run)
            if by_xor and (c * run) & (run - 1):
                return int(c * run + min((c * run) & -(c * run), run))
            if by_xor and run & (run - 1) == 0 and d == F2(run):
                break  # a power of two, doubled by each bit: it never carries
        run = run * s
    return _number(run)


def _number(x: Any) -> Any:
    """Return a plain integer; an expression of symbols unchanged."""
    return x if isinstance(x, Symbolic) else int(x)


def _swizzled_run(swizzle: Swizzle, start: int) -> int:
    """Return the number of offsets from ``start`` on that a swizzle shifts by the same amount.

    The amount can change only where the bits that it reads or writes change.
    """
    mask = swizzle.mask
    if not mask:
        return 1 << 62
    move, at = swizzle.of_integers(), start
    moved = move(start) - start
    while True:
        read = at & mask
        written = (move(read) ^ read) if read else mask
        block = min(mask & -mask, written & -written)
        at = (at // block + 1) * block
        if move(at) - at != moved:
            return at - start


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
    if _is_matrix(layout):
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
