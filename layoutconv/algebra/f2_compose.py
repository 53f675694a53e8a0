"""Composition in which a side adds by XOR.

Three ways are tried in turn: by bits and by digits (:mod:`.f2_linear`), if they show the
modes of the result; and by table: the strides are forced, and all values are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .budget import TABLE, Budget
from .errors import LayoutTypeError, LayoutValueError, inexact, text
from .exact import decided
from .f2_linear import (
    Mode,
    by_bits,
    by_digits,
    is_carry_free,
    runs,
    tells_bits,
)
from .int_tuple import idx2crd, unflatten
from .layout import Layout, make
from .normal import Arithmetic, arithmetic, from_leaves, merge, normal_form, simplified
from .plane_values import Values
from .protocol import xor
from .values_at_once import through, values_at_once
from .xor import F2, carryless

_SAMPLE = 64  # coordinates, scattered over the domain
_STRIDE = 0x9E3779B97F4A7C15  # between them
_SPREAD = 1 << 16  # step count over a domain too large to compare; half of them are compared
_PART = 1 << 9  # values that are compared in one step


def compose_f2(a: Layout, b: Layout, operation: str, operands: tuple[Any, ...]) -> Layout:
    """Return the layout of ``a(b(c))``, with XOR strides if possible, else integers; or raise.

    >>> from layoutconv.algebra import composition
    >>> print(composition(Layout((8, 8), (F2(1), F2(9))), Layout((4, 4), (2, 16))))
    (4,4):(f2,f18)
    """
    a, b = simplified(a), simplified(b)
    leaves = _by_one_stride(a, b) or by_bits(a, b) or by_digits(a, b)
    if leaves is not None and all(modes is not None for modes in leaves):
        return _assembled(b, [modes or [] for modes in leaves], F2)
    lowest = sum(0 if isinstance(d, F2) else (s - 1) * min(d, 0) for s, d in b._leaves)
    if lowest < 0 and arithmetic(a) is Arithmetic.XOR and xor(a._leaves[-1][1]):
        shown = ", ".join(map(text, operands))
        raise LayoutTypeError(
            f"{operation}({shown}): expected positions >= 0, for XOR strides, got {lowest}"
        )
    return _by_table(a, b, (operation, operands))


def _by_one_stride(a: Layout, b: Layout) -> list[list[Mode] | None] | None:
    """Compose each leaf of b, of XOR strides, with an ``a`` of one mode that adds by XOR, too."""
    form = normal_form(a)
    if arithmetic(b) is not Arithmetic.XOR or len(form) != 1:
        return None
    value = xor(form[0][1])
    if value is None and type(form[0][1]) is int and is_carry_free(form[0][1], 1 << 128):
        value = form[0][1]  # a power of two
    if value is None or value < 0:
        return None
    return [[(s, carryless(xor(d) or 0, value))] for s, d in b._leaves]


def _by_table(a: Layout, b: Layout, said: tuple[str, tuple[Any, ...]]) -> Layout:
    """Build the layout with the forced strides, and compare it with the function everywhere."""
    table = _Table(a, b, Budget(*said))
    alone = [_alone(a, s, d) for s, d in b._leaves]
    proofs = []
    for kind in (F2, int):
        modes: list[list[Mode]] = []
        at: Any = None
        for i, (s, d) in enumerate(b._leaves):
            step = table.value(i, 1) if s > 1 else 0
            found = alone[i]
            if kind is int:
                found = _as_integers(table, i, found)
            elif found is None and step >= 0 and not tells_bits(a, s, d):
                found = table.xor_modes(i)
            modes.append(found or [(s, step if kind is int else max(step, 0))])
            if found is None and at is None:
                at = table.differs_along(i, make(s, kind(modes[i][0][1])))
        best = _assembled(b, modes, kind)
        if at is None:
            at = table.differs(best)
        if at is None:
            return best
        proofs.append((best, at))
    best, witness = proofs[0]
    exact = int(a(b(witness)))
    inexact(
        *said,
        f"at {text(witness)} the function is {exact}, but the sum over modes is {best(witness)}",
        witness=witness,
        exact=exact,
        best=best,
    )


class _Table:
    """The values of ``a o b``, along each leaf of b and of all, computed on demand."""

    def __init__(self, a: Layout, b: Layout, budget: Budget) -> None:
        self.a, self.b, self.budget = a, b, budget
        self.outer = evaluator(a)
        self.alone: dict[int, Values] = {}
        self.whole: Values | None = None

    def value(self, leaf: int, x: int) -> int:
        """Return the value at coordinate x of a leaf, with the others at 0."""
        s, d = self.b._leaves[leaf]
        return self.outer(int(make(s, d)(x)))

    def values(self, layout: Layout, *, inner: bool) -> Values:
        """Return all values of a layout, or of ``a`` at them; this spends from the budget."""
        self.budget.spend(1 + int(layout.size()) // _PART)
        found = values_at_once(layout)
        found = through(self.a, found) if found is not None and inner else found
        if found is None:
            self.budget.give_up()
        return found

    def along(self, leaf: int) -> Values:
        """Return the values along a leaf."""
        if leaf not in self.alone:
            self.alone[leaf] = self.values(make(*self.b._leaves[leaf]), inner=True)
        return self.alone[leaf]

    def integer_modes(self, leaf: int) -> list[Mode] | None:
        """Return the integer strides of a leaf on its own; None if there are none."""
        return integer_modes(self.along(leaf), self.budget)

    def xor_modes(self, leaf: int) -> list[Mode] | None:
        """Return the XOR strides of a leaf on its own; None if there are none."""
        size = self.b._leaves[leaf][0]
        if size > TABLE and size & (size - 1) == 0:
            # Too long to compare everywhere, but bits allow one choice: a sample may refute it.
            columns = [self.value(leaf, 1 << k) for k in range(size.bit_length() - 1)]
            modes = runs(columns, size) if min(columns) >= 0 else None
            if modes is None or self._differs_near(
                leaf, from_leaves([(e, F2(v)) for e, v in modes])
            ):
                return None
        return xor_modes(self.along(leaf), self.budget)

    def _differs_near(self, leaf: int, best: Layout) -> int | None:
        """Return a bit of a leaf, or a coordinate of a sample, at which ``best`` differs."""
        size, inner = int(best.size()), evaluator(best)
        near = [1 << k for k in range((size - 1).bit_length())] + _sample(size)
        return next((x for x in near if self.value(leaf, x) != inner(x)), None)

    def differs_along(self, leaf: int, best: Layout) -> Any:
        """Return a coordinate along a leaf, the others at 0, at which ``best`` differs."""
        at = self._differs_near(leaf, best)
        if at is None:
            at = self.along(leaf).first_difference(self.values(best, inner=False))
        digits = [at if i == leaf else 0 for i in range(len(self.b._leaves))]
        return unflatten(iter(digits), self.b.shape)

    def differs(self, best: Layout) -> Any:
        """Return a coordinate of b at which ``best`` differs, or None."""
        inner, whole = evaluator(self.b), evaluator(best)
        near = _corners(self.b, int(self.b.size()))
        at = next((i for i in near if whole(i) != self.outer(inner(i))), None)
        if at is None and self.b.size() > TABLE:
            at = self._differs_somewhere(best)
        if at is None:
            self.whole = self.whole or self.values(self.b, inner=True)
            at = self.whole.first_difference(self.values(best, inner=False))
        return None if at is None else idx2crd(at, self.b.shape)

    def _differs_somewhere(self, best: Layout) -> int | None:
        """Compare at positions spread over a b with too many; return one that differs, or None."""
        step = int(self.b.size()) // _SPREAD | 1
        places = values_at_once(Layout(_SPREAD // 2, step))
        inner = places and through(self.b, places)
        here = inner and through(self.a, inner)
        there = places and through(best, places)
        at = here.first_difference(there) if here and there else None
        return None if at is None else at * step


def _alone(a: Layout, s: int, d: Any) -> list[Mode] | None:
    """Return the modes of one leaf of b on its own, if bits or digits show them."""
    leaf = make(s, d)
    modes = by_bits(a, leaf) or by_digits(a, leaf)
    return modes[0] if modes else None


def _as_integers(table: _Table, leaf: int, found: list[Mode] | None) -> list[Mode] | None:
    """Return the integer modes of one leaf of b on its own, mostly from ``found`` or ``a``."""
    if found is not None and all(is_carry_free(step, extent) for extent, step in found):
        return found
    s, d = table.b._leaves[leaf]
    value = xor(d)
    if (
        value is None
        or arithmetic(table.a) is not Arithmetic.INTEGER
        or not is_carry_free(value, s)
    ):
        return table.integer_modes(leaf)
    try:  # the leaf gives integers
        return decided(table.a, make(s, value), "composition", (table.a, table.b))._leaves
    except LayoutValueError:
        return None


def _joined(modes: list[Mode]) -> list[Mode]:
    """Return the modes without extents of 1, each joined to the one before it that it continues.

    >>> _joined([(3, 1), (2, 3), (2, 6)]), _joined([(1, 7)])
    ([(3, 1), (4, 3)], [(1, 7)])
    """
    if len(modes) < 2:
        return modes
    return [(s, xor(d) or 0) for s, d in merge([(s, F2(d)) for s, d in modes])] or [(1, 0)]


def evaluator(layout: Layout) -> Callable[[int], int]:
    """Return a fast function of linear coordinates for a layout of integers or XOR strides.

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


