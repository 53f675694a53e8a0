"""Helpers of checks: their error, layouts of other libraries, comparison of tables."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ..algebra import ComposedLayout, Layout, LayoutValueError, Tensor
from ..algebra.errors import shortly, wrong_argument
from .oracle import (
    components,
    coordinates,
    flat_strides,
    hashable,
    kind_of,
    leaves,
    nested,
    table,
    value,
    volume,
)


class WrongResultError(AssertionError):
    """The result of an operation differs from its definition.

    >>> from layoutconv.testing import check_cosize
    >>> try:
    ...     check_cosize(Layout(4, -1), -2)
    ... except WrongResultError as error:
    ...     print(error)
    cosize(4:-1) = -2: it is 4
    """


def layout_of(x: Any) -> Any:
    """Convert a layout of another library to one of ours, by its ``shape`` and ``stride``.

    Layouts, composed layouts and tensors of this library are returned as they are; an integer or a
    tuple of integers is a shape. Raises :class:`WrongResultError` for an object without shape and
    stride.

    >>> print(layout_of(Layout((4, 8), (8, 1))), layout_of((4, 2)))
    (4,8):(8,1) (4,2):(1,4)
    """
    if isinstance(x, Layout | ComposedLayout | Tensor):
        return x
    if isinstance(x, int | tuple) and not hasattr(x, "shape"):
        return Layout(x)
    if not hasattr(x, "shape") or not hasattr(x, "stride"):
        raise WrongResultError(f"{shortly(x)} is not a layout: it has no shape and stride")
    return Layout(_tuple(x.shape), _tuple(x.stride))


def expect_known(operation: str, argument: str, x: Any, known: Iterable[str]) -> None:
    """Raise unless a name is one of the known names.

    >>> expect_known("layouts", "kind", "f2", ("int", "F2"))
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutValueError: layouts: argument `kind`: expected one of int, F2, \
got 'f2'
    """
    names = tuple(known)
    if x not in names:
        expected = f"expected one of {', '.join(names)}"
        raise LayoutValueError(f"{operation}: argument `{argument}`: {expected}, got {shortly(x)}")


def expect_count(operation: str, argument: str, x: Any) -> None:
    """Raise unless ``x`` is an int of at least 1.

    >>> expect_count("shapes", "max_rank", 0)
    Traceback (most recent call last):
        ...
    layoutconv.algebra.errors.LayoutTypeError: shapes: argument `max_rank`: expected an int >= 1, \
got 0
    """
    if type(x) is not int or x < 1:
        raise wrong_argument(operation, argument, "an int >= 1", x)


def _tuple(tree: Any) -> Any:
    if isinstance(tree, tuple | list):
        return tuple(map(_tuple, tree))
    return tree if hasattr(tree, "__mul__") and not isinstance(tree, float) else int(tree)


def said_of(operation: str, *operands: Any) -> str:
    """Return the beginning of a message: the call and its result, the last of ``operands``."""
    *given, result = map(_text, operands)
    return f"{operation}({', '.join(given)}) = {result}"


def _text(x: Any) -> str:
    if isinstance(x, tuple):
        return f"({','.join(map(_text, x))})"
    return "_" if x is None else str(x)


def wrong_unless(condition: Any, said: str, why: str) -> None:
    """Raise :class:`WrongResultError` unless a condition holds."""
    if not condition:
        raise WrongResultError(f"{said}: {why}")


def same_values(said: str, pairs: Iterable[tuple[Any, Any, Any]]) -> None:
    """Compare values: ``pairs`` are triples of a coordinate, its value, and the expected value."""
    for at, got, wanted in pairs:
        if got != wanted:
            shown = _text(at)
            raise WrongResultError(f"{said}: at {shown} it is {shown_value(got)}, not "
                                   f"{shown_value(wanted)}")  # fmt: skip


def same_table(said: str, got: list[Any], wanted: list[Any]) -> None:
    """Compare the values at all linear coordinates, and their number."""
    wrong_unless(len(got) == len(wanted), said, f"it has {len(got)} elements, not {len(wanted)}")
    same_values(said, ((i, x, y) for i, (x, y) in enumerate(zip(got, wanted, strict=True))))


def shown_value(v: Any) -> str:
    """Return an offset as text, or a coordinate as a sum of basis elements."""
    if not isinstance(v, dict):
        return str(v)
    return " + ".join(f"{x}*E{path}" for path, x in sorted(v.items()))


def distinct(said: str, offsets: Iterable[Any]) -> None:
    """Check that no offset occurs twice; the message has the smallest that does."""
    seen: set[Any] = set()
    twice: set[Any] = set()
    for offset in map(hashable, offsets):
        (twice if offset in seen else seen).add(offset)
    wrong_unless(not twice, said, f"offset {min(twice, key=str) if twice else 0} is in two copies")


def modes_of(shape: Any) -> tuple[int, ...]:
    """Return the sizes of the modes of a shape; an integer is one mode."""
    return tuple(map(volume, shape)) if isinstance(shape, tuple) else (volume(shape),)


def every(extents: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Yield every coordinate of modes, the first mode fastest."""
    yield from coordinates(tuple(extents))


