"""Forward convolution, dense and gather/scatter, from one template: CUTLASS's example 59.

    python examples/gather_scatter_conv.py --n 4320 --i 128 [--no-check] [--dtype tf32]

The workload is that of ``examples/59_ampere_gather_scatter_conv`` of CUTLASS: images of 6 x 4 x 4
cells, 64 channels, 128 filters of 3 x 3 x 3 taps, no padding. It runs twice. First the tensors are
dense grids. Then an index buffer names the row of each cell, on both sides, in reverse order. Only
the layouts of A and D differ.

The original fixes the sizes of an image at compile time, supports only tf32, and needs a number of
images that is a multiple of its tile. Here these are options.

Runs on the first GPU of compute capability 8.0 or more, otherwise on the CPU.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from support.command_line import positive_int, program, whole_int
from torch import Tensor

import layoutconv as lc
from layoutconv.base.gpu_clock import gpu_microseconds
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.drawing import Figure, draw
from layoutconv.reference import Reference
from layoutconv.view.gemm_view import stages

DTYPES = {"tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
CPU_SECONDS = 2.0  # on the CPU, timings and checks go no further after so long
CHECKED_CELLS = 1 << 13  # output cells that the reference computes at once


@dataclass(frozen=True)
class Run:
    """A convolution as the kernel sees it: a view, its tensors, and where the cells are stored."""

    name: str
    view: lc.GemmView
    activation: Tensor
    weight: Tensor
    result: Tensor
    gather: Tensor | None = None
    scatter: Tensor | None = None

    def execute(self) -> Tensor:
        """Convolve ``activation`` with ``weight`` into ``result``."""
        return lc.execute(self.view, self.activation, self.weight, self.result)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the workload both ways; 0, or 1 where a result is not the reference's, or 2."""
    try:
        return 0 if _main(_options(arguments)) else 1
    except ValueError as error:  # sizes that make no convolution, or that no kernel takes
        print(f"gather_scatter_conv: error: {error}", file=sys.stderr)
        return 2


def _main(options: argparse.Namespace) -> bool:
    device, where = _device()
    on_gpu = device.type == "cuda"
    print(f"Forward convolution, dense and gather/scatter, on {where}, {options.dtype} data")
    if not on_gpu:
        print("No GPU of compute capability 8.0 or more: the CPU executor runs, products in fp32")

    activation = (options.n, *options.dhw, options.channels)
    problem = ConvProblem(activation, (options.filters, *options.taps), padding=options.padding)
    runs = list(_runs(problem, DTYPES[options.dtype], device))
    _print_layouts(runs)

    products = runs[0].view.m * runs[0].view.n * runs[0].view.k
    print(f"\nWork: {2 * products / 1e12:.6g} TFLOP each")
    passed = True
    for run in runs:
        milliseconds, times = _time(run.execute, options.i, on_gpu)
        rate = 2 * products / milliseconds / 1e9
        note = f"mean of {times} runs" if times == options.i else f"{times} of {options.i} runs"
        print(f"{run.name:<15} {milliseconds:10.4f} ms {rate:9.4f} TFLOP/s  ({note})")
        if not options.no_check:
            passed &= _check(run, problem, None if on_gpu else CPU_SECONDS)
    picture().save(options.output)
    print(f"Picture: {options.output}")
    return passed


def picture() -> Figure:
    """A small image: cells are named by their rows in memory, and one output cell reads 18."""
    problem = ConvProblem((1, 3, 4, 4, 1), (1, 2, 3, 3))
    rows, results = (_reversed(count, torch.device("cpu")) for count in (48, 8))
    return draw(
        gather_fprop_view(problem, rows, results), row=5, title="Example 59: A, gathered in reverse"
    )


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__file__, __doc__, "--n 100 --dhw 5 7 3 --padding 1", picture=".svg")
    add = parser.add_argument
    add("--n", type=positive_int, default=4320, metavar="N", help="images, any number")
    add("--i", type=positive_int, default=128, metavar="N", help="timed runs of each kind")
    add("--no-check", action="store_true", help="do not compare with a reference")
    add("--dtype", choices=DTYPES, default="tf32", help="of data; sums are in fp32")
    add("--dhw", type=positive_int, nargs=3, default=[6, 4, 4], metavar="E", help="of an image")
    add("--taps", type=positive_int, nargs=3, default=[3, 3, 3], metavar="E", help="of a filter")
    add("--channels", type=positive_int, default=64, metavar="C", help="input channels")
    add("--filters", type=positive_int, default=128, metavar="K", help="output channels")
    add("--padding", type=whole_int, default=0, metavar="CELLS", help="zeros on all sides")
    return parser.parse_args(arguments)


def _device() -> tuple[torch.device, str]:
    if torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0):
        return torch.device("cuda"), torch.cuda.get_device_name()
    return torch.device("cpu"), f"the CPU ({torch.get_num_threads()} threads)"


