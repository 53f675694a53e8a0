"""``complement``: the layout of the positions that a layout skips."""

from __future__ import annotations

from typing import Any

from .arrays import is_array
from .basis import ScaledBasis
from .errors import LayoutTypeError, inexact, text, whole, wrong_argument
from .extent import coprofile
from .f2 import complement_f2
from .int_tuple import IntTuple, flatten, product, shape_of
from .layout import Layout, Leaf, innermost
from .like import at_present, symbolically
from .normal import (
    Arithmetic,
    arithmetic,
    by_stride,
    filtered,
    from_leaves,
    from_plain,
    merge,
    nested_by_path,
    require_known,
    simplified,
)
from .protocol import Path, is_integer, is_stride
from .relations import known
from .symbols import ceil_div


def complement(a: Any, bound: IntTuple | None = 1) -> Any:
    """Return the ordered layout ``R`` of the starts of disjoint copies of ``a``, up to ``bound``.

    R increases strictly, and the offsets ``a(i) + R(j)`` differ for different offsets ``a(i)`` and
    different j. R puts as many copies as fit into each gap between modes of ``a``, then repeats the
    whole until the copies reach ``bound``. If each gap is a multiple of the span below it, copies
    fill it: ``(a, R)`` reaches every offset once. ``bound`` is an integer or a shape (its size
    counts), by default 1. Modes of stride 0 do not count; a negative stride counts as a positive
    one, shifted. For scaled bases ``bound`` is the shape of the coordinates, and R fills each of
    its modes. Copies of XOR strides are XOR-ed. A composed layout stands for its domain, where its
    copies lie; a tensor stands for its layout.

    ``bound=None`` sets no end, as in NVlabs/CuTe: the last mode is ``1:d`` with d the start of the
    next repetition, and starts continue along it beyond the size of R, still disjoint. For scaled
    bases R then has a mode for each mode of the coordinates.

    Raises :class:`LayoutValueError` if modes interleave: one stride, the ``witness``, is less than
    the span of the modes below it. CUTLASS: cute/layout.hpp; Cecka, *CuTe Layout Representation
    and Algebra*, 3.5.

    >>> print(complement(Layout(4, 2), 24), complement(Layout((2, 2), (1, 6)), 24))
    (2,3):(1,8) (3,2):(2,12)
    >>> print(complement(Layout((8, 64), (72, 1)), 1728))
    3:576
    >>> print(complement(Layout(4, 2), None), complement(Layout(4, 2), None)(5))
    (2,1):(1,8) 17
    """
    if type(a) is not Layout:
        a = innermost("complement", a)
    if a._plain and (type(bound) is int or bound is None):
        leaves, current = gaps((a, bound), sorted_modes(a))
        if bound is None:
            leaves.append((1, current))
        elif current < bound:
            leaves.append((-(-bound // current), current))
        return from_plain(leaves)
    return symbolically(_complement, a, None if bound is None else shape_of("complement", bound))


def _complement(a: Layout, bound: IntTuple | None) -> Layout:
    require_known("complement", a)
    operands = (a, bound)
    kind = arithmetic(a)
    if kind is Arithmetic.XOR:
        a = at_present("complement", a)
        return complement_f2(a, None if bound is None else whole("complement", product(bound)))
    if kind is Arithmetic.OPAQUE:
        raise LayoutTypeError(f"complement: expected integers or scaled bases, got {a}")
    if bound is None:
        return _endless(a)
    for extent in flatten(bound):
        if is_array(extent) or is_stride(extent):
            raise wrong_argument("complement", "bound", "an int, a shape or None", bound)
    if kind is Arithmetic.INTEGER:
        return from_leaves(merge(bounded_gaps(operands, ascending(a), product(bound))))
    result: list[Leaf] = []
    for path, leaves in by_path(a, _paths(bound)).items():
        limit = product(_at(bound, path))
        result += [(s, ScaledBasis(d, path)) for s, d in bounded_gaps(operands, leaves, limit)]
    return from_leaves(merge(result))


def _endless(a: Layout) -> Layout:
    """Return the complement without a bound, for integers of any kind and scaled bases."""
    if arithmetic(a) is Arithmetic.INTEGER:
        return from_leaves(endless_gaps("complement", (a,), ascending(a)))
    starts = {
        path: [(s, ScaledBasis(d, path)) for s, d in endless_gaps("complement", (a,), modes)]
        for path, modes in by_path(a, _paths(coprofile(a))).items()
    }
    return nested_by_path(starts)


def sorted_modes(a: Layout) -> list[tuple[int, int]]:
    """Return pairs (absolute stride, extent) of a layout of plain integers, ascending."""
    return sorted([(abs(d), s) for s, d in a._leaves if d and s != 1])


def ascending(a: Layout) -> list[tuple[Any, Any]]:
    """Return the :func:`sorted_modes` of integers of any kind."""
    if a._plain:
        return sorted_modes(a)
    return [(d, s) for s, d in by_stride([(s, abs(d)) for s, d in filtered(simplified(a))])]


def gaps(
    operands: tuple[Any, ...], ordered: list[tuple[Any, Any]], operation: str = "complement"
) -> tuple[list[Leaf], Any]:
    """Return the copies that fit between ``ordered`` modes, as leaves, and the end of the modes.

    ``operation`` and ``operands`` are for the error.
    """
    result: list[Leaf] = []
    current: Any = 1
    for d, s in ordered:
        if d < current:
            _refuse(operation, operands, (s, d), current)
        gap = d // current
        if type(gap) is not int or gap > 1:
            result.append((gap, current))
        current = d * s
    return result, current


def bounded_gaps(
    operands: tuple[Any, ...], ordered: list[tuple[Any, Any]], bound: Any
) -> list[Leaf]:
    """Return :func:`gaps`, and the copies after them up to ``bound``."""
    result, current = gaps(operands, ordered)
    if not known(current >= bound):
        result.append((ceil_div(bound, current), current))
    return result


def endless_gaps(
    operation: str, operands: tuple[Any, ...], ordered: list[tuple[Any, Any]]
) -> list[Leaf]:
    """Return :func:`gaps`, and a mode that repeats the whole without end."""
    result, current = gaps(operands, ordered, operation)
    return [*result, (1, current)]


def by_path(a: Layout, paths: list[Path]) -> dict[Path, list[tuple[Any, Any]]]:
    """Return the :func:`ascending` modes of each mode of the layout's coordinates, in order."""
    found: dict[Path, list[Leaf]] = {path: [] for path in paths}
    for s, d in filtered(simplified(a)):
        if not isinstance(d, ScaledBasis) or not is_integer(d.value):
            raise LayoutTypeError(f"complement: expected integers or scaled bases, got {a}")
        found.setdefault(d.path, []).append((s, abs(d.value)))
    return {
        path: [(d, s) for s, d in by_stride(found[path]) if not (type(s) is int and s == 1)]
        for path in sorted(found)
    }


def first_lost(ordered: list[tuple[int, int]]) -> int | None:
    """Return the first offset that copies in the gaps of ``ordered`` miss; None if there is none.

    >>> first_lost([(1, 4), (10, 2)]), first_lost([(1, 4), (8, 2)])
    (8, None)
    """
    current: Any = 1
    for d, s in ordered:
        if d % current:
            return d // current * current  # type: ignore[no-any-return]
        current = d * s
    return None


def _paths(bound: IntTuple, path: Path = ()) -> list[Path]:
    if isinstance(bound, tuple):
        return [p for i, mode in enumerate(bound) for p in _paths(mode, (*path, i))]
    return [path] if path else []


def _at(bound: IntTuple, path: Path) -> IntTuple:
    for mode in path:
        if not isinstance(bound, tuple) or mode >= len(bound):
            return 1
        bound = bound[mode]
    return bound


def _refuse(operation: str, operands: tuple[Any, ...], mode: Leaf, current: Any) -> None:
    s, d = mode
    inexact(
        operation,
        operands,
        f"the mode {s}:{d} begins at {text(d)}, before the modes of smaller strides end at "
        f"{text(current)}: copies would overlap",
        witness=d,
    )
