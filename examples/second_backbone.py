"""Find cars with a SECOND-style backbone: voxels in, a bird's-eye-view map out.

    python examples/second_backbone.py [--steps 30] [--width 16] [--device cuda] [--amp]

The backbone is a small version of that of Yan, Mao and Li (*SECOND: Sparsely Embedded
Convolutional Detection*, 2018). Submanifold convolutions keep the voxels, strided ones halve the
grid; the remaining height becomes channels of a dense map of the ground. A head of dense
convolutions predicts for each cell of the map how near it is to the centre of a car, as in Zhou,
Wang and Kraehenbuehl (*Objects as Points*, 2019). Sparse and dense layers use the same kernel
template.

It trains on synthetic streets, whose cars are known, and is tested on another one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence

import numpy as np
import torch
from support.command_line import positive_int, program
from support.training import descend, fell
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.base.progress import Progress
from layoutconv.demo import choose_device
from layoutconv.drawing.birds_eye import Panel, birds_eye, save
from layoutconv.nn import Conv2d, Sequential, SparseConv3d, SubmConv3d
from layoutconv.sparse import SparseTensor, Voxels
from layoutconv.sparse.coords.street import street_and_cars

VOXEL = 0.2  # metres
RANGE = (-38.4, -25.6, -3.2, 38.4, 25.6, 1.6)  # x0, y0, z0, x1, y1, z1: 24 x 256 x 384 voxels
CELL = 4 * VOXEL  # of the map: the grid is halved twice
SPREAD = 1.2  # metres: how a target falls off around the middle of a car
SEEN = 20  # points that a car must have, or nobody could tell


def subm(C: int, K: int) -> list[nn.Module]:
    """A submanifold convolution, batch norm, ReLU: the cells stay."""
    return [SubmConv3d(C, K, 3, bias=False), nn.BatchNorm1d(K), nn.ReLU()]


def halve(C: int, K: int) -> list[nn.Module]:
    """A convolution of stride 2, batch norm, ReLU: every cell that some voxel reaches."""
    down = SparseConv3d(C, K, 3, stride=2, padding=1, bias=False)
    return [down, nn.BatchNorm1d(K), nn.ReLU()]


def flatten(C: int, K: int) -> list[nn.Module]:
    """The same along z alone."""
    down = SparseConv3d(C, K, (3, 1, 1), stride=(2, 1, 1), padding=(1, 0, 0), bias=False)
    return [down, nn.BatchNorm1d(K), nn.ReLU()]


def dense(C: int, K: int) -> list[nn.Module]:
    """A dense convolution over the ground, batch norm, ReLU."""
    return [Conv2d(C, K, 3, padding=1, bias=False), nn.BatchNorm2d(K), nn.ReLU()]


class Second(nn.Module):
    """A score for every cell of the ground: voxels (rows, C) to (N, 1, H / 4, W / 4).

    Args:
        C: channels of a voxel.
        depth: cells D of the grid.
        width: channels of the first stage; the next ones have twice and four times as many.
    """

    def __init__(self, C: int, depth: int, width: int = 16) -> None:
        super().__init__()
        a, b, c = width, 2 * width, 4 * width
        self.encoder = Sequential(
            *subm(C, a),
            *subm(a, a),
            *halve(a, b),
            *subm(b, b),
            *halve(b, c),
            *subm(c, c),
            *flatten(c, c),
        )
        floors = -(-depth // 8)
        self.head = nn.Sequential(*dense(floors * c, c), *dense(c, c), Conv2d(c, 1, 1))

    def forward(self, x: SparseTensor) -> Tensor:
        return self.head(self.seen_from_above(self.encoder(x))) - 2.0  # most cells are no car's

    @staticmethod
    def seen_from_above(x: SparseTensor) -> Tensor:
        """(N, D * C, H, W), the channels of a cell beside each other in memory."""
        return x.dense().permute(0, 2, 3, 1, 4).flatten(3).permute(0, 3, 1, 2)


def inputs(clouds: Sequence[np.ndarray]) -> Voxels:
    """A batch: what the network sees of each voxel, (rows, 5), is how high it is, how bright, and
    where in it the points are."""
    voxels = lc.voxelize(list(clouds), VOXEL, RANGE)
    inside = (voxels.features[:, :3] - voxels.centres().to(voxels.dtype)) / VOXEL
    return voxels.replace(torch.cat([voxels.features[:, 2:], inside], dim=1))


def seen(cloud: np.ndarray, cars: np.ndarray) -> np.ndarray:
    """The middles (cars, 2) of those cars in range that have enough points."""
    along = cloud[:, None, :2] - cars[:, :2]
    c, s = np.cos(cars[:, 4]), np.sin(cars[:, 4])
    u, v = along[..., 0] * c + along[..., 1] * s, along[..., 1] * c - along[..., 0] * s
    within = (np.abs(u) < cars[:, 2] / 2 + 0.1) & (np.abs(v) < cars[:, 3] / 2 + 0.1)
    inside = (np.abs(cars[:, :2]) < RANGE[3:5]).all(axis=1)  # the range is about the lidar
    return cars[(within.sum(axis=0) >= SEEN) & inside, :2]


def cells() -> Tensor:
    """The middles of the cells of the map, (H, W, 2) as x, y."""
    x, y = (torch.arange(RANGE[a] + CELL / 2, RANGE[a + 3], CELL) for a in (0, 1))
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)


def heat(middles: np.ndarray) -> Tensor:
    """The target (1, H, W): 1 in the cell of a car's middle, falling off around it."""
    ground = cells()
    if not len(middles):
        return torch.zeros(1, *ground.shape[:2])
    away = torch.cdist(ground.flatten(0, 1), torch.as_tensor(middles, dtype=ground.dtype))
    target = (-((away / SPREAD) ** 2) / 2).exp()
    target[away.argmin(dim=0), range(len(middles))] = 1.0
    return target.amax(dim=1).view(1, *ground.shape[:2])


