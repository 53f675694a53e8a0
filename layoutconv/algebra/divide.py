"""Division: split a layout into a tile and the rest, which runs over the tiles."""

from __future__ import annotations

from typing import Any

from .budget import Budget
from .checks import as_integer
from .complement import ascending, by_path, complement, first_lost, gaps, sorted_modes
from .composed import ComposedLayout
from .composition import compose
from .errors import LayoutError, LayoutTypeError, LayoutValueError, inexact, refuse_deep, shortly
from .f2_linear import without_carry
from .int_tuple import flatten
from .layout import Layout, as_layout, as_like, make, make_all_plain, make_layout, make_plain
from .like import symbolically
from .normal import Arithmetic, arithmetic, by_mode, from_plain, modes_for
from .of_one_kind import added, in_one_kind
from .operands import expect_entries
from .over_coordinates import lift, over_coordinates
from .protocol import is_integer
from .xor_image import first_missed


def logical_divide(a: Any, tiler: Any) -> Any:
    """Compute ``a o (tiler, complement of tiler in a)``: mode 0 is the tile, mode 1 the rest.

    The rest runs over the tiles. ``tiler`` is a layout of positions in ``a``, an integer (``n:1``),
    None (``a`` itself), or a tuple of these that divides mode by mode; modes beyond the tuple are
    kept. If the tiler does not divide the size, the last tile reaches beyond ``a``, as in CuTe, and
    needs predication. A composed layout, a gather or a tensor is divided in its domain.

    Raises :class:`LayoutValueError` if tiles overlap or miss positions, or if the composition is
    inexact.

    >>> print(logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_divide(Layout((9, 8), (8, 1)), (3, None)))
    ((3,3),8):((8,24),1)
    """
    if type(a) is not Layout:
        like = as_like("logical_divide", a)
        return like.on_domain(lambda inner: logical_divide(inner, tiler))
    if a._plain:
        if type(tiler) is int and type(a.shape) is int:
            return _cut(a.shape, a.stride, tiler)
        return _logical_divide(a, tiler)
    return by_coordinates(logical_divide, _logical_divide, a, tiler)


def by_coordinates(public: Any, operation: Any, a: Layout, tiler: Any) -> Any:
    """Apply ``operation`` to a layout, or to its coordinates, where it is always exact.

    An index buffer accepts its coordinates in any order. XOR strides fall back to coordinates if
    the result has no modes with XOR strides.
    """
    kind = arithmetic(a)
    if kind is Arithmetic.XOR:
        try:
            result = operation(a, tiler)
            return without_carry(result) if isinstance(tiler, tuple) else result
        except LayoutError:
            return ComposedLayout(a, 0, public(over_coordinates(a).inner, tiler))
    if kind is Arithmetic.OPAQUE and isinstance(tiler, tuple):
        return ComposedLayout(a, 0, public(over_coordinates(a).inner, tiler))
    return symbolically(operation, a, tiler)


def _logical_divide(a: Layout, tiler: Any) -> Any:
    if tiler is None:
        return a
    if isinstance(tiler, tuple):
        try:
            made = by_mode(logical_divide, "logical_divide", a, tiler)
            return made if arithmetic(a) is Arithmetic.XOR else in_one_kind("logical_divide", made)
        except LayoutTypeError:  # the modes carry into each other; those of coordinates do not
            found = _of_coordinates(a, tiler, zipped=False)
            if found is None:
                raise
            return found
    tile = as_tile("logical_divide", tiler)
    if a._plain and tile._plain:
        return _divide_plain(a, tile, tiler)
    rest = complement(tile, a.size() if arithmetic(tile) is not Arithmetic.COORDINATE else a.shape)
    lost = _lost(tile)
    if lost is not None and lost < a.size():
        _refuse(a, tiler, tile, lost)
    whole = make((tile.shape, rest.shape), (tile.stride, rest.stride))
    return compose(a, whole, "logical_divide", (a, tiler))


