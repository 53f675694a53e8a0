"""Clouds seen from above, side by side: what went in, and what came out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArgumentError
from .canvas import Canvas, colour
from .colour import colours

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

_PAGE, _FIELD, _GRID = colour("#0b0e15"), colour("#10141d"), colour("#8ea2c4")
_INK, _FAINT = colour("#e8ecf4"), colour("#8b95a8")

_MARGIN, _GUTTER, _HEAD, _FOOT = 56, 64, 122, 92
_FINE = 3  # points are painted this many times finer than the page, then averaged


@dataclass(frozen=True, eq=False)
class Panel:
    """One view of a cloud.

    Args:
        title: what is seen, above the view.
        points: (points, 3), x to the right, y up, and of two above each other the higher z shows.
        values: (points,), what the colours show.
        label: what the values are, and in which unit, at the colour bar.
        palette: ``lagoon`` or ``ember``.
        limits: the values of the first and the last colour, where panels are to be compared; by
            default the colours show all but the smallest and largest values (2 in 100).
    """

    title: str
    points: Floats
    values: Floats
    label: str
    palette: str
    limits: tuple[float, float] | None = None


def birds_eye(
    panels: Sequence[Panel], title: str, caption: str, cell: float, width: int = 2000
) -> NDArray[np.uint8]:
    """A picture, uint8 (H, W, 3), of clouds from above, all at one scale and over one ground.

    Args:
        panels: the views, from left to right.
        title, caption: two lines above all of them.
        cell: the edge of what a point stands for, in the unit of the points: how large it is drawn.
        width: of the picture, in pixels; its height follows from the clouds.

    The view takes in all but the outermost points (2 in 1000 on each side). Raises
    ``ArgumentError`` if there is nothing to show.
    """
    if not panels or not all(len(panel.points) for panel in panels):
        counts = [len(panel.points) for panel in panels]
        raise ArgumentError("panels", "one or more, with points", f"point counts {counts}")
    every = np.concatenate([panel.points[:, :2] for panel in panels])
    low, high = np.quantile(every, [0.002, 0.998], axis=0)
    # Some ground around the cloud, and at least 60 cells across: a lone point is no poster.
    room = np.maximum(0.03 * (high - low).max() + cell, 30 * cell - (high - low) / 2)
    low, high = low - room, high + room
    view_width = (width - 2 * _MARGIN - (len(panels) - 1) * _GUTTER) // len(panels)
    scale = view_width / (high[0] - low[0])
    # Neither a slit nor a tower: show more ground instead.
    aspect = np.clip((high[1] - low[1]) / (high[0] - low[0]), 0.45, 1.25)
    view_height = round(aspect * view_width)
    scale = min(scale, view_height / (high[1] - low[1]))
    middle = (low + high) / 2
    view = _View(view_width, view_height, scale, *middle)

    canvas = Canvas(width, _HEAD + view_height + _FOOT, _PAGE)
    canvas.text(_MARGIN, 46, title, 19, _INK, weight=1.25)
    canvas.text(_MARGIN, 76, caption, 11.5, _FAINT)
    for number, panel in enumerate(panels):
        x = _MARGIN + number * (view_width + _GUTTER)
        _draw_panel(canvas, x, _HEAD, view, panel, cell)
    return canvas.to_uint8()


@dataclass(frozen=True)
class _View:
    """A window on the ground: pixels, pixels per unit, and the point in its middle."""

    width: int
    height: int
    scale: float
    x: float
    y: float

    def place(self, points: Floats) -> tuple[Floats, Floats]:
        """Columns and rows of points, in pixels from the upper left corner."""
        across = (points[:, 0] - self.x) * self.scale + self.width / 2
        down = (self.y - points[:, 1]) * self.scale + self.height / 2
        return across, down


def _draw_panel(canvas: Canvas, x: int, y: int, view: _View, panel: Panel, cell: float) -> None:
    low, high = panel.limits or np.quantile(panel.values, [0.02, 0.98])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    share = ((panel.values - low) / (high - low)).clip(0, 1)
    canvas.rectangle(x, y, view.width, view.height, _FIELD)
    _draw_grid(canvas, x, y, view)
    light, opacity = _paint_points(view, panel.points, colours(share, panel.palette), cell)
    field = canvas.pixels[y : y + view.height, x : x + view.width]
    # What is bright glows on the dark around it; its own colour stays what the bar says.
    glow = 0.6 * _blur(light, 5) + 0.35 * _blur(light, 15)
    field += glow - opacity[..., None] * (field + glow) + light
    canvas.text(x, y - 12, panel.title, 13, _INK, weight=1.1)
    _draw_scale_bar(canvas, x, y, view)
    _draw_colour_bar(canvas, x + view.width, y + view.height + 40, panel, low, high)


def _paint_points(view: _View, points: Floats, paint: Floats, cell: float) -> tuple[Floats, Floats]:
    """Discs of the size of a cell, the highest on top: premultiplied colours, and opacity."""
    order = np.argsort(points[:, 2], kind="stable")
    across, down = (_FINE * c[order] for c in view.place(points))
    radius = max(0.62 * cell * view.scale, 1.1) * _FINE
    reach = math.ceil(radius)
    rows, columns = view.height * _FINE, view.width * _FINE
    top = np.full(rows * columns, -1, dtype=np.int32)
    rank = np.arange(len(order), dtype=np.int32)
    for dy in range(-reach, reach + 1):
        for dx in range(-reach, reach + 1):
            if dx * dx + dy * dy > radius * radius:
                continue
            column, row = np.floor(across).astype(int) + dx, np.floor(down).astype(int) + dy
            inside = (column >= 0) & (column < columns) & (row >= 0) & (row < rows)
            pixel = row[inside] * columns + column[inside]
            # Of two ranks for one pixel the last is written, and ranks rise: it is the larger.
            top[pixel] = np.maximum(top[pixel], rank[inside])
    # Rank -1 is the last row: nothing, no colour and not opaque.
    layers = np.vstack([np.column_stack([paint[order], np.ones(len(order))]), np.zeros(4)])
    fine = layers[top].reshape(view.height, _FINE, view.width, _FINE, 4)
    averaged = fine.mean(axis=(1, 3))
    return averaged[..., :3], averaged[..., 3]


def _blur(image: Floats, size: int) -> Floats:
    """Three running means of ``size`` pixels along both axes: close to a Gaussian."""
    for _ in range(2):
        for _ in range(3):
            total = np.cumsum(np.pad(image, [(size // 2 + 1, size // 2), (0, 0), (0, 0)]), axis=0)
            image = (total[size:] - total[:-size]) / size
        image = image.swapaxes(0, 1)
    return image


def _nice(length: float) -> float:
    """The largest of 1, 2, 5, 10, ... (and their tenths) that is at most ``length``."""
    power = 10.0 ** math.floor(math.log10(length))
    return max(power * step for step in (1, 2, 5) if power * step <= length * (1 + 1e-9))


def _ticks(low: float, high: float, step: float) -> list[float]:
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * number for number in range(first, last + 1)]


def _draw_grid(canvas: Canvas, x: int, y: int, view: _View) -> None:
    step = _nice(140 / view.scale)
    half_width, half_height = view.width / 2 / view.scale, view.height / 2 / view.scale
    for tick in _ticks(view.x - half_width, view.x + half_width, step):
        column = x + (tick - view.x) * view.scale + view.width / 2
        canvas.rectangle(column - 0.5, y, 1, view.height, _GRID, 0.1 if tick else 0.28)
        canvas.text(column, y + view.height + 18, f"{tick:g}", 9.5, _FAINT, align="centre")
    for tick in _ticks(view.y - half_height, view.y + half_height, step):
        row = y + (view.y - tick) * view.scale + view.height / 2
        canvas.rectangle(x, row - 0.5, view.width, 1, _GRID, 0.1 if tick else 0.28)
        canvas.text(x - 8, row + 4.5, f"{tick:g}", 9.5, _FAINT, align="right")


def _draw_scale_bar(canvas: Canvas, x: int, y: int, view: _View) -> None:
    length = _nice(0.2 * view.width / view.scale)
    left, base = x + 18, y + view.height - 18
    canvas.rectangle(left, base, length * view.scale, 3, _INK)
    for end in (left, left + length * view.scale - 2):
        canvas.rectangle(end, base - 4, 2, 7, _INK)
    canvas.text(left, base - 10, f"{length:g} m", 11, _INK)


def _draw_colour_bar(
    canvas: Canvas, right: int, y: int, panel: Panel, low: float, high: float
) -> None:
    width, height = 300, 11
    left = right - width
    ramp = colours(np.linspace(0, 1, width), panel.palette)
    canvas.image(left, y, np.broadcast_to(ramp, (height, width, 3)))
    for tick in _ticks(low, high, _nice((high - low) / 2.5)):
        at = left + (tick - low) / (high - low) * width
        canvas.rectangle(at - 0.5, y + height, 1, 4, _FAINT)
        canvas.text(at, y + height + 18, f"{tick:g}", 9.5, _FAINT, align="centre")
    canvas.text(left - 14, y + 10, panel.label, 11, _FAINT, align="right")
