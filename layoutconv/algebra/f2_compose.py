"""Composition where a side adds by XOR.

Three ways, from the general to the slow. By bits: where both sides are linear in the bits of their
coordinates the result is, and its columns are those of the product of two matrices. By digits:
where no mode of ``b`` leaves its digit of ``a`` and no sum carries, each mode is scaled by itself.
By table: the strides are forced, and every coordinate is compared.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any

from .budget import EVALUATIONS, Budget
from .errors import LayoutTypeError, inexact, text
from .f2_span import Span
from .int_tuple import idx2crd, unflatten
from .layout import Layout, make
from .normal import Arithmetic, arithmetic, merge, simplified
from .protocol import xor
from .xor import F2, carryless

_SAMPLE = 64  # coordinates all over the domain
_STRIDE = 0x9E3779B97F4A7C15  # that lie apart
Columns = list[int]  # the value of each bit of a coordinate
Mode = tuple[int, int]  # an extent and the value of a stride


def compose_f2(a: Layout, b: Layout, operation: str, operands: tuple[Any, ...]) -> Layout:
    """The layout of ``a(b(c))``, of XOR strides if one is, else of integers; or an error.

    >>> from layoutconv.algebra import composition
    >>> print(composition(Layout((8, 8), (F2(1), F2(9))), Layout((4, 4), (2, 16))))
    (4,4):(f2,f18)
    """
    a, b = simplified(a), simplified(b)
    leaves = _by_bits(a, b)
    if leaves is None:
        leaves = _by_digits(a, b)
    if leaves is not None and all(modes is not None for modes in leaves):
        return _assembled(b, [modes or [] for modes in leaves], F2)
    lowest = sum(0 if isinstance(d, F2) else (s - 1) * min(d, 0) for s, d in b._leaves)
    if lowest < 0 and arithmetic(a) is Arithmetic.XOR and xor(a._leaves[-1][1]):
        shown = ", ".join(map(text, operands))
        raise LayoutTypeError(
            f"{operation}({shown}): expected positions >= 0, for XOR strides, got {lowest}"
        )
    budget = Budget(operation, operands, EVALUATIONS)
    return _by_table(a, b, budget, (operation, operands))


def bit_columns(layout: Layout) -> list[Columns] | None:
    """The columns of each leaf where the layout is linear in the bits of its coordinates.

    None where it is not: integers whose sums carry, of negative strides.

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
    """``layout``, made mode by mode from one of XOR strides, if its modes still add by XOR."""
    if not isinstance(layout, Layout) or arithmetic(layout) is Arithmetic.XOR:
        return layout
    if arithmetic(layout) is not Arithmetic.INTEGER or bit_columns(simplified(layout)) is None:
        raise LayoutTypeError(f"the modes of {layout} add with carries")
    return layout


def is_carry_free(d: int, extent: int) -> bool:
    """Tell if ``c * d`` is the carry-less product for every ``c < extent``.

    The smallest number that overlaps with itself when it is moved by g bits is ``1 + 2^g``.

    >>> is_carry_free(8, 100), is_carry_free(5, 4), is_carry_free(5, 6)
    (True, True, False)
    """
    while d:
        low = d & -d
        d ^= low
        if d and extent > (d & -d) // low + 1:
            return False
    return True


def _by_bits(a: Layout, b: Layout) -> list[list[Mode] | None] | None:
    """The modes of each leaf of b, None for a leaf that has none; None if this way is closed."""
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
        _runs([int(a(column)) for column in leaf], s)
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


