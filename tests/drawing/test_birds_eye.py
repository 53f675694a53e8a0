"""Clouds from above: colours say the value, the highest shows, and all of it stands out."""

from __future__ import annotations

import io
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_rgb
from matplotlib.image import imread

from layoutconv import Layout
from layoutconv.drawing import birds_eye as module
from layoutconv.drawing import draw
from layoutconv.drawing.birds_eye import (
    CLASSES,
    INK,
    MAPS,
    PAGE,
    QUIET,
    Panel,
    birds_eye,
    save,
)


def luminance(rgb: np.ndarray) -> np.ndarray:
    """Relative luminance (WCAG 2) of sRGB colours."""
    linear = np.where(rgb > 0.04045, ((rgb + 0.055) / 1.055) ** 2.4, rgb / 12.92)
    return linear @ (0.2126, 0.7152, 0.0722)


def contrast(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    light, dark = np.maximum(*pair(one, other)), np.minimum(*pair(one, other))
    return (light + 0.05) / (dark + 0.05)


def pair(one: np.ndarray, other: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return luminance(one), np.broadcast_to(luminance(other), luminance(one).shape)


def pixels(figure) -> np.ndarray:
    """The colours of a figure, (height, width, 3) from 0 to 1."""
    written = io.BytesIO()
    figure.savefig(written, format="png")
    written.seek(0)
    return imread(written)[..., :3]


def covered(figure, *colours: tuple[float, ...]) -> list[int]:
    """Return how many pixels of the first view have each of the colours."""
    picture = pixels(figure)
    (left, low), (right, high) = figure.axes[0].get_window_extent().get_points().astype(int)
    view = picture[len(picture) - high : len(picture) - low, left:right]
    return [int((np.abs(view - c[:3]).max(axis=-1) < 0.01).sum()) for c in colours]


@pytest.mark.parametrize("name", MAPS)
def test_every_value_and_every_letter_stands_out_from_the_page(name):
    colours = colormaps[name](np.linspace(*MAPS[name], 64))[:, :3]
    texts = np.array([to_rgb(colour) for colour in (INK, QUIET, *CLASSES)])
    for shown in (colours, texts):
        assert contrast(shown, np.array(to_rgb(PAGE))).min() >= 4.5
    assert (np.diff(luminance(colours)) > 0).all()


def square(value: float, height: float) -> tuple[np.ndarray, np.ndarray]:
    """A square of points 8 apart, and two points above each other in its middle."""
    grid = np.arange(-40.0, 41.0, 8.0)
    x, y = (axis.ravel() for axis in np.meshgrid(grid, grid))
    points = np.stack([x, y, np.zeros_like(x)], axis=1)
    middle = np.array([[4.0, 4.0, height], [4.0, 4.0, -height]])
    values = np.append(np.full(len(points), 0.5), [value, 1 - value])
    return np.vstack([points, middle]), values


@pytest.mark.parametrize(("value", "height"), [(0.95, 1.0), (0.05, 1.0), (0.95, -1.0)])
def test_the_higher_of_two_points_is_seen_in_the_colour_of_its_value(value, height):
    points, values = square(value, height)
    figure = birds_eye([Panel("t", points, values, "v", limits=(0, 1))], "title", "c", cell=4)
    view = figure.axes[0]
    (marks,) = view.collections
    shown = value if height > 0 else 1 - value
    own, other = (marks.to_rgba(v) for v in (shown, 1 - shown))
    edge = figure.dpi / 72 * np.sqrt(marks.get_sizes()[0])
    seen, hidden = covered(figure, own, other)
    assert seen == pytest.approx(edge**2, rel=0.1)
    assert hidden == 0


def test_points_of_two_panels_are_drawn_where_the_shared_axes_say():
    points = np.random.default_rng(0).uniform(-10, 10, (50, 3))
    panels = [
        Panel("all", points, points[:, 2], "z, m"),
        Panel("one", points[:1], points[:1, 2]),
    ]
    figure = birds_eye(panels, "title", "caption", cell=0.5)
    left, right = figure.axes[:2]
    assert left.get_xlim() == right.get_xlim()
    assert left.get_ylim() == right.get_ylim()
    pixels(figure)  # which puts everything in its place
    scale = [
        np.diff(view.transData.transform([(0, 0), (1, 1)]), axis=0)[0] for view in (left, right)
    ]
    assert np.allclose(scale, scale[0][0])  # metres are as long in x as in y, in both
    (marks,) = left.collections
    drawn = {tuple(place) for place in np.asarray(marks.get_offsets())}
    assert drawn == {tuple(place) for place in points[:, :2]}
    assert np.sqrt(marks.get_sizes()[0]) * figure.dpi / 72 == pytest.approx(
        0.5 * scale[0][0], rel=0.2
    )


@pytest.mark.parametrize(("limits", "share"), [((0.0, 4.0), 0.25), ((0.5, 1.5), 0.5), (None, 0.5)])
def test_limits_say_which_value_has_which_colour(limits, share):
    points, _ = square(1.0, 1.0)
    figure = birds_eye([Panel("t", points, np.ones(len(points)), limits=limits)], "t", "c", 0.8)
    (marks,) = figure.axes[0].collections
    low, high = MAPS["viridis"]
    expected = colormaps["viridis"](low + share * (high - low))
    assert np.allclose(marks.to_rgba(1.0), expected, atol=0.02)
    (seen,) = covered(figure, marks.to_rgba(1.0))
    assert seen > 0.8 * len(points) * marks.get_sizes()[0]


def test_classes_have_a_legend_and_no_colour_bar():
    points, _ = square(0, 1)
    kinds = np.arange(len(points)) % 3
    figure = birds_eye([Panel("t", points, kinds)], "t", "c", 4, classes=("a", "b", "c"))
    (view,) = figure.axes
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["a", "b", "c"]
    entries = [to_rgb(line.get_color()) for line in legend.get_lines()]
    assert entries == [to_rgb(colour) for colour in CLASSES[:3]]
    (marks,) = view.collections
    order = np.argsort(points[:, 2], kind="stable")
    assert [tuple(c[:3]) for c in marks.get_facecolors()] == [entries[k] for k in kinds[order]]


def test_one_point_makes_a_picture_and_none_is_an_error(tmp_path):
    one = Panel("one", np.zeros((1, 3)), np.zeros(1), "v", "plasma")
    save(birds_eye([one], "t", "c", cell=0.1), tmp_path / "one.png")
    assert imread(tmp_path / "one.png").shape[1] == 2000
    with pytest.raises(ValueError, match="`panels`: expected one or more, with points"):
        birds_eye([Panel("none", np.zeros((0, 3)), np.zeros(0))], "t", "c", 0.1)
    with pytest.raises(ValueError, match="`classes`: expected at most 6"):
        birds_eye([one], "t", "c", 0.1, classes=list("abcdefg"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full, which has no room")
@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_what_a_full_disk_refuses_is_named(name, tmp_path):
    (tmp_path / name).symlink_to("/dev/full")
    one = Panel("one", np.zeros((1, 3)), np.zeros(1))
    write = partial(module.save, birds_eye([one], "t", "c", 0.1))
    with pytest.raises(OSError, match="No space left") as told:
        (write if name == "a.png" else draw(Layout(4, 2)).save)(tmp_path / name)
    assert told.value.filename == str(tmp_path / name)
