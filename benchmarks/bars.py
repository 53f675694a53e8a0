"""Charts of a run: speed-ups over peers as bars, and the rows under the roofline of the GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from roofs import Roof

# Both stand out from white by more than 4.5 to 1, and differ for readers who tell few hues apart.
FASTER, SLOWER = "#1a6fb5", "#b54708"


def plot(rows: Sequence[Any], title: str, file: Path, roof: Roof | None = None) -> None:
    """Write a chart with a bar for every row that has a ``peer`` and a ``ratio``, from 1 on.

    With a roof, and rows that have ``flop`` and ``moved`` (bytes), a second chart shows the rate of
    each row over its arithmetic intensity, both logarithmic, below the roofs of the data types.
    """
    from matplotlib import pyplot

    compared = [row for row in rows if row.ratio]
    placed = [] if roof is None else [row for row in rows if getattr(row, "flop", 0.0)]
    charts = 1 + bool(placed)
    height = max(1 + 0.18 * len(compared), 5 if placed else 2)
    figure, axes = pyplot.subplots(
        1, charts, figsize=(9 * charts, height), layout="constrained", squeeze=False
    )
    _bars(axes[0, 0], compared)
    if placed and roof:
        _roofline(axes[0, 1], placed, roof)
    figure.suptitle(title, fontsize=10)
    figure.savefig(file)
    pyplot.close(figure)


def _bars(axes: Any, rows: Sequence[Any]) -> None:
    names = [f"{row.name} / {row.peer}" for row in rows]
    ratios = [row.ratio for row in rows]
    colours = [FASTER if ratio >= 1 else SLOWER for ratio in ratios]
    axes.barh(range(len(ratios)), [ratio - 1 for ratio in ratios], left=1.0, color=colours)
    axes.set_yticks(range(len(ratios)), names, fontsize=8)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel("speed-up: time of the peer / our time")


def _roofline(axes: Any, rows: Sequence[Any], roof: Roof) -> None:
    intensities = [row.flop / row.moved for row in rows]
    ends = min(intensities) / 2, 2 * max(intensities)
    for dtype in dict.fromkeys(row.dtype for row in rows):
        chosen = [row for row in rows if row.dtype == dtype]
        rates = [1e-6 * row.flop / row.microseconds for row in chosen]
        (points,) = axes.plot([row.flop / row.moved for row in chosen], rates, "o", label=dtype)
        if dtype in roof.flop:
            ridge = roof.flop[dtype] / roof.bandwidth
            xs = sorted({*ends, min(max(ridge, ends[0]), ends[1])})
            ys = [1e-6 * min(roof.flop[dtype], x * roof.bandwidth) for x in xs]
            axes.plot(xs, ys, color=points.get_color(), linewidth=1)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.grid(linewidth=0.3)
    axes.legend()
    axes.set_xlabel("arithmetic intensity, flop / byte")
    axes.set_ylabel("TFLOP/s")
