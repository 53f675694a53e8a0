"""Point clouds seen from above, side by side, drawn by matplotlib."""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from ..errors import ArgumentError
from .files import write

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.colors import ListedColormap
    from matplotlib.figure import Figure
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

PAGE, INK, QUIET = "#0d1117", "#e6edf3", "#9aa7b8"
# The part of each colour map that contrasts with the page by 4.5 to 1 (WCAG 2, success criterion
# 1.4.3), so that low values do not vanish.
MAPS = {"viridis": (0.47, 1.0), "plasma": (0.52, 1.0)}
# Colours of classes that readers with a colour vision deficiency can distinguish (Okabe and Ito,
# "Color universal design", 2008), without the dark ones.
CLASSES = ("#56b4e9", "#e69f00", "#009e73", "#f0e442", "#cc79a7", "#d9d9d9")
_WIDTH, _DPI = 10.0, 200  # inches; text of 10 points is readable at the width of a page
_SMALLEST = 1.2  # points: the smallest edge of a mark, however small the scale


@dataclass(frozen=True, eq=False)
class Panel:
    """One view of a cloud.

    Args:
        title: the line above the view.
        points: (points, 3), x to the right, y up; of two points above each other, the higher shows.
        values: (points,), drawn as colours: numbers, or indices of the figure's classes.
        label: the quantity and its unit, at the colour bar.
        colours: the name of a colour map, ``viridis`` or ``plasma``.
        limits: the values of the first and last colour. Give panels of one quantity the same
            limits, so that a colour means the same in both. By default the colours leave out the
            smallest and the largest values (2 in 100 at each end).
    """

    title: str
    points: Floats
    values: Floats
    label: str = ""
    colours: str = "viridis"
    limits: tuple[float, float] | None = None


def birds_eye(
    panels: Sequence[Panel], title: str, caption: str, cell: float, classes: Sequence[str] = ()
) -> Figure:
    """Draw clouds from above, all at one scale and over the same ground.

    Args:
        panels: the views, from left to right.
        title, caption: two lines above all of them.
        cell: the edge of the square that a point stands for, in metres like the points.
        classes: the names of up to 6 classes. The values of all panels are then indices of
            classes, and one legend replaces the colour bars.

    Returns:
        A figure 2000 pixels wide. The view leaves out only the outermost points (2 in 1000 on each
        side).

    Raises:
        ArgumentError: ``panels`` is empty, a panel has no points, or ``classes`` are too many.

    >>> points = np.array([[0.0, 0.0, 1.0], [4.0, 3.0, 2.0]])
    >>> panel = Panel("Two points", points, points[:, 2], "z, m")
    >>> figure = birds_eye([panel], "A cloud", "", 0.5)
    >>> [axes.get_xlabel() for axes in figure.axes]  # the view, and its colour bar
    ['x, m', 'z, m']
    """
    if not panels or not all(len(panel.points) for panel in panels):
        counts = [len(panel.points) for panel in panels]
        raise ArgumentError("panels", "one or more, with points", f"point counts {counts}")
    if len(classes) > len(CLASSES):
        raise ArgumentError("classes", f"at most {len(CLASSES)}", len(classes))
    # Not pyplot, which keeps figures and needs a display.
    from matplotlib.figure import Figure
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    low, high = _ground(panels, cell)
    width, height = high - low
    across = _WIDTH / len(panels) - 1.0
    figure = Figure(
        figsize=(_WIDTH, across * height / width + 1.9),
        dpi=_DPI,
        facecolor=PAGE,
        layout=ConstrainedLayoutEngine(h_pad=0.1),
    )
    views = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    # The line after the title makes room for the caption, which the layout ignores.
    figure.suptitle(f"{title}\n", color=INK, fontsize=13, x=0.02, ha="left")
    figure.text(0.02, 1 - 0.42 / figure.get_figheight(), caption, color=QUIET, fontsize=9.5)
    views[0].set(xlim=(low[0], high[0]), ylim=(low[1], high[1]))
    views[0].set_ylabel("y, m", color=QUIET)
    marks = [
        _paint(figure, view, panel, bool(classes))
        for view, panel in zip(views, panels, strict=True)
    ]
    if classes:
        _legend(figure, classes)
    figure.draw_without_rendering()  # gives the views their sizes
    point = views[0].get_window_extent().width / width * 72 / _DPI  # points per metre
    # A little more than a cell: squares side by side leave no line between them.
    edge = max(_SMALLEST, 1.1 * cell * point)
    for mark in marks:
        mark.set_sizes([edge**2])
    return figure


def save(figure: Figure, path: str | os.PathLike[str]) -> None:
    """Write a figure as a PNG file; an ``OSError`` names the file."""
    content = io.BytesIO()
    figure.savefig(content, format="png")
    write(path, content.getvalue())


def _ground(panels: Sequence[Panel], cell: float) -> tuple[Floats, Floats]:
    """Return the corners of the ground that all panels show."""
    every = np.concatenate([panel.points[:, :2] for panel in panels])
    low, high = np.quantile(every, [0.002, 0.998], axis=0)
    # Some ground around the cloud, at least 60 cells across, so that a lone point is not huge.
    room = np.maximum(0.03 * (high - low).max() + cell, 30 * cell - (high - low) / 2)
    low, high = low - room, high + room
    # Keep the proportions moderate: show more ground instead.
    width, height = high - low
    more = np.maximum(0, [height / 1.25 - width, 0.45 * width - height]) / 2
    return low - more, high + more


def _paint(figure: Figure, view: Axes, panel: Panel, classes: bool) -> PathCollection:
    """Draw one panel, and its colour bar unless its values are classes."""
    order = np.argsort(panel.points[:, 2], kind="stable")  # draw the highest last, on top
    x, y = panel.points[order, :2].T
    values = panel.values[order]
    view.set_facecolor(PAGE)
    view.set_aspect("equal")
    view.set_title(panel.title, color=INK, fontsize=11, loc="left")
    view.set_xlabel("x, m", color=QUIET)
    view.tick_params(colors=QUIET)
    view.grid(color=QUIET, alpha=0.15, linewidth=0.6)
    view.set_axisbelow(True)
    view.spines[:].set_visible(False)
    if classes:
        names = np.asarray(CLASSES)[values.astype(int)].tolist()
        return view.scatter(x, y, c=names, marker="s", linewidths=0)
    low, high = panel.limits or np.quantile(values, [0.02, 0.98])
    if not high > low:
        low, high = low - 0.5, high + 0.5
    colours = _colours(panel.colours)
    mark = view.scatter(x, y, c=values, cmap=colours, vmin=low, vmax=high, marker="s", linewidths=0)
    bar = figure.colorbar(mark, ax=view, orientation="horizontal", shrink=0.7, aspect=40, pad=0.02)
    bar.set_label(panel.label, color=INK)
    bar.ax.tick_params(colors=QUIET)
    bar.outline.set_visible(False)
    return mark


def _legend(figure: Figure, classes: Sequence[str]) -> None:
    from matplotlib.lines import Line2D

    entries = [
        Line2D([], [], marker="s", linestyle="", color=colour, label=name)
        for colour, name in zip(CLASSES, classes, strict=False)
    ]
    figure.legend(
        handles=entries,
        loc="outside lower center",
        ncols=len(entries),
        frameon=False,
        labelcolor=INK,
    )


def _colours(name: str) -> ListedColormap:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    return ListedColormap(colormaps[name](np.linspace(*MAPS[name], 256)))