def _sample(size: int) -> list[int]:
    return [k * _STRIDE % size for k in range(_SAMPLE)]


def _corners(b: Layout, size: int) -> list[int]:
    """Return mode ends, pairs of bits of two modes and a sample: most differences show there."""
    found = [size - 1, *_sample(size)]
    place = 1
    bits: list[int] = []
    for s, _ in b._leaves:
        found += [(s - 1) * place, size - 1 - (s - 1) * place]
        here = [place << k for k in range((s - 1).bit_length())]
        found += [x + y for x in bits for y in here]
        bits += here
        place *= s
    return found


def integer_modes(values: Values, budget: Budget) -> list[Mode] | None:
    """Return modes with integer strides for a table, each as long as possible; None if impossible.

    >>> integer_modes(values_at_once(Layout((2, 3), (5, 1))), Budget("composition", ()))
    [(2, 5), (3, 1)]
    """
    modes: list[Mode] = []
    place, size = 1, values.count
    while place < size:
        modes.append((size // place, values.at(place)))
        end = _differ(values, modes, int, budget)
        if end is None:
            return modes
        if end % place or size % end:
            return None
        modes[-1] = (end // place, modes[-1][1])
        place = end
    return modes or [(size, 0)]


def xor_modes(values: Values, budget: Budget) -> list[Mode] | None:
    """Return modes with XOR strides for a table; None if there are none.

    >>> table = values_at_once(Layout((2, 2), (F2(1), F2(5))))
    >>> xor_modes(table, Budget("composition", ()))
    [(2, 1), (2, 5)]
    """

    def search(modes: list[Mode], place: int) -> list[Mode] | None:
        """Extend ``modes``, which cover the values up to ``place``, to all values."""
        rest, step = values.count // place, values.at(place)
        if step < 0:
            return None
        end = _differ(values, [*modes, (rest, step)], F2, budget)
        if end is None:
            return [*modes, (rest, step)]
        if end % place:
            return None
        for extent in range(end // place, 1, -1):
            if rest % extent == 0 and extent < rest:
                found = search([*modes, (extent, step)], place * extent)
                if found is not None:
                    return found
        return None

    size = values.count
    if size == 1:
        return []
    if size & (size - 1) == 0:  # a function that is linear in the bits is determined by them
        columns = [values.at(1 << k) for k in range(size.bit_length() - 1)]
        modes = None if any(column < 0 for column in columns) else runs(columns, size)
        return modes if modes and _differ(values, modes, F2, budget) is None else None
    return search([], 1)


def _differ(values: Values, modes: list[Mode], kind: Any, budget: Budget) -> int | None:
    """Return the first place at which a table differs from these modes; None if none does."""
    budget.spend(1 + values.count // _PART)
    layout = make(tuple([s for s, _ in modes]), tuple([kind(d) for _, d in modes]))
    found = values_at_once(layout)
    if found is None:
        budget.give_up()
    return values.first_difference(found)


def _assembled(b: Layout, leaves: list[list[Mode]], kind: Any) -> Layout:
    """Build the layout of these modes for each leaf of b, with XOR modes joined where possible."""
    if kind is F2:
        leaves = [_joined(modes) for modes in leaves]
    shapes = [tuple([s for s, _ in m]) if len(m) > 1 else m[0][0] for m in leaves]
    strides = [tuple([kind(d) for _, d in m]) if len(m) > 1 else kind(m[0][1]) for m in leaves]
    return make(unflatten(iter(shapes), b.shape), unflatten(iter(strides), b.shape))
