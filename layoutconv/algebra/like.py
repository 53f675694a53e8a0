"""The LayoutLike protocol: what every operation accepts, and how it applies to each kind.

A layout, a composed layout and a tensor have a shape, and a value at every coordinate of it. An
operation on the coordinates (coalesce, divide, compose, tile) is written for layouts and applied
*inside* the others: the outer map (a swizzle, an index buffer, an engine) stays.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, NoReturn, TypeVar

from .budget import one_operation
from .display import Drawable
from .errors import LayoutBudgetError, LayoutValueError, text
from .int_tuple import IntTuple, crd2idx, depth, idx2crd, product, rank
from .late import late
from .polynomial import evaluate, names_of
from .protocol import is_stride, map_integers
from .relations import Relation, assuming, granted, holds, known, recording
from .symbols import Symbolic, have_one_value, symbolic_of, symint_of
from .symint import SymInt
from .values import Shaped

Self = TypeVar("Self", bound="LayoutLike")


class LayoutLike(Shaped, Drawable):
    """A shape, and a value at each of its coordinates."""

    __slots__ = ()

    def on_domain(self: Self, operation: Callable[[Any], Any]) -> Self:
        """Apply ``operation`` to the layout that is the domain, and keep the outer map."""
        raise NotImplementedError

    def map_integers(self: Self, fn: Callable[[Any], Any]) -> Self:
        """Return the same with ``fn`` applied to every integer in it."""
        raise NotImplementedError

    def parts(self) -> tuple[Any, ...]:
        """Return the plain layouts that it consists of."""
        raise NotImplementedError

    @property
    def rank(self) -> int:
        """The number of top-level modes."""
        return rank(self.shape)

    @property
    def depth(self) -> int:
        """The levels of nesting of the shape; an integer has depth 0."""
        return depth(self.shape)

    def size(self) -> Any:
        """Return the number of coordinates in the domain."""
        return product(self.shape)

    def get_hier_coord(self, offset: Any) -> IntTuple:
        """Return the coordinate that has this offset, in the profile of the shape.

        A tensor uses its layout. Raises :class:`LayoutValueError` if no coordinate has the offset,
        and like :func:`left_inverse` if several coordinates share one.

        >>> from .layout import Layout
        >>> Layout((4, (2, 4)), (8, (4, 1))).get_hier_coord(10)
        (1, (0, 2))
        """
        return idx2crd(self.get_1d_coord(offset), self.shape)

    def get_flat_coord(self, offset: Any) -> IntTuple:
        """Return the coordinate that has this offset, with an integer for each mode.

        >>> from .layout import Layout
        >>> Layout((4, (2, 4)), (8, (4, 1))).get_flat_coord(10)
        (1, 4)
        """
        crd, shape = self.get_hier_coord(offset), self.shape
        if not isinstance(shape, tuple):
            return crd
        return tuple([crd2idx(c, s) for c, s in zip(crd, shape, strict=True)])

    def get_1d_coord(self, offset: Any) -> Any:
        """Return the colexicographic position of the coordinate that has this offset.

        >>> from .layout import Layout
        >>> Layout((4, 8), (8, 1)).get_1d_coord(10)
        9
        >>> Layout(4).get_1d_coord(10)
        Traceback (most recent call last):
            ...
        layoutconv.algebra.errors.LayoutValueError: get_1d_coord: no coordinate of 4:1 has the \
