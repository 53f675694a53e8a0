"""Segment the points of a street with a MinkUNet, a sparse residual U-Net built here.

    python examples/minkunet_segmentation.py [--points sweep.bin] [--full] [--amp]

By default it takes half a minute on two cores; ``--full`` uses smaller voxels and a larger
network, for a GPU.

The network is a small version of that of Choy, Gwak and Savarese (*4D Spatio-Temporal ConvNets:
Minkowski Convolutional Neural Networks*, 2019): a stem, stages that halve the grid, and as many
that return to the previous cells, each with the skip connection of these cells.

The labels are computed from geometry: from the height above the ground and the flatness of the
neighbourhood. The network sees neither, only the height and brightness of a voxel and the position
of its points; it must infer the labels from the surrounding voxels. The labels of every fourth
block of ground are held out. Each step rotates the cloud by another angle, so its voxels and
kernel maps are new.

The points come from ``--points``; otherwise from ``lidar_sweep.bin`` in the folder LAYOUTCONV_DATA
or in ``../shared/data``, if it exists; otherwise from a synthetic street. ``train_labelled.py``
trains this network on published data sets.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # 10 times as fast where others use the cores

import argparse
import math
import sys
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from support.command_line import positive_float, positive_int, program
from support.training import descend, fell
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.demo import choose_device
from layoutconv.drawing.birds_eye import Panel, birds_eye, save
from layoutconv.nn import Sequential, SparseConv3d, SparseInverseConv3d, SubmConv3d
from layoutconv.sparse import SparseTensor, Voxels
from layoutconv.sparse.coords.points import read_points
from layoutconv.sparse.coords.street import street

CLASSES = ("ground", "low", "wall", "pole or tree")
FULL = {"voxel_size": 0.2, "width": 16, "stages": 4, "steps": 60}


class Residual(nn.Module):
    """Two convolutions beside a way past them: (rows, C) to (rows, K) on the same cells."""

    def __init__(self, C: int, K: int) -> None:
        super().__init__()
        self.body = Sequential(
            SubmConv3d(C, K, 3, bias=False),
            nn.BatchNorm1d(K),
            nn.ReLU(),
            SubmConv3d(K, K, 3, bias=False),
            nn.BatchNorm1d(K),
        )
        self.past = Sequential()
        if C != K:
            self.past = Sequential(nn.Linear(C, K, bias=False), nn.BatchNorm1d(K))

    def forward(self, x: SparseTensor) -> SparseTensor:
        y = self.body(x) + self.past(x)
        return y.replace(y.features.relu())


class MinkUNet(nn.Module):
    """A class for every voxel: (rows, C) to (rows, classes).

    Args:
        C: channels of a voxel.
        classes: how many there are.
        width: channels after the stem; each stage down doubles them, up to eight times as many.
        stages: how often the grid is halved.
    """

    def __init__(self, C: int, classes: int, width: int = 16, stages: int = 4) -> None:
        super().__init__()
        widths = [width * min(2**stage, 8) for stage in range(stages + 1)]
        self.stem = Sequential(
            SubmConv3d(C, width, 3, bias=False), nn.BatchNorm1d(width), nn.ReLU()
        )
        self.down, self.up, self.join = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        for fine, coarse in pairwise(widths):
            self.down.append(
                Sequential(
                    # One cell of padding at the far end, so that odd grids lose no voxel.
                    SparseConv3d(fine, fine, 2, stride=2, padding=((0, 1),) * 3, bias=False),
                    nn.BatchNorm1d(fine),
                    nn.ReLU(),
                    Residual(fine, coarse),
                )
            )
            self.up.append(
                Sequential(
                    SparseInverseConv3d(coarse, fine, 2, bias=False),
                    nn.BatchNorm1d(fine),
                    nn.ReLU(),
                )
            )
            self.join.append(Residual(2 * fine, fine))
        self.head = nn.Linear(width, classes)

    def forward(self, x: SparseTensor) -> SparseTensor:
        x = self.stem(x)
        skips = []
        for down in self.down:
            skips.append(x)
            x = down(x)
        for up, join in zip(reversed(self.up), reversed(self.join), strict=True):
            x = join(lc.sparse.cat([up(x), skips.pop()]))
        return x.replace(self.head(x.features))


def labels(points: Tensor) -> Tensor:
    """The class of each point, int64 (points,), from geometry alone; points are (points, 3)."""
    points = points.double()
    # The ground is the lowest point of its 4 m x 4 m; what is less than 0.3 m above it is ground.
    flat = torch.cat([points[:, :2], 0 * points[:, :1], points[:, 2:]], dim=1)
    above = points[:, 2] - lc.devoxelize(lc.voxelize(flat, 4.0, reduce="min"))[:, 3]
    # Tall is what stands in a column of 0.8 m x 0.8 m that reaches 2 m.
    flat = torch.cat([flat[:, :3], above[:, None]], dim=1)
    tall = lc.devoxelize(lc.voxelize(flat, 0.8, reduce="max"))[:, 3] > 2.0
    values, normals = neighbourhoods(points)
    wall = (values[:, 0] < 0.1 * values[:, 1]) & (normals[:, 2].abs() < 0.3)
    kinds = torch.where(tall, torch.where(wall, 2, 3), 1)
    return torch.where(above < 0.3, 0, kinds)


def neighbourhoods(points: Tensor) -> tuple[Tensor, Tensor]:
    """Return the spread (points, 3) of each neighbourhood, smallest first, and its normal.

    The neighbours of a point are those in its voxel of 0.5 m and in the 26 around it. Sums over
    neighbours are a submanifold convolution whose filter is ones.
    """
    pairs = (points[:, :, None] * points[:, None, :]).flatten(1)
    columns = torch.cat([points, torch.ones_like(points[:, :1]), pairs], dim=1)
    sums = lc.voxelize(columns, 0.5, reduce="sum")
    ones = torch.ones(columns.shape[1], 3, 3, 3, 1, dtype=points.dtype, device=points.device)
    near = lc.subm_conv(sums, ones, groups=len(ones)).features
    mean = near[:, :3] / near[:, 3:4]
    pairs = (near[:, 4:] / near[:, 3:4]).view(-1, 3, 3)
    values, vectors = torch.linalg.eigh(pairs - mean[:, :, None] * mean[:, None, :])
    rows = sums.point_to_voxel
    return values[rows], vectors[rows, :, 0]


def held_out(points: Tensor) -> Tensor:
    """Mark points in one of every four blocks of ground, 8 m wide: bool (points,)."""
    x, y = (points[:, :2] / 8).floor().T
    return (x + 2 * y) % 4 == 0


def inputs(points: Tensor, voxel_size: float) -> Voxels:
    """Voxels of points (points, 4), and what the network sees of each, (rows, 5): how high it is,
    how bright, and where in it the points are."""
    voxels = lc.voxelize(points, voxel_size)
    inside = (voxels.features[:, :3] - voxels.centres().to(points.dtype)) / voxel_size
    return voxels.replace(torch.cat([voxels.features[:, 2:], inside], dim=1))


def turned(points: Tensor) -> Tensor:
    """The points, turned about z by any angle and mirrored or not."""
    angle, mirror = 2 * math.pi * torch.rand(()).item(), 1 - 2 * int(torch.rand(()) < 0.5)
    c, s = math.cos(angle), math.sin(angle)
    xy = points[:, :2] @ points.new_tensor([[c, s], [-s * mirror, c * mirror]])
    return torch.cat([xy, points[:, 2:]], dim=1)


def scores(net: nn.Module, points: Tensor, options: argparse.Namespace) -> Tensor:
    """From points to points: float32 (points, classes)."""
    x = inputs(points, options.voxel_size)
    with torch.autocast(points.device.type, torch.bfloat16, enabled=options.amp):
        y = net(x)
    return lc.devoxelize(x.replace(y.features.float()))


def train(
    net: nn.Module, points: Tensor, target: Tensor, hidden: Tensor, options: argparse.Namespace
) -> list[float]:
    """Train on the cross entropy of the points whose labels are not ``hidden``: its losses.

    A class counts by the root of how many points it has, lest the rare ones be forgotten.
    """
    counts = torch.bincount(target[~hidden], minlength=len(CLASSES))
    weight = counts.clamp(min=1).float().rsqrt()

    def loss(_: int) -> Tensor:
        predicted = scores(net, turned(points), options)[~hidden]
        return nn.functional.cross_entropy(predicted, target[~hidden], weight)

    return descend(net, loss, options.steps, 0.01)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and show what was learned; 0, or 1 where the loss did not fall, or 2."""
    try:
        return 0 if _main(_options(arguments)) else 1
    except ValueError as error:  # points or options that make no sense
        print(f"minkunet_segmentation: error: {error}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace) -> bool:
    device, executor = choose_device(options.device)
    torch.manual_seed(0)
    name, cloud = _cloud(options.points)
    points = torch.from_numpy(cloud[:, :4])
    target, hidden = labels(points[:, :3]), held_out(points)
    shares = torch.bincount(target, minlength=len(CLASSES)) / len(target)
    print(f"MinkUNet on {name}: {len(points):,} points")
    told = ", ".join(f"{kind} {share:.0%}" for kind, share in zip(CLASSES, shares, strict=True))
    print(f"  labels    {told}; computed from geometry, {hidden.float().mean():.0%} held out")

    points, target, hidden = points.to(device), target.to(device), hidden.to(device)
    x = inputs(points, options.voxel_size)
    net = MinkUNet(x.features.shape[1], len(CLASSES), options.width, options.stages).to(device)
    numbers = sum(parameter.numel() for parameter in net.parameters())
    print(f"  voxels    {len(x):,} of {options.voxel_size:g} m")
    print(f"  network   {numbers:,} parameters, width {options.width}, {options.stages} stages")
    print(f"  executor  {executor}{', bfloat16 where autocast says so' if options.amp else ''}")

    start = time.perf_counter()
    losses = train(net, points, target, hidden, options)
    print(f"  training  {options.steps} steps in {time.perf_counter() - start:.1f} s")
    falls = fell(losses)

    with torch.no_grad():
        predicted = scores(net.eval(), points, options).argmax(1)
    right = (predicted == target).float()
    print(f"  accuracy  {right[~hidden].mean():.1%} of labels that it saw")
    if hidden.any():
        print(f"            {right[hidden].mean():.1%} of those held out, ", end="")
        print(f"where always saying {CLASSES[int(shares.argmax())]!r} gives ", end="")
        print(f"{(target[hidden] == shares.argmax()).float().mean():.1%}")

    places = cloud[:, :3].astype("float64")
    panels = [
        Panel(title, places, kinds.cpu().numpy())
        for title, kinds in (("Labels, from geometry", target), ("Prediction", predicted))
    ]
    caption = f"{options.steps} training steps, {right.mean():.1%} of the points are right"
    figure = birds_eye(panels, f"A MinkUNet on {name}", caption, options.voxel_size, CLASSES)
    save(figure, options.output)
    print(f"  picture   {options.output}")
    return falls


def _cloud(path: Path | None) -> tuple[str, Any]:
    """The name of a cloud, and its points: float32 (points, 4 or more)."""
    if path is None:
        beside = Path(__file__).resolve().parents[2] / "shared" / "data"
        path = Path(os.environ.get("LAYOUTCONV_DATA", beside)) / "lidar_sweep.bin"
        if not path.is_file():
            return "a synthetic street", street(0, beams=48, azimuths=480)
    # A .bin file does not say how many columns it has.
    points = read_points(path, columns=4 if path.suffix == ".bin" else None)
    if points.shape[1] < 4:
        points = np.column_stack([points, np.zeros(len(points), points.dtype)])  # no intensity
    return path.name, points


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(
        __file__, __doc__, "--steps 40 --width 16", device="auto", picture="minkunet.png"
    )
    add = parser.add_argument
    told = "x, y, z, intensity; columns of a point cloud"
    add("--points", type=Path, metavar="FILE", help=told)
    told = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in FULL.items())
    add("--full", action="store_true", help=f"{told}: minutes on a CPU")
    told = "edge of a voxel, metres"
    add("--voxel-size", type=positive_float, default=0.4, metavar="M", help=told)
    add("--width", type=positive_int, default=8, metavar="C", help="channels of the finest stage")
    add("--stages", type=positive_int, default=3, metavar="N", help="how often the grid is halved")
    add("--steps", type=positive_int, default=20, metavar="N", help="of training")
    add("--amp", action="store_true", help="multiply in bfloat16, under torch.autocast")
    if parser.parse_args(arguments).full:
        parser.set_defaults(**FULL)  # of what is not given
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
