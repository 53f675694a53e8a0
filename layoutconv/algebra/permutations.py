"""The image of a layout, and layouts as permutations: cycles, order and parity."""

from __future__ import annotations

from math import lcm
from typing import Any, NamedTuple

from .analysis import is_injective, is_surjective
from .basis import basis_terms
from .budget import Budget, one_operation, table_size
from .composed import ComposedLayout
from .errors import LayoutTypeError, LayoutValueError, inexact, whole
from .extent import extremes
from .first_run import contiguity
from .int_tuple import IntTuple, expect_leaves, idx2crd
from .inverse_composed import gives_integers
from .layout import Layout, as_like
from .like import is_empty, is_symbolic, values_of
from .normal import normal_form
from .relations import known
from .slices import moved_slice, slice_and_offset
from .symbols import Symbolic, same
from .value_tables import all_values, flat_table
from .values_at_once import values_at_once


def image(layout: Any) -> list[Any]:
    """Return the offsets that a layout reaches, each once, ascending.

    Raises :class:`LayoutBudgetError` for more than 2^20 coordinates.

    >>> image(Layout((4, 2), (2, 0)))
    [0, 2, 4, 6]
    """
    return sorted(set(_values("image", layout)))


def offset_table(layout: Any) -> dict[Any, list[IntTuple]]:
    """Map each offset, ascending, to the coordinates that have it.

    >>> offset_table(Layout((2, 2), (1, 1)))
    {0: [(0, 0)], 1: [(1, 0), (0, 1)], 2: [(1, 1)]}
    """
    result: dict[Any, list[IntTuple]] = {}
    shape = _asked("offset_table", layout).shape
    for i, offset in enumerate(_values("offset_table", layout)):
        result.setdefault(offset, []).append(idx2crd(i, shape))
    return dict(sorted(result.items()))


