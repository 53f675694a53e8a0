"""Dense convolution, every pass and type, ours and cuDNN's in one run. Needs a GPU.

    python benchmarks/bench_dense.py [--rows PATTERN] [--quick] [--json FILE] [--plot FILE]

A row is the median time of a launch on either side, batches of the two in turns; outputs are
poisoned, and compared with float64, before they are timed. The floor is the larger of the times
that its products and its bytes take at the limits of the GPU, where ``roofs.py`` knows them.
``--rows "unet.* dgrad fp16"`` picks rows by a regular expression on what stands at their beginning.
Kernels that were not compiled yet are compiled row by row; ``--compile 8`` has eight processes
compile those of all rows first. ``--zoo FILE`` measures the layers of real networks instead, which
``dense_zoo.py`` describes.

A row that fails prints its error, and the others run. The exit status is 1 if one failed, or if an
error is more than 1.1 times cuDNN's.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from math import isnan
from pathlib import Path
from typing import Any

import dense_zoo
import torch
from bars import plot
from benchmark_options import program
from dense_cases import DTYPES, case_of
from dense_workloads import Job, jobs
from gpu_rows import first_line, measured
from roofs import Roof, roof_of
from timing import host_microseconds, interleaved_microseconds

import layoutconv as lc
from layoutconv.base.processes import in_processes
from layoutconv.base.progress import Progress

ERROR_LIMIT = 1.1  # times cuDNN's


@dataclass(frozen=True)
class Row:
    """A measured line: microseconds of both sides, relative errors of both, where there are, the
    flop and the bytes that have to move, and the microseconds that these take at least."""

    name: str
    microseconds: float
    tflops: float
    peer: str
    peer_microseconds: float | None
    error: float | None
    peer_error: float | None
    target: float | None
    dtype: str = ""
    flop: float = 0.0
    moved: float = 0.0
    floor: float | None = None

    @property
    def ratio(self) -> float | None:
        """Our rate in the peer's."""
        return self.peer_microseconds / self.microseconds if self.peer_microseconds else None

    @property
    def right(self) -> bool:
        """Return True if nothing is NaN and the error is within the limit beside cuDNN's."""
        if self.error is None:
            return True
        limit = ERROR_LIMIT * self.peer_error if self.peer == "cuDNN" and self.peer_error else None
        return not isnan(self.error) and (limit is None or self.error <= limit)

    def __str__(self) -> str:
        beside = (
            f"{self.ratio:6.2f}x {self.peer} ({self.peer_microseconds:.1f} us)"
            if self.ratio
            else ""
        )
        errors = " / ".join(f"{e:.1e}" for e in (self.error, self.peer_error) if e is not None)
        notes = [] if self.right else ["WRONG"]
        if self.ratio and self.target and self.ratio < self.target:
            notes.append(f"below {self.target}x")
        floor = f"floor {self.microseconds / self.floor:5.1f}x " if self.floor else ""
        return (
            f"{self.name:30s} {self.microseconds:9.1f} us {self.tflops:6.1f} TFLOP/s "
            f"{floor}{beside:34s} error {errors:18s} {', '.join(notes)}"
        ).rstrip()


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, 1 where a row failed or is wrong, 2 without a GPU."""
    options = _options(arguments)
    if options.zoo:
        return dense_zoo.run(options)
    if not torch.cuda.is_available():
        print("bench_dense: error: it measures a GPU, and torch sees none", file=sys.stderr)
        return 2
    return run(options)


def run(
    options: argparse.Namespace,
    measured: Callable[..., Iterator[Any]] = measured,
    host_times: Callable[[], dict[str, float]] | None = None,
) -> int:
    """Measure rows and the host's times by these functions, and report; 1 as of :func:`main`."""
    chosen = [job for job in jobs(options.quick) if re.search(options.rows, job.name)]
    if options.compile:
        with Progress().step("Compiling") as progress:
            before = [job for job in chosen if job.kind != "no loads"]
            in_processes(_compile, before, options.compile, progress.tick, forks=False)
    print(_machine())
    rows, failed = [], []
    with Progress().step("Measuring") as progress:
        progress.tick(0, len(chosen))
        pairs = zip(chosen, measured(chosen, measure, options.repeats), strict=True)
        for done, (job, found) in enumerate(pairs, 1):
            if isinstance(found, str):
                failed.append(job.name)
                progress.print(f"{job.name:30s} FAILED: {found}")
            else:
                rows.append(found)
                progress.print(found)
            progress.tick(done, len(chosen))
    host = (host_times or _host_times)()
    if host:
        print(
            "host time of a call: " + ", ".join(f"{name} {us:.1f} us" for name, us in host.items())
        )
    wrong = [row.name for row in rows if not row.right]
    print(f"{len(rows)} rows, {len(failed)} failed, {len(wrong)} wrong")
    if options.json:
        content = {
            "device": _machine(),
            "rows": [{**asdict(row), "ratio": row.ratio} for row in rows],
            "failed": failed,
            "host_microseconds": host,
        }
        options.json.write_text(json.dumps(content, indent=1))
    if options.plot:
        plot(rows, _machine(), options.plot, roof_of(_gpu()))
    return 1 if failed or wrong else 0