def at_modes(f: Any, crd: tuple[int, ...]) -> Any:
    """Return the value at a coordinate with an integer for each mode."""
    return value(f, tuple(crd) if isinstance(f.shape, tuple) else crd[0])


def has_rank(said: str, result: Any, rank: int) -> None:
    """Check that a result has as many modes as its coordinates have entries."""
    found = len(modes_of(result.shape))
    wrong_unless(found == rank, said, f"its rank is {found}, not {rank}")


def added(f: Any) -> Callable[[Any, Any], Any]:
    """Return the addition that a layout uses: XOR if it has XOR strides."""
    from .oracle import plus

    return (lambda v, w: v ^ w) if has_xor(f) else plus


def has_xor(f: Any) -> bool:
    """Return whether a layout has strides that add by XOR."""
    return kind_of(f) == "Layout" and any(
        kind_of(d) == "F2" and d.value for d in flat_strides(f.shape, f.stride)
    )


def is_still(d: Any) -> bool:
    """Return whether a stride of any kind is 0; a user's stride, a function, never is."""
    if kind_of(d) == "F2":
        return not d.value
    if kind_of(d) == "CustomStride":
        return is_still(d.stride)
    return kind_of(d) in ("int", "SymInt", "ScaledBasis", "ArithmeticTuple") and not components(d)


def leaf_modes(a: Layout) -> list[tuple[Any, Any]]:
    """Return the extent and stride of every leaf."""
    return list(zip(leaves(a.shape), flat_strides(a.shape, a.stride), strict=True))


def moving(a: Layout) -> list[tuple[int, int]]:
    """Return absolute stride and extent of the modes that move, in the order of these strides."""
    return sorted((abs(int(d)), int(s)) for s, d in leaf_modes(a) if s > 1 and d)


def starts_of_copies(a: Layout, count: int) -> list[int] | None:
    """Return ``count`` offsets of disjoint copies, as many in each gap between modes as fit.

    Return None if a mode steps into modes of smaller strides, or a stride is not an integer.
    """
    if not all(isinstance(d, int) for _, d in leaf_modes(a)) or has_xor(a):
        return None
    starts, current = [0], 1
    for d, s in moving(a):
        if d < current:
            return None
        gap = d // current
        starts = [r + k * current for k in range(min(gap, count)) for r in starts][:count]
        current = d * s
    return [r + k * current for k in range(-(-count // len(starts))) for r in starts][:count]


def starts_of_tiles(tile: Layout, size: int) -> list[int] | None:
    """Return the offsets of copies of a tile that cover all positions below ``size``, each once.

    Return None if copies would overlap, or leave a position out.
    """
    gaps, whole = 1, 1
    for d, s in moving(tile):
        gaps, whole = gaps * (d // whole), d * s
    starts = starts_of_copies(tile, gaps * -(-size // whole))
    own = table(tile)
    reached = {o - min(own) + start for o in own for start in starts or ()}
    return starts if set(range(size)) <= reached else None


def peeled(a: Any, result: Any) -> tuple[Any, Any]:
    """Strip from both the outer parts that they share: a swizzle, an offset, a tensor's memory."""
    while kind_of(a) == kind_of(result) != "Layout":
        if kind_of(a) == "Tensor" and (a.engine, a.offset) == (result.engine, result.offset):
            a, result = a.layout, result.layout
        elif kind_of(a) == "ComposedLayout" and (a.outer, a.offset) == (
            result.outer,
            result.offset,
        ):
            a, result = a.inner, result.inner
        else:
            break
    return a, result


def nest(flat: Iterable[Any], shape: Any) -> Any:
    """Return the digits of leaves in the nesting of a shape."""
    return nested(list(flat), shape)
