"""``composition(a, b)``: the function ``c -> a(b(c))`` as a layout, exactly or not at all.

The mathematics is in :mod:`.carry`. Here are its two users: a pass over the digits that settles
nearly every composition that occurs in kernels at the price of a few integer operations, and the
general decision for the rest.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from .carry import Carry, Split, Step, carries_of, clash, split
from .coalesce import by_mode, has_f2, normal_form
from .composed import ComposedLayout
from .construct import make_identity_layout
from .errors import LayoutTypeError, LayoutValueError, inexact, text
from .int_tuple import IntTuple, split_and_sum, unflatten
from .layout import Layout, make, make_plain
from .packing import Packing, Path
from .stride import F2, CustomStride, basis_terms
from .swizzle import Swizzle

Digits = tuple[list[tuple[Any, Any]], list[Any]]  # leaves of a, and how much of each is taken


def composition(a: Any, b: Any) -> Any:
    """The layout ``R`` with ``R(c) == a(b(c))`` for every coordinate c of b; its shape refines b's.

    ``a`` is extended to every integer: its last leaf is not bounded (floor division below zero).

    ``b`` may be a layout, an integer n (``n:1``), None (``a`` itself), or a tuple of these, which
    composes by mode and, as in CuTe, drops the modes of ``a`` after the tuple. A ``b`` with
    scaled-basis strides yields coordinates of ``a``. With a ComposedLayout or a Swizzle for ``a``
    the result is a ComposedLayout, and so it is where strides of ``a`` are custom (a gather): the
    offset and the index buffer stay, and ``b`` is composed with what comes before them.

    Raises :class:`LayoutValueError` if no layout is that function. Its ``witness`` is a coordinate
    of b, ``best`` a layout that has every stride that is forced, ``exact`` what ``a(b(witness))``
    is: ``best(witness) != exact``. CUTLASS: cute/layout.hpp; exactness: ``carry.py``.

    >>> A = Layout((6, 2), (8, 2))
    >>> print(composition(A, Layout((4, 3), (3, 1))))
    ((2,2),3):((24,2),8)
    >>> print(composition(Layout((2, 2, 2), (1, 3, 5)), Layout(3, 3)))
    3:4
    >>> composition(Layout((6, 2), (1, 7)), Layout((3, 2), (2, 3)))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: composition((6,2):(1,7), (3,2):(2,3)): the modes \
