"""The formats of a figure: text for a terminal, SVG, TikZ and HTML."""

from __future__ import annotations

from .figure import RENDERERS
from .html import to_html
from .svg import to_svg
from .text import to_text
from .tikz import to_tikz

RENDERERS |= {"text": to_text, "svg": to_svg, "tikz": to_tikz, "html": to_html}
