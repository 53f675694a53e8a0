"""A submanifold layer over clouds of 10^4 to 10^8 voxels, streamed from the host: is it linear?

    python benchmarks/bench_stream.py [--most 1e8] [--max-rows N] [--json FILE] [--plot FILE]

Clouds are a synthetic surface, a voxel per column of a grid, in raster order. Cells, features and
the result are on the host, in memory that is not pinned. A row has the time from cells in that
order to features of all of them: ``Chunks``, which sorts keys along the curve if there are several
chunks, then ``lc.nn.stream``, 3x3x3, C channels to C in fp16 (fp32 on a CPU). Time divided by
pairs, the products of rows that exist, is what has to stay the same; rows are compared from 10^6
voxels on, as a launch shows in smaller ones.

The smallest cloud is compared with the layer on the whole of it in float64. The exit status is 1 if
that is wrong, or if on a GPU time is not linear in pairs within 20%, or takes 60 GB.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from benchmark_options import program
from timing import wait_for
from torch import Tensor

import layoutconv as lc
from layoutconv.sparse import Chunks, SparseTensor

LEAST, LINEAR = 10_000, 1_000_000  # voxels: of the first row, and of the first that is compared
WITHIN, MEMORY = 0.2, 60e9  # of the figures that are wanted
TOLERANCE = {torch.float16: 1e-3, torch.float32: 1e-5}
HEIGHT = 256
PIECE = 1 << 22


@dataclass(frozen=True)
class Measured:
    """Time and memory of one cloud, in seconds and bytes."""

    voxels: int
    pairs: int
    chunks: int
    sort: float
    stream: float
    memory: int = 0  # of the device, at most; 0 for a CPU
    error: float = 0.0

    @property
    def nanoseconds(self) -> float:
        """Time for a pair."""
        return 1e9 * (self.sort + self.stream) / max(1, self.pairs)


def surface(
    voxels: int, device: torch.device, piece: int = PIECE
) -> tuple[Tensor, tuple[int, int, int]]:
    """Cells (voxels, 4) of a hilly surface over a square, on the host, and the grid's extents.

    The device makes ``piece`` of them at a time.
    """
    side = math.isqrt(voxels - 1) + 1
    cells = torch.empty(voxels, 4, dtype=torch.int32)
    for first in range(0, voxels, piece):
        at = torch.arange(first, min(first + piece, voxels), device=device)
        y, x = at // side, at % side
        hills = torch.sin(y * 0.01) * torch.cos(x * 0.013) + 0.3 * torch.sin((x + y) * 0.037)
        z = (80 * (hills + 1.5)).long()
        cells[first : first + len(at)] = torch.stack([torch.zeros_like(z), z, y, x], 1).int()
    return cells, (HEIGHT, side, side)


def noise(rows: int, channels: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Features on the host, made on the device."""
    made = torch.empty(rows, channels, dtype=dtype)
    for part in made.split(PIECE):
        part.copy_(torch.randn(part.shape, dtype=dtype, device=device))
    return made


