"""Point clouds in three dimensions, as a page to turn with the mouse, drawn by Plotly."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle, islice
from math import inf
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ..errors import ArgumentError, ArgumentTypeError, are_several, shown
from .birds_eye import CLASSES, INK, PAGE
from .files import write

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[Any]

# On the cloud, as a telephone has no room beside it.
_AT_THE_RIGHT = {"x": 1, "xanchor": "right"}
# As wide as a telephone's screen, and dark up to the edges.
_HEAD = (
    '<meta name="viewport" content="width=device-width, initial-scale=1">'
    f"<style>body {{ margin: 0; background: {PAGE} }}</style>"
)
MOST = 400_000  # points: a page of 10 MB, which turns smoothly on a laptop


def cloud_page(
    points: Any,
    values: Mapping[str, Any],
    path: str | os.PathLike[str] | None = None,
    *,
    classes: Sequence[str] = (),
    title: str = "",
    size: float = 2.0,
    most: int = MOST,
) -> Any:
    """Make the page of a cloud, coloured by the quantity that a menu selects.

    Args:
        points: (points, 3) or more columns, x, y, z first: an array or a tensor.
        values: (points,) each, by their names in the menu: numbers, which get a colour bar, or,
            with ``classes``, integers, which are indices of classes; -1 is unlabelled.
        path: where to write one HTML file, library included (5 MB), that needs no network.
        classes: their names, a legend entry each; a click hides a class.
        title: the line above the cloud.
        size: the edge of a point, in pixels, > 0.
        most: the most points to show, >= 1; of more, every second or third is shown.

    Returns:
        Plotly's figure, which notebooks show.

    Raises:
        ArgumentError: no points, no values, values of other lengths, indices beyond ``classes``, a
            ``size`` or ``most`` that shows nothing.
        ArgumentTypeError: ``values`` without names, data that are not arrays of real numbers,
            ``classes`` that are not names.
        ImportError: Plotly is not installed; ``pip install "layoutconv[view]"`` does it.

    >>> points = np.array([[0.0, 0.0, 1.0], [4.0, 3.0, 2.0], [4.0, 1.0, 2.0]])
    >>> kinds = np.array([0, 1, 1])
    >>> page = cloud_page(points, {"height": points[:, 2], "truth": kinds}, classes=["road", "car"])
    >>> [trace.name for trace in page.data]
    ['height', 'road', 'car']
    """
    try:
        from plotly import graph_objects
    except ImportError as error:
        advice = 'a cloud in three dimensions wants Plotly: pip install "layoutconv[view]"'
        raise ImportError(advice, name=error.name) from None

    xyz = _array("points", points)
    if xyz.ndim != 2 or xyz.shape[1] < 3 or not len(xyz):
        raise ArgumentError("points", "shape (points, 3 or more), with a point or more", xyz.shape)
    if not isinstance(values, Mapping):
        raise ArgumentTypeError("values", "quantities by name, a mapping", type(values).__name__)
    if not values:
        raise ArgumentError("values", "at least one quantity by name", "none")
    if not isinstance(size, Real) or not 0 < size < inf:
        raise ArgumentError("size", "pixels > 0", shown(size))
    if not isinstance(most, Integral) or most < 1:
        raise ArgumentError("most", "points >= 1", shown(most))
    if not isinstance(title, str):
        raise ArgumentTypeError("title", "a str", type(title).__name__)
    classes = _names(classes)
    points = len(xyz)
    step = -(-points // most)
    xyz = xyz[::step, :3].astype(np.float32)
    traces, names = [], []
    for name, given in ((str(name), given) for name, given in values.items()):
        quantity = _checked(name, _array("values", given), points, len(classes))[::step]
        made = (
            _of_classes(quantity, classes)
            if classes and quantity.dtype.kind in "iu"
            else [_of_numbers(name, quantity)]
        )
        for rows, trace in made:
            x, y, z = xyz[rows].T
            traces.append(graph_objects.Scatter3d(
                x=x, y=y, z=z, mode="markers", visible=name == str(next(iter(values))), **trace,
            ).update(marker_size=size))  # fmt: skip
            names.append(name)
    figure = graph_objects.Figure(traces, layout=_layout(title, names))
    if path is not None:
        head = f"<title>{escape(title or 'Point cloud')}</title>{_HEAD}"
        page = cast(str, figure.to_html(include_plotlyjs=True))
        write(path, page.replace("<head>", f"<head>{head}", 1))
    return figure


def _array(argument: str, given: Any) -> Array:
    """Convert to an array; a tensor of any device and dtype gives its numbers."""
    try:
        if hasattr(given, "detach"):
            given = given.detach().cpu()
            given = given.float() if given.is_floating_point() else given  # NumPy has no bfloat16
        array = np.asarray(given)
    except (TypeError, ValueError, NotImplementedError):  # a ragged list, a sparse tensor
        array = np.asarray(None)
    if array.dtype.kind not in "biuf":
        raise ArgumentTypeError(argument, "an array or a tensor of real numbers", shown(given))
    return array


def _names(classes: Any) -> tuple[str, ...]:
    names = tuple(classes) if are_several(classes) else (None,)
    if not all(isinstance(name, str) for name in names):
        raise ArgumentTypeError("classes", "a sequence of names", shown(classes))
    return names


def _checked(name: str, values: Array, points: int, classes: int) -> Array:
    """Return one quantity, or raise an error that names it."""
    if values.shape != (points,):
        raise ArgumentError("values", f"({points},) of `{name}`, one per point", values.shape)
    if classes and values.dtype.kind in "iu" and (values.min() < -1 or values.max() >= classes):
        expected = f"indices of {classes} classes, or -1, in `{name}`"
        raise ArgumentError("values", expected, f"{values.min()} to {values.max()}")
    return values


def _of_classes(values: Array, classes: Sequence[str]) -> list[tuple[Array, dict[str, Any]]]:
    """Return rows and style of each class that occurs, the unlabelled first."""
    named = [
        ("unlabelled", "#57606a"),
        *zip(classes, islice(cycle(_colours()), len(classes)), strict=True),
    ]
    made = []
    for number, (name, colour) in enumerate(named, -1):
        rows = np.flatnonzero(values == number)
        if len(rows):
            made.append((rows, {"name": name, "marker": {"color": colour}, "hoverinfo": "name"}))
    return made


def _colours() -> list[str]:
    """Return colours that contrast with the page, the colour-blind-safe palette first."""
    from plotly.colors import qualitative

    return [*CLASSES, *(c for c in qualitative.Light24 if c.lower() not in CLASSES)]


def _of_numbers(name: str, values: Array) -> tuple[Array, dict[str, Any]]:
    """Return all rows, coloured on a scale without the outermost 2 in 100 at each end."""
    numbers = values.astype(np.float32)
    finite = numbers[np.isfinite(numbers)]
    low, high = np.quantile(finite, [0.02, 0.98]).tolist() if len(finite) else (0.0, 1.0)
    scale = {"colorscale": "Viridis", "cmin": low, "cmax": high if high > low else low + 1}
    bar = {**_AT_THE_RIGHT, "title": {"text": name}, "tickfont": {"color": INK}}
    marker = {"color": numbers, "colorbar": bar, "showscale": True, **scale}
    hover = "%{x:.2f}, %{y:.2f}, %{z:.2f}: %{marker.color:.3g}<extra></extra>"
    looks = {"name": name, "marker": marker, "showlegend": False, "hovertemplate": hover}
    return np.arange(len(numbers)), looks


def _layout(title: str, names: Sequence[str]) -> dict[str, Any]:
    """Return a dark page with equal metres along all axes, and the menu of quantities."""
    axis = {"backgroundcolor": PAGE, "gridcolor": "#30363d", "color": INK, "showspikes": False}
    buttons = [
        {"label": one, "method": "restyle", "args": [{"visible": [one == of for of in names]}]}
        for one in dict.fromkeys(names)
    ]
    menu = {
        "buttons": buttons, "x": 0, "xanchor": "left", "y": 1, "yanchor": "top",
        # Plotly makes the selected or hovered entry nearly white, so its text is dark.
        "bgcolor": "#c9d1d9", "font": {"color": "#1f2328"},
    }  # fmt: skip
    return {
        "title": {"text": title}, "paper_bgcolor": PAGE, "font": {"color": INK},
        "margin": {"l": 0, "r": 0, "b": 0, "t": 40 if title else 0},
        "legend": {**_AT_THE_RIGHT, "itemsizing": "constant", "bgcolor": "rgba(13, 17, 23, 0.7)"},
        "scene": {
            "aspectmode": "data",
            **{f"{of}axis": {**axis, "title": {"text": f"{of}, m"}} for of in "xyz"},
        },
        "updatemenus": [menu] if len(buttons) > 1 else [],
    }  # fmt: skip
