"""Casts: view the same memory as elements of another size."""

from __future__ import annotations

from math import gcd
from typing import Any

from .checks import as_integer
from .composed import ComposedLayout
from .errors import LayoutError, LayoutTypeError, LayoutValueError, inexact, text, under
from .fold import folded
from .int_tuple import unflatten
from .layout import IDENTITY, Layout, Leaf, as_like
from .like import at_present, symbolically
from .normal import (
    Arithmetic,
    arithmetic,
    from_leaves,
    like_shape,
    normal_form,
    require_known,
    simplified,
)
from .protocol import times, xor
from .relations import known
from .swizzle import Swizzle
from .symbols import Symbolic, ceil_div
from .xor import F2


def upcast(layout: Any, n: int) -> Any:
    """Return the layout in units of ``n`` elements: positions that share a unit become one.

    A leaf of stride d divides its extent by ``k = ceil(n / |d|)`` and its stride by n, both rounded
    up, so that ``layout(c) // n == upcast(layout, n)(c // k)`` leaf by leaf; a leaf that never
    leaves its unit gets extent 1. Swizzles and composed layouts work too. CUTLASS: cute/layout.hpp.

    Raises :class:`LayoutValueError` if that equation fails, with the coordinate as ``witness``.

    >>> print(upcast(Layout((8, 4), (1, 8)), 4), upcast(Layout((2, 2), (1, 2)), 4))
    (2,4):(1,2) (1,1):(1,1)
    >>> print(upcast(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))), 8))
    S<3,0,3> o 0 o (8,8):(8,1)
    """
    n = _positive("upcast", n)
    if isinstance(layout, Swizzle):
        return _moved("upcast", layout, n, -1)
    layout = as_like("upcast", layout)
    if isinstance(layout, ComposedLayout):
        return _upcast_composed(layout, n)
    if not isinstance(layout, Layout):
        raise LayoutTypeError(f"upcast: {layout} holds elements; cast its layout instead")
    return _upcast(layout, n) if layout._plain else symbolically(_upcast, layout, n)


