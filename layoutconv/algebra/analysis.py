"""Questions about a layout that a kernel author asks: what it reaches, and what an access costs."""

from __future__ import annotations

from math import gcd
from typing import Any, NamedTuple

from .coalesce import filtered, has_f2, normal_form
from .composed import ComposedLayout
from .errors import LayoutTypeError, LayoutValueError
from .f2 import _Span, is_linear, to_f2
from .int_tuple import IntTuple
from .layout import Layout
from .packing import Packing
from .stride import basis_terms
from .swizzle import Swizzle


def size(layout: Any) -> Any:
    """How many coordinates the domain has.

    >>> size(Layout((4, (2, 3))))
    24
    """
    return layout.size()


def coshape(layout: Layout) -> IntTuple:
    """The extent of the offsets; for coordinates that of each mode, in their profile.

    An extent is the largest offset less the smallest, plus 1, so that negative strides count as
    positive ones. For F2 strides the smallest offset is 0.

    >>> coshape(Layout((4, 2), (-1, 8)))
    12
    >>> from .stride import E
    >>> coshape(Layout((4, (2, 3)), (E(1), (E(0, 1), 2 * E(0, 0)))))
    ((5, 2), 4)
    """
    if has_f2(layout):
        return _f2_maximum(layout) + 1
    terms = [(s, term) for s, d in layout._leaves for term in basis_terms(d)]
    if not terms:
        return 1 + sum((s - 1) * abs(d) for s, d in layout._leaves)
    extents: dict[tuple[int, ...], int] = {}
    for s, term in terms:
        extents[term.path] = extents.get(term.path, 1) + (s - 1) * abs(term.value)
    return _nested(extents)


def _nested(extents: dict[tuple[int, ...], int]) -> IntTuple:
    if () in extents:
        return extents[()]
    modes = []
    for i in range(max(path[0] for path in extents) + 1):
        inner = {path[1:]: extent for path, extent in extents.items() if path[0] == i}
        modes.append(_nested(inner) if inner else 1)
    return tuple(modes)


def cosize(layout: Any) -> Any:
    """The size of :func:`coshape`: how long a memory is that holds every offset.

    >>> cosize(Layout(4, -1)), cosize(Layout((4, 2), (1, 8)))
    (4, 12)
    """
    return layout.cosize()


def _f2_maximum(layout: Layout) -> int:
    if not is_linear(layout):
        return max(_offsets(layout))
    best = 0
    rows = _Span(to_f2(layout)).rows
    for lead in sorted(rows, reverse=True):
        best = max(best, best ^ rows[lead][0])
    return best


def _offsets(layout: Any) -> list[Any]:
    return [layout(i) for i in range(layout.size())]


def _packed(layout: Layout) -> list[tuple[int, int]]:
    """The leaves with strides as integers, each sum of them once."""
    packing = Packing([d for _, d in layout._leaves], 2 * int(layout.size()))
    return [(int(s), packing.pack(d)) for s, d in layout._leaves if s != 1]


def is_injective(layout: Any) -> bool:
    """Whether no two coordinates share an offset.

    >>> is_injective(Layout((4, 8), (1, 5))), is_injective(Layout((4, 8), (1, 3)))
    (True, False)
    """
    if not isinstance(layout, Layout):
        return len(set(_offsets(layout))) == layout.size()
    if has_f2(layout):
        if is_linear(layout):
            return not _Span(to_f2(layout)).kernel
        return len(set(_offsets(layout))) == layout.size()
    leaves = sorted(_packed(layout), key=lambda leaf: abs(leaf[1]))
    reach = 0
    apart = True
    for s, d in leaves:
        if d == 0:
            return False
        apart = apart and abs(d) > reach
        reach += (s - 1) * abs(d)
    return apart or _all_different(leaves)


def _all_different(leaves: list[tuple[int, int]]) -> bool:
    seen = {0}
    for s, d in leaves:
        more = {n + i * d for n in seen for i in range(s)}
        if len(more) < s * len(seen):
            return False
        seen = more
    return True


