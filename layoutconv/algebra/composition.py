"""``composition(a, b)``: the function ``c -> a(b(c))`` as a layout, exactly or not at all.

The mathematics is in :mod:`.carry`. This module has the pass over the digits that settles nearly
every composition in kernels with a few integer operations, on integers or symbols; :mod:`.exact`
decides the rest.
"""

from __future__ import annotations

from typing import Any

from .basis import basis_terms
from .composed import ComposedLayout
from .errors import LayoutBudgetError, LayoutError, LayoutTypeError
from .exact import decided, mode_at
from .f2 import integer_strides
from .f2_compose import compose_f2
from .f2_linear import integers_for, without_carry
from .int_tuple import IntTuple, flatten, map_leaves, split_and_sum
from .layout import Layout, as_like, make, make_layout, make_plain
from .like import at_present, is_symbolic, symbolically
from .normal import (
    Arithmetic,
    arithmetic,
    by_mode,
    like_shape,
    modes_for,
    normal_form,
    require_known,
    simplified,
)
from .of_one_kind import in_one_kind
from .over_coordinates import lift, over_coordinates
from .packing import Path
from .protocol import is_integer, times
from .relations import known
from .swizzle import Swizzle


def composition(a: Any, b: Any) -> Any:
    """Return the layout ``R`` with ``R(c) == a(b(c))`` for every coordinate c of b; it refines b.

    ``a`` is extended to every integer: its last leaf is unbounded (floor division below zero).

    ``b`` may be a layout, an integer n (``n:1``), None (``a`` itself), or a tuple of these, which
    composes by mode and, as in CuTe, drops the modes of ``a`` beyond the tuple. If ``b`` has
    scaled-basis strides, it yields coordinates of ``a``. If ``a`` is a composed layout or a tensor,
    its domain is composed. If ``a`` has a Swizzle or custom strides (a gather), or ``b`` is
    composed, the result is a ComposedLayout: the index buffer stays outside, ``b`` inside.

    Raises :class:`LayoutValueError` if no layout is that function. Its ``witness`` is a coordinate
    of b, ``best`` a layout with every stride that is forced, and ``exact`` the value of
    ``a(b(witness))``, which differs from ``best(witness)``. CUTLASS: cute/layout.hpp; exactness:
    ``carry.py``.

    >>> A = Layout((6, 2), (8, 2))
    >>> print(composition(A, Layout((4, 3), (3, 1))))
    ((2,2),3):((24,2),8)
    >>> print(composition(Layout((2, 2, 2), (1, 3, 5)), Layout(3, 3)))
    3:4
    >>> composition(Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: composition((6,2):(1,7), (3,2):(2,3)): the modes \
of the right-hand side carry into each other: at (2,1) the function is 8, but the sum over modes \
is 7
    """
    if type(a) is Layout and type(b) is Layout:
        return compose(a, b)
    if b is None:
        return a
    if isinstance(a, Swizzle):
        return ComposedLayout(a, 0, as_like("composition", b))
    if type(a) is not Layout:
        like = as_like("composition", a)
        return like.on_domain(lambda inner: composition(inner, b))
    if isinstance(b, tuple):
        return _by_mode(a, b)
    if isinstance(b, Swizzle):
        return ComposedLayout(a, 0, ComposedLayout(b, 0, Layout(b.size(), 1)))
    b = as_like("composition", b)
    if isinstance(b, Layout):
        return compose(a, b)
    if isinstance(b, ComposedLayout):
        return ComposedLayout(a, 0, b)
    raise LayoutTypeError(f"composition: {b} gives elements, not positions of {a}")


