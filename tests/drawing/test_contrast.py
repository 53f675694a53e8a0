"""Drawings of layouts: text stands out from what is behind it, and one colour has one meaning."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.etree import ElementTree

import pytest

from layoutconv import Layout
from layoutconv.drawing import Figure, draw
from layoutconv.drawing.one_scale import on_one_scale
from layoutconv.drawing.palette import channels, ramp, wheel
from layoutconv.drawing.scene import BAND, FAINT, INK, QUIET


def luminance(colour: str) -> float:
    """Relative luminance (WCAG 2) of ``#rrggbb``."""
    parts = [c / 255 for c in channels(colour)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(share * c for share, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


FILLS = [ramp(i / 100) for i in range(101)] + [wheel(i, 97) for i in range(97)] + ["#ffffff"]


@pytest.mark.parametrize(
    ("text", "behind"), [(INK, FILLS), (QUIET, [BAND, "#ffffff"]), (FAINT, ["#ffffff"])]
)
def test_text_stands_out(text: str, behind: list[str]) -> None:
    assert min(contrast(text, fill) for fill in behind) >= 4.5


def test_one_scale_is_one_colour_to_a_number_in_the_order_of_the_numbers() -> None:
    """Each grid by itself would have the first colour for its first number."""
    grids = tuple(draw(layout).grids[0][0] for layout in (Layout((2, 8)), Layout((3, 2), (5, 20))))
    figure = on_one_scale(Figure("two", (grids,)), "offset")
    seen: dict[int, set[str]] = {}
    for grid in figure.grids[0]:
        assert grid is not None
        for line in grid.cells:
            for cell in line:
                seen.setdefault(int(cell.label), set()).add(cell.fill)
    assert set(seen) == {*range(16), 20, 25, 30}
    values = sorted(seen)
    expected = [{ramp(i / (len(values) - 1))} for i in range(len(values))]
    assert [seen[value] for value in values] == expected
    assert [(cell.label, meaning) for cell, meaning in figure.legend] == [
        ("0", ""),
        ("30", "offset"),
    ]


DOCS = Path(__file__).resolve().parents[2] / "docs"
PICTURES = [p for p in sorted(DOCS.rglob("*.svg")) if "<title>" in p.read_text("utf-8")]
Box = tuple[float, float, float, float]
Style = dict[str, str]


def texts(element: ElementTree.Element, style: Style, boxes: list[tuple[Box, str]]) -> Iterator[
    tuple[str, Box, str, list[str]]
]:  # fmt: skip
    """Texts of a drawing in its order, their boxes and colours, and what lies behind them."""
    style = style | dict(element.attrib)
    tag = element.tag.rpartition("}")[2]
    if tag in ("defs", "title"):
        return
    if tag == "rect":
        x, y, w, h = (float(element.get(side, "0")) for side in ("x", "y", "width", "height"))
        boxes.append(((x, y, x + w, y + h), element.get("fill", "none")))
    if tag == "text" and element.text:
        size = float(style["font-size"])
        width = 0.6 * size * len(element.text)  # of letters of one width
        at = {"start": 0.0, "middle": 0.5, "end": 1.0}[style.get("text-anchor", "start")]
        left, base = float(style["x"]) - at * width, float(style["y"])
        middle = left + width / 2, base - 0.3 * size
        behind = [
            fill
            for (x, y, right, low), fill in boxes
            if x <= middle[0] <= right and y <= middle[1] <= low and fill.startswith("#")
        ]
        yield element.text, (left, base - size, left + width, base), style["fill"], behind
    for child in element:
        yield from texts(child, style, boxes)


@pytest.mark.parametrize("picture", PICTURES, ids=lambda path: path.stem)
def test_texts_of_the_pages_pictures_stand_out_and_are_whole(picture: Path) -> None:
    """Each stands out from the last rectangle drawn behind it, and lies within the picture."""
    root = ElementTree.fromstring(picture.read_text("utf-8"))
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    found = list(texts(root, {}, []))
    assert len(found) >= 20
    for text, (left, top, right, low), fill, behind in found:
        assert min(left, top, width - right, height - low) >= 0, text
        assert contrast(fill, behind[-1]) >= 4.5, text
