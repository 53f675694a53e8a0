"""The mean IoU of a MinkUNet in 8 bits beside fp16, on streets that it was not trained on.

    python benchmarks/check_quantized.py [--seeds 3] [--clouds 64] [--steps 60] [--device cpu]

``examples/minkunet_segmentation.py`` is trained on a synthetic street, once for each seed, and
quantised to int8 and to fp8, calibrated with that street turned a few times. Then it is tested on
other streets. Without a GPU the rays are fewer, and so are the steps. The exit status is 1 if a
mean IoU in 8 bits is more than half a point below that of fp16.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from benchmark_options import program
from torch import Tensor

import layoutconv as lc
from layoutconv.sparse.coords.street import street

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "examples"))
import minkunet_segmentation as example

NARROW = {"int8": torch.int8, "fp8": torch.float8_e4m3fn}
LIMIT = 0.5  # points of mean IoU
CALIBRATION = 8  # batches


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, quantise and test; 0, or 1 where 8 bits cost too much."""
    options = _options(arguments)
    worst = 0.0
    for seed in range(options.seeds):
        torch.manual_seed(seed)
        net = trained(seed, options)
        tests = [cloud(1000 + i, options) for i in range(options.clouds)]
        half = lc.nn.fold_batch_norms(net).half()
        batches = list(calibration(seed, options))
        before = predictions(half, tests, options)
        iou = mean_iou(before, tests)
        told = [f"fp16 {iou:.2f}%"]
        for name, dtype in NARROW.items():
            small, report = lc.nn.quantize(half, batches, dtype=dtype, return_report=True)
            if options.report:
                print(report)
            after = predictions(small, tests, options)
            worst = max(worst, iou - mean_iou(after, tests))
            same = (torch.cat(before) == torch.cat(after)).double().mean()
            told.append(f"{name} {mean_iou(after, tests):.2f}% ({same:.2%} of points as in fp16)")
        print(f"seed {seed}: mean IoU {', '.join(told)}", flush=True)
    print(f"8 bits cost {worst:.2f} points at most; {LIMIT} are allowed")
    return 1 if worst > LIMIT else 0


def trained(seed: int, options: argparse.Namespace) -> torch.nn.Module:
    """The example's network after its training on one street."""
    points, target = cloud(seed, options)
    net = example.MinkUNet(5, len(example.CLASSES), options.width, options.stages)
    net.to(options.device)
    example.train(net, points, target, torch.zeros_like(target, dtype=torch.bool), options)
    return net.eval()


def cloud(seed: int, options: argparse.Namespace) -> tuple[Tensor, Tensor]:
    """The points of a street and their classes."""
    rays = {"beams": options.beams, "azimuths": 10 * options.beams}
    points = torch.from_numpy(street(seed, **rays)[:, :4])
    return points.to(options.device), example.labels(points[:, :3]).to(options.device)


def calibration(seed: int, options: argparse.Namespace) -> Iterator[Any]:
    """Batches of the street that was learned, turned by other angles."""
    points, _ = cloud(seed, options)
    for _ in range(CALIBRATION):
        x = example.inputs(example.turned(points), options.voxel_size)
        yield x.replace(x.features.half())


@torch.no_grad()
def predictions(net: Any, tests: list[tuple[Tensor, Tensor]], options: Any) -> list[Tensor]:
    """The class of each point of each cloud, by a network of float16."""
    found = []
    for points, _ in tests:
        x = example.inputs(points, options.voxel_size)
        y = net(x.replace(x.features.half()))
        found.append(lc.devoxelize(x.replace(y.features.float())).argmax(1))
    return found


def mean_iou(predicted: list[Tensor], tests: list[tuple[Tensor, Tensor]]) -> float:
    """Percent, of all points of all clouds, over the classes that there are."""
    classes = len(example.CLASSES)
    target = torch.cat([labels for _, labels in tests])
    pairs = (classes * target + torch.cat(predicted)).cpu()
    confusion = torch.bincount(pairs, minlength=classes**2).view(classes, classes)
    right = confusion.diagonal()
    union = confusion.sum(0) + confusion.sum(1) - right
    there = union > 0
    return float(100 * (right[there] / union[there]).mean())


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__doc__)
    add = parser.add_argument
    on_gpu = torch.cuda.is_available()
    add("--seeds", type=int, default=3, help="networks that are trained")
    add("--clouds", type=int, default=64, help="streets that they are tested on")
    add("--steps", type=int, default=200 if on_gpu else 60, help="of training")
    add("--beams", type=int, default=48 if on_gpu else 24, help="of the lidar, a tenth of its rays")
    add("--width", type=int, default=16 if on_gpu else 8, help="channels of the finest stage")
    add("--stages", type=int, default=3, help="how often the grid is halved")
    add("--voxel-size", type=float, default=0.4, help="metres")
    add("--device", default="cuda" if on_gpu else "cpu")
    add("--report", action="store_true", help="print what was quantised, and the error of layers")
    parser.set_defaults(amp=False)
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
