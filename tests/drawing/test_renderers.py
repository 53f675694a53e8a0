"""Text, SVG, TikZ and HTML: each shows every cell of the figure, and is well-formed."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import layoutconv as lc
from layoutconv import Layout, Swizzle, Tensor, mma_atom, parse
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.drawing import Cell, Figure, to_html, to_svg, to_text, to_tikz
from layoutconv.drawing.api import draw
from layoutconv.drawing.scene import Box, place

from .figures import cells, grids

FIGURES = {
    "layout": draw(parse("((2,2),(4,2)):((1,8),(2,16))")),
    "vector": draw(Layout(6, 2)),
    "scalar": draw(Layout(())),
    "panels": draw(Layout((2, 3, 9))),
    "swizzle": draw(Swizzle(2, 1, 3)),
    "atom": draw(mma_atom("m16n8k8.f16")),
    "large": draw(Layout((1000, 1000)), limit=8),
    "strings": draw(Tensor(["<a>", "&", '"b"', "{\\c}_$%#^~"], Layout((2, 2)))),
    "view": draw(fprop_view(ConvProblem((1, 4, 4, 1), (1, 3, 3), padding=1)), row=5),
}
each_figure = pytest.mark.parametrize("figure", FIGURES.values(), ids=list(FIGURES))
SVG = "{http://www.w3.org/2000/svg}"


@each_figure
def test_svg_has_every_cell_with_its_facts(figure: Figure) -> None:
    root = ElementTree.fromstring(to_svg(figure))
    told = [group.find(f"{SVG}title") for group in root.iter(f"{SVG}g")]
    titles = [title.text for title in told if title is not None]
    expected = ["\n".join(f"{k}: {v}" for k, v in cell.facts) for cell in cells(figure)]
    assert titles == expected
    written = [text.text for text in root.iter(f"{SVG}text")]
    for cell in cells(figure):
        assert set(cell.label.split("\n")) - {""} <= set(written)


@each_figure
def test_nothing_leaves_the_page_and_no_cells_overlap(figure: Figure) -> None:
    scene = place(figure)
    boxes = [item for item in scene.items if isinstance(item, Box)]
    for box in boxes:
        assert 0 <= box.x < box.x + box.width <= scene.width
        assert 0 <= box.y < box.y + box.height <= scene.height
    for i, a in enumerate(boxes[:400]):
        for b in boxes[:i]:
            beside = a.x >= b.x + b.width or b.x >= a.x + a.width
            assert beside or a.y >= b.y + b.height or b.y >= a.y + a.height


def test_svg_can_be_scaled() -> None:
    small, large = (ElementTree.fromstring(to_svg(FIGURES["layout"], scale=s)) for s in (1, 2.5))
    assert float(large.attrib["width"]) == 2.5 * float(small.attrib["width"])
    assert large.attrib["viewBox"] == small.attrib["viewBox"]


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), 10**400, "2", None, [2]])
def test_a_scale_that_is_none_is_named(scale: Any) -> None:
    with pytest.raises(lc.ArgumentError, match="`scale`: expected a number > 0"):
        to_svg(FIGURES["layout"], scale=scale)


@pytest.mark.parametrize("render", [to_html, to_svg, to_text, to_tikz])
@pytest.mark.parametrize("figure", [None, "4:1", Layout(4)])
def test_what_is_no_figure_is_named(render: Any, figure: Any) -> None:
    kind = type(figure).__name__
    with pytest.raises(lc.ArgumentTypeError, match=f"`figure`: expected a Figure, .* got {kind}"):
        render(figure)


@pytest.mark.parametrize("format", ["", 0, False, [], np.ones(2), np.ones((0, 3))])
def test_a_format_that_is_none_is_named(tmp_path: Path, format: Any) -> None:
    path = tmp_path / "picture.svg"
    with pytest.raises(lc.ArgumentError, match="`format`: expected one of text, svg"):
        Layout(4, 2).draw(path, format=format)
    assert not path.exists()


class _Page(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.cells: list[dict[str, Any]] = []
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if "data-facts" in given:
            self.cells.append({"facts": json.loads(given["data-facts"] or ""), **given})
        self.addresses += [given[name] or "" for name in ("src", "href") if name in given]


@each_figure
def test_html_has_the_data_of_each_cell_and_needs_no_other_file(figure: Figure) -> None:
    text = to_html(figure)
    page = _Page()
    page.feed(text)
    assert [c["facts"] for c in page.cells] == [[list(f) for f in c.facts] for c in cells(figure)]
    assert [c["data-key"] for c in page.cells] == [cell.key for cell in cells(figure)]
    assert page.addresses == []
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}


@each_figure
def test_tikz_is_balanced_defines_its_colours_and_has_every_label(figure: Figure) -> None:
    document = to_tikz(figure)
    bare = re.sub(r"\\[{}]", "", document)
    assert bare.count("{") == bare.count("}")
    defined = set(re.findall(r"\\definecolor\{(c\d+)\}", document))
    assert set(re.findall(r"(?:fill|draw|text|color)=(c\d+)", document)) == defined
    boxes = sum(len(line) for grid in grids(figure) for line in grid.cells)
    gaps = sum(cell.kind == "gap" for g in grids(figure) for line in g.cells for cell in line)
    assert document.count(r"\path[") >= boxes - gaps
    assert document.isascii()
    if figure is FIGURES["strings"]:
        escaped = r"{\{\textbackslash{}c\}\_\$\%\#\textasciicircum{}\textasciitilde{}}"
        assert escaped in document


@each_figure
def test_text_has_every_label_once(figure: Figure) -> None:
    text = to_text(figure)
    rows = re.findall(r"[│║]([^\n]*)[│║]", text)
    written = sorted(re.sub(r"[│║\[\]]", " ", " ".join(rows)).split())
    shown = [_in_text(cell) for grid in grids(figure) for line in grid.cells for cell in line]
    if len(figure.grids) == 1 and len(figure.grids[0]) == 1:
        assert written == sorted(shown)
    assert set(shown) <= set(written)


def _in_text(cell: Cell) -> str:
    return "·" if cell.kind == "padding" else cell.label.replace("\n", "")


@each_figure
def test_ascii_has_the_same_shape(figure: Figure) -> None:
    unicode, ascii = to_text(figure), to_text(figure, ascii=True)
    assert ascii.isascii()
    assert "?" not in ascii
    assert [len(line) for line in ascii.split("\n")] == [len(line) for line in unicode.split("\n")]


@each_figure
def test_colours_change_no_character(figure: Figure) -> None:
    coloured = to_text(figure, colour=True)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.split("\n")] == to_text(figure).split("\n")
    assert ("\x1b[" in coloured) == any(cell.fill for cell in cells(figure))


@pytest.mark.parametrize(
    ("suffix", "beginning"),
    [(".svg", "<svg "), (".html", "<!DOCTYPE"), (".tex", r"\documentclass"), (".txt", "4:2")],
)
def test_the_suffix_says_the_format(tmp_path: Path, suffix: str, beginning: str) -> None:
    path = tmp_path / f"picture{suffix}"
    Layout(4, 2).draw(path)
    assert path.read_text(encoding="utf-8").startswith(beginning)
    Layout(4, 2).draw(tmp_path / "picture", format="svg")
    assert (tmp_path / "picture").read_text(encoding="utf-8").startswith("<svg ")


def test_values_show_themselves_in_notebooks() -> None:
    for value in (
        Layout(4, 2),
        Swizzle(1, 0, 1),
        parse("S<1,0,1> o 0 o 4:1"),
        Tensor([1], Layout(1)),
        lc.mma_atom("m16n8k16.f16"),
        lc.copy_atom("ldmatrix.x4"),
        lc.make_tiled_mma(lc.mma_atom("m16n8k16.f16"), (2, 2, 1)),
        lc.make_tiled_copy_tv(lc.universal_copy(1), Layout((4, 8), (8, 1)), Layout((2, 1))),
        fprop_view(ConvProblem((1, 4, 5, 2), (3, 3, 3), padding=1)),
        lc.GemmView(Layout((4, 2), (2, 1)), Layout((3, 2), (2, 1)), Layout((4, 3), (3, 1))),
    ):
        shown = value._repr_svg_()
        assert shown == to_svg(draw(value)) == to_svg(lc.draw(value))
        assert "<svg " in shown


def test_what_has_no_numbers_shows_its_text_in_notebooks() -> None:
    none = fprop_view(ConvProblem((0, 4, 5, 2), (3, 3, 3), padding=1))
    symbolic = Layout((lc.symbols("M"), 4), (4, 1))
    for value in (none, symbolic):
        assert value._repr_svg_() is None


def test_the_package_draws() -> None:
    """``lc.draw`` is the function; the room of pictures is ``lc.drawing``."""
    layout = Layout((2, 4), (4, 1))
    assert lc.draw is lc.drawing.draw
    assert to_svg(lc.draw(layout)) == to_svg(layout.draw())


GOLDEN = {
    "(4,8):(8,1)": """\
