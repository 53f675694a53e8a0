"""The plot of the README: ``python docs/make_speed.py`` writes images/speed.svg.

Its figures are those of the tables in performance.md, read from there, so that one place has them.
Floors are computed as ``bench_dense.py`` does: the larger of the times that the products and the
bytes of a convolution take at the limits of the GPU.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).parent
PICTURE = DOCS / "images" / "speed.svg"
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

from dense_workloads import DENSE  # noqa: E402
from roofs import roof_of  # noqa: E402

GPU = "NVIDIA H200"
SIZE = {"fp16": 2, "tf32": 4}
PASSES = ("fprop", "dgrad", "wgrad")
COLOURS = {"ours": "#2f6fde", "peer": "#c3c8d4"}
WIDTH, LABEL, BAR, STEP = 380, 112, 7, 21  # of a panel, pixels


@dataclass(frozen=True)
class Row:
    """Times in units of ``unit``: the floor, or the peer's time."""

    name: str
    ours: float
    peer: float


@dataclass(frozen=True)
class Panel:
    title: str
    unit: str
    peer: str
    rows: list[Row]


def dense(page: str, dtype: str, direction: str) -> Panel:
    """A column of the table of dense convolutions, over the floor of each."""
    column = 1 + list(SIZE).index(dtype) * len(PASSES) + PASSES.index(direction)
    lines = table(page, "workload", "| fp16 fprop")
    found = {cells[0].partition(",")[0]: cells[column] for cells in lines}
    roof = roof_of(GPU)
    assert roof is not None
    rows = []
    for workload in DENSE:
        ours, ratio = numbers(found[workload.name])
        floor = roof.floor(dtype, workload.flop, workload.elements * SIZE[dtype])
        assert floor is not None
        rows.append(Row(workload.name, ours / floor, ours * ratio / floor))
    return Panel(f"Dense, {dtype}, {direction}", "floor", "cuDNN", rows)


def sparse(page: str) -> Panel:
    """Training steps of submanifold layers, over the time of the fastest peer."""
    rows, cloud = [], ""
    header, *lines = table(page, "", "| C = 16", header=True)
    for name, *cells in lines:
        if name != "forward and backward":
            cloud = name.partition(",")[0].removesuffix("_b1")
            continue
        for C, cell in zip(header[2:], cells[1:], strict=True):  # C = 16 has no peer
            rows.append(Row(f"{cloud}, {C}", 1 / numbers(cell)[1], 1.0))
    return Panel("Sparse, fp16, forward and backward", "peer", "fastest peer, another run", rows)


def table(page: str, first: str, mark: str, header: bool = False) -> list[list[str]]:
    """The cells of the table whose header starts with ``first`` and has ``mark`` in it."""
    lines = iter(page.splitlines())
    top = next(line for line in lines if line.startswith(f"| {first}".rstrip()) and mark in line)
    next(lines)
    body = [top] if header else []
    for line in lines:
        if not line.startswith("|"):
            break
        body.append(line)
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def numbers(cell: str) -> tuple[float, float]:
    """Microseconds of ours, and the peer's time divided by it."""
    found = re.fullmatch(r"([\d.]+) \(([\d.]+)\)", cell)
    assert found, cell
    return float(found[1]), float(found[2])


def draw(panels: list[Panel]) -> str:
    """The panels beside each other, as SVG."""
    tall = max(len(panel.rows) for panel in panels)
    width, height = WIDTH * len(panels) + 20, 86 + STEP * tall + 30
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="11" fill="#1f2937">',
        "<title>Times of layoutconv and of its peers, over the floor of the machine</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        _text(16, 24, f"Time on one {GPU}: shorter is faster", 'font-size="15" font-weight="bold"'),
        _text(420, 24, "0.94x: the peer takes 0.94 times as long as we do", 'fill="#6b7280"'),
    ]
    for at, panel in enumerate(panels):
        lines += _panel(panel, WIDTH * at + 16)
    return "\n".join([*lines, "</svg>", ""])


def _panel(panel: Panel, left: int) -> list[str]:
    start = left + LABEL
    longest = max(max(row.ours, row.peer) for row in panel.rows)
    scale = (WIDTH - LABEL - 52) / longest
    bottom = 80 + STEP * len(panel.rows)
    lines = [_text(left, 48, panel.title, 'font-size="13" font-weight="bold"')]
    for x, name, colour in ((0, "ours", "ours"), (52, panel.peer, "peer")):
        lines.append(f'<rect x="{left + x}" y="57" width="9" height="9" fill="{COLOURS[colour]}"/>')
        lines.append(_text(left + x + 13, 66, name))
    for at, row in enumerate(panel.rows):
        y = 78 + STEP * at
        lines.append(_text(start - 6, y + BAR + 3, row.name, 'text-anchor="end"'))
        for below, (value, colour) in enumerate(((row.ours, "ours"), (row.peer, "peer"))):
            top = y + below * BAR
            lines.append(
                f'<rect x="{start}" y="{top}" width="{value * scale:.1f}" height="{BAR}" '
                f'fill="{COLOURS[colour]}"/>'
            )
        end = start + max(row.ours, row.peer) * scale + 4
        lines.append(_text(end, y + BAR + 3, f"{row.peer / row.ours:.2f}x", 'fill="#6b7280"'))
    mark = start + scale
    lines.append(
        f'<line x1="{mark:.1f}" y1="74" x2="{mark:.1f}" y2="{bottom}" stroke="#d1242f" '
        'stroke-dasharray="3 2"/>'
    )
    told = "1 = floor of the machine" if panel.unit == "floor" else "1 = the fastest peer"
    anchor = "start" if panel.unit == "floor" else "end"
    lines.append(_text(mark, bottom + 12, told, f'fill="#d1242f" text-anchor="{anchor}"'))
    return lines


def _text(x: float, y: float, text: str, more: str = "") -> str:
    return f'<text x="{x:.1f}" y="{y}" {more}>{escape(text)}</text>'.replace(" >", ">")


def picture() -> str:
    """What images/speed.svg is."""
    page = (DOCS / "performance.md").read_text("utf-8")
    return draw([dense(page, "fp16", "fprop"), dense(page, "tf32", "fprop"), sparse(page)])


if __name__ == "__main__":
    PICTURE.write_text(picture(), "utf-8")
