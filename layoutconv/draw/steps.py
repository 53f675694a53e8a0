"""An expression, operation by operation: what is shown of each, and which cells belong together.

A composition or a division is one function after another, ``R(c) = A(P(c))``: P says which position
of A each coordinate is mapped to. Both are shown beside the result, and a coordinate can be
followed from one to the next.
"""

from __future__ import annotations

import inspect
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
from .expression import Applied, evaluate, operations
from .figure import Cell, Figure, label, plain
from .layouts import covers
from .palette import by_rank, wheel
from .text import to_text

_MOST = 1 << 14  # positions that are looked at one by one to colour them by their tile
_DIVIDES = "logical_divide", "zipped_divide", "tiled_divide", "flat_divide"


@dataclass(frozen=True)
class Panel:
    """A figure of a step, and the letter that it goes by."""

    name: str
    figure: Figure


@dataclass(frozen=True)
class Step:
    """One thing to look at: figures beside each other, and what there is to see.

    ``links`` say which cells belong together: ``(i, fact, j, other)`` those of panels i and j where
    ``fact`` of the one is ``other`` of the other. ``account`` tells in lines how a result came
    about.
    """

    title: str
    sentence: str
    panels: tuple[Panel, ...]
    links: tuple[tuple[int, str, int, str], ...] = ()
    account: str = ""


def steps(expression: str, *, limit: int = 32) -> list[Step]:
    """The steps of every operation in an expression, the innermost first, and none for a notation.

    Where an operation has no result, its last step shows where it goes wrong. ``limit`` is how many
    rows and columns are shown.

    >>> for step in steps("(4,8):(8,1) @ (2,4):(2,8)"):
    ...     print(step.title, [panel.name for panel in step.panels])
    A @ B: first B ['B']
    A @ B: then A ['B', 'A']
    A @ B: the result ['B', 'A', 'R']
    """
    applied: list[Applied] = []
    try:
        evaluate(expression, applied)
    except LayoutError:
        if not applied or applied[-1].error is None:
            raise
    return [step for operation in applied for step in _steps(operation, limit)]


def steps_text(steps: list[Step]) -> str:
    """The steps one below the other, for a terminal."""
    parts = []
    for number, step in enumerate(steps, 1):
        parts.append(f"{number}. {step.title}\n{step.sentence.replace('`', '')}")
        parts += [to_text(panel.figure) for panel in step.panels]
        parts += [step.account] if step.account else []
    return "\n\n".join(parts)


def _steps(applied: Applied, limit: int) -> list[Step]:
    if applied.name == "composition":
        return _composition(applied, limit)
    if applied.name in _DIVIDES and applied.operands[1] is not None:
        return _divide(applied, limit)
    return _other(applied, limit)


@dataclass(frozen=True)
class _Positions:
    """``a`` after ``through``, whose values are positions in ``a``."""

    a: Any
    through: Any

    def at(self, index: int) -> int | None:
        """The position in ``a`` that an index is mapped to; None outside of its shape."""
        return self.of(plain(self.through(index)))

    def of(self, value: Any) -> int | None:
        if not isinstance(value, tuple):
            return int(value)
        shape = _bounds(self.a)
        shape = shape if isinstance(shape, tuple) else (shape,)
        return int(crd2idx(value, shape)) if covers(shape, value) else None


def _bounds(a: Any) -> Any:
    return a.size() if isinstance(a, Swizzle) else plain(a.shape)


