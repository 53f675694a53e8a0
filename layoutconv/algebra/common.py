"""Common runs of two layouts: how many elements one copy can move at once."""

from __future__ import annotations

from math import gcd, prod
from typing import Any

from .budget import Budget, one_operation
from .composed import ComposedLayout
from .composition import compose
from .errors import LayoutTypeError, LayoutValueError
from .fold import folded
from .inverse import is_identity, longest, right_inverse
from .inverse_composed import kept_below
from .inverse_table import identical, inside, right_inverse_of_table
from .layout import Layout, as_like
from .like import at_present, is_symbolic, symbolically
from .normal import Arithmetic, arithmetic, from_leaves, merge, normal_form
from .relations import known
from .swizzle import Swizzle
from .symbols import Symbolic
from .value_tables import steps_of


@one_operation()
def max_common_layout(a: Any, b: Any) -> Any:
    """Return the longest ``R`` along which both are the identity: ``a(R(i)) == i == b(R(i))``.

    One vectorised copy from a tensor of layout ``a`` to one of layout ``b`` can move that much. If
    a layout does not begin at 0, like a gather or one with an offset, its offsets count from where
    it begins. A swizzle moves blocks of ``1 << base``, which bound the result; so does an offset
    before it. If both have the same swizzle, the result undoes it. A tensor stands for its layout.
    CUTLASS: cute/layout.hpp.

    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (8, 1))))
    (8,4):(4,1)
    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1))))
    8:4
    >>> print(max_common_layout("S<3,3,3> o 0 o (8,64):(1,8)", (8, 64)))
    8:1
    >>> print(max_common_layout("S<1,1,1> o 0 o 8:1", "S<1,1,1> o 0 o 16:1"))
    8:1 o 0 o S<1,1,1> o 0 o 8:1
    """
    if type(a) is Layout and type(b) is Layout and a._plain and b._plain:
        return _common(a, b)
    (one, most), (two, limit) = _domain(a), _domain(b)
    found = symbolically(_common, one, two, name="max_common_layout")
    swizzle = _same_swizzle(a, b)
    if swizzle is not None and not is_symbolic(found):
        return _unswizzled(found, swizzle)
    both = gcd(most, limit)
    return found if not both else _truncated(found, both)


def _unswizzled(found: Layout, swizzle: Swizzle) -> Any:
    """Return a layout through the inverse swizzle, then ``found``, as far as both reach."""
    size = kept_below(swizzle, int(found.size()))
    lowest_source = swizzle.base + max(swizzle.shift, 0)
    if size <= 1 << lowest_source or not swizzle.bits:  # the swizzle moves nothing below
        plain = _truncated(found, size)
        if plain.size() == size:
            return plain
    return ComposedLayout(found, 0, ComposedLayout(swizzle, 0, Layout(size, 1)))


def max_common_vector(a: Any, b: Any) -> int:
    """Return the number of elements that a copy from ``a`` to ``b`` can move at once: the size of
    the common layout.

    >>> max_common_vector(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    8
    """
    size = max_common_layout(a, b).size()
    return size if isinstance(size, Symbolic) else int(size)  # type: ignore[return-value]


def _domain(x: Any) -> tuple[Any, int]:
    """Return the layout to compare, and the block that its outer maps keep whole; 0 if no limit."""
    x = as_like("max_common_layout", x)
    if not isinstance(x, Layout | ComposedLayout):
        return _domain(x.layout)
    if isinstance(x, Layout):
        return x, 0
    plain = folded(x)
    if plain is not None:
        return plain[0], 0
    if isinstance(x.outer, Swizzle) and isinstance(x.offset, int):
        inner, most = _domain(x.inner)
        if not x.outer.bits:
            return inner, most
        begin = x.inner(0)  # a gather may begin anywhere in a block
        begin = begin if isinstance(begin, int) else 0
        return inner, gcd(1 << x.outer.base, most, x.offset, begin)
    return x, 0


def _same_swizzle(a: Any, b: Any) -> Swizzle | None:
    """Return the swizzle that both end in, if equal, at offset 0, over layouts that begin at 0."""
    swizzle = _last_swizzle(a)
    return swizzle if swizzle is not None and swizzle == _last_swizzle(b) else None