offset 10
        """
        layout: Any = getattr(self, "layout", self)
        try:
            position = late("left_inverse")(layout)(offset)
        except LayoutBudgetError:
            position = _place(late("all_values")("get_1d_coord", layout), offset, layout)
        if position < 0 or position >= self.size() or layout(position) != offset:
            raise LayoutValueError(
                f"get_1d_coord: no coordinate of {layout} has the offset {offset}"
            )
        return position

    def __matmul__(self, other: Any) -> Any:
        """Return ``composition(a, b)`` for ``a @ b``."""
        return late("composition")(self, other)

    def __rmatmul__(self, other: Any) -> Any:
        """Compose ``a @ b`` if ``a`` is a swizzle or stands for a layout.

        >>> from .swizzle import Swizzle
        >>> from .layout import Layout
        >>> print(Swizzle(1, 2, 3) @ Layout((4, 8)), "(6,2):(8,2)" @ Layout((4, 3), (3, 1)))
        S<1,2,3> o 0 o (4,8):(1,4) ((2,2),3):((24,2),8)
        """
        return late("composition")(other, self)

    @property
    def assumptions(self) -> tuple[Relation, ...]:
        """The assumptions about symbols on which this result rests, beyond the symbols' minima.

        It is empty for a result that holds for all values of its symbols. See
        :func:`~layoutconv.assuming`.
        :func:`~layoutconv.assuming`.
        """
        found: list[Relation] = []
        for part in self.parts():
            found += [r for r in part.assumptions if r not in found]
        return tuple(found)


def _place(values: list[Any], offset: Any, layout: Any) -> int:
    """Return the only position of a value, or -1."""
    places = [i for i, x in enumerate(values) if x == offset]
    if len(places) > 1:
        raise LayoutValueError(
            f"get_1d_coord: the positions {places[0]} and {places[1]} of {layout} share {offset}"
        )
    return places[0] if places else -1


def is_symbolic(x: Any) -> bool:
    """Tell if an operand contains symbolic integers."""
    if type(x) is int or x is None:
        return False
    if isinstance(x, SymInt | Symbolic):
        return True
    if isinstance(x, tuple):
        return any(map(is_symbolic, x))
    if not isinstance(x, LayoutLike) and not is_stride(x):
        return False
    if getattr(x, "_plain", False):
        return False
    found = []

    def look(integer: Any) -> Any:
        if isinstance(integer, SymInt | Symbolic):
            found.append(integer)
        return integer

    x.map_integers(look)
    return bool(found)


def symbolically(
    operation: Callable[..., Any], *operands: Any, name: str = "", shown: tuple[Any, ...] = ()
) -> Any:
    """Return ``operation(*operands)``; for symbolic operands, the result records its assumptions.

    A kernel's integers compute by name, and become kernel's integers again; they compute as numbers
    if one name has two values in the operands. ``name`` and ``shown``, the operation and its
    operands, are for the error about an unknown relation.
    """
    if not any(map(is_symbolic, operands)):
        return operation(*operands)
    assumptions = [
        x.assumptions for x in operands if getattr(x, "assumptions", ()) and not isinstance(x, type)
    ]
    inherited = [relation for taken in assumptions for relation in taken]
    with one_operation(), recording() as record, _holding(assumptions):
        found: list[Symbolic] = []
        named = [_mapped(lambda integer: _named(integer, found), x) for x in operands]
        if not have_one_value(found) or not _hold_now(inherited, found):
            return symbolically(operation, *[_mapped(_number, x) for x in operands], name=name)
        try:
            result = _mapped(symint_of, operation(*named))
        except LayoutBudgetError as error:
            if error.operation != "expression":
                raise
            result = _at_present(operation, named, error)
        except LayoutValueError as error:
            error.best, error.exact = (
                _mapped(symint_of, error.best),
                _mapped(symint_of, error.exact),
            )
            error.witness = _mapped(symint_of, error.witness)
            if error.unknown is None or error.operation:
                raise
            _undecided(name or operation.__name__.strip("_"), shown or operands, error)
    taken = [*inherited, *record.relations]
    return _noted(result, tuple(dict.fromkeys(taken))) if taken else result


def _hold_now(relations: list[Relation], found: list[Symbolic]) -> bool:
    """Tell if the operands' assumptions hold at the values that their names have now.

    An operand that assumes ``A == 4`` and no longer contains A may meet an A of 6.
    """
    values = {str(x): x.value for x in found if x.value is not None}
    for relation in relations:
        sides = dict(relation.left), dict(relation.right)
        if {*names_of(sides[0]), *names_of(sides[1])} <= set(values):
            left, right = (evaluate(side, values) for side in sides)
            if not holds(relation.sign, left - right):
                return False
    return True


def _holding(assumptions: list[tuple[Relation, ...]]) -> Any:
    """Let operations use their operands' assumptions, unless those contradict each other."""
    if not assumptions:
        return nullcontext()
    try:
        if len(assumptions) == 1:
            return granted(assumptions[0])
        return assuming(*[relation for taken in assumptions for relation in taken])
    except LayoutValueError:  # a name has different values in the operands
        return nullcontext()