def is_surjective(layout: Any, bound: int | None = None) -> bool:
    """Whether every integer from the smallest offset to the largest is one; or below ``bound``.

    >>> is_surjective(Layout((4, 2), (2, 1))), is_surjective(Layout((4, 2), (1, 8)))
    (True, False)
    >>> is_surjective(Layout((4, 2), (1, 8)), 4)
    True
    """
    if bound is not None:
        return set(range(bound)) <= set(_offsets(layout))
    if not isinstance(layout, Layout) or has_f2(layout):
        return len(set(_offsets(layout))) == layout.cosize()
    if not all(isinstance(d, int) for _, d in layout._leaves):
        raise LayoutTypeError(f"is_surjective: {layout} gives coordinates; say which shape")
    reach = 1
    for d, s in sorted((abs(d), s) for s, d in layout._leaves if s != 1 and d):
        if d > reach:  # the modes so far reach an interval, the next step leaps over its end
            return False
        reach += (s - 1) * d
    return True


def overlaps(a: Layout, b: Layout, shift: Any = 0) -> bool:
    """Whether some offset of ``a`` is an offset of ``b`` moved by ``shift``.

    >>> evens, odds = Layout(8, 2), Layout(8, 2)
    >>> overlaps(evens, odds), overlaps(evens, odds, 1)
    (True, False)
    """
    from .stride import add

    places = {add(b(i), shift) for i in range(b.size())}
    return any(a(i) in places for i in range(a.size()))


def contiguity(layout: Any) -> int:
    """How many coordinates from the first on have consecutive offsets.

    >>> contiguity(Layout((4, 8), (1, 4))), contiguity(Layout((4, 8), (8, 1)))
    (32, 1)
    """
    if isinstance(layout, Layout) and not has_f2(layout):
        form = normal_form(layout)
        if not form or form[0][1] != 1:
            return int(layout.size()) if layout.size() == 1 else 1
        return min(int(form[0][0]), int(layout.size()))
    n = 1
    while n < layout.size() and layout(n) == layout(0) + n:
        n += 1
    return n


def vector_width(layout: Any, limit: int | None = None) -> int:
    """The largest n such that the offsets fall into aligned blocks of n consecutive ones.

    In any order of the coordinates, so this is how wide a load or store can be, in elements, for a
    base that is aligned to it. A swizzle keeps blocks of ``1 << base``, an offset has to be a
    multiple of the width. ``limit`` bounds the answer. CUTLASS: ``max_alignment``.

    >>> vector_width(Layout((4, 8), (8, 1))), vector_width(Layout((4, 6), (10, 1)))
    (32, 2)
    >>> vector_width(ComposedLayout(Swizzle(3, 3, 3), 0, Layout((8, 64), (64, 1))))
    8
    """
    if isinstance(layout, ComposedLayout):
        width = vector_width(layout.inner)
        if isinstance(layout.offset, int) and isinstance(layout.outer, Swizzle):
            width = gcd(width, layout.offset)
            width = gcd(width, 1 << layout.outer.base) if layout.outer.bits else width
        elif isinstance(layout.outer, Layout) and isinstance(layout.offset, int):
            width = gcd(gcd(width, layout.offset), contiguity(layout.outer))
        else:
            width = 1
    elif isinstance(layout, Layout):
        width = _aligned_block(layout)
    else:
        raise LayoutTypeError(f"vector_width: {layout!r} is not a layout")
    if limit is not None:
        while width > limit:
            width = max(divisor for divisor in range(1, limit + 1) if width % divisor == 0)
    return width


def _aligned_block(layout: Layout) -> int:
    if has_f2(layout):
        offsets = set(_offsets(layout))
        width = 1
        while all(n ^ width in offsets for n in offsets) and width < len(offsets):
            width *= 2
        return width
    if not all(isinstance(d, int) for _, d in layout._leaves):
        return 1
    block = 1  # modes that continue each other from offset 0 on
    others = [sum((s - 1) * d for s, d in layout._leaves if d < 0)]
    for d, s in sorted((abs(d), s) for s, d in filtered(layout)):
        if d == block:
            block *= s
        else:
            others.append(d)
    return gcd(block, *others)


class SharedAccess(NamedTuple):
    """What a warp's access of shared memory costs.

    ``wavefronts`` is how often the memory answers, ``ideal`` how often it has to for so many bytes
    on so many banks, ``ways`` the most words that one bank serves in one phase: 1 is conflict-free.
    """

    wavefronts: int
    ideal: int
    ways: int

    @property
    def conflict_free(self) -> bool:
        """Whether no bank is asked twice in one phase."""
        return self.ways == 1


