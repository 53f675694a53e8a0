"""The template against its peers, each as a ratio in one run. Needs a GPU.

    python benchmarks/bench_template.py [--example59 PATH] [--json FILE] [--iterations 50]

Peers: ``torch.nn.functional.conv3d`` (cuDNN) on the same data, and, where ``--example59`` names the
built C++ example 59 of CUTLASS, its dense and gather/scatter runs. Times are medians over repeats
of a batch of launches between CUDA events; outputs are poisoned and checked before they are timed.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from benchmark_options import program
from timing import host_microseconds, median_microseconds, relative_error

import layoutconv as lc
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView

DEVICE = "cuda"


@dataclass
class Row:
    """One measured line: time in microseconds, rate over all products, ratio to the peer's rate."""

    workload: str
    dtype: str
    microseconds: float
    tflops: float
    peer: str
    peer_tflops: float | None
    error: float

    @property
    def ratio(self) -> float | None:
        return self.tflops / self.peer_tflops if self.peer_tflops else None

    def __str__(self) -> str:
        ratio = f"{self.ratio:5.2f}x {self.peer}" if self.ratio else f"   -  {self.peer}"
        return (
            f"{self.workload:34s} {self.dtype:9s} {self.microseconds:9.1f} us "
            f"{self.tflops:6.1f} TFLOP/s  {ratio:28s} error {self.error:.1e}"
        )


