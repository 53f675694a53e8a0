"""The CPU executor beside torch: dense convolutions, and kernel maps against a gather per tap.

    python benchmarks/bench_cpu.py [--repeat 10] [--rows dense,maps,cloud] [--threads N]
        [--cloud FILE] [--json FILE]

Rows of a cloud are those of the passes of a submanifold convolution over a real sweep, or, without
a file, over the synthetic street; the peer multiplies tap by tap, whose lists of rows it has from
before, or, in rows "of the map", makes from the kernel map at every call. Times are the best of
interleaved runs; the ratio is the peer's time over ours, above 1 where ours is faster.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from benchmark_options import positive_int, program
from torch import Tensor
from torch.nn.functional import conv3d

import layoutconv as lc
from layoutconv.gpu.map_passes import MapConv
from layoutconv.ops.chunk_sums import sum_chunks
from layoutconv.ops.sparse_operators import conv_view, pair_products_view, tables
from layoutconv.sparse import Coordinates, submanifold_map
from layoutconv.sparse.coords.street import street

Pairs = list[tuple[Tensor, Tensor]]  # of every tap: rows of the output, and of the input

ROWS = ("dense", "maps", "cloud")

DENSE = [  # N, extent of the cube, C = K, stride
    (2, 16, 32, 1), (2, 32, 32, 1), (1, 16, 64, 1), (2, 24, 64, 1),
    (1, 16, 128, 1), (1, 8, 256, 1), (2, 32, 64, 2),
]  # fmt: skip
CLOUDS = [(50_000, 32), (50_000, 64), (50_000, 128)]  # voxels, C = K
CHANNELS = (16, 32, 64, 128)


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


class Peer(torch.autograd.Function):
    """A sparse convolution as a gather, a product and ``index_add_`` for each tap."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, pairs: Pairs) -> Tensor:  # type: ignore[override]
        ctx.save_for_backward(x, w)
        ctx.pairs = pairs
        return Peer.fprop(x, w, pairs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:  # type: ignore[override]
        x, w = ctx.saved_tensors
        return Peer.dgrad(g, w, ctx.pairs), Peer.wgrad(g, x, ctx.pairs), None

    @staticmethod
    def fprop(x: Tensor, w: Tensor, pairs: Pairs) -> Tensor:
        y = x.new_zeros(len(x), w.shape[2])
        for (outputs, inputs), tap in zip(pairs, w, strict=True):
            y.index_add_(0, outputs, x.index_select(0, inputs) @ tap)
        return y

    @staticmethod
    def dgrad(g: Tensor, w: Tensor, pairs: Pairs) -> Tensor:
        x = g.new_zeros(len(g), w.shape[1])
        for (outputs, inputs), tap in zip(pairs, w, strict=True):
            x.index_add_(0, inputs, g.index_select(0, outputs) @ tap.T)
        return x

    @staticmethod
    def wgrad(g: Tensor, x: Tensor, pairs: Pairs) -> Tensor:
        return torch.stack([x.index_select(0, i).T @ g.index_select(0, o) for o, i in pairs])


def pairs_of(index: Tensor) -> Pairs:
    outputs = [(index[:, tap] >= 0).nonzero().squeeze(1) for tap in range(index.shape[1])]
    return [(o, index[o, tap].long()) for tap, o in enumerate(outputs)]


def cloud(repeat: int, points: Any, C: int) -> Iterator[dict[str, Any]]:
    """The passes of a 3x3x3 submanifold convolution, C = K, fp32, by views and as a whole."""
    voxels = lc.sparse.voxelize(points, voxel_size=0.1)
    found = submanifold_map(voxels.coordinates)
    index, rows = found.index, len(found.index)
    pairs = pairs_of(index)
    x, g, w = torch.randn(rows, C), torch.randn(rows, C), torch.randn(C, 3, 3, 3, C)
    theirs = w.view(C, 27, C).permute(1, 2, 0).contiguous()  # tap by tap (C, K)

    maps = tables(found, (C, C), gradients=True)
    fprop = conv_view(maps, rows, rows, MapConv(tuple(w.shape)))
    dgrad = conv_view(maps, rows, rows, MapConv(tuple(w.shape), 1, True, True))
    wgrad, lengths = pair_products_view(maps, rows, rows, C, C)
    kind = torch.float32
    calls: dict[str, tuple[Callable[[], Tensor], Callable[[], Tensor]]] = {
        "fprop": (lambda: lc.execute(fprop, x, w), lambda: Peer.fprop(x, theirs, pairs)),
        "dgrad": (lambda: lc.execute(dgrad, g, w), lambda: Peer.dgrad(g, theirs, pairs)),
        "wgrad": (
            lambda: sum_chunks(lc.execute(wgrad, g, x), lengths, (3, 3, 3), kind),
            lambda: Peer.wgrad(g, x, pairs).permute(2, 0, 1).reshape(w.shape),
        ),
    }
    leaves = [t.clone().requires_grad_() for t in (x, w, theirs)]
    sweep = lc.SparseTensor(leaves[0], voxels.coordinates)

    def ours_both() -> Tensor:
        y = lc.subm_conv(sweep, leaves[1]).features
        return torch.autograd.grad(y, leaves[:2], g)[0]

    def theirs_both(pairs: Pairs) -> Tensor:
        y = Peer.apply(leaves[0], leaves[2], pairs)
        return torch.autograd.grad(y, leaves[::2], g)[0]

    still = lc.SparseTensor(x, voxels.coordinates)

    def ours() -> Tensor:
        return lc.subm_conv(still, w).features

    calls |= {
        "forward": (ours, lambda: Peer.fprop(x, theirs, pairs)),
        "forward and backward": (ours_both, lambda: theirs_both(pairs)),
        "forward of the map": (ours, lambda: Peer.fprop(x, theirs, pairs_of(index))),
        "forward and backward of the map": (ours_both, lambda: theirs_both(pairs_of(index))),
    }
    share = float((index >= 0).sum()) / rows
    for name, (call, peer) in calls.items():
        torch.testing.assert_close(call(), peer(), rtol=1e-3, atol=1e-3 * C)
        best = best_of(repeat, call, peer)
        text = f"cloud {rows} voxels, {share:.1f} of 27 taps, C=K={C} {name}"
        yield {"name": text, "peer": "gather, index_add", "ours_ms": best[0], "peer_ms": best[1]}


def points_of(path: Path | None) -> Any:
    if path is None:
        return street(seed=0)
    return lc.sparse.read_points(path, columns=4 if path.suffix == ".bin" else None)


def measured(args: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The rows that are asked for, one by one."""
    if "dense" in args.rows:
        yield from (dense(args.repeat, *case) for case in DENSE)
    if "maps" in args.rows:
        yield from (kernel_map(args.repeat, *case) for case in CLOUDS)
    if "cloud" in args.rows:
        points = points_of(args.cloud)
        for C in CHANNELS:
            yield from cloud(args.repeat, points, C)


def main() -> None:
    parser = program(__doc__, "json")
    parser.add_argument("--repeat", type=positive_int, default=10)
    parser.add_argument("--rows", type=lambda text: text.split(","), default=list(ROWS))
    parser.add_argument("--threads", type=positive_int, default=torch.get_num_threads())
    parser.add_argument("--cloud", type=Path, help="points in a file, such as lidar_sweep.bin")
    args = parser.parse_args()
    if not set(args.rows) <= set(ROWS):
        parser.error(f"--rows: expected some of {','.join(ROWS)}")
    torch.manual_seed(0)
    torch.set_num_threads(args.threads)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    rows = []
    for row in measured(args):
        row["ratio"] = row["peer_ms"] / row["ours_ms"]
        rows.append(row)
        print(
            f"{row['name']:78} ours {row['ours_ms']:8.2f} ms   {row['peer']}"
            f" {row['peer_ms']:8.2f} ms   ratio {row['ratio']:.2f}",
            flush=True,
        )
    if args.json:
        args.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