def _last_swizzle(x: Any) -> Swizzle | None:
    x = as_like("max_common_layout", x)
    x = x if isinstance(x, Layout | ComposedLayout) else x.layout
    if not isinstance(x, ComposedLayout) or not isinstance(x.outer, Swizzle):
        return None
    plain = type(x.offset) is int and x.offset == 0 and known(x.inner(0) == 0)
    return x.outer if plain else None


def _common(a: Any, b: Any) -> Layout:
    """Return the common layout of two layouts without outer maps."""
    if is_symbolic(a) or is_symbolic(b):
        unknown = None
        if all(isinstance(x, Layout) and arithmetic(x) is Arithmetic.INTEGER for x in (a, b)):
            try:
                return _common_of_names(a, b)
            except LayoutValueError as error:
                unknown = error
        try:
            a, b = at_present("max_common_layout", a), at_present("max_common_layout", b)
        except LayoutValueError as error:
            raise unknown or error from None
    for x in (a, b):
        if isinstance(x, Layout) and arithmetic(x) is Arithmetic.COORDINATE:
            raise LayoutTypeError(f"max_common_layout: {x} gives coordinates, not offsets to move")
    inverse = _right_inverse(b)
    size = int(a.size())
    done: list[tuple[int, Any]] = []
    for extent, stride in inverse._leaves:
        low = _longest(a, done, stride, extent, size)
        if low > 1:
            done.append((low, stride))
        if low < extent:
            break
    return from_leaves(merge(done))


def _common_of_names(a: Layout, b: Layout) -> Layout:
    """Return the common layout for symbols: the part of the inverse of b that ``a`` undoes."""
    done: list[tuple[Any, Any]] = []
    length: Any = 1
    for extent, stride in right_inverse(b)._leaves:
        candidate = from_leaves([*done, (extent, stride)])
        last = sum([(s - 1) * d for s, d in candidate._leaves])
        if last >= a.size():
            raise LayoutValueError(
                f"it is unknown if {candidate} stays within the positions of {a}"
            )
        form = normal_form(compose(a, candidate))
        if form and form[0][1] != 1:
            break
        if len(form) > 1:
            done.append((form[0][0] // length, stride))
            break
        done.append((extent, stride))
        length = length * extent
    return from_leaves(merge(done))


def _right_inverse(b: Any) -> Layout:
    if isinstance(b, Layout) and arithmetic(b) is not Arithmetic.OPAQUE:
        return right_inverse(b)  # type: ignore[no-any-return]
    return right_inverse_of_table("max_common_layout", b, relative=True)


def _longest(a: Any, done: list[tuple[int, Any]], stride: Any, most: Any, size: int) -> Any:
    if isinstance(a, Layout) and arithmetic(a) is not Arithmetic.OPAQUE:
        if type(most) is int and not is_symbolic(stride):
            return longest(a, done, stride, most, size)
        candidate = from_leaves([*done, (most, stride)])
        return most if is_identity(a, candidate) else 1
    first = a(0)
    prefix = prod([s for s, _ in done])
    found = identical(a, from_leaves([*done, (min(most, inside(done, stride, size)), stride)]))
    if found is not None:
        return max(1, found // prefix)
    low, high = 1, int(most)
    budget, price = Budget("max_common_layout", (a,)), 2 + steps_of(a)
    while low < high:
        middle = (low + high + 1) // 2
        candidate = from_leaves([*done, (middle, stride)])
        reach = sum((s - 1) * int(d) for s, d in candidate._leaves)
        budget.spend(price)
        if reach < size and _counts(a, first, candidate, budget, price):
            low = middle
        else:
            high = middle - 1
    return low


def _counts(a: Any, first: Any, candidate: Layout, budget: Budget, price: int) -> bool:
    """Tell if ``a`` counts up from ``first`` along a layout of positions."""
    for i in range(int(candidate.size())):
        budget.spend(price)
        if a(candidate(i)) - first != i:
            return False
    return True


def _truncated(found: Layout, block: int) -> Layout:
    """Return the first ``block`` elements of a layout, or as many as a layout can hold."""
    if found.size() <= block:
        return found
    taken: list[tuple[Any, Any]] = []
    for extent, stride in found._leaves:  # whole modes, then part of one
        if extent > block:
            taken.append((block, stride))
            break
        taken.append((extent, stride))
        block //= extent
    return from_leaves(merge(taken))
