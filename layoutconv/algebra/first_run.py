"""The run of consecutive offsets at the start of a layout."""

from __future__ import annotations

from typing import Any

from .analysis import asked, swizzles_integers
from .budget import Budget
from .errors import (
    whole,
)
from .fold import folded
from .layout import Layout
from .like import is_empty
from .lookups import counted, known_values
from .normal import (
    Arithmetic,
    arithmetic,
)
from .protocol import terms
from .stride import finished
from .swizzle import Swizzle
from .symbols import Symbolic
from .value_tables import steps_of
from .values_at_once import values_at_once
from .xor import F2


def contiguity(layout: Any) -> Any:
    """Return the number of leading coordinates with consecutive offsets.

    >>> contiguity(Layout((4, 8), (1, 4))), contiguity(Layout((4, 8), (8, 1)))
    (32, 1)
    """
    a = asked("contiguity", layout)
    if is_empty(a):
        return 0
    plain = folded(a)
    if plain is not None:
        return _run(plain[0])
    start = 1
    if swizzles_integers(a) and type(a.offset) is int:
        start, moved = _run(a.inner), _swizzled_run(a.outer, a.offset)
        if moved < start:
            return moved
    values = values_at_once(a)
    if values is not None:
        return counted(values, a(0))
    budget = Budget("contiguity", (layout,))
    n, size, first, price = start, whole("contiguity", a.size()), a(0), steps_of(a)
    while n < size and a(n) == first + n:
        budget.spend(price)
        n += 1
    return n


def _run(layout: Layout) -> Any:
    """Return the length of a layout's first run: each leaf continues where those before it end."""
    by_xor = arithmetic(layout) is Arithmetic.XOR
    budget = Budget("contiguity", (layout,))
    run: Any = 1
    for s, d in layout._leaves:
        if type(s) is int and s == 1:
            continue
        found = None if by_xor else terms(d)
        if found is not None:
            if len(found) != 1 or found[0][0] != () or found[0][1] != run:
                if s == 1:
                    continue
                return _number(run)
            run = run * s
            continue
        ints = type(s) is int and type(run) is int and not by_xor
        values = known_values(d, s) if ints else None
        if values is not None:
            end = counted(values, values.at(0), run)
            run = run * end
            if end < values.count:
                return run
            continue
        first = finished(0 * d)
        for c in range(1, whole("contiguity", s)):
            budget.spend(2)
            moved = finished(c * d)
            if not isinstance(moved, int) or moved - first != c * run:
                return int(c * run)
            if by_xor and (c * run) & (run - 1):
                return int(c * run + min((c * run) & -(c * run), run))
            if by_xor and run & (run - 1) == 0 and d == F2(run):
                break  # a power of two, doubled by each bit: it never carries
        run = run * s
    return _number(run)


def _number(x: Any) -> Any:
    """Return a plain integer; an expression of symbols unchanged."""
    return x if isinstance(x, Symbolic) else int(x)


def _swizzled_run(swizzle: Swizzle, start: int) -> int:
    """Return the number of offsets from ``start`` on that a swizzle shifts by the same amount.

    The amount can change only where the bits that it reads or writes change.
    """
    mask = swizzle.mask
    if not mask:
        return 1 << 62
    move, at = swizzle.of_integers(), start
    moved = move(start) - start
    while True:
        read = at & mask
        written = (move(read) ^ read) if read else mask
        block = min(mask & -mask, written & -written)
        at = (at // block + 1) * block
        if move(at) - at != moved:
            return at - start
