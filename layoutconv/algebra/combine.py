"""Combine two layouts over one domain: their common refinement, and their sum."""

from __future__ import annotations

from math import gcd, lcm
from typing import Any

from .budget import Budget
from .carry import Carry, carries_of, clash, split
from .errors import LayoutTypeError, LayoutValueError, inexact
from .f2_compose import xor_modes
from .f2_linear import bit_columns
from .int_tuple import IntTuple, flatten, idx2crd, shape_of, unflatten
from .layout import Layout, Leaf, as_layout, make
from .like import at_present, is_symbolic, present, symbolically
from .normal import (
    Arithmetic,
    arithmetic,
    by_stride,
    from_leaves,
    merge,
    normal_form,
    require_known,
    simplified,
    starts_at_zero,
)
from .packing import Packing
from .protocol import is_zero, plus, scale
from .relations import known
from .symbols import same
from .values_at_once import values_at_once
from .xor import F2


def greatest_common_domain(a: Any, b: Any) -> Layout:
    """Return the factors that two shapes share at the same place: their extents and places.

    A leaf's place is the product of the leaves before it. Two leaves, one of each shape, share the
    digits from the common multiple of their places on; the result has a mode for each pair that
    shares any, or is ``(1):(0)``. The sizes may differ. Composing any layout of either shape with
    the result gives a layout. NVlabs/CuTe: ``greatest_common_domain``.

    Raises :class:`LayoutValueError` for symbols if it is unknown whether one divides the other.

    >>> print(greatest_common_domain((5, 3, 4), (10, 6)), greatest_common_domain((5, 3), (3, 5)))
    (5,2):(1,30) (1):(0)
    >>> print(greatest_common_domain("(H,W)", "(H,8)"))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: greatest_common_domain((H,W), (H,8)): it is \
unknown if W % 8 == 0; where it holds, say so: assuming(W % 8 == 0)
    """
    a, b = (Layout(shape_of("greatest_common_domain", x)).shape for x in (a, b))
    return symbolically(_shared_factors, a, b, name="greatest_common_domain")  # type: ignore[no-any-return]


def _shared_factors(a: IntTuple, b: IntTuple) -> Layout:
    found = []
    for p, s in _placed_leaves(a):
        for q, t in _placed_leaves(b):
            start = _least_common_multiple(p, q)
            before, after = start // p, start // q
            if known(before >= s) or known(after >= t) or s % before != 0 or t % after != 0:
                continue
            shared = _greatest_common_divisor(s // before, t // after)
            if type(shared) is not int or shared > 1:
                found.append((start, shared))
    found = by_stride(found, key=0)
    return make(tuple([s for _, s in found]) or (1,), tuple([d for d, _ in found]) or (0,))


def _least_common_multiple(p: Any, q: Any) -> Any:
    multiple = _multiple(p, q)
    return lcm(present(p), present(q)) if multiple is None else multiple


def _greatest_common_divisor(p: Any, q: Any) -> Any:
    multiple = _multiple(p, q)
    if multiple is None:
        return gcd(present(p), present(q))
    return q if same(multiple, p) else p


def _multiple(p: Any, q: Any) -> Any:
    """Return the one of two integers that is a multiple of the other; None if neither is."""
    ways = ((p, q), (q, p)) if type(q) is int else ((q, p), (p, q))
    proved = next((large for large, small in ways if known(large % small == 0)), None)
    if proved is not None or (type(p) is int and type(q) is int):
        return proved
    return next((large for large, small in ways if large % small == 0), None)


def _placed_leaves(shape: IntTuple) -> list[tuple[Any, Any]]:
    """Return the leaves of a shape other than 1, each with its place."""
    result = []
    place: Any = 1
    for extent in flatten(shape):
        if not (type(extent) is int and extent == 1):
            result.append((place, extent))
        place = place * extent
    return result


def layout_add(a: Any, b: Any) -> Layout:
    """Return the layout ``R`` with ``R(i) == a(i) + b(i)`` for every position i; sizes are equal.

    If the shapes are equal, the strides add; otherwise the result is coalesced. XOR strides add by
    XOR.

    Raises :class:`LayoutValueError` if the sum is not a layout, with a position as ``witness``, and
    :class:`LayoutTypeError` if the strides do not add up.

    >>> print(layout_add(Layout((4, 6), (1, 4)), Layout((8, 3), (2, 0))))
    (8,3):(3,8)
    """
    a, b = as_layout("layout_add", a), as_layout("layout_add", b)
    result: Layout = symbolically(_layout_add, a, b)
    return result


def _layout_add(a: Layout, b: Layout) -> Layout:
    require_known("layout_add", a, b)
    if a.size() != b.size():
        raise LayoutValueError(f"layout_add: {a} has {a.size()} elements, but {b} has {b.size()}")
    if known_same(a.shape, b.shape):
        sums = [_plus(a, b, x, y) for (_, x), (_, y) in zip(a._leaves, b._leaves, strict=True)]
        return Layout(a.shape, unflatten(iter(sums), a.shape))
    if is_symbolic(a) or is_symbolic(b):
        cut = _refined(a, b)
        if cut is None:
            return _layout_add(at_present("layout_add", a), at_present("layout_add", b))
        return from_leaves(merge([(s, _plus(a, b, x, y)) for s, x, y in cut]))
    kinds = {arithmetic(a), arithmetic(b)}
    if kinds <= {Arithmetic.INTEGER, Arithmetic.COORDINATE}:
        if len(kinds) > 1:
            _refuse_other_values(a, b)
        return _exactly(simplified(a), simplified(b))
    cut = _refined(a, b)
    if cut is not None:
        return from_leaves(merge([(s, _plus(a, b, x, y)) for s, x, y in cut]))
    if kinds <= {Arithmetic.INTEGER, Arithmetic.XOR}:
        return _by_table(a, b)
    raise LayoutValueError(f"layout_add: {a} and {b} have no common refinement of their modes")


def _refuse_other_values(a: Layout, b: Layout) -> None:
    """Refuse the sum of integers and coordinates, unless the integers are zeros."""
    whole = a if arithmetic(a) is Arithmetic.INTEGER else b
    d = next((d for s, d in whole._leaves if not (s == 1 or is_zero(d))), 0)
    if not is_zero(d):
        other = b if whole is a else a
        raise LayoutTypeError(f"layout_add: the stride {d} of {whole} cannot be added to {other}")


def known_same(a: IntTuple, b: IntTuple) -> bool:
    """Tell if two shapes are known to be the same."""
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(known_same, a, b))
    return not isinstance(a, tuple) and not isinstance(b, tuple) and known(a == b)