of the right-hand side carry: at (2,1) the function is 8, the sum over modes 7
    """
    if type(a) is Layout and type(b) is Layout:
        return compose(a, b)
    if b is None:
        return a
    if isinstance(b, tuple):
        a = as_composed(a)
        if isinstance(a, ComposedLayout):
            return ComposedLayout(a.outer, a.offset, composition(a.inner, b))
        return by_mode(composition, "composition", _layout("a", a), b, keep=False)
    if isinstance(b, int):
        b = Layout(b, 1)
    if isinstance(a, ComposedLayout):
        return ComposedLayout(a.outer, a.offset, composition(a.inner, b))
    if isinstance(b, ComposedLayout):
        return ComposedLayout(composition(a, b.outer), b.offset, b.inner)
    if isinstance(a, Swizzle):
        return ComposedLayout(a, 0, _layout("b", b))
    if isinstance(b, Swizzle):
        return ComposedLayout(a, 0, ComposedLayout(b, 0, _domain_of(b)))
    return compose(_layout("a", a), _layout("b", b))


def _layout(name: str, x: Any) -> Layout:
    if not isinstance(x, Layout):
        raise LayoutTypeError(f"composition: {name} is {x!r}, not a layout")
    return x


def _domain_of(swizzle: Swizzle) -> Layout:
    return Layout(swizzle.size(), 1)


def as_composed(a: Any) -> Any:
    """A layout with custom strides as a ComposedLayout over the coordinates of its shape.

    Tiling rearranges coordinates, and those an index buffer does not mind.
    """
    if not isinstance(a, Layout) or a._plain:
        return a
    custom = any(isinstance(d, CustomStride) for _, d in a._leaves)
    return ComposedLayout(a, 0, make_identity_layout(a.shape)) if custom else a


def compose(
    a: Layout, b: Layout, operation: str = "composition", operands: tuple[Any, ...] = ()
) -> Any:
    """:func:`composition` of two layouts; errors name ``operation`` and its ``operands``."""
    if not (a._plain and b._plain):
        if any(isinstance(d, CustomStride) for _, d in a._leaves):
            return ComposedLayout(a, 0, b)
        if has_f2(a) or has_f2(b):
            from .f2 import compose_f2

            return compose_f2(a, b)
        _require_integers(a, b)
    digits = _Digits(a)
    leaves: list[tuple[Any, Any]] = []
    result = digits.compose(b.shape, b.stride, leaves)
    if result is None or not digits.fit():
        return _decide(a, b, operation, operands or (a, b))
    return make_plain(*result, leaves) if a._plain and b._plain else make(*result)


def _require_integers(a: Layout, b: Layout) -> None:
    for name, layout in (("a", a), ("b", b)):
        for extent, stride in layout._leaves:
            values = [t.value for t in basis_terms(stride)] or [stride]
            if isinstance(stride, CustomStride | F2) or not all(
                isinstance(v, int) for v in (extent, *values)
            ):
                raise LayoutTypeError(
                    f"composition: exactness is decided on Python integers; {name} = {layout} "
                    f"has the mode {extent}:{stride}"
                )


class _Digits:
    """Composition by digits: exact if each mode of b stays within digits that no other fills up."""

    __slots__ = ("a", "by_path", "form", "used")

    def __init__(self, a: Layout) -> None:
        self.a = a
        self.form = normal_form(a)
        self.used = [0] * len(self.form)
        self.by_path: dict[Path, Digits] = {}

    def compose(
        self, s: IntTuple, d: IntTuple, leaves: list[tuple[Any, Any]]
    ) -> tuple[IntTuple, IntTuple] | None:
        """The modes of a composed with ``s:d``, and their leaves; None if digits do not tell."""
        if isinstance(s, tuple):
            shapes, strides = [], []
            for s_mode, d_mode in zip(s, d):  # noqa: B905
                mode = self.compose(s_mode, d_mode, leaves)
                if mode is None:
                    return None
                shapes.append(mode[0])
                strides.append(mode[1])
            return tuple(shapes), tuple(strides)
        plain = isinstance(d, int)
        mode = _leaf(self.form, self.used, s, d) if plain else self.compose_basis(s, d)
        if mode is not None:
            if type(mode[0]) is tuple:
                leaves += zip(*mode)  # noqa: B905
            else:
                leaves.append(mode)
        return mode

    def compose_basis(self, s: Any, d: Any) -> Any:
        """The same for a leaf whose values are coordinates in one mode of a."""
        terms = basis_terms(d)
        if len(terms) != 1:
            return None
        path = terms[0].path
        if path not in self.by_path:
            form = normal_form(_mode_at(self.a, path))
            self.by_path[path] = form, [0] * len(form)
        if any(len(other) != len(path) for other in self.by_path):
            return None
        return _leaf(*self.by_path[path], s, terms[0].value)

    def fit(self) -> bool:
        """Whether the modes that share a digit never carry out of it; the last one has no end."""
        for form, used in ((self.form, self.used), *self.by_path.values()):
            for i in range(len(form) - 1):
                if used[i] >= form[i][0]:
                    return False
        return True


def _leaf(form: list[tuple[Any, Any]], used: list[Any], s: Any, d: Any) -> Any:
    """The modes of a composed with the leaf ``s:d``, and in ``used`` what they take of each digit.

    ``d`` is positive, divides or is divided by the extents on its way, and so are the rests of s:
    then every mode of the result moves within one digit. None otherwise.
    """
    if d <= 0:
        return (s, 0) if d == 0 else None
    if not form:
        return s, 0
    if s == 1:
        return s, split_and_sum(d, form)
    shapes, strides = [], []
    last = len(form) - 1
    for i, (extent, stride) in enumerate(form):
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


def _mode_at(a: Layout, path: Path) -> Layout:
    mode = a
    for index in path:
        if not isinstance(mode.shape, tuple) or index >= len(mode.shape):
            raise LayoutValueError(
                f"composition: the scaled basis 1@{'@'.join(map(str, path))} of the right-hand "
                f"side leads to no mode of {a}"
            )
        mode = mode[index]
    return mode


class _Function:
    """``a`` as integer functions of the components of b's values, strides packed into integers."""

    def __init__(self, a: Layout, b: Layout) -> None:
        self.paths = _paths(b)
        modes = [_mode_at(a, path) for path in self.paths]
        reach = 1 + sum((s - 1) * abs(int(v)) for s, d in b._leaves for v in self.step(d))
        bound = 4 * reach * (1 + sum(int(s) for s, _ in a._leaves)) * (1 + len(a._leaves))
        self.packing = Packing([d for _, d in a._leaves], bound)
        self.forms = [
            [(int(s), self.packing.pack(d)) for s, d in normal_form(mode)] for mode in modes
        ]
        self.carries: list[Carry] = [
            carry for i, form in enumerate(self.forms) for carry in carries_of(form, i)
        ]

    def step(self, d: Any) -> Step:
        """The components of a stride of b."""
        if self.paths == [()]:
            return (int(d),)
        values = {term.path: int(term.value) for term in basis_terms(d)}
        return tuple([values.get(path, 0) for path in self.paths])

    def stride(self, step: Step) -> Any:
        """What ``a`` gives at a step of b: the stride that the result is forced to have."""
        total = 0
        for form, n in zip(self.forms, step, strict=True):
            for extent, stride in form[:-1]:
                total += n % extent * stride
                n //= extent
            if form:
                total += n * form[-1][1]
        return self.packing.unpack(total)


