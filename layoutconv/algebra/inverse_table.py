"""Right inverses of functions of which only the values are known."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

from .basis import basis_terms
from .budget import Budget, one_operation
from .errors import LayoutTypeError, LayoutValueError, whole
from .layout import Layout
from .lookups import counted
from .normal import Arithmetic, arithmetic, from_leaves, merge
from .plane_values import Values
from .stride import finished
from .value_tables import steps_of
from .values_at_once import through, values_at_once
from .xor_image import XorPlaces

_NEAR = 33  # leading coordinates, which show where most identities end
_PART = 1 << 14  # leading coordinates that show where most others end
Leaf = tuple[int, int]  # extent, stride
Table = list[Any]  # the offsets that a leaf adds at its coordinates


@one_operation()
def right_inverse_of_table(name: str, a: Any, *, relative: bool = False) -> Layout:
    """Find the longest layout of positions with offsets 0, 1, 2, ... by evaluating ``a``.

    If two positions share an offset, it takes the first. ``relative`` counts offsets from that of
    position 0.

    Raises :class:`LayoutTypeError` for values that are not integers, and :class:`LayoutValueError`
    if position 0 is not at 0.

    >>> from layoutconv.algebra import CustomStride, IndexedGather
    >>> print(right_inverse_of_table("", Layout((4, 2), (CustomStride(IndexedGather([0, 2, 1, 3])), 8))))
    (2,2):(2,1)
    """  # noqa: E501
    first = a(0)
    if not isinstance(first, int):
        if basis_terms(first) or isinstance(first, tuple):
            raise LayoutTypeError(
                f"{name}: {a} gives coordinates by functions; take a mode of them"
            )
        raise LayoutTypeError(f"{name}: {a} gives {first!r}, which is not an integer")
    if first and not relative:
        raise LayoutValueError(f"{name}: position 0 of {a} is at {first}, not at 0", witness=0)
    values = values_at_once(a)
    if values is not None:
        return _found_at_once(a, values, first)
    place = _finder(a, first, Budget(name, (a,)))
    leaves: list[Leaf] = []
    done = 1
    while (step := place(done)) is not None:
        count = 1
        while more := _blocks_that_go_on(place, count, done, step, leaves):
            count += more
        if count == 1:
            break
        leaves.append((count, step))
        done *= count
    return from_leaves(merge(leaves))


def _found_at_once(a: Any, values: Values, first: int) -> Layout:
    """Find the inverse if all values are known at once."""
    leaves: list[Leaf] = []
    done = 1
    while (step := values.place_of(first + done)) is not None:
        whole = from_leaves([*leaves, (inside(leaves, step, values.count), step)])
        found = identical(a, whole)
        if found is None or found < 2 * done:
            break
        leaves.append((found // done, step))
        done *= found // done
    return from_leaves(merge(leaves))


def _blocks_that_go_on(place: Any, count: int, done: int, step: int, leaves: list[Leaf]) -> int:
    """Return how many more blocks of ``done`` positions continue the regular spacing after
    ``count`` of them.

    One look decides as many blocks as possible, a power of two, else a single one.
    """
    more = count & -count
    while more > 1:
        if isinstance(place, XorPlaces) and place.alike(count * done, count * step, more * done):
            return more
        more //= 2
    return int(_goes_on(place, count * done, count * step, done, leaves))


def _goes_on(place: Any, offset: int, start: int, done: int, leaves: list[Leaf]) -> bool:
    """Tell if offsets from ``offset`` on lie at ``start`` plus the first positions."""
    if isinstance(place, XorPlaces) and place.alike(offset, start, done):
        return True
    return all(place(offset + k) == start + v for k, v in enumerate(_positions(leaves)))


def _positions(leaves: list[Leaf]) -> Iterator[int]:
    """Yield the positions of a layout, one by one: there may be millions."""
    if not leaves:
        yield 0
        return
    *faster, (count, step) = leaves
    for i in range(count):
        for position in _positions(faster):
            yield i * step + position


def inside(done: list[tuple[int, Any]], stride: Any, size: int) -> int:
    """Return the largest extent of one more mode that keeps positions below ``size``."""
    left = size - 1 - sum([(s - 1) * int(d) for s, d in done])
    return max(1, left // int(stride) + 1) if int(stride) > 0 else size


def identical(a: Any, candidate: Layout) -> int | None:
    """Return how many coordinates ``a`` after a layout maps to ``a(0)``, ``a(0) + 1``, ... in turn.

    None if the values are not known at once.
    """
    first = a(0)
    size = int(candidate.size())
    near = next((i for i in range(1, min(size, _NEAR)) if a(candidate(i)) - first != i), None)
    if near is not None:
        return near
    for most in (_PART, size):
        part = _first_of(candidate, most)
        inner = values_at_once(part)
        found = None if inner is None else through(a, inner)
        if found is None:
            return None
        same = counted(found, first)
        if same < found.count:
            break
    return same


def _first_of(layout: Layout, most: int) -> Layout:
    """Cut the last mode of a flat layout to keep just ``most`` coordinates or a few more."""
    *faster, (s, d) = layout._leaves or [(1, 0)]
    block = prod([int(extent) for extent, _ in faster])
    return from_leaves([*faster, (min(int(s), -(-most // block)), d)])


def _finder(a: Any, first: int, budget: Budget) -> Any:
    """Return the function from an offset to the first position that has it, or None."""
    if isinstance(a, Layout) and arithmetic(a) is Arithmetic.XOR:
        return XorPlaces(a, budget)
    size, price = whole("right_inverse", a.size()), steps_of(a)
    found: dict[int, int] = {}
    looked = 0

    def place(offset: int) -> int | None:
        nonlocal looked
        while offset not in found and looked < size:
            budget.spend(price)
            found.setdefault(int(finished(a(looked))) - first, looked)
            looked += 1
        return found.get(offset)

    return place