def _composition(applied: Applied, limit: int) -> list[Step]:
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
        return _other(applied, limit)
    positions = _Positions(a, through)
    witness = None if error is None else int(crd2idx(error.witness, through.shape))

    # What a coordinate gets has one colour all along its way.
    figures = [draw(a, limit=limit), draw(result, limit=limit)]
    offsets = {_number(_fact(c, "offset")) for figure in figures for c in _cells(figure)}
    fills = by_rank(offsets - {None})

    def of_b(cell: Cell) -> Cell:
        index = int(_fact(cell, "index"))
        at = positions.at(index)
        facts = cell.facts if at is None else (*cell.facts, ("position", str(at)))
        fill = fills.get(plain(a(at)), "#ffffff") if at is not None else ""
        return replace(cell, facts=facts, fill=fill, mark=index == witness)

    def of_a(cell: Cell) -> Cell:
        here = witness is not None and str(positions.at(witness)) == _fact(cell, entry)
        return replace(cell, fill=_fill(fills, cell), mark=here)

    def of_r(cell: Cell) -> Cell:
        return replace(cell, fill=_fill(fills, cell), mark=_fact(cell, "index") == str(witness))

    entry = "inner" if isinstance(a, Swizzle) else "index"
    b_panel = Panel("B", _redrawn(draw(through, limit=limit, title=f"B = {through}"), of_b))
    a_panel = Panel("A", _redrawn(replace(figures[0], title=f"A = {a}"), of_a))
    name = "R" if error is None else "best"
    r_panel = Panel(name, _redrawn(replace(figures[1], title=f"{name} = {result}"), of_r))
    to_a, to_r = (0, "position", 1, entry), (0, "index", 2, "index")
    given = "" if isinstance(b, Layout) else f" Here B is {text(b)}, mode by mode of A."
    first = Step(
        "A @ B: first B",
        f"`A @ B` maps a coordinate c to `A(B(c))`. B says which position of A that is.{given}",
        (b_panel,),
    )
    second = Step(
        "A @ B: then A",
        "A says what is at that position. Point at a cell to follow it; a cell of B has the colour "
        "of the cell of A that it leads to.",
        (b_panel, a_panel),
        (to_a,),
    )
    if error is None:
        third = Step(
            "A @ B: the result",
            f"R has the coordinates of B and the offsets of A: R(c) = A(B(c)). As one layout that "
            f"is `{result}`.",
            (b_panel, a_panel, r_panel),
            (to_a, to_r),
            _account("composition", a, through),
        )
    else:
        third = Step(
            "A @ B: where it goes wrong",
            f"{proof(error)} The cells with a border show it.",
            (b_panel, a_panel, r_panel),
            (to_a, to_r),
            _account("composition", a, through),
        )
    return [first, second, third]


def proof(error: LayoutError) -> str:
    """The proof that an error carries, in sentences; nothing if it has none.

    >>> try:
    ...     evaluate("(4,3):(1,8) @ 6:1")
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


def _divide(applied: Applied, limit: int) -> list[Step]:
    a, tiler = applied.operands
    name, result = applied.name, applied.result
    by_mode = isinstance(tiler, tuple)
    written = text(tiler)
    if not isinstance(a, Layout | ComposedLayout):
        return _other(applied, limit)
    positions = _Positions(a, _by_mode(name, a, tiler))
    tiles = _tiles(positions, tiler)

    whole = draw(a, limit=limit, title=f"A = {a}")
    found = [
        Step(f"{name}: what is divided", f"A is cut into tiles by {written}.", (_panel(whole),))
    ]
    if not by_mode:
        tile = tiler if isinstance(tiler, Layout) else Layout(tiler)
        panels = [Panel("tile", draw(tile, limit=limit, title=f"tile = {tile}"))]
        sentence = "The tile says which positions of A the first tile takes."
        try:
            rest = complement(tile, a.size())
            sentence += (
                f" Its complement in the {a.size()} positions of A says where tiles begin: "
                f"`{rest}`."
            )
            panels.append(Panel("rest", draw(rest, limit=limit, title=f"rest = {rest}")))
        except LayoutError as error:
            sentence += f" It has no complement: {error}"
        found.append(Step(f"{name}: the tile, and the rest", sentence, tuple(panels)))
    if positions.through is None or result is None:
        if applied.error is not None:
            wrong = f"{applied.error}"
            found.append(Step(f"{name}: where it goes wrong", wrong, (_panel(whole),)))
        return found

    def of_p(cell: Cell) -> Cell:
        at = positions.at(int(_fact(cell, "index")))
        facts = cell.facts if at is None else (*cell.facts, ("position", str(at)))
        return replace(cell, facts=facts, fill=tiles.get(at, "") if tiles else cell.fill)

    def of_a(cell: Cell) -> Cell:
        fill = tiles.get(int(_fact(cell, "index")), "") if tiles else cell.fill
        return replace(cell, fill=fill)

    def of_r(cell: Cell) -> Cell:
        at = positions.at(int(_fact(cell, "index")))
        return replace(cell, fill=tiles.get(at, "") if tiles else cell.fill)

    through = positions.through
    p = _redrawn(draw(through, limit=limit, title=f"P = {through}"), of_p)
    cut = _redrawn(whole, of_a)
    r = _redrawn(draw(result, limit=limit, title=f"R = {result}"), of_r)
    colours = " Each tile has a colour." if tiles else ""
    kind = "coordinate" if by_mode else "position"
    to_a, to_r = (0, "position", 1, "index"), (0, "index", 2, "index")
    modes = "" if not by_mode else " The tiler is a tuple: each mode of A is cut by its own."
    found += [
        Step(
            f"{name}: (tile, rest) in A",
            f"P says which {kind} of A stands where in the result.{modes}{colours}",
            (Panel("P", p), Panel("A", cut)),
            (to_a,),
        ),
        Step(
            f"{name}: the result",
            f"R = `{result}` is A after P: R(c) = A(P(c)).{colours}",
            (Panel("P", p), Panel("A", cut), Panel("R", r)),
            (to_a, to_r),
            "" if by_mode or name != "logical_divide" else _account(name, a, tiler),
        ),
    ]
    return found


def _by_mode(name: str, a: Any, b: Any) -> Any:
    """``name`` of the positions of ``a`` and ``b``: coordinates if ``b`` is a tuple, else indices.

    The shape of ``a`` is taken with one extent for each mode. None if there is no such layout.
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
    """The colour of each position of the divided layout, by its tile; none for very many."""
    if positions.a.size() > _MOST:
        return {}
    zipped = _by_mode("zipped_divide", positions.a, tiler)
    if zipped is None or zipped.size() > _MOST:
        return {}
    size, count = zipped[0].size(), zipped[1].size()
    colours = {
        # Of many tiles, those beside each other have colours far apart.
        positions.of(plain(zipped(i, tile))): wheel(tile, count)
        if count <= 12
        else wheel(5 * tile, 12)
        for tile in range(count)
        for i in range(size)
    }
    colours.pop(None, None)
    return {at: fill for at, fill in colours.items() if at is not None and at < positions.a.size()}


