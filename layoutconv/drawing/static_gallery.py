"""``draw --gallery``: operations of the algebra step by step, as pages without a server."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from pathlib import Path

from ..algebra import LayoutError
from .api import draw
from .expression import Applied, evaluate
from .figure import Figure
from .files import write
from .fragment import fragment_of
from .html import code, page
from .svg import to_svg


@dataclass(frozen=True)
class Exhibit:
    """A page: its file name, an expression, and one sentence about what to see."""

    name: str
    expression: str
    insight: str


GALLERY = (
    Exhibit("composition", "(6,2):(8,2) @ (4,3):(3,1)",
            "B picks positions, A says what is there: the result is one layout, of more modes."),
    Exhibit("row-and-column", "(4,8):(8,1) @ (8,4):(4,1)",
            "B goes through the matrix in another order: the result is its transpose, one layout."),
    Exhibit("no-such-layout", "(4,3):(1,8) @ 6:1",
            "No single stride walks 0, 1, 2, 3, 8, 9, and the witness is the cell that says so."),
    Exhibit("logical-divide", "logical_divide(24, 4:2)",
            "A tile takes every second element; its complement says where the next tiles begin."),
    Exhibit("zipped-divide", "zipped_divide((4,8):(8,1), (2,4))",
            "The tile is the first mode, the tiles the second: a matrix of matrices."),
    Exhibit("uneven-tiles", "zipped_divide((4,6):(6,1), (2,4))",
            "Tiles that do not divide a matrix reach beyond it: the cells that have no colour."),
    Exhibit("strided-tile", "zipped_divide((4,8):(8,1), (2:2, 4:2))",
            "A tiler of layouts takes every second row and column: tiles are interleaved."),
    Exhibit("blocked-product", "blocked_product((2,2):(1,2), (3,4):(1,3))",
            "Copies of a block side by side, each block whole in memory."),
    Exhibit("raked-product", "raked_product((2,2):(1,2), (3,4):(1,3))",
            "The same copies, interleaved: neighbours belong to different ones."),
    Exhibit("complement", "complement((2,2):(1,6), 24)",
            "Where the copies of a tile begin that fill all 24 places together, each once."),
    Exhibit("coalesce", "coalesce((2,(1,6)):(1,(6,2)))",
            "The same function of one index, with as few modes as there can be."),
    Exhibit("right-inverse", "right_inverse((4,8):(8,1))",
            "From an offset back to the index that has it."),
    Exhibit("swizzle", "S<3,0,3> @ (8,8):(8,1)",
            "XOR of the row into the column: offsets of a column, too, differ in their last bits."),
)  # fmt: skip
_LIMIT = 32


def write_gallery(folder: Path, limit: int = _LIMIT) -> list[Path]:
    """Write ``index.html`` and a page for each of ``GALLERY`` into ``folder``; return the files.

    Each page is one file with its style and script, which opens from a disk, a mail or any web
    server.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     found = write_gallery(Path(folder), limit=8)
    >>> found[0].name, len(found) == 1 + len(GALLERY)
    ('index.html', True)
    """
    folder.mkdir(parents=True, exist_ok=True)
    written = [folder / "index.html"]
    write(written[0], _index())
    for at, exhibit in enumerate(GALLERY):
        written.append(folder / f"{exhibit.name}.html")
        write(written[-1], _page(at, limit))
    return written


def _page(at: int, limit: int) -> str:
    exhibit = GALLERY[at]
    ways = ['<a href="index.html">All</a>']
    ways += [f'<a href="{GALLERY[at - 1].name}.html">Before</a>'] if at else []
    ways += [f'<a href="{GALLERY[at + 1].name}.html">After</a>'] if at + 1 < len(GALLERY) else []
    head = (
        f'<nav class="examples" aria-label="Gallery">{" ".join(ways)}</nav>\n'
        f"<h1><code>{escape(exhibit.expression)}</code></h1>\n<p>{code(exhibit.insight)}</p>\n"
    )
    return page(exhibit.expression, fragment_of(exhibit.expression, limit)[1], head)


def _index() -> str:
    head = (
        "<h1>Layouts, step by step</h1>\n<p>Open one, go through its steps with Next, press Play "
        "to follow each coordinate, or point at a cell. Nothing is computed here: the pages are "
        "files.</p>\n"
    )
    return page("Layouts, step by step", "".join(map(_entry, GALLERY)), head)


def _entry(exhibit: Exhibit) -> str:
    figure = _result(exhibit.expression)
    picture = to_svg(Figure("", figure.grids))
    return (
        f'<section>\n<h2><a href="{exhibit.name}.html"><code>{escape(exhibit.expression)}</code>'
        f'</a></h2>\n<p>{code(exhibit.insight)}</p>\n<div class="panels"><figure>{picture}'
        "</figure></div>\n</section>\n"
    )


def _result(expression: str) -> Figure:
    """Return the picture of the result; if there is none, of the closest layout."""
    applied: list[Applied] = []
    try:
        return draw(evaluate(expression, applied), limit=16)
    except LayoutError as error:
        return draw(error.best if error.best is not None else applied[-1].operands[0], limit=16)