def _divide_plain(a: Layout, tile: Layout, tiler: Any) -> Any:
    """Divide plain integers, sorting the modes of the tile only once."""
    size, ordered = a.size(), sorted_modes(tile)
    leaves, current = gaps((a, tiler), ordered, "logical_divide")
    if current < size:
        leaves.append((-(-size // current), current))
    lost = first_lost(ordered)
    if lost is not None and lost < size:
        _refuse(a, tiler, tile, lost)
    rest = from_plain(leaves)
    whole = make_all_plain((tile.shape, rest.shape), (tile.stride, rest.stride))
    return compose(a, whole, "logical_divide", (a, tiler))


def _refuse(a: Layout, tiler: Any, tile: Layout, lost: Any) -> None:
    by_xor = arithmetic(tile) is Arithmetic.XOR
    gap = "copies of {} by XOR miss it" if by_xor else "{} cannot fill the gap before its next mode"
    why = f"position {lost} is in no tile: {gap.format(tile)}"
    inexact("logical_divide", (a, tiler), why, witness=lost)


def _lost(tile: Layout) -> Any:
    kind = arithmetic(tile)
    if kind is Arithmetic.INTEGER:
        return first_lost(ascending(tile))
    if kind is Arithmetic.COORDINATE:
        found = [first_lost(ordered) for ordered in by_path(tile, []).values()]
        return next((lost for lost in found if lost is not None), None)
    if kind is Arithmetic.XOR:
        return first_missed(tile, Budget("logical_divide", (tile,)))
    return None


def _cut(extent: int, stride: int, tile: int) -> Layout:
    """Cut one mode into tiles of consecutive positions: nothing can carry there."""
    if tile < 1:
        raise LayoutValueError(f"logical_divide: the tile {tile} of {extent}:{stride} is empty")
    count = -(-extent // tile)
    leaves = [(tile, stride), (count, tile * stride if count > 1 else 0)]
    return make_plain((tile, count), (stride, leaves[1][1]), leaves)


def as_tile(name: str, tiler: Any) -> Layout:
    """Return a tiler that is not a tuple, as a layout; ``name`` is the operation, for the error."""
    if isinstance(tiler, Layout):
        return tiler
    if is_integer(tiler):
        return Layout(tiler, 1)
    if isinstance(tiler, str):
        found = as_like(name, tiler)
        if isinstance(found, Layout):
            return found
    elif is_integer(as_integer(tiler)):  # of NumPy or sympy
        return Layout(tiler, 1)
    wanted = "a layout, an int, None or a tuple"
    raise LayoutTypeError(f"{name}: {shortly(tiler)} is not a tiler ({wanted})")


def zipped_divide(a: Any, tiler: Any) -> Any:
    """Return ``((tile, ...), (rest, ...))``: the tiles of all modes in mode 0, the rests in mode 1.

    ``tiler`` is as in :func:`logical_divide`; an entry None leaves its whole mode to the rest.

    >>> print(zipped_divide(Layout((9, 8), (8, 1)), (3, 4)))
    ((3,4),(3,2)):((8,1),(24,4))
    """
    if type(a) is not Layout:
        return as_like("zipped_divide", a).on_domain(lambda inner: zipped_divide(inner, tiler))
    if a._plain:
        return _zipped_divide(a, tiler)
    return by_coordinates(zipped_divide, _zipped_divide, a, tiler)


def _zipped_divide(a: Layout, tiler: Any) -> Any:
    return unzipped(logical_divide, "zipped_divide", a, tiler)


def unzipped(splitter: Any, name: str, a: Layout, tiler: Any) -> Any:
    """Split mode by mode; gather the first halves in mode 0 and the second halves in mode 1."""
    if tiler is None:
        return make((1, a.shape), (0, a.stride))
    if not isinstance(tiler, tuple):
        return splitter(a, tiler)
    modes = modes_for(name, a, tiler)
    try:
        halves = [
            as_layout(name, unzipped(splitter, name, m, t))
            for m, t in zip(modes, tiler, strict=False)
        ]
        rest = modes[len(tiler) :]
        if arithmetic(a) is not Arithmetic.XOR:
            both = added(name, halves + rest)
            halves, rest = both[: len(tiler)], both[len(tiler) :]
    except LayoutTypeError:
        found = _of_coordinates(a, tiler, zipped=True) if splitter is logical_divide else None
        if found is None:
            raise
        return found
    shapes = [h.shape for h in halves]
    strides = [h.stride for h in halves]
    return make(
        (tuple([s[0] for s in shapes]), tuple([s[1] for s in shapes] + [m.shape for m in rest])),
        (tuple([d[0] for d in strides]), tuple([d[1] for d in strides] + [m.stride for m in rest])),
    )


def _of_coordinates(a: Layout, tiler: tuple[Any, ...], zipped: bool) -> ComposedLayout | None:
    """Divide the coordinates of ``a``, with ``a`` outside; None without an XOR tiler."""
    refuse_deep("logical_divide", tiler)
    leaves = flatten(tiler)
    if not any(isinstance(t, Layout) and arithmetic(t) is Arithmetic.XOR for t in leaves):
        return None
    coordinates = _coordinates(a, tiler, zipped)
    return None if coordinates is None else ComposedLayout(a, 0, coordinates)


def _coordinates(a: Layout, tiler: tuple[Any, ...], zipped: bool) -> Layout | None:
    """Divide coordinates mode by mode; nested tuples divide nested modes. None if impossible."""
    halves: list[Layout] = []
    for i, mode in enumerate(a):
        whole: Layout | None = Layout(mode.shape)
        t = tiler[i] if i < len(tiler) else None
        if isinstance(t, tuple):
            fits = isinstance(mode.shape, tuple) and len(t) <= mode.rank
            whole = _coordinates(mode, t, zipped) if fits else None
        elif t is not None:
            whole = logical_divide(Layout(mode.size(), 1), t)
        elif zipped and i < len(tiler):
            whole = make((1, mode.shape), (0, Layout(mode.shape).stride))
        lifted = None if whole is None else lift(whole, i)
        if lifted is None:
            return None
        halves.append(lifted)
    if not zipped:
        return make_layout(halves)
    pairs, rest = halves[: len(tiler)], halves[len(tiler) :]
    tiles, rests = [p[0] for p in pairs], [p[1] for p in pairs]
    return make_layout(make_layout(tiles), make_layout(rests + rest))


def hier_unzip(splitter: Any, a: Any, tiler: Any) -> Any:
    """Apply ``splitter`` to each mode; gather the first halves in mode 0, the second in mode 1.

    ``hier_unzip(logical_divide, a, tiler)`` is ``zipped_divide(a, tiler)``.

    >>> print(hier_unzip(logical_divide, Layout((8, 24)), (4, 8)))
    ((4,8),(2,3)):((1,8),(4,64))
    """
    if type(a) is not Layout:
        like = as_like("hier_unzip", a)
        return like.on_domain(lambda inner: hier_unzip(splitter, inner, tiler))
    return symbolically(lambda x: unzipped(splitter, "hier_unzip", x, tiler), a, name="hier_unzip")


def tile_unzip(a: Any, tiler: Any) -> Any:
    """Turn pairs (tile, rest), the modes of a divide or product, to ``((tile, ...), (rest, ...))``.

    The profile of ``tiler`` says which modes are pairs. Raises :class:`LayoutTypeError` if one of
    them is not.

    >>> print(tile_unzip(logical_divide(Layout((8, 24)), (4, 8)), (4, 8)))
    ((4,8),(2,3)):((1,8),(4,64))
    """

    expect_entries("tile_unzip", "tiler", tiler)

    def pair(mode: Any, _: Any) -> Any:
        if mode.rank != 2 or not isinstance(mode.shape, tuple):
            raise LayoutTypeError(f"tile_unzip: the mode {mode} is not a pair (tile, rest)")
        return mode

    return hier_unzip(pair, a, tiler)


def tiled_divide(a: Any, tiler: Any) -> Any:
    """Divide as :func:`zipped_divide`, the rests as top-level modes: ``((tile, ...), rest, ...)``.

    >>> print(tiled_divide(Layout((9, 8), (8, 1)), (3, 4)))
    ((3,4),3,2):((8,1),24,4)
    """
    return unpacked(zipped_divide(a, tiler), (False, True))


def flat_divide(a: Any, tiler: Any) -> Any:
    """Divide as :func:`zipped_divide`, with all modes top-level: ``(tile, ..., rest, ...)``.

    >>> print(flat_divide(Layout((9, 8), (8, 1)), (3, 4)))
    (3,4,3,2):(8,1,24,4)
    """
    return unpacked(zipped_divide(a, tiler), (True, True))


def unpacked(zipped: Any, unpack: tuple[bool, bool]) -> Any:
    """Return a rank-2 layout with the modes of the halves in ``unpack`` as top-level modes."""
    if type(zipped) is not Layout:
        return zipped.on_domain(lambda inner: unpacked(inner, unpack))
    modes: list[Layout] = []
    for half, apart in zip(zipped, unpack, strict=True):
        modes += list(half) if apart else [half]
    result = make_layout(modes)
    if zipped.assumptions:
        result.assume(zipped.assumptions)
    return result
