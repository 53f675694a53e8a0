"""The plots of speed: ``python docs/make_speed.py`` writes speed.svg and roofline.svg.

They read their figures from the tables of performance.md, so that one place has them.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

DOCS = Path(__file__).parent
IMAGES = DOCS / "images"
sys.path.insert(0, str(DOCS.parent / "benchmarks"))

from dense_workloads import DENSE  # noqa: E402
from roofs import roof_of  # noqa: E402

GPU = "NVIDIA H200"
SIZE = {"fp16": 2, "tf32": 4}
PASSES = ("fprop", "dgrad", "wgrad")
# Dark enough for white paper (4.5 to 1), different in lightness, and each with a marker of its own.
MARKS: dict[str, tuple[str, str]] = {
    "fprop": ("o", "#1a6fb5"),
    "dgrad": ("D", "#b54708"),
    "wgrad": ("^", "#5b2a86"),
    "forward": ("o", "#1a6fb5"),
    "forward and backward": ("s", "#7a4a00"),
}


@dataclass(frozen=True)
class Panel:
    """Speed-ups by series, such as a pass, and by row, such as a workload."""

    title: str
    series: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Layer:
    """A dense layer on the roofline: flop per byte, and TFLOP/s of ours and of cuDNN's."""

    name: str
    intensity: float
    ours: float
    peer: float


def dense(page: str, dtype: str) -> Panel:
    """Three columns of the table of dense convolutions."""
    found = dense_table(page)
    return Panel(
        f"Dense, {dtype}, over cuDNN",
        {
            direction: {work.name: found[work.name, dtype, direction][1] for work in DENSE}
            for direction in PASSES
        },
    )


def sparse(page: str) -> Panel:
    """The table of submanifold layers, less the column that has no peer."""
    series: dict[str, dict[str, float]] = {"forward": {}, "forward and backward": {}}
    header, *lines = table(page, "| cloud | pass |")
    for cloud, direction, *cells in lines:
        name = cloud.partition(",")[0].removesuffix("_b1")
        for channels, cell in zip(header[3:], cells[1:], strict=True):
            series[direction][f"{name}, {channels}"] = numbers(cell)[1]
    return Panel("Sparse, fp16, over the fastest library\nof another run", series)


def layers(page: str, dtype: str) -> list[Layer]:
    """The dense layers forward, with their places on the roofline."""
    found = dense_table(page)
    rows = []
    for work in DENSE:
        ours, ratio = found[work.name, dtype, "fprop"]
        rate = 1e-6 * work.flop / ours
        rows.append(Layer(work.name, work.flop / (work.elements * SIZE[dtype]), rate, rate / ratio))
    return rows


def dense_table(page: str) -> dict[tuple[str, str, str], tuple[float, float]]:
    """Microseconds and speed-up by workload, type and pass."""
    columns = [(dtype, direction) for dtype in SIZE for direction in PASSES]
    named = {work.name for work in DENSE}
    lines = table(page, "| workload | fp16 fprop")
    return {
        (line[0].partition(",")[0], *column): numbers(cell)
        for line in lines
        if line[0].partition(",")[0] in named
        for column, cell in zip(columns, line[1:], strict=True)
    }


def table(page: str, start: str) -> list[list[str]]:
    """The header and the rows of the table whose header begins with ``start``."""
    lines = page[page.index(start) :].splitlines()
    body = [line for line in lines[: lines.index("")] if not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in body]


def numbers(cell: str) -> tuple[float, float]:
    """Microseconds of ours, and the peer's time over ours."""
    found = re.fullmatch(r"([\d.]+) \(([\d.]+)\)", cell)
    assert found, cell
    return float(found[1]), float(found[2])


