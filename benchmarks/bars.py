"""A chart of ratios to peers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot(rows: Sequence[Any], title: str, file: Path) -> None:
    """A bar per row that has a ``peer`` and a ``ratio``, from a line where the two are equal, on a
    logarithmic axis."""
    try:
        from matplotlib import pyplot
    except ImportError:
        print(f"no {file}: matplotlib is not installed", file=sys.stderr)
        return
    names = [f"{row.name} / {row.peer}" for row in rows if row.ratio]
    ratios = [row.ratio for row in rows if row.ratio]
    figure, axes = pyplot.subplots(figsize=(9, 1 + 0.14 * len(ratios)), layout="constrained")
    colours = ["tab:green" if ratio >= 1 else "tab:red" for ratio in ratios]
    axes.barh(range(len(ratios)), [ratio - 1 for ratio in ratios], left=1.0, color=colours)
    axes.set_yticks(range(len(ratios)), names, fontsize=6)
    axes.invert_yaxis()
    axes.margins(y=0.01)
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.grid(axis="x", linewidth=0.3)
    axes.set_xlabel("time of the peer / our time: right of the line we are faster")
    axes.set_title(title, fontsize=8)
    figure.savefig(file)
    pyplot.close(figure)
