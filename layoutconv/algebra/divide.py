"""Division: a layout as tiles, and the rest that runs over the tiles."""

from __future__ import annotations

from typing import Any

from .coalesce import by_mode
from .complement import complement
from .composed import ComposedLayout
from .composition import as_composed, compose
from .errors import LayoutTypeError, LayoutValueError, text
from .layout import Layout, make, make_layout, make_plain
from .tensor import Tensor


def logical_divide(a: Any, tiler: Any) -> Any:
    """``a o (tiler, complement of tiler in a)``: mode 0 is the tile, mode 1 runs over the tiles.

    ``tiler`` is a layout of positions in ``a``, an integer (``n:1``), None (``a`` as it is), or a
    tuple of these that divides mode by mode; modes after the tuple are kept. Where the tiler does
    not divide the size the last tile reaches beyond ``a``, as in CuTe, to be predicated. A
    ComposedLayout or a Tensor is divided in its domain.

    Raises :class:`LayoutValueError` if the tiler has no complement or the composition is inexact.

    >>> print(logical_divide(Layout((4, 2, 3), (2, 1, 8)), Layout(4, 2)))
    ((2,2),(2,3)):((4,1),(2,8))
    >>> print(logical_divide(Layout((9, 8), (8, 1)), (3, None)))
    ((3,3),8):((8,24),1)
    """
    if type(tiler) is int and type(a) is Layout and a._plain and type(a.shape) is int:
        return _cut(a.shape, a.stride, tiler)
    a = as_composed(a)
    if isinstance(a, ComposedLayout | Tensor):
        return inside(a, lambda layout: logical_divide(layout, tiler))
    if not isinstance(a, Layout):
        raise LayoutTypeError(f"logical_divide: {a!r} is not a layout")
    if tiler is None:
        return a
    if isinstance(tiler, tuple):
        return by_mode(logical_divide, "logical_divide", a, tiler)
    tile = as_tile("logical_divide", tiler)
    rest = complement(tile, a.size() if tile._plain else a.shape)
    whole = make((tile.shape, rest.shape), (tile.stride, rest.stride))
    return compose(a, whole, "logical_divide", (a, tiler))


def inside(x: Any, operation: Any) -> Any:
    """``operation`` on the domain of a composed layout or of a tensor."""
    if isinstance(x, Tensor):
        return Tensor(x.engine, operation(x.layout), x.offset)
    return ComposedLayout(x.outer, x.offset, operation(x.inner))


def _cut(extent: int, stride: int, tile: int) -> Layout:
    """One mode in tiles of consecutive positions: nothing there can carry."""
    if tile < 1:
        raise LayoutValueError(f"logical_divide: the tile {tile} of {extent}:{stride} is empty")
    count = -(-extent // tile)
    leaves = [(tile, stride), (count, tile * stride if count > 1 else 0)]
    return make_plain((tile, count), (stride, leaves[1][1]), leaves)


def as_tile(name: str, tiler: Any) -> Layout:
    """A tiler that is not a tuple, as a layout; ``name`` is the operation's, for the error."""
    if isinstance(tiler, Layout):
        return tiler
    if isinstance(tiler, int):
        return Layout(tiler, 1)
    raise LayoutTypeError(f"{name}: {tiler!r} is no tiler (a layout, an int, None or a tuple)")


def zipped_divide(a: Any, tiler: Any) -> Any:
    """``((tile, ...), (rest, ...))``: the tiles of all modes in mode 0, what runs over them in 1.

    The tiler is that of :func:`logical_divide`; an entry None leaves its mode to the rest.

    >>> print(zipped_divide(Layout((9, 8), (8, 1)), (3, 4)))
    ((3,4),(3,2)):((8,1),(24,4))
    """
    a = as_composed(a)
    if isinstance(a, ComposedLayout | Tensor):
        return inside(a, lambda layout: zipped_divide(layout, tiler))
    return unzipped(logical_divide, "zipped_divide", a, tiler)


def unzipped(splitter: Any, name: str, a: Layout, tiler: Any) -> Layout:
    """Split mode by mode, and gather the first halves in mode 0 and the second in mode 1."""
    if tiler is None:
        return make((1, a.shape), (0, a.stride))
    if not isinstance(tiler, tuple):
        return splitter(a, tiler)
    if len(tiler) > a.rank:
        raise LayoutValueError(
            f"{name}: the tiler {text(tiler)} has {len(tiler)} modes, {a} only {a.rank}"
        )
    modes = list(a)
    halves = [unzipped(splitter, name, m, t) for m, t in zip(modes, tiler)]  # noqa: B905
    rest = modes[len(tiler) :]
    shapes = [h.shape for h in halves]
    strides = [h.stride for h in halves]
    return make(
        (tuple([s[0] for s in shapes]), tuple([s[1] for s in shapes] + [m.shape for m in rest])),
        (tuple([d[0] for d in strides]), tuple([d[1] for d in strides] + [m.stride for m in rest])),
    )


def tiled_divide(a: Any, tiler: Any) -> Any:
    """As :func:`zipped_divide`, the rest as modes of their own: ``((tile, ...), rest, ...)``.

    >>> print(tiled_divide(Layout((9, 8), (8, 1)), (3, 4)))
    ((3,4),3,2):((8,1),24,4)
    """
    return _unpacked(zipped_divide(a, tiler), (False, True))


def flat_divide(a: Any, tiler: Any) -> Any:
    """As :func:`zipped_divide`, everything as modes of their own: ``(tile, ..., rest, ...)``.

    >>> print(flat_divide(Layout((9, 8), (8, 1)), (3, 4)))
    (3,4,3,2):(8,1,24,4)
    """
    return _unpacked(zipped_divide(a, tiler), (True, True))


def _unpacked(zipped: Any, unpack: tuple[bool, bool]) -> Any:
    """The modes of a rank-2 layout, those of a half that is to be unpacked one by one."""
    if isinstance(zipped, ComposedLayout | Tensor):
        return inside(zipped, lambda layout: _unpacked(layout, unpack))
    modes: list[Layout] = []
    for half, apart in zip(zipped, unpack, strict=True):
        modes += list(half) if apart else [half]
    return make_layout(modes)
