"""Data-parallel training of a sparse network: the result equals that of one GPU with all clouds.

    torchrun --nproc-per-node 2 examples/train_data_parallel.py [--clouds 6] [--steps 8]

Runs on GPUs with NCCL, on a CPU with gloo, and without torchrun as one process. It needs only
torch's own tools: ``DistributedDataParallel`` averages gradients, and ``SyncBatchNorm`` sums
statistics over the voxels of all ranks (on GPUs only; on a CPU the network normalises each voxel
by itself). Clouds differ in size, and ranks in their number of clouds, so a mean per rank would be
wrong: ``lc.distributed.mean_over_ranks`` gives every voxel the same weight.

At the end, the first rank trains again, alone, on all clouds, and compares the parameters.
"""

from __future__ import annotations

import argparse
import copy
import sys
from collections.abc import Callable, Sequence
from functools import partial

import torch
import torch.distributed as dist
from support.command_line import positive_int, program
from support.processes import end, start
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import layoutconv as lc
from layoutconv.distributed import mean_over_ranks
from layoutconv.nn import Sequential, SparseConv3d, SparseInverseConv3d, SubmConv3d
from layoutconv.sparse import SparseTensor
from layoutconv.sparse.coords.street import street

TOLERANCE = 1e-2  # of how far training has moved the parameters
# One grid for all clouds: without it the grid begins where a batch does, and which voxels a strided
# convolution joins would depend on the clouds that share a batch.
RANGE = (-64.0, -64.0, -4.0, 64.0, 64.0, 16.0)


class UNet(nn.Module):
    """U-Net of two stages for the height above ground of voxels: (rows, 1) to (rows, 1)."""

    def __init__(self, width: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        self.stem = Sequential(SubmConv3d(1, width, 3, bias=False), norm(width), nn.ReLU())
        self.down = Sequential(
            SparseConv3d(width, 2 * width, 2, stride=2, padding=((0, 1),) * 3, bias=False),
            norm(2 * width),
            nn.ReLU(),
            SubmConv3d(2 * width, 2 * width, 3, bias=False),
            norm(2 * width),
            nn.ReLU(),
        )
        self.up = Sequential(SparseInverseConv3d(2 * width, width, 2), nn.ReLU())
        self.head = nn.Linear(2 * width, 1)

    def forward(self, x: SparseTensor) -> SparseTensor:
        fine = self.stem(x)
        y = lc.sparse.cat([self.up(self.down(fine)), fine])
        return y.replace(self.head(y.features))


def losses(net: nn.Module, clouds: Sequence[Tensor]) -> Tensor:
    """A loss per voxel of a batch: what the network sees is how bright it is."""
    x = lc.voxelize(list(clouds), 0.4, RANGE)
    height, bright = x.features[:, 2:3] / 10, x.features[:, 3:4]
    return (net(x.replace(bright)).features - height).square()[:, 0]


def train(
    net: nn.Module,
    clouds: Sequence[Tensor],
    steps: int,
    mean: Callable[[Tensor], Tensor],
) -> list[Tensor]:
    """Gradient descent with momentum on one batch: the loss of every step."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    found = []
    for _ in range(steps):
        loss = mean(losses(net, clouds))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.detach())
    return found


def distance(some: nn.Module, others: nn.Module) -> float:
    pairs = zip(some.parameters(), others.parameters(), strict=True)
    return float(sum((a.detach() - b.detach()).square().sum() for a, b in pairs)) ** 0.5


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where the parameters are not those of one process or the loss did not fall."""
    options = _options(arguments)
    device = start(options.device)
    good = _trained_alike(options, device)
    end()
    return 0 if good else 1


def _trained_alike(options: argparse.Namespace, device: torch.device) -> bool:
    torch.backends.cudnn.allow_tf32 = False  # what is compared is training, not rounding
    together = dist.is_initialized()
    rank, ranks = (dist.get_rank(), dist.get_world_size()) if together else (0, 1)
    torch.manual_seed(0)
    norm = nn.BatchNorm1d if device.type == "cuda" else nn.LayerNorm
    net = UNet(options.width, norm).to(device)
    initial, alone = copy.deepcopy(net), copy.deepcopy(net)

    # Clouds of any size, and not as many on every rank.
    sweeps = [street(seed, 16, 160 + 40 * (seed % 3)) for seed in range(options.clouds)]
    clouds = [torch.from_numpy(points).to(device) for points in sweeps]
    mine = clouds[rank::ranks] or [clouds[0][:0]]  # who has none takes part with an empty one
    model: nn.Module = net
    if together:
        if device.type == "cuda":
            net = nn.SyncBatchNorm.convert_sync_batchnorm(net)
        model = DistributedDataParallel(net)
    told = torch.stack(train(model, mine, options.steps, mean_over_ranks))
    if together:
        dist.all_reduce(told)
    told = told / ranks

    good = True
    if rank == 0:
        print(f"{options.clouds} clouds over {ranks} ranks on {device.type}, {norm.__name__}")
        print(f"  loss      {told[0]:.4f} to {told[-1]:.4f} in {options.steps} steps")
        want = torch.stack(train(alone, clouds, options.steps, partial(torch.mean)))
        moved, off = distance(alone, initial), distance(net, alone)
        good = off <= TOLERANCE * moved and bool(told[-1] < told[0])
        print(f"  alone     {want[0]:.4f} to {want[-1]:.4f}")
        print(f"  check     parameters differ by {off / moved:.1e} of how far they moved, ", end="")
        print("ok" if good else "FAILED")
    return good


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, run="torchrun --nproc-per-node 2", device="auto")
    add = parser.add_argument
    add("--clouds", type=positive_int, default=5, metavar="N", help="of all ranks together")
    add("--steps", type=positive_int, default=6, metavar="N", help="of training")
    add("--width", type=positive_int, default=8, metavar="C", help="channels of the finest stage")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
