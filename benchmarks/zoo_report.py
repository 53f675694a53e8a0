"""Report of a run over the layers of real networks: means, shares, and a plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import exp, log
from pathlib import Path
from typing import Any

from bars import FASTER, SLOWER
from zoo_layers import FAMILIES, Layer

BELOW = 0.97  # of the peer's speed: what is slower is below 1.0, beyond the noise of a run
FAR_BELOW = 0.9


@dataclass(frozen=True)
class ZooRow:
    """A line of results: a pass of a layer in a type at a batch.

    Attributes:
        ours, theirs, floor: microseconds; what a GPU that is known takes at least.
        error, peer_error: relative errors.
        right: whether ours is that of rounding.
    """

    layer: int
    kind: str
    dtype: str
    batch: str
    ours: float
    theirs: float | None
    floor: float | None
    error: float
    peer_error: float | None
    right: bool
    gpu: str = ""

    @property
    def name(self) -> str:
        return f"{self.layer} {self.kind} {self.dtype} {self.batch}"

    @property
    def ratio(self) -> float:
        """The peer's time in ours."""
        assert self.theirs is not None
        return self.theirs / self.ours


@dataclass(frozen=True)
class Summary:
    """Summary of some rows: their number, means of the ratios, shares below, and the lowest.

    Attributes:
        mean: geometric mean.
        weighted: the peer's time of all calls in ours; each model counts as one, as their
            geometric mean.
        below, far_below: shares of rows under ``BELOW`` and ``FAR_BELOW``.
    """

    count: int
    mean: float
    weighted: float
    below: float
    far_below: float
    lowest: float

    @classmethod
    def of(cls, rows: Sequence[ZooRow], layers: dict[int, Layer]) -> Summary:
        ratios = [row.ratio for row in rows]
        return cls(
            len(rows),
            geometric_mean(ratios),
            geometric_mean(per_model(rows, layers).values()),
            sum(ratio < BELOW for ratio in ratios) / len(ratios),
            sum(ratio < FAR_BELOW for ratio in ratios) / len(ratios),
            min(ratios),
        )

    def __str__(self) -> str:
        return (
            f"{self.count:5d} {self.mean:6.2f} {self.weighted:9.2f} {self.below:6.0%} "
            f"{self.far_below:6.0%} {self.lowest:7.2f}"
        )


HEADER = (
    f"{'':34s} {'rows':>5s} {'mean':>6s} {'weighted':>9s} {'<1.0':>6s} {'<0.9':>6s} {'lowest':>7s}"
)


def geometric_mean(numbers: Iterable[float]) -> float:
    """Return the geometric mean.

    >>> geometric_mean([0.5, 2.0])
    1.0
    """
    logs = [log(number) for number in numbers]
    return exp(sum(logs) / len(logs))


def per_model(rows: Iterable[ZooRow], layers: dict[int, Layer]) -> dict[str, float]:
    """The peer's time of a model's calls in ours: layers weigh by calls and the peer's time."""
    ours: dict[str, float] = {}
    theirs: dict[str, float] = {}
    for row in rows:
        for model, calls in layers[row.layer].calls:
            ours[model] = ours.get(model, 0.0) + calls * row.ours
            theirs[model] = theirs.get(model, 0.0) + calls * (row.theirs or 0.0)
    return {model: theirs[model] / ours[model] for model in ours}


def print_report(rows: Sequence[ZooRow], layers: Sequence[Layer], worst: int = 12) -> None:
    """Print a table for each type and batch: passes, halves, families, models; then the lowest."""
    by_id = {layer.id: layer for layer in layers}
    compared = [row for row in rows if row.theirs and row.layer in by_id]
    for dtype, batch in dict.fromkeys((row.dtype, row.batch) for row in compared):
        some = [row for row in compared if (row.dtype, row.batch) == (dtype, batch)]
        print(f"\n{dtype}, batch {batch}: time of cuDNN / ours, {some[0].gpu}\n{HEADER}")
        _print_lines(some, by_id)
        print("lowest:")
        for row in sorted(some, key=lambda row: row.ratio)[:worst]:
            floor = f", floor {row.floor:.1f}" if row.floor else ""
            layer = by_id[row.layer]
            print(
                f"  {row.ratio:5.2f}  {row.name:24s} {layer}  ({layer.family}; {layer.models[0]}) "
                f"{row.ours:.1f} us{floor}"
            )


def _print_lines(rows: Sequence[ZooRow], layers: dict[int, Layer]) -> None:
    def line(name: str, chosen: Callable[[ZooRow], bool]) -> None:
        some = [row for row in rows if chosen(row)]
        if some:
            print(f"{name:34s} {Summary.of(some, layers)}")

    for kind in ("fprop", "dgrad", "wgrad"):
        line(kind, lambda row, kind=kind: row.kind == kind)  # type: ignore[misc]
        for half, fitted in (("fit half", True), ("judge half", False)):
            line(
                f"  {half}",
                lambda row, kind=kind, fitted=fitted: (  # type: ignore[misc]
                    row.kind == kind and layers[row.layer].fitted == fitted
                ),
            )
    for family in FAMILIES:
        for kind in ("fprop", "dgrad", "wgrad"):
            line(
                f"{family}, {kind}",
                lambda row, family=family, kind=kind: (  # type: ignore[misc]
                    layers[row.layer].family == family and row.kind == kind
                ),
            )
    for model in dict.fromkeys(model for row in rows for model in layers[row.layer].models):
        line(model, lambda row, model=model: model in layers[row.layer].models)  # type: ignore[misc]


def write_plot(rows: Sequence[ZooRow], layers: Sequence[Layer], file: Path) -> None:
    """Write the ratios of each type and pass, sorted: how many layers are faster, and how much."""
    from matplotlib import pyplot

    compared = [row for row in rows if row.theirs]
    parts = list(dict.fromkeys((row.dtype, row.batch) for row in compared))
    kinds = ("fprop", "dgrad", "wgrad")
    figure, axes = pyplot.subplots(
        len(parts), 3, figsize=(12, 3.2 * len(parts)), squeeze=False, layout="constrained"
    )
    for line, (dtype, batch) in enumerate(parts):
        for column, kind in enumerate(kinds):
            some = [r for r in compared if (r.dtype, r.batch, r.kind) == (dtype, batch, kind)]
            _sorted_ratios(axes[line, column], sorted(row.ratio for row in some))
            axes[line, column].set_title(f"{dtype} {kind}, batch {batch}", fontsize=9)
    figure.suptitle(f"time of cuDNN / ours, layers of networks, {compared[0].gpu}", fontsize=10)
    figure.savefig(file)
    pyplot.close(figure)


def _sorted_ratios(axes: Any, ratios: Sequence[float]) -> None:
    colours = [FASTER if ratio >= 1 else SLOWER for ratio in ratios]
    axes.bar(range(len(ratios)), [r - 1 for r in ratios], bottom=1.0, width=1.0, color=colours)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_yscale("log", base=2)
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(axis="y", linewidth=0.3)
    axes.set_xlabel("layers, slowest first", fontsize=8)
