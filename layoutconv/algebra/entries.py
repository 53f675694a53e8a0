"""Entries of a tuple and modes of a layout, by CuTe's names: get, append, select, take.

Each function takes an int tuple, a layout, a composed layout or a tensor. Entries of a tuple play
the part of modes of a layout; an integer counts as a tuple of one. CUTLASS: cute/layout.hpp and
cute/algorithm/tuple_algorithms.hpp.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import islice
from operator import itemgetter
from typing import Any

from .basis import is_sequence
from .budget import table_size
from .checks import as_integer, plain
from .errors import LayoutTypeError, text, wrong_argument
from .int_tuple import (
    IntTuple,
    flatten,
    map_leaves,
    path_of,
    product,
    refuse_other_profile,
    shape_of,
)
from .layout import Layout, as_like, innermost, make, make_layout
from .like import LayoutLike
from .operands import expect_entries, is_entry

Mode = int | Sequence[int] | None  # a mode, the path of a nested one, or None for all


def get(x: Any, mode: Mode = None) -> Any:
    """Return the entry of a tuple, or the mode of a layout, at an index or a path of indices.

    C++ writes ``get<1,0>(x)``, the DSL ``get(x, mode=[1, 0])``.

    Raises :class:`LayoutTypeError` if there is no such entry.

    >>> print(get(Layout((4, (2, 3)), (6, (3, 1))), mode=[1, 0]), get((4, (2, 3)), 1))
    2:3 (2, 3)
    """
    for i in path_of("get", mode):
        entries = _entries("get", x)
        if not -len(entries) <= i < len(entries):
            raise LayoutTypeError(f"get: {_shown(x)} has no entry {i}")
        x = x.on_domain(itemgetter(i)) if isinstance(x, LayoutLike) else entries[i]
    return x


def shape(x: Any, mode: Mode = None) -> IntTuple:
    """Return the shape of a layout, a tensor or a tuple, or of one of its modes.

    >>> shape(Layout((4, (2, 3))), mode=[1])
    (2, 3)
    """
    return get(shape_of("shape", x), mode)


def stride(x: Any, mode: Mode = None) -> IntTuple:
    """Return the strides of a layout or a tensor, or of one of its modes.

    >>> stride(Layout((4, (2, 3)), (6, (3, 1))), mode=[1, 0])
    3
    """
    like = as_like("stride", x)
    found = getattr(get(like, mode), "stride", None)
    if found is None:
        raise LayoutTypeError(f"stride: {like} has no strides of its own")
    return found


def append(x: Any, entry: Any = None, rank: int | None = None) -> Any:
    """Append ``entry`` to ``x`` as a new last entry, or repeatedly until ``x`` has ``rank``.

    The default entry is ``1:0``, or 1 for a tuple: C++'s ``append<3>(x)``.

    >>> print(append(Layout((2, 3), (1, 2)), Layout(4, 6)), append((2, 3), 1, 4))
    (2,3,4):(1,2,6) (2, 3, 1, 1)
    """
    return _extended("append", x, entry, rank)


def prepend(x: Any, entry: Any = None, rank: int | None = None) -> Any:
    """Prepend ``entry`` to ``x`` as a new first entry, or repeatedly until ``x`` has ``rank``.

    >>> print(prepend(Layout((2, 3), (1, 2)), Layout(4, 6)), prepend((2, 3), 1, 4))
    (4,2,3):(6,1,2) (1, 1, 2, 3)
    """
    return _extended("prepend", x, entry, rank)


def _extended(name: str, x: Any, entry: Any, rank: int | None) -> Any:
    if type(entry) is not int and entry is not None:
        expect_entries(name, "entry", entry)
        entry = plain(entry)

    def extended(inner: Any) -> Any:
        entries = _entries(name, inner)
        count = 1 if rank is None else rank - len(entries)
        if count < 0:
            raise LayoutTypeError(f"{name}: {_shown(inner)} has more than {rank} entries")
        new = entry
        if new is None:
            new = make(1, 0) if isinstance(inner, LayoutLike) else 1
        more = [new] * table_size(name, text(rank), count)
        return _joined(name, inner, entries + more if name == "append" else more + entries)

    return _on_domain(name, x, extended)


def replace(x: Any, mode: int, entry: Any) -> Any:
    """Replace entry ``mode`` of ``x`` with ``entry``. C++: ``replace<I>(x, entry)``.

    >>> print(replace(Layout((2, 3), (1, 2)), 0, Layout(5, 7)), replace((2, 3), 1, (4, 5)))
    (5,3):(7,2) (2, (4, 5))
    """

    if type(mode) is not int and type(mode := as_integer(given := mode)) is not int:
        raise wrong_argument("replace", "mode", "an int", given)
    if type(entry) is not int:
        expect_entries("replace", "entry", entry)
        entry = plain(entry)

    def replaced(inner: Any) -> Any:
        entries = _entries("replace", inner)
        _checked("replace", inner, entries, [mode])
        return _joined("replace", inner, [entry if i == mode else e for i, e in enumerate(entries)])

    return _on_domain("replace", x, replaced)


def select(x: Any, mode: Mode) -> Any:
    """Return the entries of ``x`` at these indices, in this order. C++: ``select<0,2>(x)``.

    >>> print(select(Layout((2, 3, 4), (1, 2, 6)), mode=[0, 2]), select((2, 3, 4), [2, 0]))
    (2,4):(1,6) (4, 2)
    """

    def selected(inner: Any) -> Any:
        entries, chosen = _entries("select", inner), path_of("select", mode)
        _checked("select", inner, entries, chosen)
        return _joined("select", inner, [entries[i] for i in chosen])

    return _on_domain("select", x, selected)


def take(x: Any, begin: int, end: int) -> Any:
    """Return the entries ``begin`` to ``end`` (exclusive) of ``x``. C++: ``take<B,E>(x)``.

    Raises :class:`LayoutTypeError` unless ``0 <= begin <= end <= rank``.

    >>> print(take(Layout((2, 3, 4), (1, 2, 6)), 1, 3), take((2, 3, 4), 0, 2))
    (3,4):(2,6) (2, 3)
    """
    if not (type(begin) is int and type(end) is int and 0 <= begin <= end):
        raise LayoutTypeError(f"take: expected 0 <= begin <= end, got {begin!r} and {end!r}")

    def taken(inner: Any) -> Any:
        entries = _entries("take", inner)
        if end > len(entries):
            raise LayoutTypeError(f"take: {_shown(inner)} has no entry {end - 1}")
        return _joined("take", inner, entries[begin:end])

    return _on_domain("take", x, taken)


def concat(*xs: Any) -> Any:
    """Join the entries of all operands; modes of layouts make a layout. C++: tuple_cat.

    >>> print(concat(Layout(2, 1), Layout(3, 2)), concat((1, 2), (3,)))
    (2,3):(1,2) (1, 2, 3)

    Raises :class:`LayoutTypeError` for composed layouts and tensors; :func:`append` extends one.
    """
    entries: list[Any] = []
    layout = None
    for x in xs:
        if isinstance(x, LayoutLike):
            layout = x
            if not isinstance(x, Layout):
                raise LayoutTypeError(
                    f"concat: {x} is not a plain layout; append joins modes to it"
                )
        entries += _entries("concat", x)
    return _joined("concat", layout, entries)


def wrap(x: Any) -> Any:
    """Wrap an integer in a tuple of one; give a layout of depth 0 one mode; keep all others.

    >>> wrap(3), wrap((3, 4)), str(wrap(Layout(4, 2)))
    ((3,), (3, 4), '(4):(2)')
    """
    return _on_domain("wrap", x, lambda inner: _joined("wrap", inner, _entries("wrap", inner)))


def unwrap(x: Any) -> Any:
    """Remove tuples of one around ``x``.

    >>> unwrap(((3,),)), str(unwrap(Layout(((4,),), ((2,),))))
    (3, '4:2')
    """

    def unwrapped(inner: Any) -> Any:
        while isinstance(shape_of("unwrap", inner), tuple) and len(_entries("unwrap", inner)) == 1:
            inner = _entries("unwrap", inner)[0]
        return plain(inner)

    return _on_domain("unwrap", x, unwrapped)


def unflatten(x: Any, profile: IntTuple) -> Any:
    """Nest the entries of ``x``, all of depth 0, like ``profile``, which may be a layout.

    >>> print(unflatten(Layout((2, 2, 3)), ((1, 1), 1)), unflatten((2, 2, 3), ((1, 1), 1)))
    ((2,2),3):((1,2),4) ((2, 2), 3)
    """
    profile = shape_of("unflatten", profile)
    if not isinstance(x, tuple | str | LayoutLike) and is_sequence(x):
        x = tuple(islice(x, len(flatten(profile)) + 1))

    def nested(inner: Any) -> Any:
        entries = list(_entries("unflatten", inner))
        places = len(flatten(profile))
        if len(entries) != places:
            raise LayoutTypeError(
                f"unflatten: {_shown(inner)} has {len(entries)} entries, {text(profile)} {places}"
            )
        return _nested(iter(entries), profile, isinstance(inner, LayoutLike))

    return _on_domain("unflatten", x, nested)


def _nested(entries: Any, profile: IntTuple, layouts: bool) -> Any:
    if not isinstance(profile, tuple):
        return next(entries)
    parts = [_nested(entries, part, layouts) for part in profile]
    return make_layout(parts) if layouts else tuple(parts)


def transform_leaf(fn: Callable[..., Any], *ts: IntTuple) -> IntTuple:
    """Apply ``fn`` to the matching leaves of congruent tuples, and keep their nesting.

    Raises :class:`LayoutTypeError` if a profile differs from the first, or without tuples.

    >>> transform_leaf(lambda x: x + 1, (1, (2, 3)))
    (2, (3, 4))
    """
    if not ts:
        raise LayoutTypeError("transform_leaf: expected at least one tuple, got none")
    found = [shape_of("transform_leaf", t) for t in ts]
    for t in found[1:]:
        refuse_other_profile("transform_leaf", found[0], t)
    return map_leaves(fn, *found)


def repeat_like(x: Any, profile: IntTuple) -> IntTuple:
    """Return ``x`` at every leaf of ``profile``.

    >>> repeat_like(7, (1, (2, 3)))
    (7, (7, 7))
    """
    return map_leaves(lambda _: x, shape_of("repeat_like", profile))


def product_each(x: Any) -> Any:
    """Return the size of every entry of a shape; for an integer, itself.

    >>> product_each(((2, 3), 4)), product_each(Layout((2, (3, 4))))
    ((6, 4), (2, 12))
    """
    found = shape_of("product_each", x)
    return tuple(map(product, found)) if isinstance(found, tuple) else product(found)


def product_like(x: Any, profile: IntTuple) -> IntTuple:
    """Return the size of the part of a shape at each leaf of ``profile``.

    >>> product_like(((2, 3), (4, 5)), (1, (1, 1)))
    (6, (4, 5))
    """
    return _product_like(shape_of("product_like", x), shape_of("product_like", profile))


def _product_like(found: IntTuple, profile: IntTuple) -> IntTuple:
    if not isinstance(profile, tuple):
        return product(found)
    if not isinstance(found, tuple) or len(found) != len(profile):
        raise LayoutTypeError(f"product_like: {text(found)} is not nested as {text(profile)}")
    return tuple([_product_like(s, p) for s, p in zip(found, profile, strict=True)])


def _entries(name: str, x: Any) -> list[Any]:
    """Return the entries of a tuple or modes of a layout; an integer or depth 0 is one entry."""
    if isinstance(x, str):
        x = as_like(name, x)
    if isinstance(x, LayoutLike):
        layout = innermost(name, x)
        return list(layout) if isinstance(layout.shape, tuple) else [layout]
    if isinstance(x, tuple):
        if all(type(entry) is int for entry in x):
            return list(x)
        for entry in x:
            expect_entries(name, "x", entry)
        return list(map(plain, x))
    if type(x) is not int and (x is None or not is_entry(x)):
        raise wrong_argument(name, "x", "an int, a tuple or a layout", x)
    return [plain(x)]


def _joined(name: str, like: Any, entries: list[Any]) -> Any:
    if isinstance(like, LayoutLike):
        return make_layout(entries)
    return tuple(entries)


def _on_domain(name: str, x: Any, operation: Callable[[Any], Any]) -> Any:
    if isinstance(x, str):
        x = as_like(name, x)
    if not isinstance(x, LayoutLike):
        return operation(x)
    if isinstance(x, Layout):
        return x.on_domain(operation)
    return x.on_domain(lambda inner: _on_domain(name, inner, operation))  # may be composed, too


def _checked(name: str, x: Any, entries: list[Any], chosen: Sequence[int]) -> None:
    wrong = [i for i in chosen if not -len(entries) <= i < len(entries)]
    if wrong:
        raise LayoutTypeError(f"{name}: {_shown(x)} has no entry {wrong[0]}")


def _shown(x: Any) -> str:
    return str(x) if isinstance(x, LayoutLike) else text(x)