def make_layout_image_mask(layout: Any, crd: IntTuple, mode: int) -> int:
    """Return the offsets along one mode, the others at ``crd``, as a bit mask: multicast of CTAs.

    ``layout`` maps coordinates in a cluster to CTA ranks. Raises :class:`LayoutTypeError` for a
    coordinate of another rank.

    >>> cluster = Layout((2, 4))
    >>> bin(make_layout_image_mask(cluster, (1, 0), 1)), make_layout_image_mask(cluster, (0, 1), 0)
    ('0b10101010', 12)
    """
    like = _asked("make_layout_image_mask", layout)
    if type(mode) is not int or not 0 <= mode < like.rank or not _has_rank(crd, like.rank):
        raise LayoutTypeError(
            f"make_layout_image_mask: expected a coordinate and a mode of {like}, which has rank "
            f"{like.rank}, got {crd!r} and {mode!r}"
        )
    expect_leaves("make_layout_image_mask", crd)
    open_, offset = _opened((*crd[:mode], None, *crd[mode + 1 :]), like)
    name = "make_layout_image_mask"
    start = whole(name, offset)
    table_size(name, open_, open_.size())
    bits = {whole(name, bit) + start for bit in flat_table(open_)}
    if min(bits) < 0:
        raise LayoutValueError(
            f"{name}: {like} has the negative offset {min(bits)}, which no bit of a mask stands for"
        )
    table_size(name, like, max(bits))
    mask = bytearray(max(bits) // 8 + 1)  # summing integers of so many bits would take seconds
    for bit in bits:
        mask[bit >> 3] |= 1 << (bit & 7)
    return int.from_bytes(mask, "little")


def _has_rank(crd: Any, rank: int) -> bool:
    return isinstance(crd, tuple) and len(crd) == rank


class Footprint(NamedTuple):
    """The memory that a layout reaches: first and last offset, their number, and the holes.

    ``span`` is the number of offsets from the first to the last, ``distinct`` the number reached,
    ``reuse`` the average number of coordinates per reached offset.

    >>> padded = footprint(Layout((4, 8), (10, 1)))
    >>> padded.span, padded.distinct, padded.holes
    (38, 32, 6)
    """

    first: int
    last: int
    span: int
    distinct: int
    holes: int
    reuse: float


def footprint(layout: Any) -> Footprint:
    """Return the memory that a layout reaches, and how often it reaches it.

    >>> footprint(Layout((4, 2), (2, 0)))
    Footprint(first=0, last=6, span=7, distinct=4, holes=3, reuse=2.0)
    """
    values = _values("footprint", layout)
    if not values:
        raise LayoutValueError(f"footprint: {layout} has no coordinates")
    low, high, distinct = min(values), max(values), len(set(values))
    span = high - low + 1
    return Footprint(low, high, span, distinct, span - distinct, len(values) / distinct)


@one_operation()
def functionally_equal(a: Any, b: Any) -> bool:
    """Tell if two layouts have the same size and the same offset at every linear coordinate.

    >>> functionally_equal(Layout((2, 2)), Layout(4)), functionally_equal(Layout((2, 2)), Layout(8))
    (True, False)
    """
    a, b = _asked("functionally_equal", a), _asked("functionally_equal", b)
    if not known(a.size() == b.size()):
        return False
    if isinstance(a, Layout) and isinstance(b, Layout):
        one, two = a.coalesce(), b.coalesce()
        if same(tuple(normal_form(one)), tuple(normal_form(two))):
            return True
        if a._plain and b._plain and a.size():
            return False  # plain integer layouts have a unique normal form
        ends = [1 << i for i in range(int(a.size()).bit_length())]
        if any(_without_zeros(a(i - 1)) != _without_zeros(b(i - 1)) for i in ends):
            return False  # avoids most of the tables
    first, second = (values_at_once(values_of(x)) for x in (a, b))
    if first is not None and second is not None:
        return first.first_difference(second) is None
    here, there = (all_values("functionally_equal", x) for x in (a, b))
    return here == there or list(map(_without_zeros, here)) == list(map(_without_zeros, there))


def _without_zeros(value: Any) -> Any:
    """Return a coordinate as it is, but 0 for the origin: a plain 0 is the zero of every kind."""
    return value if isinstance(value, int) or basis_terms(value) else 0


@one_operation()
def is_bijective(layout: Any) -> bool:
    """Tell if the offsets are 0 to size - 1, each once: a permutation.

    >>> is_bijective(Layout((4, 8), (8, 1))), is_bijective(Layout((4, 8), (1, 5)))
    (True, False)
    """
    a = _asked("is_bijective", layout)
    size = a.size()
    if isinstance(size, Symbolic):
        return is_injective(a) and is_surjective(a, size)  # type: ignore[arg-type]
    if is_empty(a):
        return True
    values = values_at_once(values_of(a))
    if values is not None:
        whole_range = values.extremes() == (0, values.count - 1)
        return whole_range and values.differ(Budget("is_bijective", (layout,)))
    if not is_injective(a):
        return False
    if gives_integers(a) and not is_symbolic(
        a
    ):  # that many different integers between these ends are all of them
        return extremes(a) == (0, whole("is_bijective", size) - 1)
    return is_surjective(a, whole("is_bijective", size))


@one_operation()
def is_contiguous(layout: Any) -> bool:
    """Tell if the offsets are consecutive and each is reached once, from any first offset.

    >>> is_contiguous(Layout(4, -1)), is_contiguous(Layout(4, 2))
    (True, False)
    """
    a = _asked("is_contiguous", layout)
    if is_empty(a):
        return True
    values = values_at_once(values_of(a))
    if values is not None:
        low, high = values.extremes()
        budget = Budget("is_contiguous", (layout,))
        return high - low + 1 == values.count and values.differ(budget)
    return is_injective(a) and is_surjective(a)


@one_operation()
def mode_contiguity(layout: Any) -> list[int]:
    """Return the :func:`contiguity` of every mode, the others at 0.

    >>> mode_contiguity(Layout((4, 8), (1, 4)))
    [4, 1]
    """
    a = _asked("mode_contiguity", layout)
    if not isinstance(a.shape, tuple):
        return [contiguity(a)]
    origin = (0,) * a.rank
    return [contiguity(_opened((*origin[:i], None, *origin[i + 1 :]), a)[0]) for i in range(a.rank)]


def slice_contiguity(layout: Any, crd: IntTuple) -> int:
    """Return the :func:`contiguity` of the modes with None in ``crd``, at the slice's offset.

    >>> slice_contiguity(Layout((4, 8), (8, 1)), (2, None))
    8
    """
    found: int = contiguity(_opened(crd, _asked("slice_contiguity", layout))[0])
    return found


def cycles(layout: Any) -> list[list[int]]:
    """Return the cycles of a layout that permutes its positions, each from its smallest position.

    Raises :class:`LayoutValueError` if the layout is not a permutation.

    >>> cycles(Layout((2, 2), (2, 1)))
    [[0], [1, 2], [3]]
    """
    values = _permutation("cycles", layout)
    seen: set[int] = set()
    result = []
    for start in range(len(values)):
        if start in seen:
            continue
        cycle = [start]
        while values[cycle[-1]] != start:
            cycle.append(values[cycle[-1]])
        seen.update(cycle)
        result.append(cycle)
    return result


def fixed_points(layout: Any) -> list[int]:
    """Return the positions that a layout maps to themselves.

    >>> fixed_points(Layout((2, 2), (2, 1)))
    [0, 3]
    """
    return [i for i, offset in enumerate(_values("fixed_points", layout)) if i == offset]


def permutation_order(layout: Any) -> int:
    """Return how many applications of a permutation bring every position back.

    >>> permutation_order(Layout((2, 4), (4, 1)))
    3
    """
    return lcm(*map(len, cycles(layout)))


def permutation_parity(layout: Any) -> int:
    """Return 0 for an even permutation, 1 for an odd one.

    >>> permutation_parity(Layout((2, 2), (2, 1)))
    1
    """
    return sum(len(cycle) - 1 for cycle in cycles(layout)) % 2


def _asked(name: str, x: Any) -> Any:
    found = as_like(name, x)
    return found if isinstance(found, Layout | ComposedLayout) else found.layout


def _opened(crd: IntTuple, a: Any) -> tuple[Any, Any]:
    """Return a slice, and an offset to add to its values, also for strides that add by XOR."""
    return moved_slice(crd, a) if isinstance(a, Layout) else slice_and_offset(crd, a)


def _values(name: str, x: Any) -> list[Any]:
    a = _asked(name, x)
    size = table_size(name, a, a.size())
    if not size:
        return []
    few = [a(1 << i) for i in range((size - 1).bit_length())]  # may rule out a table early
    values = flat_table(a) if all(isinstance(v, int) for v in few) else few
    if not all(isinstance(v, int) for v in values):
        raise LayoutTypeError(f"{name}: {a} gives coordinates, not offsets")
    return values


def _permutation(name: str, x: Any) -> list[int]:
    values = _values(name, x)
    wrong = next((i for i, v in enumerate(values) if not 0 <= v < len(values)), None)
    if wrong is not None or len(set(values)) != len(values):
        inexact(name, (_asked(name, x),), "it does not permute its positions", witness=wrong)
    return values
