"""TikZ: a standalone LaTeX document, for pdflatex with only TikZ."""

from __future__ import annotations

from .figure import Figure, checked_figure
from .scene import Box, Text, place

_SYMBOLS = {"⋯": r"$\cdots$", "⋮": r"$\vdots$", "⋱": r"$\ddots$", "·": r"$\cdot$"}
_ESCAPES = {
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "\\": r"\textbackslash{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **_SYMBOLS,
}
_SCALE = 0.75  # points of TeX for each CSS pixel
_ANCHOR = {"start": "west", "middle": "center", "end": "east"}


def to_tikz(figure: Figure) -> str:
    """Return the figure as a LaTeX document of class ``standalone``.

    >>> from ..algebra import Layout
    >>> from .layouts import layout_figure
    >>> document = to_tikz(layout_figure(Layout((1, 2), (2, 1)), limit=8))
    >>> print(document.split(chr(10))[0])
    \\documentclass[tikz,border=2pt]{standalone}
    """
    scene = place(checked_figure(figure))
    colours: dict[str, str] = {}
    lines = [line for item in scene.items for line in _item(item, colours)]
    return "\n".join(
        [
            r"\documentclass[tikz,border=2pt]{standalone}",
            r"\usepackage[T1]{fontenc}",
            r"\usetikzlibrary{patterns}",
            *(
                rf"\definecolor{{{name}}}{{HTML}}{{{colour[1:].upper()}}}"
                for colour, name in colours.items()
            ),
            r"\begin{document}",
            r"\begin{tikzpicture}[x=0.75pt, y=-0.75pt, inner sep=0pt, rounded corners=1.5pt]",
            *lines,
            r"\end{tikzpicture}",
            r"\end{document}",
            "",
        ]
    )


def _item(item: Box | Text, colours: dict[str, str]) -> list[str]:
    if isinstance(item, Text):
        return [_text(item, colours)]
    kind = item.cell.kind if item.cell else "value"
    if kind == "gap":
        return [_text(text, colours) for text in item.texts]
    options = [f"fill={_name(item.fill or '#ffffff', colours)}"]
    if kind == "padding":
        options = ["pattern=north east lines", f"pattern color={_name('#d7dbe2', colours)}"]
    if item.cell and item.cell.mark:
        options.append(f"draw={_name('#1f2937', colours)}, line width=1.2pt")
    elif item.cell and not item.fill and kind != "padding":
        options.append(f"draw={_name('#d1d5dc', colours)}, line width=0.4pt")
    corners = f"({item.x:.1f},{item.y:.1f}) rectangle +({item.width:.1f},{item.height:.1f})"
    box = rf"\path[{', '.join(options)}] {corners};"
    return [box, *(_text(text, colours) for text in item.texts)]


def _text(text: Text, colours: dict[str, str]) -> str:
    size = text.size * _SCALE
    font = rf"\ttfamily\fontsize{{{size:.1f}}}{{{1.2 * size:.1f}}}\selectfont"
    if text.bold:
        font += r"\bfseries"
    options = f"anchor={_ANCHOR[text.anchor]}, text={_name(text.colour, colours)}, font={font}"
    written = "".join(_ESCAPES.get(c, c) for c in text.text)
    return rf"\node[{options}] at ({text.x:.1f},{text.y:.1f}) {{{written}}};"


def _name(colour: str, colours: dict[str, str]) -> str:
    """Return the name under which the document defines a colour."""
    return colours.setdefault(colour, f"c{len(colours)}")