def _upcast_composed(layout: ComposedLayout, n: int) -> Any:
    """Upcast through a swizzle, or an outer layout that keeps units together."""
    if n == 1:
        return layout
    outer = layout.outer
    if isinstance(outer, Layout):
        plain = folded(layout)
        if plain is not None and isinstance(plain[1], int):
            if plain[1] % n:
                inexact("upcast", (layout, n), f"it is moved by {plain[1]}", witness=0)
            whole = upcast(plain[0], n)
            return ComposedLayout(IDENTITY, plain[1] // n, whole) if plain[1] else whole
        by_xor = _by_xor("upcast", outer)
        (size, step), *rest = normal_form(simplified(outer)) or [(1, 1)]
        if by_xor or step != 1 or (rest and size % n) or any(d % n for _, d in rest):
            inexact("upcast", (layout, n), f"{outer} does not keep units together", witness=0)
    return ComposedLayout(upcast(outer, n), _divided(layout, n), upcast(layout.inner, n))


def _upcast(layout: Layout, n: int, *, bounded: bool = True) -> Layout:
    """Upcast a layout; ``bounded`` assumes that symbolic modes fill their units."""
    if n == 1:
        return layout
    if _by_xor("upcast", layout):
        return _upcast_xor(layout, n)
    result: list[Leaf] = []
    least: Any = 0  # of the offsets' remainders within their units, over all coordinates
    most: Any = 0
    at_least: list[Any] = []
    at_most: list[Any] = []
    for s, d in simplified(layout)._leaves:
        # All steps are whole units; a stride with a symbol is never known to be less.
        if known(d % n == 0) or (isinstance(d, Symbolic) and d % n == 0):
            result.append((s, d // n))
            at_least.append(0)
            at_most.append(0)
            continue
        if type(d) is int and (type(s) is int or bounded) and d > 0 and n % d == 0:
            share = n // d  # units begin together
            last = min(s, share) - 1 if type(s) is int else share - 1
            result.append((ceil_div(s, share), 1))
            most = most + last * d
            at_least.append(0)
            at_most.append(last)
            continue
        size = abs(d)
        share = ceil_div(n, size) if d else 1  # positions that share a unit
        step = (1 if d > 0 else -1 if d < 0 else 0) * ceil_div(size, n) if d else 0
        result.append((ceil_div(s, share), step))
        (low, low_at), (high, high_at) = _rests(s, d, share, n * step)
        least, most = least + low, most + high
        at_least.append(low_at)
        at_most.append(high_at)
    best = like_shape(layout, result)
    if bounded and not known(most < n) and any(type(s) is not int for s, _ in layout._leaves):
        return _upcast(layout, n, bounded=False)
    if least < 0 or most >= n:
        _refuse_upcast(layout, n, best, at_least if least < 0 else at_most)
    return best


def _rests(s: Any, d: Any, share: Any, unit: Any) -> tuple[tuple[Any, Any], tuple[Any, Any]]:
    """Return the extremes of ``c * d - c // share * unit`` for c < s, each with a c that has it.

    It is linear in ``c // share`` and ``c % share``, so the extremes are at corners.
    """
    drift = share * d - unit
    if type(drift) is int and drift == 0 and type(share) is int and share == 1:
        return (0, 0), (0, 0)
    last = (s - 1) // share
    corners = [0, last * share, s - 1]
    if last > 0:
        corners += [share - 1, last * share - 1]
    values = [(c * d - c // share * unit, c) for c in corners]
    low = high = values[0]
    for value in values[1:]:
        low = value if value[0] < low[0] else low
        high = value if value[0] > high[0] else high
    return low, high


def _refuse_upcast(layout: Layout, n: int, best: Layout, crd: list[Any]) -> None:
    witness = unflatten(iter(crd), layout.shape)
    shares = [ceil_div(n, abs(d)) if d else 1 for _, d in simplified(layout)._leaves]
    within = unflatten(iter([c // k for c, k in zip(crd, shares, strict=True)]), layout.shape)
    offset = layout(witness)
    inexact(
        "upcast",
        (layout, n),
        f"at {text(witness)} the offset {offset} is in unit {offset // n}, not in {best(within)}",
        witness=witness,
        exact=offset // n,
        best=best,
    )


def _upcast_xor(layout: Layout, n: int) -> Layout:
    """Upcast by bits: bits of a leaf within a unit come first, the rest double from bit to bit."""
    drop = n.bit_length() - 1
    if 1 << drop != n:
        inexact("upcast", (layout, n), "XOR strides have units of powers of two", witness=0)
    layout = at_present("upcast", layout)
    result: list[Leaf] = []
    for i, (s, d) in enumerate(layout._leaves):
        value = xor(d) or 0
        bits = [value << k >> drop for k in range((s - 1).bit_length())]
        inside = next((k for k, unit in enumerate(bits) if unit), len(bits))
        step = bits[inside] if inside < len(bits) else int(value != 0)
        wrong = next((k for k in range(inside, len(bits)) if bits[k] != step << (k - inside)), None)
        if wrong is not None:
            crd = [int(j == i) << wrong for j in range(len(layout._leaves))]
            witness = unflatten(iter(crd), layout.shape)
            why = f"at {text(witness)} the unit is {bits[wrong]}, not {step << (wrong - inside)}"
            inexact("upcast", (layout, n), why, witness=witness, exact=bits[wrong])
        result.append((-(-s // (1 << inside)), F2(step)))
    return like_shape(layout, result)


def downcast(layout: Any, n: int) -> Any:
    """Return the layout in units of 1/n of an element: each position becomes n.

    The extent of the first mode of stride 1 is multiplied by n, and so are all other strides. If no
    mode has stride 1, the n parts become a mode before the first leaf (CuTe keeps only the first).
    The offset of part r of position c is ``n * layout(c) + r``. CUTLASS: cute/layout.hpp.

    >>> print(downcast(Layout((2, 4), (1, 2)), 4), downcast(Layout(4, 2), 2))
    (8,4):(1,8) (2,4):(1,4)
    """
    n = _positive("downcast", n)
    if isinstance(layout, Swizzle):
        return _moved("downcast", layout, n, 1)
    layout = as_like("downcast", layout)
    if isinstance(layout, ComposedLayout):
        if n == 1:
            return layout
        if not isinstance(layout.offset, int):
            raise LayoutTypeError(f"downcast: the offset of {layout} is not an integer")
        outer = layout.outer
        outer = _of_parts(outer, n) if isinstance(outer, Layout) else downcast(outer, n)
        return ComposedLayout(outer, layout.offset * n, downcast(layout.inner, n))
    if not isinstance(layout, Layout):
        raise LayoutTypeError(f"downcast: {layout} holds elements; cast its layout instead")
    return _downcast(layout, n) if layout._plain else symbolically(_downcast, layout, n)


def _of_parts(outer: Layout, n: int) -> Layout:
    """Return the function ``n * i + r -> n * outer(i) + r`` of the parts ``r`` of positions i."""
    kind: Any = F2 if _by_xor("downcast", outer) else int
    if kind is F2 and n & (n - 1):
        inexact("downcast", (outer, n), "XOR strides have units of powers of two", witness=0)
    leaves = list(simplified(outer)._leaves) or [(1, 1)]
    (extent, step), *rest = leaves  # keep all: the last is unbounded, even if its extent is 1
    if type(step) is int and step == 1:
        return from_leaves([(extent * n, step), *[(s, times(n, d)) for s, d in rest]])
    return from_leaves([(n, _as(kind, 1)), *[(s, times(n, d)) for s, d in leaves]])


def _downcast(layout: Layout, n: int) -> Layout:
    if n == 1:
        return layout
    kind: Any = int
    leaves = simplified(layout)._leaves
    if _by_xor("downcast", layout):
        if n & (n - 1):
            inexact("downcast", (layout, n), "XOR strides have units of powers of two", witness=0)
        kind, leaves = F2, [(s, xor(d)) for s, d in leaves]
    ones = [i for i, (_, d) in enumerate(leaves) if type(d) is int and d == 1]
    unit = next((i for i in ones if not (type(leaves[i][0]) is int and leaves[i][0] == 1)), None)
    if unit is None and ones:
        unit = ones[0]
    result: list[tuple[Any, Any]] = []
    for i, (s, d) in enumerate(leaves):
        if i == unit:
            result.append((s * n, _as(kind, 1)))
        elif unit is None and i == 0:
            result.append(((n, s), (_as(kind, 1), _as(kind, d * n))))
        else:
            result.append((s, _as(kind, d * n)))
    return like_shape(layout, result)


def _as(kind: Any, d: Any) -> Any:
    return F2(d) if kind is F2 else d


def recast(layout: Any, old_bits: int, new_bits: int) -> Any:
    """Return the layout of elements of ``new_bits`` in the memory of elements of ``old_bits``.

    >>> print(recast(Layout((8, 4), (1, 8)), 16, 32), recast(Layout((8, 4), (1, 8)), 32, 16))
    (4,4):(1,4) (16,4):(1,16)
    """
    old_bits, new_bits = _positive("recast", old_bits), _positive("recast", new_bits)
    common = gcd(old_bits, new_bits)
    units, parts = new_bits // common, old_bits // common
    try:
        return downcast(upcast(layout, units), parts)
    except LayoutError as error:
        if parts > 1:  # these belong to the upcast alone
            error.exact = error.best = None
        under("recast", (layout, old_bits, new_bits), error)


def recast_layout(new_bits: int, old_bits: int, layout: Any) -> Any:
    """Call :func:`recast` with the CuTe DSL's order of arguments.

    >>> print(recast_layout(16, 8, Layout((8, 4), (1, 8))))
    (4,4):(1,4)
    """
    return recast(layout, old_bits, new_bits)


def _positive(name: str, n: Any) -> int:
    number = as_integer(n)
    if type(number) is not int or number < 1:
        raise LayoutValueError(f"{name}: expected an integer >= 1, got {n!r}")
    return number


def _by_xor(name: str, layout: Layout) -> bool:
    """Tell if strides add by XOR; refuse strides that are not integers at all."""
    if layout._plain:
        return False
    require_known(name, layout)
    kind = arithmetic(layout)
    if kind not in (Arithmetic.INTEGER, Arithmetic.XOR):
        raise LayoutTypeError(f"{name}: expected integer strides, got {layout}")
    return kind is Arithmetic.XOR


def _divided(layout: ComposedLayout, n: int) -> int:
    if not isinstance(layout.offset, int):
        raise LayoutTypeError(f"upcast: the offset of {layout} is not an integer")
    if layout.offset % n:
        inexact("upcast", (layout, n), f"its offset is not a multiple of {n}", witness=0)
    return layout.offset // n


def _moved(name: str, swizzle: Swizzle, n: int, direction: int) -> Swizzle:
    bits = n.bit_length() - 1
    base = swizzle.base + direction * bits
    if 1 << bits != n or (base < 0 and swizzle.bits):
        inexact(name, (swizzle, n), "it would move parts of a unit", witness=1 << swizzle.base)
    return Swizzle(swizzle.bits, max(base, 0), swizzle.shift)
