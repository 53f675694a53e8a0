"""The demo: convolve a point cloud by the sparse and the dense view; check, time, draw."""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TextIO

import numpy as np
import torch
from torch import Tensor

from .base.devices import choose_device
from .base.progress import Progress
from .conv import ConvProblem, fprop_view
from .ops.execute import execute
from .reference import Reference, dense_reference, sparse_reference
from .sparse.coords.coordinates import Coordinates
from .sparse.coords.grid_index import dense_index
from .sparse.coords.points import read_points
from .sparse.coords.street import street
from .sparse.coords.voxels import Voxels, voxelize
from .sparse.maps.kernel_map import submanifold_map
from .sparse.views import kernel_map_view
from .stencils import lift, stencil_weight

_CROP = (32, 64, 64)  # (D, H, W) of the dense grid: 150,000 cells with its rim, 1 s on a CPU
_BIN_COLUMNS = 4  # x, y, z, intensity
_REPEATS, _PATIENCE = 10, 0.5  # a timing stops after so many runs or seconds


@dataclass(frozen=True)
class DemoOptions:
    """Options of ``python -m layoutconv demo``; the command line describes each."""

    points: Path | None = None
    voxel_size: float = 0.2
    columns: int | None = None
    channels: int = 32
    dtype: str = "float32"
    device: str = "auto"
    seed: int = 0
    output: Path = Path("layoutconv-demo.png")


def run(options: DemoOptions, stream: TextIO | None = None) -> bool:
    """Run the demo and report on ``stream`` (standard output); return whether all checks passed.

    Raises ``ValueError`` for invalid points or options.
    """

    report, progress = _Report(stream or sys.stdout), Progress()
    device, executor = choose_device(options.device)
    dtype = getattr(torch, options.dtype)

    with progress.step("Reading points"):
        name, points = _points(options)
        cloud = torch.from_numpy(points).to(device)
    report.title(f"layoutconv: a submanifold convolution of {name}")
    report.line("points", f"{len(points):,} x {points.shape[1]} float32{_assumed(options)}")

    with progress.step("Building voxels and the index buffer"):
        voxels = voxelize(cloud, options.voxel_size)
        fresh = partial(Coordinates, voxels.coords, voxels.spatial_shape, 1, valid=True)
        kernel_map, map_time = _timed(lambda: submanifold_map(fresh()).index)
        features = lift(voxels, options.channels).to(dtype)
        weight = stencil_weight(options.channels).to(device=device, dtype=dtype)
    D, H, W = voxels.spatial_shape
    neighbours = int((kernel_map >= 0).sum()) / len(voxels)
    report.line(
        "voxels",
        f"{len(voxels):,} of {options.voxel_size:g} m, {len(voxels) / (D * H * W):.2%} of a "
        f"{D} x {H} x {W} grid (D x H x W)",
    )
    report.line(
        "index buffer",
        f"{len(kernel_map):,} rows x {kernel_map.shape[1]} taps, {neighbours:.2f} neighbours per "
        f"voxel (itself included), built in {map_time}",
    )
    report.line("executor", f"{executor}, {options.dtype}")

    task = _Task(voxels, features, weight, kernel_map, report, progress)
    response = task.sparse()
    task.dense()
    task.compare()
    with progress.step("Painting the picture"):
        _draw(options, name, len(points), voxels, response)
    report.line("picture", str(options.output))
    return report.passed


@dataclass
class _Task:
    """The two convolutions of one cloud, and their checks."""

    voxels: Voxels
    features: Tensor
    weight: Tensor
    kernel_map: Tensor
    report: _Report
    progress: Progress
    results: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def sparse(self) -> Tensor:
        """Convolve all voxels, gathered through the kernel map: (rows, K)."""

        view = kernel_map_view(self.kernel_map, self.features.shape[1], len(self.weight))
        with self.progress.step("Convolving voxels"):
            y, taken = _timed(lambda: execute(view, self.features, self.weight))
        self.report.line("sparse view", f"{_shape(self.features)} -> {_shape(y)} in {taken}")
        self.report.line("", f"A: {view.a}")
        with self.progress.step("Sparse reference in float64") as step:
            reference = sparse_reference(self.features, self.weight, self.kernel_map, step.tick)
        bound = self._check("sparse view, reference", y, reference)
        self.results["sparse"] = y.double(), bound
        return y

    def dense(self) -> None:
        """Convolve the fullest part of the grid, dense with a rim of one cell: (1, D, H, W, K)."""

        low, high = _fullest_box(self.voxels)
        rim = [c - 1 for c in low], [c + 1 for c in high]
        index = dense_index(self.voxels.coordinates, box=rim)
        # Row -1, the last, is the empty cell's.
        rows = torch.cat([self.features, torch.zeros_like(self.features[:1])])
        grid = rows[index.long()]
        problem = ConvProblem(grid.shape, self.weight.shape[:-1], padding=1)
        view = fprop_view(problem)
        with self.progress.step("Convolving the dense grid"):
            y, taken = _timed(lambda: execute(view, grid, self.weight))
        self.report.line("dense view", f"{_shape(grid)} -> {_shape(y)} in {taken}")
        self.report.line("", f"A: {view.a}")
        with self.progress.step("Dense reference in float64") as step:
            reference = dense_reference(grid, self.weight, step.tick)
        bound = self._check("dense view, reference", y, reference)

        # Rim cells miss neighbours outside the crop: only cells inside the rim are comparable.
        inside = (slice(None), *[slice(1, -1)] * 3)
        occupied = index[inside] >= 0
        self.results["dense"] = y[inside][occupied].double(), bound[inside][occupied]
        sparse, sparse_bound = self.results["sparse"]
        kept = index[inside][occupied].long()
        self.results["sparse"] = sparse[kept], sparse_bound[kept]

    def compare(self) -> None:
        """Check one view against the other, on the voxels inside the rim."""
        (a, a_bound), (b, b_bound) = self.results["sparse"], self.results["dense"]
        name = f"sparse, dense on {len(a):,} voxels"
        self.report.check(name, (a - b).abs(), a_bound + b_bound)

    def _check(self, name: str, y: Tensor, reference: Reference) -> Tensor:
        bound = reference.bound(y.dtype, tensor_cores=y.is_cuda)
        self.report.check(name, (y.double() - reference.value).abs(), bound)
        return bound