def example_59(path: Path | None, images: int) -> tuple[float | None, float | None]:
    """TFLOP/s of the C++ example's dense and gather/scatter runs."""
    if path is None:
        return None, None
    command = [str(path.resolve()), f"--n={images}", "--i=128", "--no-check"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    dense, gather = (float(x) for x in re.findall(r"perf: .*TFLOP/s = ([\d.]+)", text))
    return dense, gather


def conv_reference(x: torch.Tensor, w: torch.Tensor, padding: int) -> torch.Tensor:
    """The convolution of NDHWC data in float64."""
    y = torch.nn.functional.conv3d(
        x.double().permute(0, 4, 1, 2, 3), w.double().permute(0, 4, 1, 2, 3), padding=padding
    )
    return y.permute(0, 2, 3, 4, 1)


def measure(
    workload: str,
    view: GemmView,
    a: torch.Tensor,
    b: torch.Tensor,
    check: Callable[[torch.Tensor], float],
    peer: tuple[str, float | None],
    iterations: int,
) -> Row:
    """Check a view's output, poisoned before, then time it."""
    out = lc.execute(view, a, b)
    out.fill_(float("nan"))
    lc.execute(view, a, b, out)
    error = check(out)
    microseconds = median_microseconds(lambda: lc.execute(view, a, b, out), iterations)
    tflops = 2e-6 * view.m * view.n * view.k / microseconds
    return Row(workload, str(a.dtype)[6:], microseconds, tflops, *peer, error)


def example_59_rows(path: Path | None, images: int, iterations: int) -> list[Row]:
    problem = ConvProblem((images, 6, 4, 4, 64), (128, 3, 3, 3))
    x = torch.rand(images, 6, 4, 4, 64, device=DEVICE) * 2 - 1
    w = torch.rand(128, 3, 3, 3, 64, device=DEVICE) * 2 - 1
    cells, outputs = images * 96, images * 16
    gather = torch.arange(cells - 1, -1, -1, dtype=torch.int32, device=DEVICE)
    scatter = torch.arange(outputs - 1, -1, -1, dtype=torch.int32, device=DEVICE)
    some = slice(0, 500)  # images that are compared

    def check_dense(out: torch.Tensor) -> float:
        return relative_error(out[some], conv_reference(x[some], w, 0)) + 0 * float(out.sum())

    def check_gather(out: torch.Tensor) -> float:
        grid = x.reshape(cells, 64).flip(0).reshape(x.shape)[some]
        got = out.flip(0).reshape(images, 4, 2, 2, 128)[some]
        return relative_error(got, conv_reference(grid, w, 0)) + 0 * float(out.sum())

    dense, gathered = example_59(path, images)
    name = f"example 59, n = {images}"
    view = gather_fprop_view(problem, gather, scatter)
    rows = [
        measure(
            f"{name}, dense", fprop_view(problem), x, w, check_dense,
            ("example 59", dense), iterations,
        ),
        measure(
            f"{name}, gather/scatter", view, x.reshape(cells, 64), w, check_gather,
            ("example 59", gathered), iterations,
        ),
    ]  # fmt: skip
    own = Row(**{**asdict(rows[1]), "peer": "our dense run", "peer_tflops": rows[0].tflops})
    return [*rows, own]


def dense_row(dtype: torch.dtype, iterations: int) -> Row:
    problem = ConvProblem((4, 16, 32, 32, 256), (256, 3, 3, 3), padding=1)
    x = torch.randn(4, 16, 32, 32, 256, device=DEVICE).to(dtype)
    w = (torch.randn(256, 3, 3, 3, 256, device=DEVICE) / 83).to(dtype)
    channels_first = x.permute(0, 4, 1, 2, 3), w.permute(0, 4, 1, 2, 3)
    cudnn = median_microseconds(
        lambda: torch.nn.functional.conv3d(*channels_first, padding=1), iterations
    )
    view = fprop_view(problem)
    peer = 2e-6 * view.m * view.n * view.k / cudnn

    def check(out: torch.Tensor) -> float:
        return relative_error(out[:1], conv_reference(x[:1], w, 1)) + 0 * float(out.sum())

    return measure("dense 4x16x32x32 C256 K256", view, x, w, check, ("cuDNN", peer), iterations)


def kernel_map_row(rows: int, channels: int, dtype: torch.dtype, iterations: int) -> Row:
    """A random map with neighbours nearby in memory, 40% of them there, as real clouds have."""
    generator = torch.Generator(DEVICE).manual_seed(0)
    near = torch.randint(-60, 61, (27, rows), device=DEVICE, generator=generator)
    neighbour = (torch.arange(rows, device=DEVICE) + near).clamp(0, rows - 1)
    there = torch.rand(27, rows, device=DEVICE, generator=generator) < 0.4
    kernel_map = torch.where(there, neighbour, -1).int().T
    x = torch.randn(rows, channels, device=DEVICE).to(dtype)
    w = (torch.randn(channels, 3, 3, 3, channels, device=DEVICE) / 40).to(dtype)
    view = kernel_map_view(kernel_map, channels, channels)

    def check(out: torch.Tensor) -> float:
        some = slice(0, 20000)
        reference = torch.zeros(20000, channels, device=DEVICE, dtype=torch.float64)
        for tap in range(27):
            index = kernel_map[some, tap].long()
            gathered = x[index.clamp_min(0)].double() * (index >= 0)[:, None]
            reference += gathered @ w.reshape(channels, 27, channels)[:, tap].double().T
        return relative_error(out[some], reference) + 0 * float(out.sum())

    name = f"kernel map {rows // 1000}k rows C = K = {channels}"
    return measure(name, view, x, w, check, ("(all 27 taps counted)", None), iterations)


def host_times() -> tuple[float, float]:
    """Host time of ``execute`` with an output given, and of a plan's call alone."""
    from layoutconv.gpu.plan import Plan

    problem = ConvProblem((1, 4, 8, 8, 64), (64, 3, 3, 3), padding=1)
    view = fprop_view(problem)
    x = torch.randn(1, 4, 8, 8, 64, device=DEVICE).half()
    w = torch.randn(64, 3, 3, 3, 64, device=DEVICE).half()
    out = lc.execute(view, x, w)
    plan = Plan(view, x.dtype, x.get_device())

    return (
        host_microseconds(lambda: lc.execute(view, x, w, out)),
        host_microseconds(lambda: plan(x, w, out)),
    )


def main(options: Sequence[str] | None = None) -> None:
    parser = program(__doc__, "iterations", "json")
    parser.add_argument("--example59", type=Path, help="the built C++ example 59")
    arguments = parser.parse_args(options)
    if not torch.cuda.is_available():
        parser.error("it measures a GPU, and torch sees none")
    rows: list[Row] = []

    def report(*more: Row) -> None:
        rows.extend(more)
        print(*more, sep="\n", flush=True)

    print(torch.cuda.get_device_name(), "torch", torch.__version__)
    for images in (4320, 131072):
        repeats = arguments.iterations if images < 10000 else max(arguments.iterations // 10, 3)
        report(*example_59_rows(arguments.example59, images, repeats))
    report(dense_row(torch.float16, arguments.iterations))
    report(kernel_map_row(200_000, 128, torch.bfloat16, arguments.iterations))
    execute, plan = host_times()
    print(f"host time per call: execute {execute:.2f} us, plan {plan:.2f} us")
    if arguments.json:
        content = {
            "device": torch.cuda.get_device_name(),
            "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
            "host_microseconds": {"execute": execute, "plan": plan},
        }
        arguments.json.write_text(json.dumps(content, indent=1))


if __name__ == "__main__":
    main()