(4,8):(8,1)

       0   1   2   3   4   5   6   7    8:1
    ┌────────────────────────────────┐
  0 │  0   1   2   3   4   5   6   7 │
  1 │  8   9  10  11  12  13  14  15 │
  2 │ 16  17  18  19  20  21  22  23 │
  3 │ 24  25  26  27  28  29  30  31 │
    └────────────────────────────────┘
4:8""",
    "((2,2,2),(2,2,2)):((1,8,32),(2,4,16))": """\
((2,2,2),(2,2,2)):((1,8,32),(2,4,16))

                0                 1                 2:16
                0        1        0        1        2:4
                0   1    0   1    0   1    0   1    2:2
             ┌────────┬────────╥────────┬────────┐
   0   0   0 │  0   2 │  4   6 ║ 16  18 │ 20  22 │
           1 │  1   3 │  5   7 ║ 17  19 │ 21  23 │
             ├────────┼────────╫────────┼────────┤
       1   0 │  8  10 │ 12  14 ║ 24  26 │ 28  30 │
           1 │  9  11 │ 13  15 ║ 25  27 │ 29  31 │
             ╞════════╪════════╬════════╪════════╡
   1   0   0 │ 32  34 │ 36  38 ║ 48  50 │ 52  54 │
           1 │ 33  35 │ 37  39 ║ 49  51 │ 53  55 │
             ├────────┼────────╫────────┼────────┤
       1   0 │ 40  42 │ 44  46 ║ 56  58 │ 60  62 │
           1 │ 41  43 │ 45  47 ║ 57  59 │ 61  63 │
             └────────┴────────╨────────┴────────┘
