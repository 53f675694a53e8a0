"""Figures of thread-value layouts and atoms: which thread holds which element.

A thread-value layout maps (thread, value) to a position in a tile. The picture shows the tile, and
therefore the inverse. Elements of one thread have one colour.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

from ..algebra import (
    ComposedLayout,
    CopyAtom,
    CustomStride,
    IndexedGather,
    Layout,
    LayoutTypeError,
    LayoutValueError,
    MmaAtom,
    SharedAccess,
    TiledCopy,
    TiledMma,
    bank_conflicts,
    size,
    upcast,
)
from ..algebra.errors import text
from ..algebra.int_tuple import product
from ..errors import ArgumentError
from .axis import mode_axis
from .figure import MOST_CELLS, Cell, Figure, Grid, make_grid, plain
from .layouts import BANK_BITS, BANKS, check_extents, checked_element_bits
from .palette import wheel

_ALL = "#eceef1"  # for cells that all threads have
_WARP = 32
_RUN = 8  # values of one colour if there is only one thread
_NARROW = 12  # most columns of a block whose two sides fit side by side
Owners = dict[int, list[tuple[int, int]]]  # position -> the (thread, value) pairs that hold it
Places = Callable[[int, int], int]  # (row, column) of a picture -> position in the tile


def thread_value_figure(
    layout: Any, *, limit: int, tv: Any, element_bits: int | None = None
) -> Figure:
    """Show a tile (M, N) whose cells name their thread and value; positions are colexicographic.

    With ``element_bits``, cells also name the bank of shared memory, and the title counts bank
    conflicts. ``tv`` is then the tile in shared memory, by default one element after the other.

    Raises ``LayoutValueError`` for a layout that is not (thread, value), or leaves the tile.
    """
    (M, N), memory = _checked_tile(tv)
    grid = _grid("", layout, (M, N), lambda i, j: i + M * j, ("m", "n"), limit)
    title = f"(thread, value) -> {M}x{N}: {layout}"
    if element_bits is None:
        return Figure(title, ((grid,),))
    bank = partial(_bank, memory, checked_element_bits(element_bits))
    cells = tuple(tuple([_with_bank(cell, bank) for cell in line]) for line in grid.cells)
    told = f"{title} in {memory}; {_collisions(layout, memory, element_bits)}"
    return Figure(told, ((replace(grid, cells=cells),),))


def _bank(memory: Any, element_bits: int, position: int) -> int:
    return int(memory(position)) * element_bits // BANK_BITS % BANKS


def _with_bank(cell: Cell, bank: Callable[[int], int]) -> Cell:
    """Add the bank to a cell, in a third line and among its facts."""
    told = dict(cell.facts)
    if not cell.label or "position" not in told:
        return cell
    found = bank(int(told["position"]))
    return replace(cell, label=f"{cell.label}\nb{found}", facts=(*cell.facts, ("bank", str(found))))


def _collisions(layout: Any, memory: Any, element_bits: int) -> str:
    """Return the most wavefronts of a warp that accesses values in shared memory one by one."""
    threads, values = (int(product(mode)) for mode in layout.shape)
    worst = SharedAccess(0, 0, 0)
    for first in range(0, threads, _WARP):
        for v in range(values):
            warp = range(first, min(first + _WARP, threads))
            at = [int(memory(int(layout(t, v)))) for t in warp]
            accessed = Layout(len(at), CustomStride(IndexedGather(at), 1))
            worst = max(worst, bank_conflicts(accessed, max(element_bits, 8)))
    if worst.wavefronts == worst.ideal:
        return "no bank conflicts"
    return f"bank conflicts: {worst.wavefronts} wavefronts for {worst.ideal}"


def mma_figure(atom: MmaAtom, *, limit: int) -> Figure:
    """Show A, B and C around each other as in a product: A left of C, B transposed above it."""
    M, N, K = atom.shape
    (_, of_a), (_, of_b), (_, of_c) = (atom.extents(operand) for operand in "ABC")
    a = _grid(f"A: {atom.a}", atom.a, (M, of_a), lambda m, k: m + M * k, ("m", "k"), limit)
    b = _grid(f"B: {atom.b}", atom.b, (of_b, N), lambda k, n: n + N * k, ("k", "n"), limit)
    c = _grid(f"C: {atom.c}", atom.c, (M, of_c), lambda m, n: m + M * n, ("m", "n"), limit)
    blocks = f" in {atom.blocks} blocks" if atom.blocks > 1 else ""
    stored = ", A without its zeros" if atom.sparse else ""
    who = f"{atom.threads} {_kind_of_thread(atom)}{'s' if atom.threads > 1 else ''}"
    return Figure(f"{atom.name}: {M}x{N}x{K}{blocks}{stored}, {who}", ((None, b), (a, c)))


def _kind_of_thread(atom: MmaAtom) -> str:
    return "CTA" if atom.name.startswith("tcgen05") else "thread"


def tiled_mma_figure(mma: TiledMma, *, limit: int) -> Figure:
    """Show A, B and C of the tile that all threads compute together, as :func:`mma_figure`."""
    tile = (mma.get_tile_size(0), mma.get_tile_size(1), mma.get_tile_size(2))
    a, b, c = (mma.layout_tv(operand) for operand in "ABC")
    atom = replace(mma.atom, name=str(mma), shape=tile, threads=mma.size, a=a, b=b, c=c)
    return mma_figure(atom, limit=limit)


def tiled_copy_figure(
    copy: TiledCopy, *, limit: int, tv: Any = None, element_bits: int | None = None
) -> Figure:
    """Show a copy's tile, whose cells name their thread and value, and on request their bank."""
    extents = tuple(int(size(t)) for t in copy.tiler)
    tile = extents[0], int(product(extents)) // extents[0]
    given, _ = _checked_tile(tile if tv is None else tv)
    if given != tile:
        raise ArgumentError("tv", f"a tile of {tile[0]}x{tile[1]}, as the copy has", tv)
    return thread_value_figure(
        copy.layout_tv, limit=limit, tv=tile if tv is None else tv, element_bits=element_bits
    )


