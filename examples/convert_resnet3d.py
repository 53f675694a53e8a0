"""Convert a 3-D ResNet for video that was written for torch: same results, weights and gradients.

    python examples/convert_resnet3d.py [--width 32] [--frames 8] [--device cuda]

The network has the layers and names of torchvision's `r3d_18` (Tran et al., *A closer look at
spatiotemporal convolutions for action recognition*, 2018), so it loads its checkpoints. `convert`
replaces torch's convolutions by this package's; the modules and their parameters remain the same
objects. `fold_batch_norms` then folds each norm and ReLU into its convolution.
"""

from __future__ import annotations

import argparse
import copy
from collections.abc import Sequence
from functools import partial

import torch
from support.clock import best_seconds
from support.command_line import positive_int, program
from torch import Tensor, nn

import layoutconv as lc
from layoutconv.demo import choose_device
from layoutconv.drawing import Figure, draw
from layoutconv.drawing.one_scale import on_one_scale

BOUND = {"cpu": 1e-5, "cuda": 5e-3}  # on relative errors; a GPU multiplies fp32 as tf32


def conv(C: int, K: int, stride: int = 1) -> nn.Conv3d:
    return nn.Conv3d(C, K, 3, stride, padding=1, bias=False)


class BasicBlock(nn.Module):
    """Two 3x3x3 convolutions beside a shortcut."""

    def __init__(self, C: int, K: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Sequential(conv(C, K, stride), nn.BatchNorm3d(K), nn.ReLU(inplace=True))
        self.conv2 = nn.Sequential(conv(K, K), nn.BatchNorm3d(K))
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or C != K:
            shortcut = nn.Conv3d(C, K, 1, stride, bias=False)
            self.downsample = nn.Sequential(shortcut, nn.BatchNorm3d(K))

    def forward(self, x: Tensor) -> Tensor:
        past = x if self.downsample is None else self.downsample(x)
        return self.relu(self.conv2(self.conv1(x)) + past)


class VideoResNet(nn.Module):
    """Clips (N, 3, frames, H, W) to scores (N, classes); ``width`` 64 is `r3d_18`."""

    def __init__(self, width: int = 64, classes: int = 400) -> None:
        super().__init__()
        first = nn.Conv3d(3, width, (3, 7, 7), (1, 2, 2), (1, 3, 3), bias=False)
        self.stem = nn.Sequential(first, nn.BatchNorm3d(width), nn.ReLU(inplace=True))
        C = width
        for number, K in enumerate((width, 2 * width, 4 * width, 8 * width), 1):
            stride = 1 if number == 1 else 2
            setattr(
                self, f"layer{number}", nn.Sequential(BasicBlock(C, K, stride), BasicBlock(K, K, 1))
            )
            C = K
        self.avgpool = nn.AdaptiveAvgPool3d(1)
        self.fc = nn.Linear(C, classes)

    def features(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for number in range(1, 5):
            x = getattr(self, f"layer{number}")(x)
        return x

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.avgpool(self.features(x)).flatten(1))


def clip(frames: int, size: int) -> Tensor:
    """A bright square that moves to the right, (1, 3, frames, size, size)."""
    x = torch.zeros(1, 3, frames, size, size)
    side = size // 4
    for t in range(frames):
        left = t * (size - side) // max(1, frames - 1)
        x[..., t, size // 3 : size // 3 + side, left : left + side] = 1
    return x


def trained(net: VideoResNet) -> None:
    """Weights of about one, and norms that have seen something: as if from a checkpoint."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for module in net.modules():
            if isinstance(module, nn.BatchNorm3d):
                mean, var = module.running_mean, module.running_var
                assert mean is not None
                assert var is not None
                mean.copy_(0.1 * torch.randn(mean.shape, generator=generator))
                var.copy_(0.5 + torch.rand(var.shape, generator=generator))


def relative(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected.double()).norm() / expected.double().norm())


def picture() -> Figure:
    """Draw the first convolution's answer to a moving square, one row of cells by frame.

    Rows are frames, columns the cells of a line through the square; a filter that subtracts the
    frame before sees motion: the front edge is positive, the trace negative.
    """
    frames, size = 6, 16
    x = clip(frames, size)[:, :1]
    weight = torch.zeros(1, 1, 3, 1, 1)
    weight[0, 0, :2, 0, 0] = torch.tensor([-1.0, 1.0])  # this frame less the one before
    layer = lc.nn.convert(nn.Conv3d(1, 1, (3, 1, 1), padding=(1, 0, 0), bias=False))
    with torch.no_grad():
        layer.weight.copy_(weight)
        motion = layer(x)[0, 0, :, size // 2].round().int().tolist()
    before = x[0, 0, :, size // 2].int().tolist()
    layout = lc.Layout((frames, size), (size, 1))
    grids = []
    for title, values in (("input", before), ("output of a converted layer", motion)):
        flat = [value for line in values for value in line]
        ((grid, *_), *_) = draw(lc.Tensor(flat, layout)).grids
        assert grid is not None
        grids.append(type(grid)(title, grid.rows, grid.columns, grid.cells))
    title = "A moving square, and the first layer's response: this frame less the one before"
    figure = Figure(title, ((grids[0],), (grids[1],)))
    return on_one_scale(figure, "value of a cell; rows are frames, columns x")


def main(arguments: Sequence[str] | None = None) -> int:
    """Convert, fold, compare; 0, or 1 where something differs by more than rounding."""
    options = _options(arguments)
    device, executor = choose_device(options.device)
    torch.manual_seed(0)
    net = VideoResNet(options.width).to(device).eval()
    trained(net)
    x = clip(options.frames, options.size).to(device)
    numbers = sum(parameter.numel() for parameter in net.parameters())
    print(f"A 3-D ResNet of {numbers:,} parameters on {executor}")

    ours = lc.nn.convert(copy.deepcopy(net))
    kinds = [type(module).__module__ for module in ours.modules() if isinstance(module, nn.Conv3d)]
    converted = sum(kind.startswith("layoutconv") for kind in kinds)
    print(f"  converted    {converted} of {len(kinds)} convolutions")
    same_names = ours.state_dict().keys() == net.state_dict().keys()
    ours.load_state_dict(net.state_dict())
    print(f"  state dict   the same names, and it loads: {_verdict(same_names)}")
    passed = same_names and converted == len(kinds)

    with torch.no_grad():
        expected, y = net(x), ours(x)
    passed &= _tell("scores", relative(y, expected), device)
    net.zero_grad()
    for one in (net, ours):  # in evaluation mode: norms do not change between the two
        one(x).square().sum().backward()
    worst = max(
        relative(p.grad, q.grad)
        for p, q in zip(ours.parameters(), net.parameters(), strict=True)
        if p.grad is not None and q.grad is not None
    )
    passed &= _tell("gradients", worst, device)

    folded = lc.nn.fold_batch_norms(copy.deepcopy(ours).requires_grad_(False))
    left = sum(isinstance(module, nn.BatchNorm3d) for module in folded.modules())
    print(f"  folded       {left} batch norms are left of 20")
    with torch.no_grad():
        passed &= _tell("folded", relative(folded(x), expected), device)
        nets = {"torch": net, "converted": ours, "folded": folded}
        times = {name: best_seconds(partial(of, x), device, 3) for name, of in nets.items()}
    print("  a clip in    " + ", ".join(f"{1e3 * s:.1f} ms {name}" for name, s in times.items()))
    picture().save(options.output)
    print(f"  picture      {options.output}")
    return 0 if passed else 1


def _tell(name: str, error: float, device: torch.device) -> bool:
    passed = error <= BOUND[device.type]  # false of a result that is not a number
    print(f"  {name:<12} error {error:.1e} of torch's, {_verdict(passed)}")
    return passed


def _verdict(passed: bool) -> str:
    return "ok" if passed else "FAILED"


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, "--width 16 --frames 16", device="auto", picture=".svg")
    add = parser.add_argument
    add("--width", type=positive_int, default=32, metavar="C", help="channels of the first stage")
    add("--frames", type=positive_int, default=8, metavar="T", help="of the clip")
    add("--size", type=positive_int, default=56, metavar="E", help="of a frame, in both modes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