def _paths(b: Layout) -> list[Path]:
    """The modes of a that b's values reach; ``[()]`` if its values are integers."""
    kinds = {isinstance(d, int) for _, d in b._leaves if not (isinstance(d, int) and d == 0)}
    if len(kinds) > 1:
        raise LayoutTypeError(f"composition: {b} mixes integers and scaled bases")
    paths = sorted({term.path for _, d in b._leaves for term in basis_terms(d)})
    for shorter, longer in pairwise(paths):
        if longer[: len(shorter)] == shorter:
            raise LayoutTypeError(f"composition: {b} takes mode {shorter} as integer and as tuple")
    return paths or [()]


def _decide(a: Layout, b: Layout, operation: str, operands: tuple[Any, ...]) -> Layout:
    """Composition by the two questions of :mod:`.carry`, in general."""
    function = _Function(a, b)
    leaves = [(int(s), function.step(d)) for s, d in b._leaves]
    splits = [
        split(function.carries, step, extent) if any(step) else Split([(extent, step)], None)
        for extent, step in leaves
    ]
    best = _assembled(function, splits, b.shape)
    for i, part in enumerate(splits):
        if part.broken_at is not None:
            x = [part.broken_at if j == i else 0 for j in range(len(splits))]
            s, d = b._leaves[i]
            _refuse(
                operation,
                operands,
                a,
                b,
                best,
                x,
                f"the mode {s}:{d} breaks off at {part.broken_at}",
            )
    modes = [mode for part in splits for mode in part.modes]
    digits = clash(function.carries, modes)
    if digits is not None:
        x = _joined(splits, digits)
        _refuse(operation, operands, a, b, best, x, "the modes of the right-hand side carry")
    return best


def _assembled(function: _Function, splits: list[Split], shape: IntTuple) -> Layout:
    shapes, strides = [], []
    for part in splits:
        s = tuple([extent for extent, _ in part.modes])
        d = tuple([function.stride(step) for _, step in part.modes])
        shapes.append(s if len(s) > 1 else s[0])
        strides.append(d if len(d) > 1 else d[0])
    return make(unflatten(iter(shapes), shape), unflatten(iter(strides), shape))


def _joined(splits: list[Split], digits: list[int]) -> list[int]:
    """Coordinates of the modes of all leaves as coordinates of the leaves."""
    result, at = [], iter(digits)
    for part in splits:
        x, place = 0, 1
        for extent, _ in part.modes:
            x += next(at) * place
            place *= extent
        result.append(x)
    return result


def _refuse(
    operation: str,
    operands: tuple[Any, ...],
    a: Layout,
    b: Layout,
    best: Layout,
    x: list[int],
    why: str,
) -> None:
    witness = unflatten(iter(x), b.shape)
    exact = a(b(witness))
    inexact(
        operation,
        operands,
        f"{why}: at {text(witness)} the function is {exact}, the sum over modes {best(witness)}",
        witness=witness,
        exact=exact,
        best=best,
    )