def _at_present(operation: Any, operands: list[Any], error: LayoutBudgetError) -> Any:
    """Return the result at the values of a kernel's integers; without values, raise ``error``."""
    try:
        values = [_mapped(present, x) for x in operands]
    except LayoutValueError:
        raise error from None
    return operation(*values)


def _undecided(name: str, operands: tuple[Any, ...], error: LayoutValueError) -> NoReturn:
    """Raise an error that names the operation in which a relation is unknown."""
    raise LayoutValueError(
        f"{name}({', '.join(map(text, operands))}): {error}",
        operation=name,
        operands=operands,
        unknown=error.unknown,
    ) from None


def _named(x: Any, found: list[Symbolic]) -> Any:
    if not isinstance(x, SymInt):
        return x
    symbolic = symbolic_of(x)
    if isinstance(symbolic, Symbolic):
        found.append(symbolic)
    return symbolic


def _number(x: Any) -> Any:
    """Turn a kernel's integer into a plain one, for a name with two values in the operands."""
    return int(x) if isinstance(x, SymInt) else x


def _mapped(fn: Callable[[Any], Any], x: Any) -> Any:
    """Apply ``fn`` to all integers in ``x``."""
    if isinstance(x, LayoutLike):
        return x.map_integers(fn)
    if isinstance(x, tuple) and not is_stride(x):
        return type(x)([_mapped(fn, part) for part in x])
    if isinstance(x, int | Symbolic) and not isinstance(x, bool):
        return fn(x)
    return map_integers(fn, x) if is_stride(x) else x


def _noted(x: Any, relations: tuple[Relation, ...]) -> Any:
    if isinstance(x, tuple):
        return tuple([_noted(part, relations) for part in x])
    for part in x.parts() if isinstance(x, LayoutLike) else ():
        part.assume(relations)
    return x


def present(x: Any) -> Any:
    """Return the present value of a kernel's integer, and record it as an assumption."""
    if not isinstance(x, Symbolic):
        return x
    if x.value is None:
        raise LayoutValueError(f"no layout is known to be exact for all values of {x}")
    bool(x == x.value)
    return x.value


def at_present(operation: str, layout: Any) -> Any:
    """Return a layout at the present values of its kernel's integers, recorded as assumptions."""
    try:
        return layout.map_integers(present)
    except LayoutValueError as error:
        raise LayoutValueError(f"{operation} of {layout}: {error}") from None


def is_empty(layout: Any) -> bool:
    """Tell if a layout has no coordinates: an extent of a kernel may be 0.

    >>> from .layout import Layout
    >>> is_empty(Layout((4, SymInt(0, "N")))), is_empty(Layout(4))
    (True, False)
    """
    return not getattr(layout, "_plain", False) and not known(layout.size() != 0)


def values_of(layout: Any) -> Any:
    """Return ``layout`` at the present values of a kernel's integers, for questions about those."""
    return layout.map_integers(lambda x: int(x) if isinstance(x, SymInt) else x)


__all__ = ["IntTuple", "LayoutLike", "is_empty", "is_symbolic", "symbolically", "values_of"]