def measure(job: Job, repeats: int) -> Row:
    """Compare both sides with float64, then time them."""
    case = case_of(job)
    error = case.error() if case.error else None
    peer_error = case.peer_error() if case.peer_error else None
    calls = [case.ours, case.theirs] if case.theirs else [case.ours]
    ours, *theirs = interleaved_microseconds(calls, repeats=repeats)
    flop, moved = job.workload.flop, job.workload.elements * DTYPES[job.dtype].itemsize
    roof: Roof | None = roof_of(_gpu())
    return Row(
        job.name, ours, 1e-6 * flop / ours,
        case.peer, theirs[0] if theirs else None, error, peer_error, job.target,
        job.dtype, flop, moved, roof.floor(job.dtype, flop, moved) if roof else None,
    )  # fmt: skip


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = program(__doc__, "rows", "repeats", "json")
    add = parser.add_argument
    add("--quick", action="store_true", help="a few workloads")
    add("--compile", type=int, default=0, metavar="N", help="compile first, in N processes")
    add("--plot", type=Path, metavar="FILE", help="write a bar chart of the ratios here")
    dense_zoo.add_options(parser)
    return parser.parse_args(arguments)


def _compile(job: Job) -> None:
    """In a process of its own: run a row once, so that its kernels are on disk."""
    try:
        case_of(job).ours()
    except Exception as error:  # said again where it is measured
        print(f"while compiling {job.name}: {first_line(error)}", file=sys.stderr)
    torch.cuda.empty_cache()


def _host_times() -> dict[str, float]:
    """Microseconds that a call takes of Python, of a problem that the GPU does in less."""
    x = torch.randn(1, 64, 4, 8, 8, device="cuda", dtype=torch.float16)
    x = x.contiguous(memory_format=torch.channels_last_3d)
    w = torch.randn(64, 64, 3, 3, 3, device="cuda", dtype=torch.float16)
    w = w.contiguous(memory_format=torch.channels_last_3d)
    sides: dict[str, Any] = {"lc.conv3d": lc.conv3d, "torch's conv3d": torch.nn.functional.conv3d}
    found = {}
    for name, conv in sides.items():
        try:
            found[name] = host_microseconds(partial(conv, x, w, padding=1))
        except Exception as error:
            print(f"host time of {name} FAILED: {first_line(error)}")
    return found


def _gpu() -> str:
    return torch.cuda.get_device_name()


def _machine() -> str:
    cudnn = torch.backends.cudnn.version()
    return f"{_gpu()}, torch {torch.__version__}, cuDNN {cudnn}"


if __name__ == "__main__":
    raise SystemExit(main())
