"""Steps of composition and division: both apply one function after another, ``R(c) = A(P(c))``.

P gives the position in A of each coordinate. Both are shown beside the result, and a reader can
follow a coordinate from one to the next.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .. import algebra
from ..algebra import (
    ComposedLayout,
    Layout,
    LayoutError,
    Swizzle,
    complement,
    crd2idx,
    explain,
    make_identity_layout,
    product,
)
from ..algebra.errors import text
from .api import draw
from .expression import Applied, operations
from .figure import Cell, Figure, label, plain
from .layouts import covers
from .palette import by_rank, wheel
from .step import DrawnStep, StepPanel

_MOST = 1 << 14  # positions that are evaluated one by one, to colour them by tile
DIVIDES = "logical_divide", "zipped_divide", "tiled_divide", "flat_divide"


@dataclass(frozen=True)
class _Positions:
    """``a`` after ``through``, whose values are positions in ``a``."""

    a: Any
    through: Any

    def at(self, index: int) -> int | None:
        """Return the position in ``a`` of an index; None outside its shape."""
        return self.of(plain(self.through(index)))

    def of(self, value: Any) -> int | None:
        if not isinstance(value, tuple):
            return int(value)
        shape = _bounds(self.a)
        shape = shape if isinstance(shape, tuple) else (shape,)
        return int(crd2idx(value, shape)) if covers(shape, value) else None


def _bounds(a: Any) -> Any:
    return a.size() if isinstance(a, Swizzle) else plain(a.shape)


def composition_steps(applied: Applied, limit: int) -> list[DrawnStep] | None:
    """Return the steps of ``A @ B``: B, A, the result or the failure; None if B is no layout."""
    a, b = applied.operands
    through = b
    if isinstance(b, int):
        through = Layout(b)
    elif isinstance(b, tuple):
        through = _by_mode("composition", a, b)
    error, result = applied.error, applied.result
    if error is not None:
        result = error.best
    if not isinstance(through, Layout) or not isinstance(result, Layout | ComposedLayout):
        return None
    positions = _Positions(a, through)
    witness = None if error is None else int(crd2idx(error.witness, through.shape))

    # A coordinate has one colour all along its way.
    figures = [draw(a, limit=limit), draw(result, limit=limit)]
    offsets = {_number(_fact(c, "offset")) for figure in figures for c in _cells(figure)}
    fills = by_rank(offsets - {None})

    def of_b(cell: Cell) -> Cell:
        index = int(_fact(cell, "index"))
        at = positions.at(index)
        facts = cell.facts if at is None else (*cell.facts, ("position", str(at)))
        fill = fills.get(_number(label(plain(a(at)))), "") if at is not None else ""
        return replace(cell, facts=facts, fill=fill, mark=index == witness)

    def of_a(cell: Cell) -> Cell:
        here = witness is not None and str(positions.at(witness)) == _fact(cell, entry)
        return replace(cell, fill=_fill(fills, cell), mark=here)

    def of_r(cell: Cell) -> Cell:
        return replace(cell, fill=_fill(fills, cell), mark=_fact(cell, "index") == str(witness))

    entry = "inner" if isinstance(a, Swizzle) else "index"
    b_panel = StepPanel("B", _redrawn(draw(through, limit=limit, title=f"B = {through}"), of_b))
    a_panel = StepPanel("A", _redrawn(replace(figures[0], title=f"A = {a}"), of_a))
    name = "R" if error is None else "best"
    r_panel = StepPanel(name, _redrawn(replace(figures[1], title=f"{name} = {result}"), of_r))
    to_a, to_r = (0, "position", 1, entry), (0, "index", 2, "index")
    given = "" if isinstance(b, Layout) else f" Here B is {text(b)}, mode by mode of A."
    first = DrawnStep(
        "A @ B: first B",
        f"`A @ B` maps a coordinate c to `A(B(c))`. B says which position of A that is.{given}",
        (b_panel,),
    )
    second = DrawnStep(
        "A @ B: then A",
        "A says what is at that position. Point at a cell to follow it; a cell of B has the colour "
        "of the cell of A that it leads to.",
        (b_panel, a_panel),
        (to_a,),
    )
    title = "the result"
    sentence = (
        "R has the coordinates of B and the offsets of A: R(c) = A(B(c)). As one layout that is "
        f"`{result}`."
    )
    if error is not None:
        title, sentence = "where it goes wrong", f"{proof(error)} The cells with a border show it."
    panels = (b_panel, a_panel, r_panel)
    account = _account("composition", a, through)
    third = DrawnStep(f"A @ B: {title}", sentence, panels, (to_a, to_r), account)
    return [first, second, third]


def proof(error: LayoutError) -> str:
    """Return the proof that an error carries, in sentences; empty if it has none.

    >>> try:
    ...     algebra.composition(Layout((4, 3), (1, 8)), Layout(6, 1))
    ... except LayoutError as error:
    ...     print(proof(error))
    No layout is this function. At 4 it is 8, but the closest layout, 6:1, gives 4 there.
    """
    if error.witness is None or not isinstance(error.best, Layout) or error.exact is None:
        return ""
    at, exact = text(plain(error.witness)), label(plain(error.exact))
    return (
        f"No layout is this function. At {at} it is {exact}, but the closest layout, {error.best}, "
        f"gives {label(plain(error.best(error.witness)))} there."
    )


def divide_steps(applied: Applied, limit: int) -> list[DrawnStep] | None:
    """Return the steps of a division: the layout, the tile and its complement, then the result.

    None if the divided object, or the tiler, is not a layout.
    """
    a, tiler = applied.operands
    name = applied.name
    by_mode = isinstance(tiler, tuple)
    written = text(tiler)
    if tiler is None or not isinstance(a, Layout | ComposedLayout):
        return None
    positions = _Positions(a, _by_mode(name, a, tiler))
    tiles = _tiles(positions, tiler)

    whole = draw(a, limit=limit, title=f"A = {a}")
    found = [
        DrawnStep(
            f"{name}: what is divided",
            f"A is cut into tiles by {written}.",
            (StepPanel("A", whole),),
        )
    ]
    if not by_mode:
        tile = tiler if isinstance(tiler, Layout) else Layout(tiler)
        panels = [StepPanel("tile", draw(tile, limit=limit, title=f"tile = {tile}"))]
        sentence = "The tile says which positions of A the first tile takes."
        try:
            rest = complement(tile, a.size())
            sentence += (
                f" Its complement in the {a.size()} positions of A says where tiles begin: "
                f"`{rest}`."
            )
            panels.append(StepPanel("rest", draw(rest, limit=limit, title=f"rest = {rest}")))
        except LayoutError as none:
            sentence += f" It has no complement: {none}"
        found.append(DrawnStep(f"{name}: the tile, and the rest", sentence, tuple(panels)))
    through, error = positions.through, applied.error
    result, witness = applied.result, None
    if through is not None and error is not None and proof(error):
        result, witness = error.best, int(crd2idx(error.witness, through.shape))
    if through is None or result is None:
        found.append(
            DrawnStep(f"{name}: where it goes wrong", str(error), (StepPanel("A", whole),))
        )
        return found

    def of_p(cell: Cell) -> Cell:
        index = int(_fact(cell, "index"))
        at = positions.at(index)
        facts = cell.facts if at is None else (*cell.facts, ("position", str(at)))
        fill = tiles.get(at, "") if tiles else cell.fill
        return replace(cell, facts=facts, fill=fill, mark=index == witness)

    def of_a(cell: Cell) -> Cell:
        index = int(_fact(cell, "index"))
        fill = tiles.get(index, "") if tiles else cell.fill
        here = witness is not None and positions.at(witness) == index
        return replace(cell, fill=fill, mark=here)

    def of_r(cell: Cell) -> Cell:
        index = int(_fact(cell, "index"))
        fill = tiles.get(positions.at(index), "") if tiles else cell.fill
        return replace(cell, fill=fill, mark=index == witness)

    letter = "R" if error is None else "best"
    p = StepPanel("P", _redrawn(draw(through, limit=limit, title=f"P = {through}"), of_p))
    cut = StepPanel("A", _redrawn(whole, of_a))
    drawn = draw(result, limit=limit, title=f"{letter} = {result}")
    r = StepPanel(letter, _redrawn(drawn, of_r))
    colours = " Each tile has a colour." if tiles else ""
    if tiles and through.size() > a.size():
        colours += " Cells without one lie beyond A: the tiles do not divide it."
    kind = "coordinate" if by_mode else "position"
    to_a, to_r = (0, "position", 1, "index"), (0, "index", 2, "index")
    modes = "" if not by_mode else " The tiler is a tuple: each mode of A is cut by its own."
    title, last = "the result", f"R = `{result}` is A after P: R(c) = A(P(c)).{colours}"
    if error is not None:
        title, last = "where it goes wrong", f"{proof(error)} The cells with a border show it."
    account = "" if by_mode or name != "logical_divide" else _account(name, a, tiler)
    found += [
        DrawnStep(
            f"{name}: (tile, rest) in A",
            f"P says which {kind} of A stands where in the result.{modes}{colours}",
            (p, cut),
            (to_a,),
        ),
        DrawnStep(f"{name}: {title}", last, (p, cut, r), (to_a, to_r), account),
    ]
    return found


def _by_mode(name: str, a: Any, b: Any) -> Any:
    """Apply ``name`` to the positions of ``a`` and to ``b``: coordinates if ``b`` is a tuple.

    The shape of ``a`` has one extent for each mode. None if there is no such layout.
    """
    shape = _bounds(a)
    domain: Any = Layout(product(shape))
    if isinstance(b, tuple):
        modes = shape if isinstance(shape, tuple) else (shape,)
        domain = make_identity_layout(tuple(product(mode) for mode in modes))
    try:
        return operations()[name](domain, b)
    except LayoutError:
        return None


def _tiles(positions: _Positions, tiler: Any) -> dict[int | None, str]:
    """Return the colour of each position of the divided layout, by tile; none if they are many."""
    if positions.a.size() > _MOST:
        return {}
    zipped = _by_mode("zipped_divide", positions.a, tiler)
    if zipped is None or zipped.size() > _MOST:
        return {}
    size, count = zipped[0].size(), zipped[1].size()
    colours = {
        # With many tiles, neighbours get colours far apart.
        positions.of(plain(zipped(i, tile))): wheel(tile, count)
        if count <= 12
        else wheel(5 * tile, 12)
        for tile in range(count)
        for i in range(size)
    }
    colours.pop(None, None)
    return {at: fill for at, fill in colours.items() if at is not None and at < positions.a.size()}


def _account(name: str, a: Any, b: Any) -> str:
    """Return the account of :func:`~layoutconv.explain`; empty for a composition not of layouts."""
    if not isinstance(a, Layout) or not isinstance(b, Layout | int):
        return ""
    return explain(getattr(algebra, name), a, b)


def _redrawn(figure: Figure, change: Callable[[Cell], Cell]) -> Figure:
    """Apply ``change`` to the cells of a figure that have an index, and drop its legend."""

    def line(cells: tuple[Cell, ...]) -> tuple[Cell, ...]:
        return tuple([change(cell) if _fact(cell, "index") else cell for cell in cells])

    grids = tuple(
        tuple(grid and replace(grid, cells=tuple(map(line, grid.cells))) for grid in row)
        for row in figure.grids
    )
    return Figure(figure.title, grids)


def _cells(figure: Figure) -> list[Cell]:
    return [c for row in figure.grids for grid in row if grid for line in grid.cells for c in line]


def _fact(cell: Cell, name: str) -> str:
    return dict(cell.facts).get(name, "")


def _number(written: str) -> Any:
    """Return an offset for comparison: a number, or the text of a coordinate; None without one."""
    return int(written) if re.fullmatch(r"-?\d+", written) else written or None


def _fill(fills: dict[Any, str], cell: Cell) -> str:
    return fills.get(_number(_fact(cell, "offset")), cell.fill)
