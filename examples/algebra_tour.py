"""A tour of the layout algebra: ten operations, each with its law, checked.

    python examples/algebra_tour.py [--output algebra_tour.svg]

A layout is a function from coordinates to offsets, written as a shape and a stride. Operations
make layouts from layouts. A law about functions defines each operation; the script checks it on
the whole domain. If the result is not a layout, the error has a counterexample.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from support.command_line import program

import layoutconv as lc
from layoutconv import E, Layout
from layoutconv.drawing import Figure, draw
from layoutconv.drawing.one_scale import on_one_scale

ROWS = Layout((4, 8), (8, 1))  # 4 rows of 8, row after row


@dataclass(frozen=True)
class Stop:
    """One stop of the tour: what it shows, the lesson, and a law that holds or not."""

    name: str
    shown: object
    learned: str
    law: Callable[[], bool]


def stops() -> Iterator[Stop]:
    """The stops, in the order of the tour."""
    yield Stop(
        "layout",
        ROWS,
        "a coordinate is a pair, or its place in the order in which mode 0 runs fastest",
        lambda: all(ROWS(i, j) == ROWS(i + 4 * j) for i in range(4) for j in range(8)),
    )
    nested = Layout(((2, 2), (4, 2)), ((1, 8), (2, 16)))
    yield Stop(
        "nesting",
        nested,
        "a mode may have modes: a stride for each, and flat coordinates all the same",
        lambda: all(nested(i, j) == nested((i % 2, i // 2), j) for i in range(4) for j in range(8)),
    )
    loose = Layout((2, (1, 6)), (1, (6, 2)))
    simple = lc.coalesce(loose)
    yield Stop(
        "coalesce",
        simple,
        f"{loose} is the same function with fewer modes",
        lambda: all(simple(i) == loose(i) for i in range(12)) and simple.rank == 1,
    )
    every_third = Layout((2, 3), (1, 4))
    part = lc.composition(ROWS, every_third)
    yield Stop(
        "composition",
        part,
        f"{ROWS} after {every_third}: functions one after another are a layout again",
        lambda: all(part(i) == ROWS(every_third(i)) for i in range(6)),
    )
    tile = Layout(4, 2)
    rest = lc.complement(tile, 24)
    whole = lc.make_layout(tile, rest)
    yield Stop(
        "complement",
        rest,
        f"where copies of {tile} have to start to fill 24 places, each of them once",
        lambda: sorted(whole(i) for i in range(24)) == list(range(24)),
    )
    tiles = lc.zipped_divide(ROWS, (2, 4))
    yield Stop(
        "divide",
        tiles,
        "mode 0 runs in a tile of 2 x 4, mode 1 from tile to tile",
        lambda: all(
            tiles((i, j), (p, q)) == ROWS(i + 2 * p, j + 4 * q)
            for i in range(2)
            for j in range(4)
            for p in range(2)
            for q in range(2)
        ),
    )
    block, grid = Layout((2, 2), (1, 2)), Layout((2, 3), (3, 1))
    blocked, raked = lc.blocked_product(block, grid), lc.raked_product(block, grid)
    yield Stop(
        "product",
        blocked,
        f"a grid of blocks; raked, the blocks' elements lie between each other, {raked}",
        lambda: sorted(map(blocked, range(24))) == sorted(map(raked, range(24))) == [*range(24)],
    )
    back = lc.right_inverse(ROWS)
    yield Stop(
        "inverse",
        back,
        "which place holds offset 0, 1, 2 ...",
        lambda: all(ROWS(back(offset)) == offset for offset in range(32)),
    )
    windows = Layout((6, 3), (E(0), E(0)))
    yield Stop(
        "coordinates",
        windows,
        "a stride may be a basis vector: offsets are coordinates then. Window p, tap r: p + r",
        lambda: all(windows(p, r) == (p + r,) for p in range(6) for r in range(3)),
    )
    yield Stop("error", _refusal(), "no layout is that function; a coordinate shows why", _witness)


def _error() -> lc.LayoutError:
    try:
        lc.composition(Layout((5, 3), (1, 7)), Layout(4, 2))
    except lc.LayoutError as error:
        return error
    raise AssertionError("a layout that cannot be")


def _refusal() -> str:
    return str(_error())


def _witness() -> bool:
    """The function at the witness is not what the best layout has there."""
    error = _error()
    a, b = error.operands
    return a(b(error.witness)) == error.exact != error.best(error.witness)


def picture() -> Figure:
    """A matrix, its tiles, and the blocked and the raked product."""
    block, grid = Layout((2, 2), (1, 2)), Layout((2, 3), (3, 1))
    shown = {
        "a matrix": ROWS,
        "zipped_divide by (2,4): tile, tiles": lc.zipped_divide(ROWS, (2, 4)),
        "blocked_product": lc.blocked_product(block, grid),
        "raked_product": lc.raked_product(block, grid),
    }
    grids = []
    for title, layout in shown.items():
        ((grid_of, *_), *_) = draw(layout).grids
        assert grid_of is not None
        grids.append(replace(grid_of, title=f"{title}: {layout}"))
    rows = (*((grid,) for grid in grids[:2]), tuple(grids[2:]))
    figure = Figure("A tour of the layout algebra", rows)
    return on_one_scale(figure, "offset")


def main(arguments: Sequence[str] | None = None) -> int:
    """Take the tour; 0 if every law holds, else 1."""
    parser = program(__file__, __doc__, "--output tour.html", picture=".svg")
    output = parser.parse_args(arguments).output
    passed = True
    for stop in stops():
        holds = stop.law()
        passed &= holds
        print(f"{stop.name:<12} {stop.shown}\n{'':<12} {stop.learned}: {_verdict(holds)}")
    picture().save(output)
    print(f"picture      {output}")
    return 0 if passed else 1


def _verdict(holds: bool) -> str:
    return "ok" if holds else "FAILED"


if __name__ == "__main__":
    raise SystemExit(main())
