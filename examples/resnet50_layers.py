"""Every convolution of ResNet-50 as a matrix product: its sizes, its error and its time.

    python examples/resnet50_layers.py [--images 1] [--size 224] [--output resnet50_layers.svg]

The layers are those of He, Zhang, Ren and Sun (*Deep residual learning for image recognition*,
2016), with the stride in the 3x3, as in torchvision. Each is a view with m output cells, n filters
and k products per output. The table shows how often a stored im2col matrix would repeat the input.
Results are compared with torch's in float64.
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from support.clock import best_seconds
from support.command_line import positive_int, program
from torch import Tensor

import layoutconv as lc
from layoutconv.base.progress import Progress
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.demo import choose_device
from layoutconv.drawing import Axis, Cell, Figure, Grid
from layoutconv.drawing.axis import Band
from layoutconv.drawing.palette import ramp

BOUND = {"cpu": 1e-6, "cuda": 1e-3}  # on relative errors; a GPU multiplies fp32 as tf32
COPIES = (  # colours of classes
    (ramp(0.0), "A is no larger than the input"),
    (ramp(0.5), "up to 4 times"),
    (ramp(1.0), "more than 4 times"),
)
BLOCKS = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))  # width, blocks, stride of a stage


@dataclass(frozen=True)
class Layer:
    """A convolution: C channels of H x H, K filters of R x R."""

    C: int
    K: int
    R: int
    stride: int
    H: int

    @property
    def problem(self) -> ConvProblem:
        return self.of(1)

    def of(self, images: int) -> ConvProblem:
        size = (images, self.H, self.H, self.C)
        taps = (self.K, self.R, self.R)
        return ConvProblem(size, taps, stride=self.stride, padding=self.R // 2)

    def __str__(self) -> str:
        return f"{self.R}x{self.R} {self.C}->{self.K} /{self.stride} @{self.H}"


@dataclass(frozen=True)
class Result:
    """Findings about a layer, of which the network has ``count``."""

    layer: Layer
    count: int
    products: int
    repeated: float  # elements of A for each of the input
    error: float
    seconds: float
    of_torch: float


def layers(size: int) -> Iterator[Layer]:
    """All 53 convolutions, in order, for images of ``size`` x ``size``."""
    yield Layer(3, 64, 7, 2, size)
    H, C = -(-size // 4), 64  # the first layer halves, and the pooling after it
    for width, blocks, first in BLOCKS:
        for block in range(blocks):
            stride = first if block == 0 else 1
            yield Layer(C, width, 1, 1, H)
            yield Layer(width, width, 3, stride, H)
            if block == 0:
                yield Layer(C, 4 * width, 1, stride, H)  # the shortcut
            H = -(-H // stride)
            yield Layer(width, 4 * width, 1, 1, H)
            C = 4 * width


def run(layer: Layer, count: int, images: int, device: torch.device) -> Result:
    """Convolve random images, compare, and time."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(images, layer.C, layer.H, layer.H, generator=generator)
    w = torch.randn(layer.K, layer.C, layer.R, layer.R, generator=generator)
    w /= (layer.C * layer.R**2) ** 0.5  # results of about 1
    x, w = (t.to(device).to(memory_format=torch.channels_last) for t in (x, w))
    padding = layer.R // 2

    def ours() -> Tensor:
        return lc.conv2d(x, w, None, layer.stride, padding)

    def theirs() -> Tensor:
        return torch.nn.functional.conv2d(x, w, None, layer.stride, padding)

    exact = torch.nn.functional.conv2d(x.double(), w.double(), None, layer.stride, padding)
    error = float((ours().double() - exact).norm() / exact.norm())
    view = fprop_view(layer.of(images))
    return Result(
        layer,
        count,
        view.m * view.n * view.k,
        view.m * view.k / x.numel(),
        error,
        best_seconds(ours, device, 3),
        best_seconds(theirs, device, 3),
    )


def picture(size: int = 224) -> Figure:
    """A table of the distinct layers: extents of the products, and what im2col would store."""
    found = Counter(layers(size))
    names = ("in net", "m", "n", "k", "Mflop", "A / input")
    rows = []
    for layer, count in found.items():
        view = fprop_view(layer.problem)
        work = 2 * view.m * view.n * view.k / 1e6
        N, H, W, C = layer.problem.activation
        repeated = view.m * view.k / (N * H * W * C)
        texts = (count, view.m, view.n, view.k, f"{work:.0f}", f"{repeated:.2f}")
        fills = ("",) * 5 + (COPIES[_copies(repeated)][0],)
        facts = (("layer", str(layer)),)
        rows.append(
            tuple(
                Cell(f"{text}", fill, facts=facts) for text, fill in zip(texts, fills, strict=True)
            )
        )
    down = Band("layer", tuple((i, i + 1, str(layer)) for i, layer in enumerate(found)))
    across = Band("", tuple((i, i + 1, name) for i, name in enumerate(names)))
    grid = Grid(
        "",
        Axis(tuple(range(len(rows))), (down,), (0,) * len(rows)),
        Axis(tuple(range(len(names))), (across,), (0,) * len(names)),
        tuple(rows),
    )
    legend = tuple((Cell("", fill), meaning) for fill, meaning in COPIES)
    title = f"The convolutions of ResNet-50 as matrix products, one image of {size}"
    return Figure(title, ((grid,),), legend)


def _copies(repeated: float) -> int:
    """The class of a matrix A that is so many times as large as the input."""
    return int(repeated > 1) + int(repeated > 4)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run every distinct layer; 0, or 1 where a result is not torch's."""
    options = _options(arguments)
    device, executor = choose_device(options.device)
    found = Counter(layers(options.size))
    total = sum(found.values())
    print(f"ResNet-50, {total} convolutions, {len(found)} of them distinct, on {executor}")
    print(f"{options.images} images of {options.size} x {options.size}, fp32, torch beside\n")
    print("layer                    times   A/input    error       ms   torch ms    Gflop/s")
    results = []
    with Progress().step("ResNet-50") as progress:
        for done, (layer, count) in enumerate(found.items()):
            progress.tick(done, len(found))
            one = run(layer, count, options.images, device)
            results.append(one)
            passed = one.error <= BOUND[device.type]
            progress.print(
                f"{layer!s:<24} {count:5d} {one.repeated:9.2f} {one.error:8.1e} "
                f"{1e3 * one.seconds:8.2f} {1e3 * one.of_torch:10.2f} "
                f"{2e-9 * one.products / one.seconds:10.1f}{'' if passed else '  FAILED'}"
            )
    work = sum(2 * one.count * one.products for one in results)
    ours, theirs = (
        sum(one.count * seconds for one, seconds in ((r, getattr(r, name)) for r in results))
        for name in ("seconds", "of_torch")
    )
    print(
        f"\nall {total}: {work / 1e9:.2f} Gflop, {1e3 * ours:.0f} ms, torch {1e3 * theirs:.0f} ms"
    )
    picture(options.size).save(options.output)
    print(f"picture {options.output}")
    passed = all(one.error <= BOUND[device.type] for one in results)
    print(f"results {'ok' if passed else 'FAILED'}")
    return 0 if passed else 1


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, "--images 8 --device cuda", device="auto", picture=".svg")
    add = parser.add_argument
    add("--images", type=positive_int, default=1, metavar="N")
    add("--size", type=positive_int, default=224, metavar="E", help="of an image, in both modes")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    raise SystemExit(main())