def _plus(a: Layout, b: Layout, x: Any, y: Any) -> Any:
    total = plus(x, y)
    if total is None:
        raise LayoutTypeError(f"layout_add: the strides {x} of {a} and {y} of {b} cannot be added")
    return total


def _refined(a: Layout, b: Layout) -> list[tuple[Any, Any, Any]] | None:
    """Cut both layouts at each other's modes: extents with a stride of each; None if impossible."""
    left, right = list(a._leaves)[::-1], list(b._leaves)[::-1]
    result = []
    while left and right:
        (s, d), (t, e) = left.pop(), right.pop()
        if type(s) is not int or type(t) is not int:
            if not known(s == t):
                return None
            result.append((s, d, e))
            continue
        short, long = min(s, t), max(s, t)
        if long % short:
            return None
        result.append((short, d, e))
        if s != t:
            rest = scale(short, d if s > t else e)
            if rest is None:
                return None
            (left if s > t else right).append((long // short, rest))
    ones: list[Leaf] = [*left, *right]
    fine = all(type(s) is int and s == 1 and starts_at_zero(d) for s, d in ones)
    return result if fine else None


def _by_table(a: Layout, b: Layout) -> Layout:
    """Add by XOR if extents do not divide: strides are forced, then compared at every position."""
    size = int(a.size())
    if not {Arithmetic.XOR} >= {arithmetic(x) for x in (a, b) if any(x._leaves) and not _zero(x)}:
        raise LayoutTypeError(f"layout_add: {a} and {b} cannot be added: make both F2, or neither")
    budget = Budget("layout_add", (a, b))
    one, two = values_at_once(a), values_at_once(b)
    if one is None or two is None:
        budget.give_up()
    values = one.xor(two)
    modes = xor_modes(values, budget)
    if modes is not None:
        return from_leaves([(s, F2(d)) for s, d in modes])
    best = make(size, F2(values.at(1)))
    others = values_at_once(best)
    at = None if others is None else values.first_difference(others)
    if at is None:
        budget.give_up()
    exact = values.at(at)
    why = f"at {at} the sum is {exact}, the best layout {best(at)}"
    inexact("layout_add", (a, b), why, witness=at, exact=exact, best=best)


def _zero(a: Layout) -> bool:
    return not any(c for leaf in bit_columns(simplified(a)) or [[1]] for c in leaf)


def _exactly(a: Layout, b: Layout) -> Layout:
    """Add layouts of integers or coordinates by their carries."""
    budget = Budget("layout_add", (a, b))
    size = int(a.size())
    packing = Packing([d for _, d in [*a._leaves, *b._leaves]], 4 * size * size)
    forms = [[(int(s), packing.pack(d)) for s, d in normal_form(x)] for x in (a, b)]
    carries = _summed([*carries_of(forms[0]), *carries_of(forms[1])])
    parts = split(carries, (1,), size, budget)
    best = from_leaves([(s, packing.unpack(_at(forms, step[0]))) for s, step in parts.modes])
    witness = parts.broken_at
    if witness is None:
        digits = clash(carries, parts.modes, budget)
        if digits is None:
            return best
        witness = sum(x * step[0] for x, (_, step) in zip(digits, parts.modes, strict=True))
    exact = plus(a(witness), b(witness))
    inexact(
        "layout_add",
        (a, b),
        f"at {witness} the sum is {exact}, the best layout {best(idx2crd(witness, best.shape))}",
        witness=witness,
        exact=exact,
        best=best,
    )


def _summed(carries: list[Carry]) -> list[Carry]:
    weights: dict[int, int] = {}
    for _, place, weight in carries:
        weights[place] = weights.get(place, 0) + weight
    return [Carry(0, place, weight) for place, weight in sorted(weights.items()) if weight]


def _at(forms: list[list[tuple[int, int]]], n: int) -> int:
    total = 0
    for form in forms:
        rest = n
        for extent, stride in form[:-1]:
            total += rest % extent * stride
            rest //= extent
        if form:
            total += rest * form[-1][1]
    return total