def _by_mode(a: Layout, tiler: tuple[Any, ...]) -> Any:
    modes_for("composition", a, tiler)
    tiler = map_leaves(lambda t: as_like("composition", t) if isinstance(t, str) else t, tiler)
    kinds = [arithmetic(t) for t in flatten(tiler) if isinstance(t, Layout)]
    kinds.append(arithmetic(a))
    if Arithmetic.OPAQUE not in kinds:
        try:
            result = by_mode(composition, "composition", a, tiler, keep=False)
            if kinds[-1] is not Arithmetic.XOR:
                return in_one_kind("composition", result)
            return without_carry(result)
        except LayoutError:
            if Arithmetic.XOR not in kinds:
                raise
    return ComposedLayout(a, 0, _coordinates(a, tiler))


def _coordinates(a: Layout, tiler: tuple[Any, ...]) -> Layout:
    """Return the coordinates of ``a`` that a tiler picks, with an axis for each mode."""
    modes = modes_for("composition", a, tiler)
    inner = over_coordinates(a).inner
    lifts = []
    for i, t in enumerate(tiler):
        if isinstance(t, tuple):
            mode = lift(_coordinates(modes[i], t), i)
        elif isinstance(t, Layout) and arithmetic(t) in (Arithmetic.OPAQUE, Arithmetic.XOR):
            mode = lift(t, i)
        else:
            mode = composition(_mode(inner, modes, i), t)
        if mode is None:
            raise LayoutTypeError(f"composition: {t} gives no coordinates of mode {i} of {a}")
        lifts.append(mode)
    return make_layout(lifts)


def _mode(inner: Layout, modes: list[Layout], i: int) -> Layout:
    return inner[i] if len(modes) > 1 or isinstance(inner.shape, tuple) else inner


def compose(
    a: Layout, b: Layout, operation: str = "composition", operands: tuple[Any, ...] = ()
) -> Any:
    """Compose two layouts as :func:`composition`; errors name ``operation`` and ``operands``."""
    if a._plain and b._plain:
        digits = _DigitComposition(a)
        leaves: list[tuple[Any, Any]] = []
        result = digits.compose(b.shape, b.stride, leaves)
        if result is None or not digits.fit():
            return decided(a, b, operation, operands or (a, b))
        return make_plain(*result, leaves)
    if is_symbolic(a) or is_symbolic(b):
        return symbolically(
            lambda x, y: _general(x, y, operation, operands), a, b, name=operation, shown=operands
        )
    return _general(a, b, operation, operands)


def _general(a: Layout, b: Layout, operation: str, operands: tuple[Any, ...]) -> Any:
    require_known(operation, a, b)
    kinds = arithmetic(a), arithmetic(b)
    if Arithmetic.OPAQUE in kinds:
        form = normal_form(a)
        if kinds[0] is Arithmetic.INTEGER and len(form) == 1:
            leaves = [(s, times(form[0][1], d)) for s, d in b._leaves]
            if all(d is not None for _, d in leaves):
                return like_shape(b, leaves)
        return ComposedLayout(a, 0, b)
    if Arithmetic.XOR in kinds:
        if Arithmetic.COORDINATE in kinds:
            return ComposedLayout(a, 0, b)
        a, b = at_present(operation, a), at_present(operation, b)
        plain = integers_for(a, b)
        if plain is not None:
            return compose(plain, b, operation, operands or (a, b))
        try:
            return compose_f2(a, b, operation, operands or (a, b))
        except LayoutBudgetError:
            integers = integer_strides(b) if kinds[0] is Arithmetic.INTEGER else None
            if integers is None:
                raise
            return compose(a, integers, operation, operands or (a, b))
    a, b = simplified(a), simplified(b)
    digits = _DigitComposition(a)
    result = digits.compose(b.shape, b.stride, [])
    if result is not None and digits.fit():
        return make(*result)
    if is_symbolic(a) or is_symbolic(b):
        a, b = at_present(operation, a), at_present(operation, b)
        return compose(a, b, operation, operands)
    return decided(a, b, operation, operands or (a, b))


