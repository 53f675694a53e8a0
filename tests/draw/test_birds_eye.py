"""The pictures: colours say the value, the highest shows, and maps only ever get lighter."""

from __future__ import annotations

import numpy as np
import pytest

from layoutconv.draw.birds_eye import Panel, birds_eye
from layoutconv.draw.canvas import Canvas
from layoutconv.draw.colour import colours
from layoutconv.draw.stroke_font import _GLYPHS, text_mask


def luminance(rgb: np.ndarray) -> np.ndarray:
    """Relative luminance (ITU-R BT.709) of sRGB colours."""
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    return linear @ (0.2126, 0.7152, 0.0722)


@pytest.mark.parametrize("name", ["lagoon", "ember"])
def test_colour_maps_only_get_lighter_in_small_even_steps(name):
    ramp = colours(np.linspace(0, 1, 256), name)
    assert ((ramp >= 0) & (ramp <= 1)).all()
    # The cube root of luminance is close to how light a colour looks.
    steps = np.diff(np.cbrt(luminance(ramp)))
    assert (steps > 0).all()
    assert steps.max() < 3 * np.median(steps)


def square(value: float, height: float) -> tuple[np.ndarray, np.ndarray]:
    """A square of points 8 apart, with something in its middle."""
    grid = np.arange(-40.0, 41.0, 8.0)
    x, y = (axis.ravel() for axis in np.meshgrid(grid, grid))
    points = np.stack([x, y, np.zeros_like(x)], axis=1)
    values = np.linspace(0, 1, len(points))
    middle = np.array([[1.0, 1.0, height], [1.0, 1.0, -height]])
    return np.vstack([points, middle]), np.append(values, [value, 1 - value])


@pytest.mark.parametrize(("value", "height"), [(0.95, 1.0), (0.05, 1.0), (0.95, -1.0)])
def test_the_higher_of_two_points_is_seen_in_the_colour_of_its_value(value, height):
    points, values = square(value, height)
    shown = value if height > 0 else 1 - value
    low, high = np.quantile(values, [0.02, 0.98])
    expected = colours(np.array([(shown - low) / (high - low)]), "ember")[0] * 255
    picture = birds_eye(
        [Panel("t", points, values, "v", "ember")], "title", "c", cell=0.8, width=1000
    )
    assert picture.dtype == np.uint8
    distance = np.abs(picture.astype(float) - expected).max(axis=-1)
    # A disc of its own colour, besides the pixels of the colour bar and of points of its value.
    diameter = 1.24 * 0.8 * (1000 - 112) / 88
    assert (distance < 2).sum() > 0.5 * np.pi * (diameter / 2) ** 2


def test_a_picture_has_its_points_where_the_axes_say():
    rng = np.random.default_rng(0)
    points = rng.uniform(-10, 10, (400, 3))
    left = points[points[:, 0] < 0]
    # A panel whose left half is empty is dark there.
    picture = birds_eye(
        [
            Panel("all", points, points[:, 2], "z", "lagoon"),
            Panel("left", left, left[:, 2], "z", "lagoon"),
        ],
        "title", "caption", cell=0.5, width=1000,
    )  # fmt: skip
    rows = slice(180, picture.shape[0] - 160)
    bright = (picture[rows].max(axis=-1) > 110).sum(axis=0)
    panel = (1000 - 112 - 64) // 2
    first, second = bright[56 : 56 + panel], bright[1000 - 56 - panel : 1000 - 56]
    half = panel // 2 + 12
    assert second[half:].sum() < 0.05 * first[half:].sum()
    assert second[: half - 24].sum() > 0.8 * first[: half - 24].sum()


def test_one_point_makes_a_picture_and_none_is_an_error():
    one = Panel("one", np.zeros((1, 3)), np.zeros(1), "v", "ember")
    assert birds_eye([one], "t", "c", cell=0.1, width=800).max() > 200
    with pytest.raises(ValueError, match="`panels`: expected one or more, with points"):
        birds_eye([Panel("none", np.zeros((0, 3)), np.zeros(0), "v", "ember")], "t", "c", 0.1)


def test_every_glyph_is_its_own_and_inside_its_mask():
    masks = {}
    for character in _GLYPHS:
        mask = text_mask(character, height=24)
        assert mask.max() == 1
        border = np.concatenate([mask[0], mask[-1], mask[:, 0], mask[:, -1]])
        assert border.max() == 0, character
        masks[character] = (mask.shape, mask.tobytes())
    assert len(set(masks.values())) == len(masks)
    assert (text_mask("☃", 24) == text_mask("?", 24)).all()


def test_rectangles_cover_what_they_should():
    canvas = Canvas(8, 6, (0, 0, 0))
    canvas.rectangle(1.25, 2.5, 3.5, 2.0, (1, 1, 1))
    assert canvas.pixels.sum() == pytest.approx(3 * 3.5 * 2.0)
    assert canvas.pixels[2, 1].tolist() == pytest.approx([0.375] * 3)
    canvas.rectangle(-5, -5, 3, 3, (1, 1, 1))
    canvas.text(7, 5, "over the edge", 8, (1, 1, 1))
    canvas.text(-300, 5, "gone", 8, (1, 1, 1))


@pytest.mark.parametrize(("limits", "share"), [((0.0, 4.0), 0.25), ((0.5, 1.5), 0.5), (None, 0.5)])
def test_limits_say_which_value_has_which_colour(limits, share):
    points, _ = square(1.0, 1.0)
    panel = Panel("t", points, np.ones(len(points)), "v", "ember", limits)
    picture = birds_eye([panel], "title", "c", cell=0.8, width=1000)
    distance = np.abs(picture - colours(np.array([share]), "ember")[0] * 255).max(axis=-1)
    # Discs of all points, most of what they cover; a colour bar has a column of it.
    diameter = 1.24 * 0.8 * (1000 - 112) / 88
    assert (distance < 2).sum() > 0.5 * len(points) * np.pi * (diameter / 2) ** 2
