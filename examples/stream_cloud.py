"""A cloud larger than GPU memory: run a submanifold layer over it in chunks, from file to file.

    python examples/stream_cloud.py [--edge 300] [--max-rows 20000] [--channels 16]

The cells and features of a hilly surface, edge^2 voxels, are written to files strip by strip. The
layer reads them and writes a third file. All three are ``np.memmap``s, so neither the host nor the
device ever holds the whole cloud. An edge of 10,000 makes 10^8 voxels, which take 15 GB of disk
with 32 channels. The script checks part of the result against the layer on that part and its
surroundings.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from support.command_line import positive_int, program

import layoutconv as lc
from layoutconv.base.devices import choose_device
from layoutconv.sparse import Chunks, SparseTensor

TOLERANCE = {torch.float16: 4e-3, torch.float32: 2e-3}  # of the largest number; fp32 may be tf32
HEIGHT, STRIP = 200, 64


def make(folder: Path, edge: int, channels: int, kind: type) -> tuple[np.memmap, np.memmap]:
    """Cells (edge^2, 4) and features (edge^2, channels), in files."""
    rows = edge * edge
    cells = np.memmap(folder / "cells", np.int32, "w+", shape=(rows, 4))
    features = np.memmap(folder / "features", kind, "w+", shape=(rows, channels))
    random = np.random.default_rng(0)
    for top in range(0, edge, STRIP):
        y, x = np.mgrid[top : min(top + STRIP, edge), :edge]
        z = 60 * (np.sin(y * 0.011) * np.cos(x * 0.017) + 0.3 * np.sin((x + y) * 0.05) + 1.4)
        strip = slice(top * edge, top * edge + z.size)
        for column, values in enumerate((0, z.ravel(), y.ravel(), x.ravel())):
            cells[strip, column] = values
        features[strip] = random.standard_normal((z.size, channels), np.float32)
    return cells, features


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where the result is not that of the layer on the cloud."""
    options = _options(arguments)
    on_gpu = options.device == "cuda" or (options.device == "auto" and torch.cuda.is_available())
    device = torch.device("cuda" if on_gpu else "cpu")
    if on_gpu:
        choose_device("cuda")  # says why there is none
    kind, dtype = (np.float16, torch.float16) if on_gpu else (np.float32, torch.float32)
    torch.manual_seed(0)
    C = options.channels
    layer = lc.nn.SubmConv3d(C, C, 3, activation="relu", device=device, dtype=dtype)
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        cells, features = make(folder, options.edge, C, kind)
        rows, shape = len(cells), (HEIGHT, options.edge, options.edge)
        out = np.memmap(folder / "out", kind, "w+", shape=features.shape)
        begin = time.perf_counter()
        chunks = Chunks(cells, shape, 1, max_rows=options.max_rows, device=device)
        sorted_at = time.perf_counter()
        lc.nn.stream(layer, features, chunks, out=out)
        end = time.perf_counter()
        print(f"{rows:,} voxels x {C} {dtype} on {device.type}, {options.max_rows:,} at a time")
        print(f"  sort      {sorted_at - begin:.2f} s")
        print(f"  stream    {end - sorted_at:.2f} s")
        if on_gpu:
            print(f"  memory    {torch.cuda.max_memory_allocated() / 1e9:.2f} GB at most")
        # Strips in the middle: the first and the last of them lack neighbours, the rest do not.
        half = options.edge // 2
        middle = slice(options.edge * (half - 2), options.edge * (half + 3))
        near, at = (torch.from_numpy(a[middle].copy()).to(device) for a in (features, cells))
        x = SparseTensor(near, at, shape, 1)
        inner = slice(options.edge, -options.edge)
        with torch.no_grad():
            want = layer(x).features[inner].float().cpu()
        got = torch.from_numpy(out[middle][inner].copy()).float()
    off = float((got - want).abs().max() / want.abs().max())
    right = off <= TOLERANCE[dtype]
    print(f"  check     {len(want):,} rows differ by {off:.1e} of the largest, ", end="")
    print("ok" if right else "FAILED")
    return 0 if right else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, "--edge 1000", device="auto")
    add = parser.add_argument
    add("--edge", type=positive_int, default=300, metavar="CELLS", help="edge of the surface")
    add("--max-rows", type=positive_int, default=20_000, metavar="N", help="of a chunk")
    add("--channels", type=positive_int, default=16, metavar="C", help="in and out")
    add("--folder", type=Path, metavar="PATH", help="where the files are made for a while")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
