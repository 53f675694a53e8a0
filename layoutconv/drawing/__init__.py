"""Pictures: of layouts with the standard library alone, of point clouds with matplotlib and Plotly.

:func:`draw` makes a :class:`Figure`, an arrangement of labelled and coloured cells (``layouts.py``,
``threads.py``, ``views.py``), which is rendered as text, SVG, TikZ or HTML; ``scene.py`` says where
everything is on a page. ``grammar.py`` reads what is typed, ``expression.py`` evaluates it and
``steps.py`` takes it apart. ``tasks.py`` has what the command line and the page of ``serve.py`` ask
for; ``workers.py`` lets processes do it, each a ``worker.py``, within the budgets of ``budget.py``.
``loopback.py`` says whom the page is served to.

May import ``layoutconv.algebra``, ``layoutconv.errors`` and ``layoutconv.view``; nothing else
imports this folder but the command line, the examples, and the package itself, which gives the
algebra's ``draw`` methods something to call.
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
    """Import what draws clouds, and NumPy with it, where it is asked for: workers have neither."""
    if name == "cloud_page":
        from .cloud_html import cloud_page

        return cloud_page
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
