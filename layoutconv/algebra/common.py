"""Runs that two layouts have in common: how much one copy can move at once."""

from __future__ import annotations

from math import gcd
from typing import Any

from .composed import ComposedLayout
from .composition import at_present, compose
from .errors import LayoutTypeError, LayoutValueError
from .fold import folded
from .inverse import is_identity, longest, right_inverse
from .inverse_table import right_inverse_of_table
from .layout import Layout, as_like
from .like import is_symbolic, symbolically
from .normal import Arithmetic, arithmetic, from_leaves, merge, normal_form
from .swizzle import Swizzle
from .symbols import Symbolic


def max_common_layout(a: Any, b: Any) -> Any:
    """The longest ``R`` along which both are the identity: ``a(R(i)) == i == b(R(i))``.

    What one vectorised copy from a tensor of layout ``a`` to one of layout ``b`` can move. A layout
    that does not begin at 0, such as a gather or one with an offset, is counted from where it
    begins. A swizzle moves blocks of ``1 << base``, which bound the result, and with it an offset
    in front of it; two tensors stand for their layouts. CUTLASS: cute/layout.hpp.

    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (8, 1))))
    (8,4):(4,1)
    >>> print(max_common_layout(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1))))
    8:4
    >>> print(max_common_layout("S<3,3,3> o 0 o (8,64):(1,8)", (8, 64)))
    8:1
    """
    if type(a) is Layout and type(b) is Layout and a._plain and b._plain:
        return _common(a, b)
    (one, most), (two, limit) = _domain(a), _domain(b)
    both = None if _same_swizzle(a, b) else gcd(most, limit)
    found = symbolically(_common, one, two, name="max_common_layout")
    return found if not both else _truncated(found, both)


def max_common_vector(a: Any, b: Any) -> int:
    """How many elements a copy from ``a`` to ``b`` can move at once: the size of the common layout.

    >>> max_common_vector(Layout((4, 8), (8, 1)), Layout((4, 8), (16, 1)))
    8
    """
    size = max_common_layout(a, b).size()
    return size if isinstance(size, Symbolic) else int(size)  # type: ignore[return-value]


def _domain(x: Any) -> tuple[Any, int]:
    """The layout to compare, and the block that what comes after it keeps together; 0 for all."""
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
        begin = x.inner(0)  # of a gather, anywhere in a block
        begin = begin if isinstance(begin, int) else 0
        return inner, gcd(1 << x.outer.base, most, x.offset, begin)
    return x, 0


def _same_swizzle(a: Any, b: Any) -> bool:
    """Tell if both end in one swizzle of offset 0: then what it moves it moves alike."""
    one, two = (as_like("max_common_layout", x) for x in (a, b))
    if not isinstance(one, ComposedLayout) or not isinstance(two, ComposedLayout):
        return False
    return isinstance(one.outer, Swizzle) and (one.outer, 0, 0) == (
        two.outer,
        one.offset,
        two.offset,
    )


def _common(a: Any, b: Any) -> Layout:
    """The common layout of two layouts that nothing comes after."""
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
            raise LayoutTypeError(f"max_common_layout: {x} gives coordinates, no offsets to move")
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
    """The same of layouts with names: as much of the inverse of b as ``a`` undoes."""
    done: list[tuple[Any, Any]] = []
    length: Any = 1
    for extent, stride in right_inverse(b)._leaves:
        candidate = from_leaves([*done, (extent, stride)])
        last = sum([(s - 1) * d for s, d in candidate._leaves])
        if last >= a.size():
            raise LayoutValueError(f"not decided: {candidate} leaves the positions of {a}")
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
    low, high = 1, int(most)
    while low < high:
        middle = (low + high + 1) // 2
        candidate = from_leaves([*done, (middle, stride)])
        reach = sum((s - 1) * int(d) for s, d in candidate._leaves)
        if reach < size and all(a(candidate(i)) - first == i for i in range(int(candidate.size()))):
            low = middle
        else:
            high = middle - 1
    return low


def _truncated(found: Layout, block: int) -> Layout:
    """The first ``block`` elements of a layout, or as many as its modes allow to take."""
    if found.size() <= block:
        return found
    try:
        result = found.compose(block)
    except LayoutValueError:
        return from_leaves([])
    return result if isinstance(result, Layout) else from_leaves([])