def copy_figure(atom: CopyAtom, *, limit: int) -> Figure:
    """Show the moved block in rows of units: the threads that read them, and that get them.

    A side that all threads see alike, such as tensor memory, is left out. The sides of a wide block
    lie one above the other, so that a page has room for both.
    """
    columns = atom.row_bits // atom.element_bits
    sides = (("source", atom.source), ("destination", atom.destination))
    grids = []
    for name, bits in sides:
        if _shared(bits):
            continue
        elements = upcast(bits, atom.element_bits)
        owners = _owners(elements)
        tile = ((max(owners) + columns) // columns, columns)
        title = f"{name}: {bits}"
        read = partial(_position_in_rows, columns)
        grids.append(_grid(title, elements, tile, read, ("", ""), limit))
    who = f"{atom.threads} thread{'s' if atom.threads > 1 else ''}"
    title = f"{atom.name}: {who}, {atom.element_bits}-bit elements"
    wide = columns > _NARROW
    return Figure(title, tuple((grid,) for grid in grids) if wide else (tuple(grids),))


def _position_in_rows(columns: int, i: int, j: int) -> int:
    return columns * i + j


def _grid(
    title: str,
    layout: Any,
    tile: tuple[int, int],
    position: Places,
    names: tuple[str, str],
    limit: int,
) -> Grid:
    owners = _owners(layout)
    outside = [p for p in owners if not 0 <= p < product(tile)]
    if outside:
        t, v = owners[outside[0]][0]
        raise LayoutValueError(
            f"draw: thread {t}, value {v} of {layout} is at position {outside[0]}, "
            f"outside a tile of {tile[0]}x{tile[1]}"
        )
    threads = 0 if _shared(layout) else int(product(layout.shape[0]))
    rows, columns = (mode_axis(s, limit=limit, name=n) for s, n in zip(tile, names, strict=True))

    def cell(i: int, j: int) -> Cell:
        return _cell((i, j), position(i, j), owners.get(position(i, j), []), threads)

    return make_grid(title, rows, columns, cell)


def _owners(layout: Any) -> Owners:
    if not isinstance(layout.shape, tuple) or len(layout.shape) != 2:
        raise LayoutValueError(f"draw: {layout} is not a thread-value layout, which has two modes")
    check_extents(layout)
    threads, values = (int(product(mode)) for mode in layout.shape)
    threads = 1 if _shared(layout) else threads
    if threads * values > MOST_CELLS:
        raise LayoutValueError(
            f"draw: {layout} has {threads * values} elements; expected at most {MOST_CELLS}"
        )
    owners: Owners = {}
    for t in range(threads):
        for v in range(values):
            position = plain(layout(t, v))
            if not isinstance(position, int):
                raise LayoutTypeError(
                    f"draw: thread {t}, value {v} of {layout} is at {text(position)}; expected a "
                    "position in a tile, an integer"
                )
            owners.setdefault(position, []).append((t, v))
    return owners


def _shared(layout: Any) -> bool:
    """Return whether all threads have the same elements: their strides are 0."""
    if not isinstance(layout, Layout) or not isinstance(layout.shape, tuple):
        return False
    return int(product(layout.shape[0])) > 1 and layout[0].cosize() == 1


def _cell(at: tuple[int, int], position: int, held: list[tuple[int, int]], threads: int) -> Cell:
    facts = (("element", f"({at[0]},{at[1]})"), ("position", str(position)))
    if not held:
        return Cell(facts=(*facts, ("held by", "no thread")))
    t, v = held[0]
    if not threads:
        return Cell(f"all\nV{v}", _ALL, facts=(*facts, ("held by", f"every thread as V{v}")))
    who = ", ".join(f"T{t} V{v}" for t, v in held[:4]) + (", ..." if len(held) > 4 else "")
    together = len({v for _, v in held}) == 1 and len(held) > 1
    if together and len(held) == threads:
        return Cell(f"all\nV{v}", _ALL, facts=(*facts, ("held by", f"every thread as V{v}")))
    more = f"+{len(held) - 1}" if len(held) > 1 else ""
    if threads == 1:
        fill = wheel(v // _RUN, _RUN)
        return Cell(f"V{v}{more}", fill, facts=(*facts, ("held by", who)), key=f"V{v}")
    fill = wheel(t, threads)
    return Cell(f"T{t}{more}\nV{v}", fill, facts=(*facts, ("held by", who)), key=f"T{t}")


def _checked_tile(tv: Any) -> tuple[tuple[int, int], Any]:
    """Return the extents of a tile, and the layout of its elements in memory, by position."""
    memory = tv if isinstance(tv, Layout | ComposedLayout) else None
    extents = tv
    if memory is not None:
        shape = memory.shape
        extents = tuple(map(size, shape)) if isinstance(shape, tuple) else (shape,)
    pair = isinstance(extents, tuple | list) and len(extents) == 2
    if not pair or not all(isinstance(extent, int) and extent >= 1 for extent in extents):
        raise ArgumentError("tv", "the extents (M, N) of the tile, or its layout", tv)
    if memory is None:
        return (extents[0], extents[1]), Layout((extents[0], extents[1]))
    if not isinstance(memory(0), int):
        raise ArgumentError("tv", "a layout whose offsets are integers", tv)
    return (extents[0], extents[1]), memory