def _other(applied: Applied, limit: int) -> list[Step]:
    """Any operation: its operands, its result, and what it is for, in its own words."""
    shown = [o for o in applied.operands if isinstance(o, Layout | ComposedLayout | Swizzle)]
    names = ["A", "B"] if len(shown) <= 2 else [f"A{i}" for i in range(len(shown))]
    panels = [
        Panel(name, draw(o, limit=limit, title=f"{name} = {o}"))
        for name, o in zip(names, shown, strict=False)
    ]
    if isinstance(applied.result, Layout | ComposedLayout | Swizzle):
        panels.append(Panel("R", draw(applied.result, limit=limit, title=f"R = {applied.result}")))
    if not shown:  # Layout(shape, stride) and its like say no more than their result does
        return []
    links: tuple[tuple[int, str, int, str], ...] = ()
    if len(panels) == 2 and applied.name in ("coalesce", "flatten_layout", "group_modes"):
        links = ((0, "index", 1, "index"),)
    if len(panels) == 2 and applied.name in ("right_inverse", "left_inverse"):
        links = ((0, "offset", 1, "index"),)
    sentence = summary(applied.name) if applied.error is None else ""
    title = f"{applied.name}({', '.join(map(text, applied.operands))})"
    if applied.error is not None:
        title, sentence = f"{applied.name}: where it goes wrong", str(applied.error)
    return [Step(title, sentence, tuple(panels), links)]


def summary(operation: str) -> str:
    """What an operation is for: the first paragraph of its docstring.

    >>> summary("group_modes")
    'Modes `begin` to `end` (exclusive) as one mode.'
    """
    first = (inspect.getdoc(operations()[operation]) or "").split("\n\n")[0].replace("\n", " ")
    return re.sub(r":\w+:`~?(?:\w+\.)*(\w+)`", r"`\1`", first).replace("``", "`")


def _account(name: str, a: Any, b: Any) -> str:
    """What :func:`~layoutconv.explain` tells; nothing where a composition is not one of layouts."""
    if not isinstance(a, Layout) or not isinstance(b, Layout | int):
        return ""
    return explain(getattr(algebra, name), a, b)


def _panel(figure: Figure) -> Panel:
    return Panel("A", figure)


def _redrawn(figure: Figure, change: Callable[[Cell], Cell]) -> Figure:
    """A figure whose cells are ``change`` of those with an index; colours have no legend then."""

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
    """An offset as it is compared: a number, or the text of a coordinate; None without one."""
    return int(written) if re.fullmatch(r"-?\d+", written) else written or None


def _fill(fills: dict[Any, str], cell: Cell) -> str:
    return fills.get(_number(_fact(cell, "offset")), cell.fill)