@dataclass
class _Report:
    """Prints labelled lines, and notes whether all checks so far passed."""

    stream: TextIO
    passed: bool = True

    def title(self, text: str) -> None:
        print(text, file=self.stream)

    def line(self, label: str, text: str) -> None:
        print(f"  {label:<13}{text}", file=self.stream, flush=True)

    def check(self, name: str, error: Tensor, bound: Tensor) -> None:
        """Report the largest error, and the largest share of its rounding bound."""
        # "not <=" rather than ">": NaN errors fail too.
        passed = not bool((~(error <= bound)).any())
        self.passed &= passed
        largest = float(error.max()) if error.numel() else 0.0
        used = float((error / bound).max()) if error.numel() else 0.0
        verdict = "ok" if passed else "FAILED"
        self.line(
            "check", f"{name}: max error {largest:.2e}, {used:.1%} of the tolerance, {verdict}"
        )


@dataclass(frozen=True)
class _Time:
    """Seconds of the first run, and of each later run."""

    first: float
    more: Sequence[float]

    def __str__(self) -> str:
        if not self.more:
            return _seconds(self.first)
        return f"{_seconds(statistics.median(self.more))} (first run {_seconds(self.first)})"


def _timed(work: Callable[[], Tensor]) -> tuple[Tensor, _Time]:
    """Return the result of ``work`` and its times: of one run, and of more within ``_PATIENCE``."""

    def once() -> tuple[Tensor, float]:
        start = time.perf_counter()
        result = work()
        if result.is_cuda:
            torch.cuda.synchronize()
        return result, time.perf_counter() - start

    result, first = once()
    more: list[float] = []
    while len(more) < _REPEATS and first + sum(more) < _PATIENCE:
        more.append(once()[1])
    return result, _Time(first, more)


def _seconds(value: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value / 1e-6:.3g} us"


def _shape(tensor: Tensor) -> str:
    return f"({', '.join(f'{extent:,}' for extent in tensor.shape)})"


def _points(options: DemoOptions) -> tuple[str, np.ndarray]:
    if options.points is None:
        return f"a synthetic street (seed {options.seed})", street(options.seed)

    columns = _BIN_COLUMNS if _assumed(options) else options.columns
    return os.path.basename(options.points), read_points(options.points, columns)


def _assumed(options: DemoOptions) -> str:
    """Return a note on the number of columns, if neither the file nor the caller gives it."""
    path = options.points
    if path is None or path.suffix.lower() != ".bin" or options.columns is not None:
        return ""
    return ", 4 columns assumed (--columns)"


def _fullest_box(voxels: Voxels) -> tuple[list[int], list[int]]:
    """Return the first cell, and the end, of the crop-sized block of the grid with most voxels."""

    block = voxels.coords.new_tensor(_CROP)
    blocks, counts = torch.unique(voxels.coords[:, 1:] // block, dim=0, return_counts=True)
    low = (blocks[counts.argmax()] * block).tolist()
    return low, [
        min(a + size, extent)
        for a, size, extent in zip(low, _CROP, voxels.spatial_shape, strict=True)
    ]


def _draw(options: DemoOptions, name: str, count: int, voxels: Voxels, response: Tensor) -> None:
    from .drawing.birds_eye import Panel, birds_eye, save

    centres = voxels.centres().cpu().numpy()
    norm = response.double().norm(dim=1).cpu().numpy()
    over = f"norm over {response.shape[1]} channels"
    figure = birds_eye(
        [
            Panel("Input: height of the voxels", centres, centres[:, 2], "height, m"),
            Panel("Output: edges and upright surfaces", centres, norm, over, "plasma"),
        ],
        title=f"Submanifold convolution of {name}",
        caption=f"{count:,} points → {len(voxels):,} voxels of {options.voxel_size:g} m, "
        f"3×3×3 taps, {options.channels} → {options.channels} channels, {options.dtype}",
        cell=options.voxel_size,
    )
    save(figure, options.output)