def _runs(problem: ConvProblem, dtype: torch.dtype, device: torch.device) -> Iterator[Run]:
    """The dense run, and the gather/scatter run over the same tensors."""
    generator = torch.Generator(device).manual_seed(0)

    def uniform(shape: tuple[int, ...]) -> Tensor:
        tensor = torch.empty(shape, dtype=dtype, device=device)
        return tensor.uniform_(-1, 1, generator=generator)

    x, w = uniform(problem.activation), uniform((*problem.filter, problem.C))

    def result() -> Tensor:
        return torch.full(problem.output, torch.nan, dtype=dtype, device=device)

    yield Run("dense", fprop_view(problem), x, w, result())

    rows, y = x.view(-1, problem.C), result().view(-1, problem.K)
    gather, scatter = (_reversed(len(t), device) for t in (rows, y))
    view = gather_fprop_view(problem, gather, scatter)
    yield Run("gather/scatter", view, rows, w, y, gather, scatter)


def _reversed(length: int, device: torch.device) -> Tensor:
    return torch.arange(length - 1, -1, -1, dtype=torch.int32, device=device)


def _print_layouts(runs: list[Run]) -> None:
    dense, gathered = runs[0].view, runs[1].view
    memory = [stages(operand)[-1].layout for operand in (dense.a, dense.b, dense.d)]
    for name, layout in zip(("activation", "filter", "output"), memory, strict=True):
        print(f"{name:<11}{layout}")
    print(f"\nAs a GEMM, D[m, n] = sum of A[m, k] * B[n, k] over k. Dense:\n{dense.describe()}")
    print(f"\nGather/scatter, B as before:\nA: {gathered.a}\nD: {gathered.d}")


def _time(work: Callable[[], object], iterations: int, on_gpu: bool) -> tuple[float, int]:
    """Mean milliseconds of a run after the first, and of how many it is the mean."""
    work()
    if not on_gpu:
        start, spent, done = time.perf_counter(), 0.0, 0
        while done < iterations and spent < CPU_SECONDS:
            work()
            spent, done = time.perf_counter() - start, done + 1
        return spent / done * 1e3, done
    return gpu_microseconds(work, iterations) / 1e3, iterations


def _check(run: Run, problem: ConvProblem, patience: float | None) -> bool:
    """Compare outputs with torch's convolution in float64; report and return the verdict.

    All of them, or those of as many images as ``patience``, in seconds, lasts for.
    """
    cells = run.activation.view(-1, problem.C)
    results = run.result.view(-1, problem.K)
    images = max(1, CHECKED_CELLS // (results.shape[0] // problem.N))
    largest, used, first, start = 0.0, 0.0, 0, time.perf_counter()
    while first < problem.N and (not patience or time.perf_counter() - start < patience):
        count = min(images, problem.N - first)
        x = _stored(cells, run.gather, first, count, problem.spatial)
        y = _stored(results, run.scatter, first, count, problem.output_spatial)
        reference = _reference(x, run.weight, problem)
        error = (y.double() - reference.value).abs()
        bound = reference.bound(y.dtype, tensor_cores=y.is_cuda)
        largest = max(largest, float(error.max() / reference.value.abs().max()))
        # max() of a tensor keeps a result that is not a number; max() of Python would lose it.
        used = float(torch.stack([error.new_tensor(used), (error / bound).max()]).max())
        first += count
    passed = used <= 1
    verdict = "ok" if passed else "FAILED"
    print(
        f"  {first} of {problem.N} images checked: error {largest:.1e} of the largest output, "
        f"{used:.1%} of what rounding allows, {verdict}"
    )
    return passed


def _stored(
    rows: Tensor, index: Tensor | None, first: int, count: int, spatial: tuple[int, ...]
) -> Tensor:
    """Some images as (count, *spatial, channels), read through the index if there is one."""
    size = torch.Size(spatial).numel()
    part = slice(first * size, (first + count) * size)
    cells = rows[part] if index is None else rows[index[part].long()]
    return cells.view(count, *spatial, -1)


def _reference(x: Tensor, weight: Tensor, problem: ConvProblem) -> Reference:
    """torch's convolution in float64, and that of absolute values, which scales errors."""
    padding = [near for near, _ in problem.padding]

    def conv(a: Tensor, b: Tensor) -> Tensor:
        y = torch.nn.functional.conv3d(a.movedim(-1, 1), b.movedim(-1, 1), padding=padding)
        return y.movedim(1, -1)

    x, w = x.double(), weight.double()
    length = torch.Size(problem.filter[1:]).numel() * problem.C
    return Reference(conv(x, w), conv(x.abs(), w.abs()), length)


if __name__ == "__main__":
    raise SystemExit(main())
