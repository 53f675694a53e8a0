"""Arithmetic of shapes and coordinates by CuTe's names: ceil_div, shape_div, elem_less, dice.

A layout or a tensor may stand for its shape. CUTLASS: cute/int_tuple.hpp.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import gcd
from typing import Any

from .arrays import is_array
from .basis import Coordinate, ScaledBasis
from .checks import as_integer
from .coalesce import coalesce
from .complement import complement
from .errors import LayoutTypeError, LayoutValueError, inexact, text, whole, wrong_argument
from .int_tuple import (
    IntTuple,
    flatten,
    has_none,
    idx2crd,
    map_leaves,
    product,
    refuse_other_profile,
    shape_of,
)
from .late import late
from .layout import Layout, carried, make
from .like import LayoutLike
from .numbers import expect_numbers
from .protocol import is_stride
from .relations import Relation, known
from .symbols import ceil_div as _ceil_div


def ceil_div(a: Any, b: Any) -> IntTuple:
    """Divide ``a`` by ``b`` leaf by leaf, rounding up; entries of ``a`` without one of ``b`` stay.

    Where ``b`` is a layout, or has one as a mode, the result is the shape of its tiles in that part
    of ``a``: of the second mode of :func:`zipped_divide`.

    >>> ceil_div((9, 10, 7), (4, 4)), ceil_div(9, 4), ceil_div((9, (4, 6)), (4, 8))
    ((3, 3, 7), 3, (3, 3))
    >>> ceil_div((128, 64), (Layout(8, 2), 32)), ceil_div(128, Layout(8, 3))
    (((2, 8), 2), (3, 6))
    """
    return _by_leaf("ceil_div", _tiles, shape_of("ceil_div", a), _tiler_of("ceil_div", b))


def _tiler_of(name: str, b: Any) -> Any:
    """Return a divisor: a layout as it is, and the shape that anything else stands for."""
    if isinstance(b, str):
        b = late("parse")(b)
    return b if isinstance(b, LayoutLike) else shape_of(name, b)


def _tiles(extent: Any, b: Any) -> IntTuple:
    """Return the shape of the tiles ``b`` that cover an extent."""
    return complement(b, extent).shape if isinstance(b, LayoutLike) else _ceil_div(extent, b)


def round_up(a: Any, b: Any) -> IntTuple:
    """Round ``a`` up to multiples of ``b``, leaf by leaf.

    >>> round_up((9, 10), (4, 4)), round_up(9, 4)
    ((12, 12), 12)
    """
    return _by_leaf(
        "round_up", lambda x, y: _ceil_div(x, y) * y, shape_of("round_up", a), shape_of("", b)
    )


def _by_leaf(name: str, fn: Any, a: IntTuple, b: IntTuple) -> IntTuple:
    if isinstance(a, tuple) and isinstance(b, tuple):
        if len(b) > len(a):
            raise LayoutTypeError(f"{name}: {text(b)} has more entries than {text(a)}")
        done = [_by_leaf(name, fn, x, y) for x, y in zip(a, b, strict=False)]
        return (*done, *a[len(b) :])
    if isinstance(b, tuple):
        raise LayoutTypeError(f"{name}: {text(b)} is nested, {text(a)} is not")
    if not isinstance(b, LayoutLike) and not known(b > 0):
        raise LayoutValueError(f"{name}: expected a divisor >= 1, got {text(b)}")
    return fn(product(a), b)


def shape_div(a: Any, b: Any) -> IntTuple:
    """Divide the extents of ``a`` by ``b``, so that one element stands for ``b`` elements of ``a``.

    An integer ``b`` is divided out of the leaves from the first on: a leaf that it exceeds becomes
    1, and the rest of ``b`` goes to the next.

    Raises :class:`LayoutValueError` if neither a leaf nor its divisor divides the other.

    >>> shape_div((12, 4), (4, 8)), shape_div((4, 6), 8), shape_div(12, (2, 3))
    ((3, 1), (1, 3), 2)
    """
    if type(a) is int and type(b) is int and a and b:
        if a % b == 0:
            return a // b
        if b % a == 0:
            return 1
    a, b = shape_of("shape_div", a), shape_of("shape_div", b)
    if isinstance(a, tuple):
        if isinstance(b, tuple):
            if len(a) != len(b):
                raise LayoutTypeError(f"shape_div: {text(a)} and {text(b)} differ in rank")
            return tuple([shape_div(x, y) for x, y in zip(a, b, strict=True)])
        result = []
        for x in a:
            result.append(shape_div(x, b))
            b = shape_div(b, product(x))
        return tuple(result)
    b = product(b)
    if any(type(x) is int and x < 1 for x in (a, b)):
        raise LayoutValueError(f"shape_div: expected extents >= 1, got {a} and {b}")
    if known(a % b == 0):
        return a // b
    if known(b % a == 0):
        return 1
    any((a % b == 0, b % a == 0))  # symbols may be undecided, which raises another error
    raise LayoutValueError(f"shape_div: neither of {text(a)} and {text(b)} divides the other")


def evenly_divides(a: Any, b: Any) -> bool:
    """Tell if each leaf of ``b`` divides the size of the matching entry of ``a``.

    A layout in ``b`` divides an entry if its tiles cover the entry exactly, so that
    :func:`logical_divide` has the entry's size. An integer ``a`` is a shape of one mode.

    >>> evenly_divides((12, (4, 2)), (4, 8)), evenly_divides((12, 8), (5, 8))
    (True, False)
    >>> evenly_divides(32, Layout(8, 2)), evenly_divides(32, Layout(8, 3))
    (True, False)
    """
    a, b = shape_of("evenly_divides", a), _tiler_of("evenly_divides", b)
    if isinstance(b, LayoutLike):
        try:
            return bool(product(a) == b.size() * product(_tiles(product(a), b)))
        except LayoutValueError:  # tiles that overlap
            return False
    if isinstance(b, tuple):
        modes = a if isinstance(a, tuple) else (a,)
        return len(b) <= len(modes) and all(map(evenly_divides, modes, b))
    if isinstance(b, int) and not b:
        raise LayoutValueError(f"evenly_divides: 0 does not divide {text(a)}")
    return bool(product(a) % b == 0)


def elem_scale(a: Any, b: Any) -> IntTuple:
    """Multiply each leaf of ``a`` by the size of the matching entry of ``b``.

    >>> elem_scale((2, 3), (4, (5, 6)))
    (8, 90)
    """
    a, b = shape_of("elem_scale", a), shape_of("elem_scale", b)
    if not isinstance(a, tuple):
        return a * product(b)
    if not isinstance(b, tuple) or len(a) != len(b):
        raise LayoutTypeError(f"elem_scale: {text(a)} and {text(b)} differ in rank")
    return tuple([elem_scale(x, y) for x, y in zip(a, b, strict=True)])


def inner_product(a: IntTuple, b: IntTuple) -> Any:
    """Return the sum of the products of matching leaves of congruent tuples.

    Raises :class:`LayoutTypeError` if the profiles differ.

    >>> inner_product((1, (2, 3)), (4, (5, 6)))
    32
    """
    a, b = shape_of("inner_product", a), shape_of("inner_product", b)
    refuse_other_profile("inner_product", a, b)
    refuse_other_profile("inner_product", b, a)
    terms = flatten(map_leaves(_product, a, b))
    result: Any = terms[0] if terms else 0
    for term in terms[1:]:
        result = result + term
    return result


def _product(x: Any, y: Any) -> Any:
    if is_array(x) or is_array(y):
        raise LayoutTypeError("inner_product: expected integers; crd2idx and layouts take arrays")
    return x * y


def prefix_product(a: Any, init: Any = 1) -> IntTuple:
    """Return for each leaf the product of all leaves before it: compact, the first mode fastest.

    Products start from ``init``; a tuple ``init`` has a start for each mode.

    >>> prefix_product((3, (2, 4)))
    (1, (3, 6))
    >>> prefix_product(((2, 3), (4, 5)), (1, 100))
    ((1, 2), (100, 400))
    """
    return _running("prefix_product", shape_of("prefix_product", a), init, forwards=True)


def suffix_product(a: Any, init: Any = 1) -> IntTuple:
    """Return for each leaf the product of all leaves after it: compact, the last mode fastest.

    ``init`` is as for :func:`prefix_product`.

    >>> suffix_product((3, (2, 4)))
    (8, (4, 1))
    """
    return _running("suffix_product", shape_of("suffix_product", a), init, forwards=False)


compact_col_major = prefix_product
compact_row_major = suffix_product


def _running(name: str, shape: IntTuple, init: Any, *, forwards: bool) -> IntTuple:
    if type(init) is tuple:
        if not isinstance(shape, tuple) or len(init) != len(shape):
            raise LayoutTypeError(f"{name}: {text(init)} does not fit the shape {text(shape)}")
        return tuple([_running(name, s, i, forwards=forwards) for s, i in zip(shape, init)])  # noqa: B905
    current = init if is_stride(init) else as_integer(init)
    if current is None:
        raise LayoutTypeError(
            f"{name}: expected an integer or a stride to begin with, got {init!r}"
        )

    def walked(part: IntTuple) -> IntTuple:
        nonlocal current
        if not isinstance(part, tuple):
            before, current = current, current * part
            return before
        done = [walked(p) for p in (part if forwards else part[::-1])]
        return tuple(done if forwards else done[::-1])

    return walked(shape)


def dice(crd: IntTuple, x: Any) -> Any:
    """Return the entries of a tuple, or the modes of a layout, at which ``crd`` is not None.

    :func:`slice_` drops these: all of ``x`` for an integer, nothing for None. Raises
    :class:`LayoutTypeError` if the operands are swapped or their profiles differ.

    >>> dice((None, 1, (1, None)), (4, 5, (6, 7))), str(dice((None, 1), Layout((4, 8), (8, 1))))
    ((5, 6), '(8):(1)')
    >>> dice(None, (4, 5)), str(dice(None, Layout((4, 8)))), str(dice(1, Layout((4, 8))))
    ((), '():()', '(4,8):(1,4)')
    """
    if isinstance(x, LayoutLike) and not isinstance(crd, LayoutLike):
        if crd is not None and not isinstance(crd, tuple):
            _diced(crd, ())
            return x
        if not isinstance(x, Layout):
            return x.on_domain(lambda inner: dice(crd, inner))
        return carried(make(_diced(crd, x.shape), _diced(crd, x.stride)), x)
    found = shape_of("dice", x)
    if isinstance(crd, LayoutLike) or has_none(found):
        raise LayoutTypeError(f"dice: the coordinate comes first, then the entries: {text(found)}")
    diced = _diced(crd, found)
    return diced if crd is None or isinstance(crd, tuple) else found


def _diced(crd: IntTuple, found: IntTuple) -> tuple[Any, ...]:
    if crd is None:
        return ()
    if not isinstance(crd, tuple):
        if type(crd) is not int:
            expect_numbers("dice", "crd", crd)
        return (found,)
    if not isinstance(found, tuple) or len(crd) != len(found):
        raise LayoutTypeError(f"dice: {text(crd)} does not have the profile of {text(found)}")
    return tuple([entry for c, s in zip(crd, found, strict=True) for entry in _diced(c, s)])


def coordinates(shape: Any) -> Iterator[IntTuple]:
    """Iterate over the coordinates of a shape in colexicographic order, the first mode fastest.

    >>> list(coordinates((2, (2, 1))))
    [(0, (0, 0)), (1, (0, 0)), (0, (1, 0)), (1, (1, 0))]
    """
    found = shape_of("coordinates", shape)
    return (idx2crd(i, found) for i in range(whole("coordinates", product(found))))


def increment(crd: IntTuple, shape: Any) -> IntTuple:
    """Return the coordinate after ``crd``, the first mode fastest; the last leaf is unbounded.

    It equals ``idx2crd(crd2idx(crd, shape) + 1, shape)``, as in CuTe.

    >>> increment((3, 0), (4, 2)), increment((3, 1), (4, 2))
    ((0, 1), (0, 2))
    """
    found = shape_of("increment", shape)
    expect_numbers("increment", "crd", crd)
    digits = list(flatten(shape_of("increment", crd)))
    if any(is_stride(digit) or is_array(digit) for digit in digits):
        raise wrong_argument("increment", "crd", "an int or a tuple of them", crd)
    extents = flatten(found)
    if len(digits) != len(extents):
        raise LayoutTypeError(f"increment: {text(crd)} does not have the profile of {text(found)}")
    for i, s in enumerate(extents):
        digits[i] = digits[i] + 1
        if i + 1 == len(extents) or digits[i] < s:
            break
        digits[i] = 0
    left = iter(digits)
    return map_leaves(lambda _: next(left), found)


def elem_less(a: IntTuple, b: IntTuple) -> Any:
    """Tell if every leaf of ``a`` is below the matching entry of ``b``: a bounds check.

    >>> elem_less((3, (1, 2)), (4, (2, 3))), elem_less((3, 8), (4, 8))
    (True, False)
    """
    a, b = shape_of("elem_less", a), shape_of("elem_less", b)
    if not isinstance(a, tuple) and not isinstance(b, tuple):
        below = a < b
        return bool(below) if isinstance(below, Relation) else below
    if not isinstance(a, tuple) or not isinstance(b, tuple) or len(a) != len(b):
        raise LayoutTypeError(f"elem_less: {text(a)} and {text(b)} have different profiles")
    result: Any = True
    for x, y in zip(a, b, strict=True):
        result = elem_less(x, y) & result
    return result


def lex_less(a: IntTuple, b: IntTuple) -> bool:
    """Tell if ``a`` comes before ``b`` lexicographically: the first leaf is the most significant.

    >>> lex_less((1, 9), (2, 0)), lex_less((1, 9), (1, 9))
    (True, False)
    """
    return flatten(shape_of("lex_less", a)) < flatten(shape_of("lex_less", b))


def colex_less(a: IntTuple, b: IntTuple) -> bool:
    """Tell if ``a`` comes before ``b`` colexicographically, as in layouts: the last leaf decides.

    >>> colex_less((1, 9), (2, 0)), colex_less((2, 0), (1, 9))
    (False, True)
    """
    if isinstance(a, Coordinate):
        before: bool = a < b
        return before
    if isinstance(b, Coordinate):
        after: bool = b > a
        return after
    a, b = shape_of("colex_less", a), shape_of("colex_less", b)
    return flatten(a)[::-1] < flatten(b)[::-1]


def domain_distribute(x: Any, count: int) -> Layout:
    """Take ``count`` elements of a shape, first modes first, as the layout of their positions.

    It is a tiler. Each mode contributes the factor that it shares with the rest of ``count``; if
    factors are missing, there are fewer elements. C++: ``domain_distribute(layout, Int<6>{})``.

    >>> print(domain_distribute((15, 14), 6), domain_distribute((4, 8), 8))
    (3,2):(1,15) 8:1
    """
    extents, sizes = flatten(shape_of("domain_distribute", x)), []
    if (count := whole("domain_distribute", count)) < 1:
        raise LayoutValueError(f"domain_distribute: expected a count of at least 1, got {count}")
    for extent in extents:
        sizes.append(gcd(whole("domain_distribute", extent), count))
        count //= sizes[-1]
    distributed: Layout = coalesce(make(tuple(sizes), prefix_product(extents)))
    return distributed


def weakly_congruent(a: Any, b: Any) -> bool:
    """Tell if ``b`` is nested like ``a`` or deeper: coordinates like ``a`` then fit a shape ``b``.

    A shorter arithmetic tuple and a scaled basis are padded with zeros.

    >>> weakly_congruent((4, 8), (4, (2, 4))), weakly_congruent((4, (2, 4)), (4, 8))
    (True, False)
    """
    a, b = shape_of("weakly_congruent", a), shape_of("weakly_congruent", b)
    a = a.as_tuple() if isinstance(a, ScaledBasis) else a
    if not isinstance(a, tuple):
        return True
    if not isinstance(b, tuple) or len(a) > len(b) or (type(a) is tuple and len(a) < len(b)):
        return False
    return all(weakly_congruent(x, y) for x, y in zip(a, b))  # noqa: B905


def common_refinement(a: Any, b: Any) -> IntTuple:
    """Return the coarsest shape that refines both: coordinates of either are coordinates of it.

    It is the join under :func:`compatible`. Raises :class:`LayoutValueError` if there is none.

    >>> common_refinement(((2, 3), 20), (6, (4, 5))), common_refinement(30, (2, 15))
    (((2, 3), (4, 5)), (2, 15))
    """
    a, b = shape_of("common_refinement", a), shape_of("common_refinement", b)
    if isinstance(a, tuple) and isinstance(b, tuple) and len(a) == len(b):
        return tuple([common_refinement(x, y) for x, y in zip(a, b, strict=True)])
    nested = (isinstance(a, tuple), isinstance(b, tuple))
    if nested == (True, True) or not known(product(a) == product(b)):
        why = "no shape has the coordinates of both"
        inexact("common_refinement", (text(a), text(b)), why, witness=(product(a), product(b)))
    return b if nested[1] else a


def common_coarsening(a: Any, b: Any) -> IntTuple:
    """Return the finest shape that both refine: its coordinates are coordinates of either.

    It is the meet under :func:`compatible`. Raises :class:`LayoutValueError` if sizes differ.

    >>> common_coarsening((4, (3, 5)), ((2, 2), 15)), common_coarsening((2, 3), (3, 2))
    ((4, 15), 6)
    """
    a, b = shape_of("common_coarsening", a), shape_of("common_coarsening", b)
    if not known(product(a) == product(b)):
        why = "the sizes differ"
        inexact("common_coarsening", (text(a), text(b)), why, witness=(product(a), product(b)))
    if not isinstance(a, tuple) or not isinstance(b, tuple) or len(a) != len(b):
        return product(a)
    pairs = list(zip(a, b, strict=True))
    if not all(known(product(x) == product(y)) for x, y in pairs):
        return product(a)
    return tuple([common_coarsening(x, y) for x, y in pairs])
