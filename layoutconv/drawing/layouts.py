"""Figures of layouts, swizzles, composed layouts and tensors: the image of every coordinate."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from ..algebra import (
    ComposedLayout,
    Layout,
    LayoutError,
    LayoutTypeError,
    Swizzle,
    Tensor,
    crd2idx,
    idx2crd,
)
from ..algebra.errors import text
from ..algebra.int_tuple import IntTuple, flatten, product
from ..algebra.notation import visible
from ..algebra.stride import add
from ..errors import ArgumentError
from ..view.gemm_view import locate, stages
from .axis import Axis, mode_axis, shown_positions
from .figure import Cell, Figure, Grid, Kind, check_cell_count, label, make_grid, plain
from .palette import by_rank, wheel

BANKS, BANK_BITS = 32, 32  # of shared memory, since Fermi
_PANELS = 6  # matrices to show of a layout of three modes or more
_SWATCHES = 64  # chunks in the legend of a swizzle


class Reading(NamedTuple):
    """The reading at a coordinate: a value, and further facts about it."""

    value: Any
    kind: Kind = "value"
    facts: tuple[tuple[str, str], ...] = ()


Read = Callable[[IntTuple], Reading]


class Paint(NamedTuple):
    """The colours of values, and the legend that explains them."""

    fills: Mapping[Any, str]
    legend: tuple[tuple[Cell, str], ...] = ()


def layout_figure(layout: Layout, *, limit: int, element_bits: int | None = None) -> Figure:
    """Show every coordinate's offset: rank 2 as a matrix, higher ranks as panels of matrices."""
    check_extents(layout)

    def read(crd: IntTuple) -> Reading:
        offset = plain(layout(crd))
        return Reading(offset, facts=(*_place(crd, layout.shape), ("offset", label(offset))))

    return _figure(str(layout), layout, read, limit, _painter(layout, element_bits))


def composed_figure(
    composed: ComposedLayout, *, limit: int, element_bits: int | None = None
) -> Figure:
    """Show every coordinate's image. Maps between coordinates are bounded, like operands of a GEMM.

    If the inner layout gives coordinates of the outer one, a coordinate outside the outer shape is
    padding, and an index of -1 is absent.
    """
    check_extents(composed)
    bounded = maps_coordinates(composed)

    def evaluated(crd: IntTuple) -> Reading:
        inner = plain(add(composed.inner(crd), composed.offset) if not bounded else None)
        facts = _place(crd, composed.shape)
        if not bounded:
            value = plain(composed(crd))
            return Reading(value, facts=(*facts, ("inner", label(inner)), ("offset", label(value))))
        return read_bounded(composed, crd, facts)

    def read(crd: IntTuple) -> Reading:
        try:
            return evaluated(crd)
        except LayoutError:
            raise
        except TypeError as error:  # a coordinate where a map takes an index, or the reverse
            why = f"draw: the maps of {composed} do not fit each other: {error}"
            raise LayoutTypeError(why) from error

    return _figure(str(composed), composed, read, limit, _painter(composed, element_bits))


def swizzle_figure(swizzle: Swizzle, *, limit: int, element_bits: int | None = None) -> Figure:
    """Show one period of offsets: a row for each XOR-ed value, in chunks of ``1 << base``."""
    rows, chunk, columns = 1 << swizzle.bits, 1 << swizzle.base, 1 << abs(swizzle.shift)
    offsets = Layout((rows, (chunk, columns)), (chunk * columns, (1, chunk)))
    composed = ComposedLayout(swizzle, 0, offsets)
    return composed_figure(composed, limit=limit, element_bits=element_bits)


def tensor_figure(tensor: Tensor, *, limit: int) -> Figure:
    """Show every coordinate's value, coloured by value."""
    check_extents(tensor.layout)

    def read(crd: IntTuple) -> Reading:
        at, value = label(plain(tensor.at(crd))), _of_cell(tensor(crd))
        return Reading(value, facts=(*_place(crd, tensor.shape), ("at", at), ("value", str(value))))

    return _figure(str(tensor), tensor.layout, read, limit, _by_rank)


