"""Reductions against ``torch.sum``, as bytes moved in a second. Needs a GPU.

    python benchmarks/bench_reduce.py [--json FILE] [--iterations 50]

A row is the memory that is read and written, divided by the median time of a call; the ratio is to
torch's rate on the same tensors in the same run. Outputs are poisoned and checked before.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import torch
from bench_template import median_microseconds
from benchmark_options import program

import layoutconv as lc
from layoutconv.gpu.reduction_plan import sum_partials

PARTIALS = [
    (2, 10**7), (4, 10**6), (8, 10**6), (8, 10**5), (32, 10**5), (300, 10**4), (16, 10**3),
    (300, 10**3),
]  # fmt: skip
DTYPES = [torch.float16, torch.float32]
MODES: list[tuple[tuple[int, ...], int]] = [
    ((4096, 4096), 1),
    ((10**6, 64), 1),
    ((10**6, 64), 0),
    ((10**8,), 0),
    ((10**6, 3), 0),
]


@dataclass
class Row:
    """One measured line: the call's time, its rate, torch's rate."""

    workload: str
    microseconds: float
    gigabytes_per_second: float
    torch_gigabytes_per_second: float
    host_microseconds: float

    @property
    def ratio(self) -> float:
        return self.gigabytes_per_second / self.torch_gigabytes_per_second

    def __str__(self) -> str:
        return (
            f"{self.workload:44s} {self.microseconds:9.1f} us {self.gigabytes_per_second:7.0f} GB/s"
            f"  {self.ratio:5.2f}x torch.sum  host {self.host_microseconds:5.1f} us"
        )


def host_microseconds(call: Callable[[], object], calls: int = 200) -> float:
    """Time that a call takes before it returns, while the GPU has work anyway."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(calls):
        call()
    seconds = time.perf_counter() - start
    torch.cuda.synchronize()
    return 1e6 * seconds / calls


def measure(
    workload: str, ours: Callable[[], object], peer: Callable[[], object], moved: int, times: int
) -> Row:
    microseconds, of_torch = (median_microseconds(call, times) for call in (ours, peer))
    rate, torch_rate = (1e-3 * moved / t for t in (microseconds, of_torch))
    return Row(workload, microseconds, rate, torch_rate, host_microseconds(ours))


def partial_row(pieces: int, results: int, times: int) -> Row:
    workspace = torch.randn(pieces, results, device="cuda")
    out = torch.full((results,), torch.nan, dtype=torch.float16, device="cuda")
    sum_partials(workspace, out)
    torch.testing.assert_close(out, workspace.sum(0).half(), rtol=1e-3, atol=1e-3)
    return measure(
        f"partial sums ({pieces}, {results:,}) to float16",
        lambda: sum_partials(workspace, out),
        lambda: torch.sum(workspace, 0).half(),
        4 * pieces * results + 2 * results,
        times,
    )


def mode_row(shape: tuple[int, ...], mode: int, dtype: torch.dtype, times: int) -> Row:
    x = torch.rand(shape, device="cuda").to(dtype)
    view = lc.reduction_view(shape, mode)
    out = torch.full_like(torch.sum(x, mode, dtype=torch.float32), torch.nan)
    lc.reduce(view, x, out=out)
    torch.testing.assert_close(out, x.double().sum(mode).float(), rtol=1e-5, atol=0)
    return measure(
        f"{str(dtype)[6:]} {shape} over mode {mode}",
        lambda: lc.reduce(view, x, out=out),
        lambda: torch.sum(x, mode, dtype=torch.float32),
        x.numel() * x.itemsize + out.numel() * 4,
        times,
    )


def main(options: Sequence[str] | None = None) -> None:
    parser = program(__doc__, "iterations", "json")
    arguments = parser.parse_args(options)
    if not torch.cuda.is_available():
        parser.error("it measures a GPU, and torch sees none")
    times, rows = arguments.iterations, []
    for row in chain(
        (partial_row(*sizes, times) for sizes in PARTIALS),
        (mode_row(*case, dtype, times) for case in MODES for dtype in DTYPES),
    ):
        print(row)
        rows.append(row)
    if arguments.json:
        lines = [{**asdict(row), "ratio": row.ratio} for row in rows]
        arguments.json.write_text(json.dumps(lines, indent=1))


if __name__ == "__main__":
    main()