def bank_conflicts(
    layout: Any, element_bits: int, vector: int = 1, *, banks: int = 32, bank_bytes: int = 4
) -> SharedAccess:
    """Bank conflicts of one instruction that accesses ``vector`` elements for each thread.

    ``layout`` maps (thread, value) to offsets in elements, or thread alone; values 0 .. vector-1
    are accessed, and have to be consecutive and aligned if there are several. As in the hardware,
    16-byte accesses go in phases of 8 threads, 8-byte ones in phases of 16; the same word counts
    once.

    >>> bank_conflicts(Layout((32, 8), (8, 1)), 16, vector=8).ways
    1
    >>> rows = Layout(((8, 4), 8), ((64, 8), 1))
    >>> bank_conflicts(rows, 16, vector=8).ways
    8
    >>> bank_conflicts(ComposedLayout(Swizzle(3, 3, 3), 0, rows), 16, vector=8).ways
    1
    """
    vector_bytes = vector * element_bits // 8
    if vector_bytes * 8 != vector * element_bits or vector_bytes not in (1, 2, 4, 8, 16):
        raise LayoutValueError(
            f"bank_conflicts: {vector} elements of {element_bits} bits are no access of "
            "1, 2, 4, 8 or 16 bytes"
        )
    starts = _byte_addresses("bank_conflicts", layout, element_bits, vector)
    group = 32 * bank_bytes // max(vector_bytes, bank_bytes)
    wavefronts = ways = 0
    words_in_all = set()
    for first in range(0, len(starts), group):
        words = {
            (address + byte) // bank_bytes
            for address in starts[first : first + group]
            for byte in range(0, vector_bytes, min(vector_bytes, bank_bytes))
        }
        words_in_all |= words
        asked: dict[int, int] = {}
        for word in words:
            asked[word % banks] = asked.get(word % banks, 0) + 1
        wavefronts += max(asked.values())
        ways = max(ways, *asked.values())
    return SharedAccess(wavefronts, -(-len(words_in_all) // banks), ways)


class GlobalAccess(NamedTuple):
    """What a warp's access of global memory costs, in sectors of 32 bytes.

    ``sectors`` is how many are moved, ``ideal`` how many the bytes would fill, ``lines`` how many
    lines of 128 bytes they lie in.
    """

    sectors: int
    ideal: int
    lines: int

    @property
    def efficiency(self) -> float:
        """The part of the moved bytes that is asked for."""
        return self.ideal / self.sectors


def coalescing(layout: Any, element_bits: int, vector: int = 1) -> GlobalAccess:
    """Sectors of one instruction in which every thread of a warp accesses ``vector`` elements.

    ``layout`` is that of :func:`bank_conflicts`; offset 0 is taken to begin a line.

    >>> coalescing(Layout(32, 1), 32)
    GlobalAccess(sectors=4, ideal=4, lines=1)
    >>> coalescing(Layout(32, 8), 32).efficiency
    0.125
    """
    starts = _byte_addresses("coalescing", layout, element_bits, vector)
    length = max(1, vector * element_bits // 8)
    touched = {address + byte for address in starts for byte in range(length)}
    sectors = {byte // 32 for byte in touched}
    return GlobalAccess(len(sectors), -(-len(touched) // 32), len({s // 4 for s in sectors}))


def _byte_addresses(name: str, layout: Any, element_bits: int, vector: int) -> list[int]:
    """Where the access of each thread begins, after a check that its values are one vector."""
    per_thread = layout.rank > 1
    threads = layout[0].size() if per_thread else layout.size()
    addresses = []
    for t in range(threads):
        start = layout(t, 0) if per_thread else layout(t)
        for v in range(1, vector):
            at = layout(t, v) if per_thread else None
            if at != start + v:
                raise LayoutValueError(
                    f"{name}: value {v} of thread {t} is at {at}, not next to value 0 at {start}"
                )
        if start % vector:
            raise LayoutValueError(
                f"{name}: thread {t} begins at {start}, which is not aligned to {vector} elements"
            )
        addresses.append(start * element_bits // 8)
    return addresses
