"""One point cloud on several GPUs: each GPU holds a range of a Morton curve; layers exchange halos.

    torchrun --nproc-per-node 2 examples/split_cloud.py [--voxel-size 0.2] [--channels 16]

Runs on GPUs with NCCL, on a CPU with gloo, and without torchrun as one process. Each rank passes
some rows of a synthetic street, in random order, and gets a range of voxels that are near each
other. Two submanifold layers run forward and backward. The results return to the ranks that passed
the rows, and are compared with those of one process with the whole cloud.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from split_volume import error
from support.clock import best_seconds
from support.command_line import positive_float, positive_int, program
from support.processes import end, start
from torch import nn

import layoutconv as lc
from layoutconv.distributed.border import border_of
from layoutconv.distributed.cloud import cloud_of
from layoutconv.distributed.route import carry
from layoutconv.sparse import SparseTensor
from layoutconv.sparse.coords.street import street

TOLERANCE = 2e-3  # of the largest number; fp32 may be tf32


def network(layer: type[nn.Module], channels: int, device: torch.device) -> nn.Sequential:
    """The same weights on every rank, and for layers of a whole cloud and of a split one."""
    torch.manual_seed(0)
    layers = layer(3, channels, 3, activation="relu"), layer(channels, channels, 3)
    return lc.nn.Sequential(*layers).to(device)


def results(net: nn.Module, x: SparseTensor, back: Callable[[SparseTensor], torch.Tensor]) -> dict:
    """Features of the rows that were given, and gradients of the sum of all ranks' squares."""
    y = back(net(x))
    y.backward(y.detach())
    return {"y": y.detach(), **{f"d{name}": p.grad for name, p in net.named_parameters()}}


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a number is not that of the whole cloud."""
    options = _options(arguments)
    device = start(options.device)
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if dist.is_initialized() else (0, 1)
    voxels = lc.voxelize(torch.from_numpy(street(seed=0)).to(device), options.voxel_size)
    inside = (voxels.features[:, :3] - voxels.centres().float()) / options.voxel_size
    whole = SparseTensor(inside, voxels.coords, voxels.spatial_shape, 1)
    given = torch.arange(len(whole), device=device)[rank::ranks]
    mine = SparseTensor(whole.features[given], whole.coords[given], whole.spatial_shape, 1)
    x = lc.distributed.partition(mine)
    border = border_of(cloud_of(x))
    counts = torch.tensor([len(x), len(border.halo.inputs), len(border.rows)], device=device)
    every = [torch.empty_like(counts) for _ in range(ranks)] if ranks > 1 else [counts]
    if ranks > 1:
        dist.all_gather(every, counts)
    split, alone = (network(of.SubmConv3d, options.channels, device)
                    for of in (lc.distributed, lc.nn))  # fmt: skip
    got = results(split, x, lc.distributed.restore)
    want = results(alone, whole, lambda y: y.features)
    want["y"] = want["y"][given]
    worst = max(error(got[name], want[name]) for name in got)
    first = rank == 0
    if first:
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        print(f"{len(whole):,} voxels over {ranks} x {kind}, {options.channels} channels")
        for part, (rows, halo, edge) in enumerate(torch.stack(every).tolist()):
            print(f"  rank {part}    {rows:,} voxels, {halo:,} more of others, read by {edge:,}")
        print(f"  check     y and gradients differ by {worst:.1e} of the largest, ", end="")
        print("ok" if worst <= TOLERANCE else "FAILED")
    with torch.no_grad():
        layer = split[1]
        weight, bias = layer.parameters()
        y = split[0](x)
        here = SparseTensor(y.features, border.inside.inputs)
        taken = [
            best_seconds(call, device)
            for call in (
                lambda: layer(y),
                lambda: carry(y.features, border.route),
                lambda: lc.subm_conv(here, weight, bias, kernel_map=border.inside),
            )
        ]
    if first:
        both, exchange, inner = (1e3 * time for time in taken)
        print(f"  layer     {both:.2f} ms; the range by itself {inner:.2f} ms")
        print(f"  exchange  {exchange:.2f} ms by itself")
    end()
    return 0 if worst <= TOLERANCE else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(
        __file__, __doc__, "--channels 32", run="torchrun --nproc-per-node 2", device="auto"
    )
    add = parser.add_argument
    add("--voxel-size", type=positive_float, default=0.2, metavar="METRES", help="edge of a voxel")
    add("--channels", type=positive_int, default=16, metavar="C", help="between the layers and out")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