def _of_cell(value: Any) -> Any:
    """Return a tensor's value for a cell: its text, if it is several numbers or has no hash.

    Unprintable characters are replaced: a terminal would obey them, and SVG forbids them.
    """
    try:
        found = plain(value)
        hash(found)
    except (TypeError, ValueError, RuntimeError):  # a list; arrays of NumPy and torch
        found = str(value)
    return visible(found) if isinstance(found, str) else found


def read_bounded(
    layout: ComposedLayout, crd: IntTuple, facts: tuple[tuple[str, str], ...]
) -> Reading:
    """Return the reading of bounded maps at ``crd``: an offset, padding, or an absent index."""
    chain = stages(layout)
    first = plain(add(chain[0].layout(crd), chain[0].offset))
    facts = (*facts, ("reads", label(first)))
    offset, valid = locate(layout, crd)
    if valid:
        return Reading(plain(offset), facts=(*facts, ("offset", label(plain(offset)))))
    if covers(chain[1].layout.shape, first):
        return Reading(-1, "absent", (*facts, ("absent", "index -1, reads zero")))
    return Reading(None, "padding", (*facts, ("padding", "reads zero")))


def covers(shape: IntTuple, crd: IntTuple) -> bool:
    """Return whether a coordinate, perhaps shorter than the shape, lies inside it."""
    if isinstance(crd, tuple) and isinstance(shape, tuple):
        return all(covers(s, c) for s, c in zip(shape, crd, strict=False))
    return bool(0 <= crd < product(shape))


LEGEND = {
    "padding": (Cell("", kind="padding"), "padding: reads zero"),
    "absent": (Cell("-1", kind="absent"), "absent: no row here, reads zero"),
}


def legend_of(kinds: set[Kind]) -> tuple[tuple[Cell, str], ...]:
    """Return the legend's entries for the kinds of cells that need one."""
    return tuple(entry for kind, entry in LEGEND.items() if kind in kinds)


