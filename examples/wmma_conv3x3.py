"""A 3x3 convolution on warp-level matrix instructions, the usual first exercise, as one view.

    python examples/wmma_conv3x3.py --acc [--device cuda]
    python examples/wmma_conv3x3.py --perf [--output wmma_conv3x3.svg]

Images in fp16, 3x3 filters, padding that keeps the size, sums and results in fp32. First kernels
for tensor cores usually support one image size, and channels in multiples of 16; this view
supports any. ``--acc`` prints the error. ``--perf``, on a GPU, prints the speed beside cuDNN and
beside an upper bound: the same kernel without its loads from memory.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from support.command_line import program
from torch import Tensor

import layoutconv as lc
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.drawing import Figure, draw

Size = tuple[int, int, int, int, int]  # N, H, W, C, K
ACCURACY: list[Size] = [
    (1, 16, 16, 16, 16),  # one tile of the instruction in every mode
    (2, 28, 28, 64, 32),
    (1, 15, 17, 24, 40),
    (4, 7, 7, 256, 64),
    (3, 5, 9, 3, 7),
]
SPEED: list[Size] = [
    (64, 56, 56, 64, 64),
    (64, 28, 28, 128, 128),
    (64, 14, 14, 256, 256),
    (16, 128, 128, 128, 128),
]
BOUND = 1e-5  # on relative errors: products of fp16 are exact in fp32, their sums nearly


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare or measure; 0, 1 where a result is wrong, 2 where there is no GPU to measure."""
    parser = program(__file__, __doc__, "--acc --perf --device cuda", device="cpu", picture=".svg")
    parser.add_argument("--acc", action="store_true", help="compare results (the default)")
    parser.add_argument("--perf", action="store_true", help="measure; wants a GPU")
    options = parser.parse_args(arguments)
    if options.perf and not torch.cuda.is_available():
        print("wmma_conv3x3: error: --perf measures a GPU, and there is none", file=sys.stderr)
        return 2
    print(fprop_view(problem_of(SPEED[0])).describe())
    passed = True
    if options.acc or not options.perf:
        passed = accuracy(options.device)
    if options.perf:
        speed()
    picture().save(options.output)
    print(f"\npicture {options.output}")
    return 0 if passed else 1


def picture() -> Figure:
    """Which thread of a warp holds which numbers of the instruction's operands."""
    return draw(lc.mma_atom("m16n8k16.f16"))


def accuracy(device: str) -> bool:
    """A table of relative errors against float64, and of the difference from torch's result."""
    print(f"\nRelative errors on {device}; torch's result is in fp16\n")
    print("   N   H   W   C   K   to float64   torch's to float64   to torch's")
    passed = True
    for size in ACCURACY:
        x, w = data(size, device)
        y = lc.execute(fprop_view(problem_of(size)), x, w, out_dtype=torch.float32)
        exact, of_torch = conv(x.double(), w.double()), conv(x, w)
        error = relative(y, exact)
        right = error <= BOUND
        passed &= right
        extents = "".join(f"{extent:4d}" for extent in size)
        print(
            f"{extents} {error:10.1e} {relative(of_torch, exact):17.1e} "
            f"{relative(of_torch, y.double()):15.1e}  {'ok' if right else 'FAILED'}"
        )
    return passed


def speed() -> None:
    """Times of the template, of cuDNN, and of the template without loads."""
    sys.path.append(str(Path(__file__).resolve().parents[1] / "benchmarks"))
    from timing import interleaved_microseconds
    from upper_bound import without_loads

    torch.backends.cudnn.benchmark = True
    print(f"\nOn {torch.cuda.get_device_name()}: microseconds (TFLOP/s)\n")
    print("   N   H   W   C   K      template         cuDNN   upper bound   template / cuDNN")
    for size in SPEED:
        x, w = data(size, "cuda")
        view = fprop_view(problem_of(size))
        out = lc.execute(view, x, w, out_dtype=torch.float32)
        scratch = torch.empty_like(out)
        bound = without_loads(view, x, w, scratch)
        calls = [
            partial(lc.execute, view, x, w, out),
            partial(conv, x, w),
            partial(lc.execute, bound, x, w, scratch),
        ]
        times = interleaved_microseconds(calls)
        rates = [2e-6 * view.m * view.n * view.k / us for us in times]
        columns = (f"{us:8.1f} ({rate:3.0f})" for us, rate in zip(times, rates, strict=True))
        extents = "".join(f"{extent:4d}" for extent in size)
        print(extents, *columns, f"{rates[0] / rates[1]:10.2f}x", flush=True)


def problem_of(size: Size) -> ConvProblem:
    N, H, W, C, K = size
    return ConvProblem((N, H, W, C), (K, 3, 3), padding=1)


def data(size: Size, device: str) -> tuple[Tensor, Tensor]:
    """Images (N, H, W, C) and filters (K, R, S, C), in fp16, of results of about 1."""
    N, H, W, C, K = size
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(N, H, W, C, generator=generator)
    w = torch.randn(K, 3, 3, C, generator=generator) / (9 * C) ** 0.5
    return x.half().to(device), w.half().to(device)


def conv(x: Tensor, w: Tensor) -> Tensor:
    """torch's convolution of the same memory, in the dtype of the data."""
    y = torch.nn.functional.conv2d(x.movedim(-1, 1), w.movedim(-1, 1), padding=1)
    return y.movedim(1, -1)


def relative(y: Tensor, expected: Tensor) -> float:
    return float((y.double() - expected).norm() / expected.norm())


if __name__ == "__main__":
    raise SystemExit(main())
