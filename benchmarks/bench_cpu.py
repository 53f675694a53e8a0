"""The CPU executor beside torch: dense convolutions, and kernel maps against a gather per tap.

    python benchmarks/bench_cpu.py [--repeat 10] [--json FILE]

Times are the best of interleaved runs; a ratio below 1 means that ours is faster.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn.functional import conv3d

import layoutconv as lc
from layoutconv.sparse import Coordinates, submanifold_map

DENSE = [  # N, extent of the cube, C = K, stride
    (2, 16, 32, 1),
    (2, 32, 32, 1),
    (1, 16, 64, 1),
    (2, 24, 64, 1),
    (1, 16, 128, 1),
    (1, 8, 256, 1),
    (2, 32, 64, 2),
]
CLOUDS = [(50_000, 32), (50_000, 64), (50_000, 128)]  # voxels, C = K


def best_of(repeat: int, *calls: Callable[[], Any]) -> list[float]:
    """Milliseconds of each call, the calls taking turns so that a disturbance meets all."""
    best = [float("inf")] * len(calls)
    for _ in range(repeat + 1):
        for i, call in enumerate(calls):
            start = time.perf_counter()
            call()
            best[i] = min(best[i], (time.perf_counter() - start) * 1e3)
    return best


def dense(repeat: int, N: int, extent: int, C: int, stride: int) -> dict[str, Any]:
    problem = lc.conv.ConvProblem((N, *[extent] * 3, C), (C, 3, 3, 3), stride, 1)
    view = lc.conv.fprop_view(problem)
    x, w = torch.randn(problem.activation), torch.randn(C, 3, 3, 3, C)
    # The same memory: torch's shape, channels last.
    theirs = (x.movedim(-1, 1), w.movedim(-1, 1))
    ours, peer = best_of(
        repeat,
        lambda: lc.execute(view, x, w),
        lambda: conv3d(*theirs, stride=stride, padding=1),
    )
    name = f"dense N{N} {extent}^3 C=K={C} stride {stride}"
    return {"name": name, "peer": "conv3d", "ours_ms": ours, "peer_ms": peer}


def surface(voxels: int) -> torch.Tensor:
    """Coordinates of a bumpy ground, about as dense as a lidar sweep's."""
    side = int((2 * voxels) ** 0.5)
    y, x = torch.meshgrid(torch.arange(side), torch.arange(side), indexing="ij")
    z = (8 + 6 * torch.sin(x / 9.0) * torch.cos(y / 7.0)).int() % 16
    cells = torch.stack([torch.zeros_like(x), z, y, x], -1).view(-1, 4).int()
    return cells[torch.randperm(len(cells))[:voxels].sort().values]


def kernel_map(repeat: int, voxels: int, C: int) -> dict[str, Any]:
    coords = surface(voxels)
    shape = tuple(int(e) + 1 for e in coords[:, 1:].amax(0))
    neighbours = submanifold_map(Coordinates(coords, shape, 1)).index
    view = lc.sparse.kernel_map_view(neighbours, C, C)
    x, w = torch.randn(voxels, C), torch.randn(C, 3, 3, 3, C)
    taps = w.view(C, 27, C).permute(1, 2, 0).contiguous()

    def gather_multiply_scatter() -> torch.Tensor:
        y = torch.zeros(voxels, C)
        for tap in range(27):
            rows = (neighbours[:, tap] >= 0).nonzero().squeeze(1)
            y.index_add_(0, rows, x[neighbours[rows, tap]] @ taps[tap])
        return y

    ours, peer = best_of(repeat, lambda: lc.execute(view, x, w), gather_multiply_scatter)
    share = float((neighbours >= 0).float().mean()) * 27
    name = f"kernel map {voxels} voxels, {share:.1f} of 27 taps, C=K={C}"
    return {"name": name, "peer": "gather, index_add", "ours_ms": ours, "peer_ms": peer}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--repeat", type=int, default=10)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    rows = []
    for measure, cases in ((dense, DENSE), (kernel_map, CLOUDS)):
        for case in cases:
            row = measure(args.repeat, *case)
            row["ratio"] = row["ours_ms"] / row["peer_ms"]
            rows.append(row)
            print(
                f"{row['name']:50} ours {row['ours_ms']:8.1f} ms   {row['peer']}"
                f" {row['peer_ms']:8.1f} ms   ratio {row['ratio']:.2f}"
            )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