class _DigitComposition:
    """Composition by digits: exact if modes of b that share a digit of a do not overflow it."""

    __slots__ = ("a", "by_path", "form", "used")

    def __init__(self, a: Layout) -> None:
        self.a = a
        self.form = normal_form(a)
        self.used = [0] * len(self.form)
        self.by_path: dict[Path, tuple[list[tuple[Any, Any]], list[Any]]] = {}

    def compose(
        self, s: IntTuple, d: IntTuple, leaves: list[tuple[Any, Any]]
    ) -> tuple[IntTuple, IntTuple] | None:
        """Return the shape and stride of ``a`` composed with ``s:d``; None if it is too hard."""
        if type(s) is tuple:
            shapes, strides = [], []
            for s_mode, d_mode in zip(s, d):  # noqa: B905
                mode = self.compose(s_mode, d_mode, leaves)
                if mode is None:
                    return None
                shapes.append(mode[0])
                strides.append(mode[1])
            return tuple(shapes), tuple(strides)
        if type(d) is int or is_integer(d):
            mode = _leaf(self.form, self.used, s, d)
        else:
            mode = self.compose_basis(s, d)
        if mode is not None:
            if type(mode[0]) is tuple:
                leaves += zip(*mode)  # noqa: B905
            else:
                leaves.append(mode)
        return mode

    def compose_basis(self, s: Any, d: Any) -> tuple[IntTuple, IntTuple] | None:
        """Compose with a leaf whose values are coordinates in one mode of a."""
        terms = basis_terms(d)
        if len(terms) != 1:
            return None
        path = terms[0].path
        if path not in self.by_path:
            form = normal_form(mode_at(self.a, path))
            self.by_path[path] = form, [0] * len(form)
        if any(len(other) != len(path) for other in self.by_path):
            return None
        return _leaf(*self.by_path[path], s, terms[0].value)

    def fit(self) -> bool:
        """Tell if modes that share a digit never carry out of it; the last digit is unbounded."""
        for form, used in ((self.form, self.used), *self.by_path.values()):
            for i in range(len(form) - 1):
                if used[i] >= form[i][0]:
                    return False
        return True


def _leaf(
    form: list[tuple[Any, Any]], used: list[Any], s: Any, d: Any
) -> tuple[IntTuple, IntTuple] | None:
    """Compose a, as its normal form, with the leaf ``s:d``; ``used`` counts each digit's reach.

    Needs ``d >= 0``. At each digit, ``d`` and the extent divide one another, and so do the rest of
    s and the steps in the digit: each mode of the result then stays within one digit. Else None.
    """
    if d <= 0:
        return (s, 0) if d == 0 else None
    if not form:
        return s, 0
    if type(s) is int and s == 1:
        return s, split_and_sum(d, form)
    shapes, strides = [], []
    last = len(form) - 1
    named = type(s) is not int or type(d) is not int
    for i, (extent, stride) in enumerate(form):
        if named and i < last:
            way = _proved_way(s, d, extent)
            if way == "over":
                d //= extent
                continue
            if way == "through":
                used[i] += extent - d
                shapes.append(extent // d)
                strides.append(d * stride)
                s, d = s // (extent // d), 1
                if type(s) is int and s == 1:
                    break
                continue
        if i == last or (s - 1) * d < extent:
            used[i] += (s - 1) * d
            shapes.append(s)
            strides.append(d * stride)
            break
        if d >= extent:
            if d % extent:
                return None
            d //= extent
            continue
        if extent % d:
            return None
        taken = extent // d
        if s % taken:
            return None
        used[i] += extent - d
        shapes.append(taken)
        strides.append(d * stride)
        s //= taken
        d = 1
    if len(shapes) == 1:
        return shapes[0], strides[0]
    return tuple(shapes), tuple(strides)


def _proved_way(s: Any, d: Any, extent: Any) -> str | None:
    """Say how ``s:d`` provably passes a digit: "over" it, or "through" it to the next one.

    Either is also right if the mode ends within the digit. None if the caller has to ask.
    """
    if known((s - 1) * d < extent):
        return None
    if known(d >= extent) and known(d % extent == 0):
        return "over"
    if known(extent % d == 0) and known(s % (extent // d) == 0):
        return "through"
    return None