def measure(
    voxels: int, layer: lc.nn.SubmConv3d, features: Tensor, out: Tensor, max_rows: int
) -> Measured:
    device = layer.weight.device
    cells, shape = surface(voxels, device)
    x, y = features[:voxels], out[:voxels]

    def run() -> tuple[Chunks, float, float]:
        begin = time.perf_counter()
        chunks = Chunks(cells, shape, 1, max_rows=max_rows, device=device)
        wait_for(device)
        sorted_at = time.perf_counter()
        lc.nn.stream(layer, x, chunks, out=y)
        return chunks, sorted_at - begin, time.perf_counter() - sorted_at

    runs = 3 if voxels <= 10 * LINEAR else 1  # the first of a size may compile
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    chunks, sort, stream = min((run() for _ in range(runs)), key=lambda found: sum(found[1:]))
    memory = torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0
    pairs = sum(int((chunk.kernel_map.index >= 0).sum()) for chunk in chunks.maps(3))
    error = 0.0
    if voxels == LEAST:
        whole = SparseTensor(x.double(), cells, shape, 1)
        want = copy.deepcopy(layer).double().cpu()(whole).features.detach()
        error = float((y.double() - want).norm() / want.norm())
    count = -(-voxels // max_rows)
    return Measured(voxels, pairs, count, sort, stream, memory, error)


def verdicts(rows: Sequence[Measured], dtype: torch.dtype) -> list[str]:
    """Return a sentence for each wrong result and each missed figure."""
    found = [f"error {row.error:.1e}" for row in rows if row.error > TOLERANCE[dtype]]
    if any(row.memory for row in rows):
        long = [row.nanoseconds for row in rows if row.voxels >= LINEAR]
        if long and max(long) > (1 + WITHIN) * min(long):
            spread = max(long) / min(long)
            found.append(f"ns per pair differ {spread:.2f}x from {LINEAR:.0e} voxels on")
        most = max(row.memory for row in rows)
        if most >= MEMORY:
            found.append(f"{most / 1e9:.1f} GB of the device, {MEMORY / 1e9:.0f} wanted")
    return found


def report(row: Measured) -> str:
    """A line of the table."""
    text = f"{row.voxels:11,} voxels {row.pairs:13,} pairs {row.chunks:4} chunks"
    text += f"  sort {row.sort:8.3f} s  stream {row.stream:8.3f} s  {row.nanoseconds:8.2f} ns/pair"
    return text + (f"  {row.memory / 1e9:6.2f} GB" if row.memory else "")


def plot(rows: Sequence[Measured], title: str, file: Path) -> None:
    """Seconds against pairs, and the line through the last row."""
    from matplotlib import pyplot

    pairs = [row.pairs for row in rows]
    taken = [row.sort + row.stream for row in rows]
    figure, axes = pyplot.subplots(figsize=(6, 4), layout="constrained")
    axes.loglog(pairs, taken, "o-", label="sort and stream")
    axes.loglog(pairs, [row.sort for row in rows], "o:", label="sort")
    each = taken[-1] / pairs[-1]
    axes.loglog(pairs, [each * p for p in pairs], "--", label=f"{1e9 * each:.2f} ns a pair")
    axes.set_xlabel("pairs of voxels")
    axes.set_ylabel("seconds")
    axes.set_title(title, fontsize=9, wrap=True)
    axes.grid(linewidth=0.3)
    axes.legend()
    figure.savefig(file)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.device == "cuda" and not torch.cuda.is_available():
        print("it measures a GPU, and there is none; --device cpu tries it out", file=sys.stderr)
        return 2
    device = torch.device(options.device)
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    name = torch.cuda.get_device_name() if device.type == "cuda" else "a CPU"
    C, most = options.channels, int(options.most)
    title = f"{name}, torch {torch.__version__}, {C} channels of {dtype}, chunks of "
    title += f"{options.max_rows:,} rows"
    print(title, flush=True)
    torch.manual_seed(0)
    layer = lc.nn.SubmConv3d(C, C, 3, device=device, dtype=dtype)
    begin = time.perf_counter()
    features, out = noise(most, C, dtype, device), torch.zeros(most, C, dtype=dtype)
    print(f"features of {most:,} voxels in {time.perf_counter() - begin:.1f} s", flush=True)
    rows = []
    voxels = LEAST
    while voxels <= most:
        rows.append(measure(voxels, layer, features, out, options.max_rows))
        print(report(rows[-1]), flush=True)
        voxels *= 10
    wrong = verdicts(rows, dtype)
    for line in wrong:
        print(f"  MISSED: {line}")
    if options.json:
        found = [asdict(row) | {"ns_per_pair": row.nanoseconds} for row in rows]
        content = {"machine": name, "max_rows": options.max_rows, "rows": found}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot and rows:
        plot(rows, title, options.plot)
    return int(bool(wrong))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__doc__, "json")
    add = parser.add_argument
    add("--device", choices=("cuda", "cpu"), default="cuda", help="where maps and sums are made")
    add("--most", type=float, default=1e8, metavar="VOXELS", help="of the largest cloud")
    add("--channels", type=int, default=32, metavar="C", help="in and out")
    add("--max-rows", type=int, default=1 << 23, metavar="N", help="of a chunk")
    add("--plot", type=Path, metavar="FILE", help="write time against pairs there")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
