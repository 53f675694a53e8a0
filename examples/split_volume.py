"""One dense volume on several GPUs: each GPU holds a slab, and the result equals an unsplit one.

    torchrun --nproc-per-node 2 examples/split_volume.py [--size 256] [--channels 32]

Runs on GPUs with NCCL, on a CPU with gloo, and without torchrun as one process. Every rank makes
the same volume, keeps its slab, and runs a convolution forward and backward. The results are
compared with the unsplit convolution, which needs memory for the whole volume; ``--no-check``
skips that.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist
from support.clock import best_seconds
from support.command_line import positive_int, program
from support.processes import end, start
from torch import Tensor

import layoutconv as lc
from layoutconv.distributed import Slab

TOLERANCE = {torch.float16: 4e-3, torch.float32: 2e-3}  # of the largest number; fp32 may be tf32
BY_ITSELF = ("exchange", "slab alone", "split")


def convolve(function: Callable[..., Tensor], x: Tensor, w: Tensor, **split: Slab) -> list[Tensor]:
    """A convolution, and its gradients for a loss that is the sum of all squares."""
    x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
    y = function(x, w, padding=1, **split)
    y.backward(y.detach())
    assert x.grad is not None
    assert w.grad is not None
    return [y.detach(), x.grad, w.grad]


def error(got: Tensor, want: Tensor) -> float:
    return float((got.float() - want.float()).abs().max() / want.float().abs().max())


def times(x: Tensor, w: Tensor, slab: Slab) -> dict[str, float]:
    """Seconds of the slowest rank: of the exchange alone, of a slab alone, and of both at once."""
    calls: list[Callable[[], object]] = [
        lambda: lc.distributed.exchange_halo(x, 3, padding=1, slab=slab),
        lambda: lc.conv3d(x, w, padding=1),
        lambda: lc.distributed.conv3d(x, w, padding=1, slab=slab),
    ]
    with torch.no_grad():
        found = torch.tensor([best_seconds(call, x.device) for call in calls], device=x.device)
    if dist.is_initialized():
        dist.all_reduce(found, dist.ReduceOp.MAX)
    return dict(zip(BY_ITSELF, found.tolist(), strict=True))


def main(arguments: Sequence[str] | None = None) -> int:
    """0, or 1 where a number is not that of the unsplit convolution."""
    options = _options(arguments)
    device = start(options.device)
    slab = Slab(options.size)
    first = slab.rank == 0
    dtype = torch.float16 if device.type == "cuda" else torch.float32
    torch.manual_seed(0)
    shape = (1, options.channels, *[options.size] * 3)
    whole = torch.randn(shape, device=device, dtype=dtype)
    whole = whole.contiguous(memory_format=torch.channels_last_3d)
    w = torch.randn(options.channels, options.channels, 3, 3, 3, device=device, dtype=dtype)
    w = w / (27 * options.channels) ** 0.5
    x = slab.shard(whole).clone(memory_format=torch.channels_last_3d)
    if first:
        kind = torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"
        print(f"{options.size}^3 x {options.channels} {dtype} over {slab.size} x {kind}")
        print(f"  slabs     {slab.bounds}")
    worst = 0.0
    if not options.no_check:
        y, dx, dw = convolve(lc.distributed.conv3d, x, w, slab=slab)
        parts = slab.gather(y), slab.gather(dx), dw
        for name, got, want in zip(
            ["y", "dx", "dw"], parts, convolve(lc.conv3d, whole, w), strict=True
        ):
            off = error(got, want)
            worst = max(worst, off)
            if first:
                print(f"  check     {name:2} differs by {off:.1e} of the largest, ", end="")
                print("ok" if off <= TOLERANCE[dtype] else "FAILED")
    del whole
    found = times(x, w, slab)
    if first:
        exchange, alone, split = (found[name] for name in BY_ITSELF)
        print(f"  forward   {1e3 * split:.2f} ms; the slab by itself {1e3 * alone:.2f} ms")
        print(f"  exchange  {1e3 * exchange:.2f} ms by itself, {exchange / split:.1%} of the pass")
        print(f"            {max(0.0, split - alone) / split:.1%} of it is not hidden")
    end()
    return 0 if worst <= TOLERANCE[dtype] else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, run="torchrun --nproc-per-node 2", device="auto")
    add = parser.add_argument
    add("--size", type=positive_int, default=32, metavar="CELLS", help="edge of the volume")
    add("--channels", type=positive_int, default=16, metavar="C", help="in and out")
    add("--no-check", action="store_true", help="do not compute the unsplit convolution")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