def speed(panels: list[Panel]) -> Figure:
    """The speed-ups of all panels on one logarithmic scale."""
    figure = _figure(10.0, 5.6)
    figure.suptitle(f"Speed-up on one {GPU}: the peer's time over ours", fontsize=11)
    views = figure.subplots(1, len(panels), sharex=True)
    for view, panel in zip(views, panels, strict=True):
        rows = list(next(iter(panel.series.values())))
        for name, ratios in panel.series.items():
            marker, colour = MARKS[name]
            places = [rows.index(row) for row in ratios]
            hollow = {"markerfacecolor": "none"} if marker == "s" else {"alpha": 0.85}
            view.plot(list(ratios.values()), places, marker, color=colour, label=name, **hollow)
        view.set_yticks(range(len(rows)), rows, fontsize=9)
        view.invert_yaxis()
        view.axvline(1.0, color="#1f2937", linewidth=1)
        view.set_title(panel.title, fontsize=10)
        view.set_xscale("log", base=2)
        view.set_xticks([0.7, 1, 1.4, 2, 2.8], ["0.7", "1", "1.4", "2", "2.8"])
        view.minorticks_off()
        view.grid(linewidth=0.4, color="#d0d5dd")
        view.legend(loc="upper center", bbox_to_anchor=(0.5, -0.07), ncols=3, frameon=False,
                    fontsize=9, handletextpad=0, columnspacing=1)  # fmt: skip
    return figure


def roofline(found: dict[str, list[Layer]]) -> Figure:
    """Rates of the dense layers over their arithmetic intensity, below the roofs of the GPU."""
    roof = roof_of(GPU)
    assert roof is not None
    figure = _figure(8.0, 4.8)
    view: Axes = figure.subplots()
    for (dtype, rows), (marker, colour) in zip(found.items(), MARKS.values(), strict=False):
        peak, ridge = 1e-6 * roof.flop[dtype], roof.flop[dtype] / roof.bandwidth
        ends = 40.0, 4000.0
        roofs = [(x, min(peak, 1e-6 * x * roof.bandwidth)) for x in (ends[0], ridge, ends[1])]
        view.plot(*zip(*roofs, strict=True), color=colour, linewidth=1.2)
        view.text(3800, peak * 1.04, f"{dtype}: {peak:.0f} TFLOP/s", ha="right", color=colour)
        x, ours, peer = zip(*[(row.intensity, row.ours, row.peer) for row in rows], strict=True)
        style: dict[str, Any] = {"marker": marker, "color": colour, "linestyle": ""}
        view.plot(x, ours, label=f"{dtype}, ours", **style)
        view.plot(x, peer, label=f"{dtype}, cuDNN", markerfacecolor="white", **style)
    view.set(xscale="log", yscale="log", xlim=(40, 4000), ylim=(100, 1300))
    view.set_xticks([100, 200, 500, 1000, 2000], ["100", "200", "500", "1,000", "2,000"])
    view.set_yticks([100, 200, 500, 1000], ["100", "200", "500", "1,000"])
    view.minorticks_off()
    view.grid(linewidth=0.4, color="#d0d5dd")
    view.set_xlabel("arithmetic intensity, flop per byte of memory traffic")
    view.set_ylabel("TFLOP/s")
    view.set_title(f"Dense layers forward, below the roofline of the {GPU}", fontsize=11)
    view.legend(loc="lower right", frameon=False)
    return figure


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def figures(page: str) -> dict[str, tuple[Figure, str]]:
    """The pictures by name, each with the figures that it shows, as JSON."""
    panels = [dense(page, "fp16"), dense(page, "tf32"), sparse(page)]
    found = {dtype: layers(page, dtype) for dtype in SIZE}
    places = {dtype: [vars(row) for row in rows] for dtype, rows in found.items()}
    return {
        "speed": (speed(panels), json.dumps([panel.series for panel in panels])),
        "roofline": (roofline(found), json.dumps(places)),
    }


def main() -> None:
    """Write the pictures; the figures that each shows stand in its description."""
    import matplotlib

    # Text stays text, in the reader's font, and a second run writes the same file.
    matplotlib.rcParams |= {"svg.fonttype": "none", "svg.hashsalt": "layoutconv"}
    for name, (figure, told) in figures((DOCS / "performance.md").read_text("utf-8")).items():
        metadata = {"Date": None, "Creator": None, "Description": told}
        figure.savefig(IMAGES / f"{name}.svg", metadata=metadata)


if __name__ == "__main__":
    main()