def focal_loss(score: Tensor, target: Tensor) -> Tensor:
    """Focal loss of *Objects as Points*: a miss counts by its error, less beside a centre."""
    log_yes, log_no = nn.functional.logsigmoid(score), nn.functional.logsigmoid(-score)
    yes, middle = score.sigmoid(), target == 1
    losses = torch.where(middle, (1 - yes) ** 2 * log_yes, (1 - target) ** 4 * yes**2 * log_no)
    return -losses.sum() / middle.sum().clamp(min=1)


def train(
    net: nn.Module, batches: Sequence[tuple[SparseTensor, Tensor]], steps: int, amp: bool
) -> list[float]:
    """Train on one batch after another: its losses. Kernel maps of a batch are made once."""

    def loss(step: int) -> Tensor:
        x, target = batches[step % len(batches)]
        with torch.autocast(x.device.type, torch.bfloat16, enabled=amp):
            score = net(x)
        return focal_loss(score.float(), target)

    return descend(net, loss, steps, 0.005)


def peaks(likely: Tensor) -> Tensor:
    """The places (peaks, 2) where a map (1, H, W) is highest within 2 m, and above 0.3."""
    highest = likely == nn.functional.max_pool2d(likely, 5, stride=1, padding=2)
    return cells()[(highest & (likely > 0.3))[0].cpu()]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, and show what was learned; 0, or 1 where the loss did not fall, or 2."""
    try:
        return 0 if _main(_options(arguments)) else 1
    except ValueError as error:  # options that make no sense
        print(f"second_backbone: error: {error}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace) -> bool:
    device, executor = choose_device(options.device)
    torch.manual_seed(0)
    with Progress().step("Making streets"):
        trained = [_scene([2 * n + 1, 2 * n + 2]) for n in range(options.batches)]
        batches = [(x.to(device), target.to(device)) for x, target, _ in trained]
        x, target, middles = _scene([0])
    net = Second(x.features.shape[1], x.spatial_shape[0], options.width).to(device)
    print(f"A SECOND-style backbone on {2 * options.batches} synthetic streets, in batches of 2")
    D, H, W = x.spatial_shape
    rows = ", ".join(f"{len(batch):,}" for batch, _ in batches)
    print(f"  voxels    {rows} of {VOXEL:g} m, in grids of {D} x {H} x {W} (D x H x W)")
    numbers = sum(parameter.numel() for parameter in net.parameters())
    print(f"  network   {numbers:,} parameters, width {options.width}")
    print(f"  executor  {executor}{', bfloat16 where autocast says so' if options.amp else ''}")

    start = time.perf_counter()
    losses = train(net, batches, options.steps, options.amp)
    print(f"  training  {options.steps} steps in {time.perf_counter() - start:.1f} s")
    falls = fell(losses)

    with torch.no_grad(), torch.autocast(device.type, torch.bfloat16, enabled=options.amp):
        likely = net.eval()(x.to(device)).float().sigmoid()[0].cpu()
    away = torch.cdist(peaks(likely).double(), torch.as_tensor(middles))
    near = away < 2.0
    found, false = int(near.any(0).sum()), int((~near.any(1)).sum())
    told = f"{found} of {len(middles)} cars found within 2 m, {false} false ones"
    print(f"  a new street: {told}")

    places = np.dstack([cells().double().numpy(), np.zeros(target[0, 0].shape)]).reshape(-1, 3)
    panels = [  # one quantity, one scale
        Panel(title, places, _values(values), label, "plasma", limits=(0, 1))
        for title, values, label in (
            ("Target: centres of the cars", target[0], "1 at the centre of a car"),
            ("Prediction", likely, "probability of a centre"),
        )
    ]
    title = "A SECOND-style backbone on a street that it has not seen"
    caption = f"{options.steps} training steps, {told}"
    save(birds_eye(panels, title, caption, CELL), options.output)
    print(f"  picture   {options.output}")
    return falls


def _scene(seeds: Sequence[int]) -> tuple[Voxels, Tensor, np.ndarray]:
    """A batch of streets: voxels, targets (N, 1, H, W), and the cars' middles in the last one."""
    made = [street_and_cars(seed, beams=48, azimuths=480) for seed in seeds]
    middles = [seen(*one) for one in made]
    return inputs([cloud for cloud, _ in made]), torch.stack(list(map(heat, middles))), middles[-1]


def _values(likely: Tensor) -> np.ndarray:
    return likely.double().flatten().numpy()


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(
        __file__, __doc__, "--steps 60 --width 16", device="auto", picture="second.png"
    )
    add = parser.add_argument
    add("--width", type=positive_int, default=8, metavar="C", help="channels of the first stage")
    add("--batches", type=positive_int, default=5, metavar="N", help="pairs of streets")
    add("--steps", type=positive_int, default=30, metavar="N", help="of training")
    add("--amp", action="store_true", help="multiply in bfloat16, under torch.autocast")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
