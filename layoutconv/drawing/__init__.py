"""Pictures: of layouts by the standard library alone, of point clouds by matplotlib and Plotly.

:func:`draw` makes a :class:`Figure`, an arrangement of labelled and coloured cells (``layouts.py``,
``threads.py``, ``views.py``), which is rendered as text, SVG, TikZ or HTML; ``scene.py`` places
everything on a page. ``grammar.py`` parses typed text, ``expression.py`` evaluates it and
``steps.py`` takes it apart. ``tasks.py`` has the tasks of the command line and the page of
``serve.py``; ``workers.py`` runs them in processes, each a ``worker.py``, within the budgets of
``budget.py``. ``loopback.py`` restricts who may load the page.

May import ``layoutconv.algebra``, ``layoutconv.errors`` and ``layoutconv.view``. Only the command
line, the examples and the package itself import this folder; the package passes it to the
algebra's ``draw`` methods.
"""

from typing import TYPE_CHECKING, Any

from . import renderers  # noqa: F401  figures render themselves through it
from .api import draw
from .axis import Axis
from .figure import Cell, Figure, Grid
from .html import to_html
from .svg import to_svg
from .text import to_text
from .tikz import to_tikz

if TYPE_CHECKING:
    from .cloud_html import cloud_page

__all__ = [
    "Axis",
    "Cell",
    "Figure",
    "Grid",
    "cloud_page",
    "draw",
    "to_html",
    "to_svg",
    "to_text",
    "to_tikz",
]


def __getattr__(name: str) -> Any:
    """Import the drawing of clouds, and NumPy, on first use: workers have neither."""
    if name == "cloud_page":
        from .cloud_html import cloud_page

        return cloud_page
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