2:32 2:8 2:1""",
    "S<2,0,2> o 0 o (4,4):(4,1)": """\
S<2,0,2> o 0 o (4,4):(4,1)

       0   1   2   3    4:1
    ┌────────────────┐
  0 │  0   1   2   3 │
  1 │  5   4   7   6 │
  2 │ 10  11   8   9 │
  3 │ 15  14  13  12 │
    └────────────────┘
4:4""",
}


@pytest.mark.parametrize("notation", GOLDEN)
def test_golden(notation: str) -> None:
    assert to_text(draw(parse(notation))) == GOLDEN[notation]


IM2COL = """\
      cells
         -1    0    1    2    3    4    W
      ┌──────────────────────────────┐
      │ [·]  [0]  [1]    2    3    · │
      └──────────────────────────────┘

      A (m, k)
          0    1    2    S:1@1
      ┌───────────────┐
    0 │ [·]  [0]  [1] │
    1 │   0    1    2 │
    2 │   1    2    3 │
    3 │   2    3    · │
      └───────────────┘
Q:1@1

[ ]  read by row m = 0 = (0,0)
·    padding: reads zero"""


def test_golden_im2col() -> None:
    view = fprop_view(ConvProblem((1, 4, 1), (1, 3), padding=1))
    assert to_text(draw(view, row=0, title="")) == IM2COL
