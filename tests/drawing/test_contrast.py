"""Drawings of layouts: text stands out from what is behind it, and one colour has one meaning."""

from __future__ import annotations

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
