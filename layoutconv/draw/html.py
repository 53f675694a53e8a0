"""HTML: one page without any other file; pointing at a cell shows what it is, and its like."""

from __future__ import annotations

import json
from html import escape

from .figure import Cell, Figure
from .svg import svg

_STYLE = """
:root { color-scheme: light }
body { margin: 24px; background: #f3f4f7; font: 14px/1.5 system-ui, sans-serif; color: #1f2937 }
svg { background: #fff; border-radius: 10px; box-shadow: 0 1px 3px #0002; height: auto }
[data-facts] { cursor: crosshair }
[data-facts]:hover rect, .alike rect { stroke: #1f2937; stroke-width: 2 }
svg.asking [data-facts]:not(.alike) { opacity: .45 }
#tip { position: fixed; display: none; pointer-events: none; padding: 8px 12px; border-radius: 8px;
  background: #1f2937; color: #fff; font: 12.5px/1.6 ui-monospace, Menlo, Consolas, monospace }
#tip dl { display: grid; grid-template-columns: auto auto; gap: 0 1.5em; margin: 0 }
#tip dt { color: #a3abb9 } #tip dd { margin: 0; text-align: right; white-space: nowrap }
"""

# Cells of one key light up together; a click keeps them lit.
_SCRIPT = """
const tip = document.getElementById("tip"), picture = document.querySelector("svg");
const cells = [...document.querySelectorAll("[data-facts]")];
let kept = null;
function alike(key) {
  picture.classList.toggle("asking", key !== null);
  for (const c of cells) c.classList.toggle("alike", key !== null && c.dataset.key === key);
}
for (const cell of cells) {
  cell.addEventListener("mousemove", event => {
    const list = document.createElement("dl");
    for (const [name, value] of JSON.parse(cell.dataset.facts)) {
      list.appendChild(document.createElement("dt")).textContent = name;
      list.appendChild(document.createElement("dd")).textContent = value;
    }
    tip.replaceChildren(list);
    tip.style.display = "block";
    const right = event.clientX + 16 + tip.offsetWidth > innerWidth;
    const below = event.clientY + 16 + tip.offsetHeight > innerHeight;
    tip.style.left = event.clientX + (right ? -12 - tip.offsetWidth : 16) + "px";
    tip.style.top = event.clientY + (below ? -12 - tip.offsetHeight : 16) + "px";
  });
  cell.addEventListener("mouseenter", () => {
    if (kept === null && cell.dataset.key) alike(cell.dataset.key);
  });
  cell.addEventListener("mouseleave", () => {
    tip.style.display = "none";
    if (kept === null) alike(null);
  });
  cell.addEventListener("click", event => {
    kept = kept === cell.dataset.key ? null : cell.dataset.key || null;
    alike(kept);
    event.stopPropagation();
  });
}
document.addEventListener("click", () => alike(kept = null));
"""


def to_html(figure: Figure) -> str:
    """The figure as a page: coordinate, index and offset of the cell under the pointer.

    Cells that belong together light up: equal offsets, the elements of one thread, every place of
    the matrix that reads one activation.
    """
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width">\n'
        f"<title>{escape(figure.title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n"
        f"{svg(figure, _described)}"
        f'<div id="tip"></div>\n<script>{_SCRIPT}</script>\n</body>\n</html>\n'
    )


def _described(cell: Cell) -> tuple[str, str]:
    facts = json.dumps(cell.facts, ensure_ascii=False)
    return f' data-key="{escape(cell.key)}" data-facts="{escape(facts)}"', ""