def _runs(columns: Columns, extent: int) -> list[Mode] | None:
    """The modes of a leaf whose bits have these columns, or None: only the last may be odd.

    A mode goes on while each column is twice the one before.
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


def _by_digits(a: Layout, b: Layout) -> list[list[Mode] | None] | None:
    """The modes of each leaf of b, each within one digit of ``a``; None if this way is closed."""
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
    """The digits that ``s:d`` moves in: which, how often, in which steps."""
    if d < 0:
        return None
    if d == 0 or s == 1:
        return [(0, s, 0)] if d == 0 else None
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


def _by_table(a: Layout, b: Layout, budget: Budget, said: tuple[str, tuple[Any, ...]]) -> Layout:
    """The layout whose strides are forced, compared with the function everywhere."""
    outer = evaluator(a)
    values = [_along(outer, b, i, budget) for i in range(len(b._leaves))]
    alone = [_alone(a, s, d) for s, d in b._leaves]
    never = [
        found is None and _tells_bits(a, s, d)
        for found, (s, d) in zip(alone, b._leaves, strict=True)
    ]
    proofs = []
    for kind, split in ((F2, factored), (int, _split_integers)):
        modes: list[list[Mode]] = []
        at: Any = None
        for i, (value, (s, _)) in enumerate(zip(values, b._leaves, strict=True)):
            step = value(1) if s > 1 else 0
            found = alone[i]
            if kind is int:
                found = _multiples(a, *b._leaves[i], found) or split(value, s, budget)
            elif never[i] or step < 0:
                found = None
            elif found is None:
                found = split(value, s, budget)
            modes.append(found or [(s, step if kind is int else max(step, 0))])
            if found is None and at is None:
                product = carryless if kind is F2 else int.__mul__
                wrong = (x for x in _along_leaf(s) if value(x) != product(x, modes[i][0][1]))
                at = _only(b, i, next(wrong))
        best = _assembled(b, modes, kind)
        if at is None:
            at = _first_difference(outer, b, best, budget)
        if at is None:
            return best
        proofs.append((best, at))
    best, witness = proofs[0]
    exact = int(a(b(witness)))
    inexact(
        *said,
        f"at {text(witness)} the function is {exact}, the sum over modes {best(witness)}",
        witness=witness,
        exact=exact,
        best=best,
    )


def _along_leaf(size: int) -> Iterator[int]:
    """All coordinates of a leaf, those first that most often differ: bits, and a sample."""
    bits = [1 << k for k in range((size - 1).bit_length())]
    return chain(bits, [k * _STRIDE % size for k in range(_SAMPLE)], range(size))


def _alone(a: Layout, s: int, d: Any) -> list[Mode] | None:
    """The modes of one leaf of b by itself, where bits or digits tell."""
    leaf = make(s, d)
    modes = _by_bits(a, leaf) or _by_digits(a, leaf)
    return modes[0] if modes else None


def _multiples(a: Layout, s: int, d: Any, found: list[Mode] | None) -> list[Mode] | None:
    """The modes of one leaf of b by itself as integers, where ``found`` or ``a`` tells."""
    if found is not None and all(is_carry_free(step, extent) for extent, step in found):
        return found
    form = merge(a._leaves)
    if arithmetic(a) is Arithmetic.INTEGER and len(form) == 1 and is_carry_free(xor(d) or 0, s):
        return [(s, form[0][1] * (xor(d) or 0))]
    return None


def _tells_bits(a: Layout, s: int, d: Any) -> bool:
    """Tell if ``a`` is linear along a leaf of ``b`` and no bits of positions there are lost.

    Modes of XOR strides are then those of :func:`_runs`, or there are none: an extent before the
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
    """An XOR layout ``a`` as one of integers, for positions of integers that carry; or None.

    Only where ``a`` moves every bit of the positions of ``b`` to a place of its own: then ``a`` of
    ``b`` adds by XOR only where ``b`` does.

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


def _joined(modes: list[Mode]) -> list[Mode]:
    """The modes without extents of 1, a mode joined to one before it that it continues.

    >>> _joined([(3, 1), (2, 3), (2, 6)]), _joined([(1, 7)])
    ([(3, 1), (4, 3)], [(1, 7)])
    """
    if len(modes) < 2:
        return modes
    return [(s, xor(d) or 0) for s, d in merge([(s, F2(d)) for s, d in modes])] or [(1, 0)]


def _only(b: Layout, leaf: int, x: int) -> Any:
    digits = [x if i == leaf else 0 for i in range(len(b._leaves))]
    return unflatten(iter(digits), b.shape)


def evaluator(layout: Layout) -> Callable[[int], int]:
    """The function of linear coordinates of a layout of integers or XOR strides, made fast.

    >>> evaluator(Layout((4, 2), (F2(3), F2(1))))(7)
    4
    """
    if arithmetic(layout) is not Arithmetic.XOR:
        return layout
    *leaves, (_, last) = [(s, xor(d) or 0) for s, d in layout._leaves] or [(1, 0)]

    def at(c: int) -> int:
        total = 0
        for s, d in leaves:
            c, low = divmod(c, s)
            total ^= carryless(low, d)
        return total ^ int(carryless(c, last))

    return at


def _along(a: Callable[[int], int], b: Layout, leaf: int, budget: Budget) -> Callable[[int], int]:
    """``a o b`` along one leaf of b, each value computed once."""
    known: dict[int, int] = {}
    along = evaluator(make(*b._leaves[leaf]))

    def value(x: int) -> int:
        if x not in known:
            budget.spend()
            known[x] = a(along(x))
        return known[x]

    return value


def _first_difference(a: Callable[[int], int], b: Layout, result: Layout, budget: Budget) -> Any:
    size = int(b.size())
    inner, whole = evaluator(b), evaluator(result)
    for i in chain(_corners(b, size), range(size)):
        budget.spend(2)
        if whole(i) != a(inner(i)):
            return idx2crd(i, b.shape)
    return None


def _corners(b: Layout, size: int) -> list[int]:
    """The ends of the modes, pairs of bits of two of them and a sample: most differences show."""
    found = [size - 1, *[k * _STRIDE % size for k in range(_SAMPLE)]]
    place = 1
    bits: list[int] = []
    for s, _ in b._leaves:
        found += [(s - 1) * place, size - 1 - (s - 1) * place]
        here = [place << k for k in range((s - 1).bit_length())]
        found += [x + y for x in bits for y in here]
        bits += here
        place *= s
    return found


def _split_integers(value: Callable[[int], int], size: int, budget: Budget) -> list[Mode] | None:
    """Modes with integer strides along a leaf, if there are any."""
    modes: list[Mode] = []
    place = 1
    while place < size:
        step = value(place)
        extent = 1
        while extent * place < size and value(extent * place) == extent * step:
            budget.spend()
            extent += 1
        if (size // place) % extent:
            return None
        modes.append((extent, step))
        place *= extent
    return modes or [(size, 0)]


def factored(value: Callable[[int], int], size: int, budget: Budget) -> list[Mode] | None:
    """Modes with XOR strides for a table, if there are any.

    >>> factored([0, 1, 5, 4].__getitem__, 4, Budget("composition", ()))
    [(2, 1), (2, 5)]
    """

    def search(step: int) -> list[Mode] | None:
        """Modes from place ``step`` on."""
        rest = size // step
        if rest == 1:
            return []
        stride = value(step)
        if stride < 0:
            return None
        good = 1
        while good < rest and value(good * step) == carryless(good, stride):
            budget.spend()
            good += 1
        for extent in range(good, 1, -1):
            if rest % extent:
                continue
            outer = search(step * extent)
            modes = [(extent, stride), *(outer or [])]
            if outer is not None and _matches(value, step, rest, modes, budget):
                return modes
        return None

    if size & (size - 1) == 0:  # what is linear in the bits is told by them alone
        columns = [value(1 << k) for k in range(size.bit_length() - 1)]
        modes = None if any(column < 0 for column in columns) else _runs(columns, size)
        return modes if modes and _matches(value, 1, size, modes, budget) else None
    return search(1)


def _matches(
    value: Callable[[int], int], step: int, count: int, modes: list[Mode], budget: Budget
) -> bool:
    for x in _along_leaf(count):
        budget.spend()
        total, rest = 0, x
        for extent, stride in modes:
            total ^= carryless(rest % extent, stride)
            rest //= extent
        if total != value(x * step):
            return False
    return True


def _assembled(b: Layout, leaves: list[list[Mode]], kind: Any) -> Layout:
    """The layout of these modes for each leaf of b, neighbours that continue each other joined."""
    if kind is F2:
        leaves = [_joined(modes) for modes in leaves]
    shapes = [tuple([s for s, _ in m]) if len(m) > 1 else m[0][0] for m in leaves]
    strides = [tuple([kind(d) for _, d in m]) if len(m) > 1 else kind(m[0][1]) for m in leaves]
    return make(unflatten(iter(shapes), b.shape), unflatten(iter(strides), b.shape))