def _figure(
    title: str, layout: Any, read: Read, limit: int, painter: Callable[[set[Any]], Paint]
) -> Figure:
    """Build the figure of ``read`` over the domain of ``layout``: panels of modes 0 and 1."""
    shape, domain = layout.shape, _domain(layout)
    modes = shape if isinstance(shape, tuple) else (shape,)
    strides = domain.stride if isinstance(shape, tuple) else (domain.stride,)
    axes = [mode_axis(s, d, limit=limit) for s, d in zip(modes[:2], strides[:2], strict=True)]
    # A vector is drawn as one row without row headers.
    rows, columns = [Axis((0,)), Axis((0,)), *axes][-2:]

    def coordinate(i: int, j: int, panel: tuple[int, ...]) -> IntTuple:
        if not isinstance(shape, tuple):
            return j
        return (i, j, *panel) if len(modes) > 1 else (j,)[: len(modes)]

    outer = tuple(int(product(mode)) for mode in modes[2:])
    panels = [
        p if p is None else idx2crd(p, outer) for p in shown_positions(product(outer), _PANELS)
    ]
    check_cell_count(rows, columns, len(panels))
    readings = {
        (panel, i, j): read(coordinate(i, j, panel))
        for panel in panels
        if panel is not None
        for i in rows.positions
        if i is not None
        for j in columns.positions
        if j is not None
    }
    paint = painter({r.value for r in readings.values() if r.kind == "value"})

    def grid(panel: tuple[int, ...] | None) -> Grid:
        if panel is None:
            gap = Cell("⋯", kind="gap")
            return make_grid("", Axis((0,)), Axis((0,)), lambda i, j: gap)
        name = f"(_,_,{','.join(map(str, panel))})" if panel else ""
        return make_grid(name, rows, columns, lambda i, j: _cell(readings[panel, i, j], paint))

    grids = [grid(panel) for panel in panels]
    across = -(-len(grids) // 2) if len(grids) > 3 else len(grids)
    places: list[Grid | None] = [*grids, *[None] * (-len(grids) % across)]
    arranged = [tuple(places[i : i + across]) for i in range(0, len(places), across)]
    kinds: set[Kind] = {r.kind for r in readings.values()}
    return Figure(title, tuple(arranged), (*paint.legend, *legend_of(kinds)))


def _cell(reading: Reading, paint: Paint) -> Cell:
    if reading.kind != "value":
        written = LEGEND[reading.kind][0].label
        return Cell(written, "", reading.kind, reading.facts, key=reading.kind)
    written = label(reading.value)
    return Cell(written, paint.fills[reading.value], facts=reading.facts, key=written)


def _painter(layout: Any, element_bits: int | None) -> Callable[[set[Any]], Paint]:
    if element_bits is not None:
        checked_element_bits(element_bits)
        return lambda values: _by_bank(values, element_bits)
    outer = getattr(layout, "outer", None)
    return (lambda values: _by_chunk(values, outer)) if isinstance(outer, Swizzle) else _by_rank


def checked_element_bits(element_bits: int) -> int:
    """Check that the size of an element divides the banks' total, and return it."""
    known = isinstance(element_bits, int) and element_bits >= 1
    if not known or BANK_BITS * BANKS % element_bits:
        raise ArgumentError("element_bits", "a power of two, 1 to 1024", repr(element_bits))
    return element_bits


def _by_rank(values: set[Any]) -> Paint:
    return Paint(by_rank(values))


def _by_chunk(values: set[Any], swizzle: Swizzle) -> Paint:
    """Colour values by the chunk that the swizzle permutes: the pieces of one row of banks."""
    n = 1 << swizzle.bits
    low = swizzle.base + max(-swizzle.shift, 0)
    fills = {value: wheel((value >> low) % n, n) for value in values}
    chunks = range(n) if n <= _SWATCHES else sorted({(v >> low) % n for v in values})[:_SWATCHES]
    legend = tuple((Cell(str(i), wheel(i, n)), "") for i in chunks)
    meaning = f"offset // {1 << low} % {n}: the chunk" if low else f"offset % {n}: the column"
    return Paint(fills, _captioned(legend, meaning))


def _by_bank(values: set[Any], element_bits: int) -> Paint:
    if not all(isinstance(value, int) for value in values):
        raise ArgumentError("element_bits", "a layout whose offsets are integers", "coordinates")
    bank = {value: value * element_bits // BANK_BITS % BANKS for value in values}
    fills = {value: wheel(b, BANKS) for value, b in bank.items()}
    legend = tuple((Cell(str(b), wheel(b, BANKS)), "") for b in sorted(set(bank.values())))
    together = element_bits // BANK_BITS
    which = f"first of {together} banks" if together > 1 else "bank"
    return Paint(fills, _captioned(legend, f"{which} of shared memory, 4 bytes wide"))


def _captioned(
    swatches: tuple[tuple[Cell, str], ...], meaning: str
) -> tuple[tuple[Cell, str], ...]:
    if not swatches:  # there are no values
        return ()
    return (*swatches[:-1], (swatches[-1][0], meaning))


def _place(crd: IntTuple, shape: IntTuple) -> tuple[tuple[str, str], ...]:
    """Return the coordinate in the profile of the shape, and its colexicographic position."""
    natural = plain(idx2crd(crd, shape))
    return ("coordinate", text(natural)), ("index", str(int(crd2idx(natural, shape))))


def _domain(layout: Any) -> Layout:
    """Return the innermost layout, which takes the coordinate."""
    while isinstance(layout, ComposedLayout):
        layout = layout.inner
    domain: Layout = layout
    return domain


def maps_coordinates(composed: ComposedLayout) -> bool:
    """Return whether this is a chain of layouts through coordinates, rather than functions of
    ints.
    """
    if not _all_layouts(composed):
        return False
    first = _domain(composed)
    return isinstance(first(idx2crd(0, first.shape)), tuple) or isinstance(composed.offset, tuple)


def _all_layouts(chain: Any) -> bool:
    """Return whether all maps of a chain are layouts, without a swizzle or another function."""
    if isinstance(chain, ComposedLayout):
        return _all_layouts(chain.outer) and _all_layouts(chain.inner)
    return isinstance(chain, Layout)


def check_extents(layout: Any) -> None:
    """Refuse a layout with an extent that has no value."""
    for extent in flatten(layout.shape):
        if not isinstance(extent, int):
            raise LayoutTypeError(f"draw: the extent {extent} of {layout} has no value to draw")
