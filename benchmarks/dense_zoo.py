"""The layers of real networks, ours and cuDNN's in turns: ``bench_dense.py --zoo FILE``.

A part is all rows of one type. Rows are written as they are measured, a line of JSON each, so that
a run that was stopped goes on with ``--resume``. ``--sample 60`` takes so many layers, of every
family as many as its share, and rows come in an order in which all families are spread evenly:
what is there when the minutes are over says the same as the whole, with more noise.

``--compile N`` has N processes compile what is missing first, as for the GPU that is there.
``--compile-only`` does nothing else and needs no GPU: kernels for an H200 are then in
``LAYOUTCONV_CACHE_DIR``, which can be taken to a machine with one.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from gpu_rows import first_line, measured
from roofs import roof_of
from timing import interleaved_microseconds
from zoo_cases import ZooCase
from zoo_layers import BATCHES, PASSES, Layer, ZooJob, read, sample, zoo_jobs
from zoo_predict import print_predictions
from zoo_report import ZooRow, print_report, write_plot

from layoutconv.base.processes import in_processes
from layoutconv.base.progress import Progress
from layoutconv.kernels.compile.store import cache_directory
from layoutconv.planning.machine import MACHINES, Machine
from layoutconv.testing import stand_in

TYPES = ("fp16", "bf16", "tf32")
BATCH = 1200.0  # microseconds of launches that are timed together
REPEATS = 5  # such batches, of whose times the median is taken
# An H200, where no GPU is: the limits are those of the architecture.
ABSENT = replace(MACHINES["sm_90a"], name="NVIDIA H200")


class Tools(NamedTuple):
    """Functions that measure rows, call another one in processes, and tell the time."""

    measured: Callable[..., Any] = measured
    in_processes: Callable[..., Any] = in_processes
    now: Callable[[], float] = time.monotonic


TOOLS = Tools()


@dataclass(frozen=True)
class Clock:
    """The seconds that a part may last, and when it began."""

    seconds: float
    began: float
    now: Callable[[], float]

    @property
    def over(self) -> bool:
        return self.now() - self.began >= self.seconds


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the zoo to those of the benchmark."""
    group = parser.add_argument_group("layers of real networks")
    add = group.add_argument
    add("--zoo", type=Path, metavar="FILE", help="layers of networks; no other rows are measured")
    add("--all", action="store_true", help="all layers of the file, and not those at its core")
    add("--batch", choices=(*BATCHES, "both"), default="training", help="images at a time")
    add("--types", default="fp16,tf32", metavar="TYPES", help=f"of {', '.join(TYPES)}: parts")
    add("--passes", default=",".join(PASSES), metavar="PASSES", help="of " + ", ".join(PASSES))
    add("--sample", type=int, default=0, metavar="N", help="about N layers, of every family some")
    add("--seed", type=int, default=0, metavar="S", help="of the sample, and of the order")
    add("--minutes", type=float, default=60.0, metavar="M", help="in all; parts share them")
    add("--out", type=Path, metavar="FILE", help="write a line of JSON for each row here")
    add("--resume", action="store_true", help="go on with what is in --out")
    add("--compile-only", action="store_true", help="compile for an H200, and measure nothing")
    add("--predict", action="store_true", help="what the cost model expects, beside a floor")
    add("--report", action="store_true", help="print what is in --out, and measure nothing")


def run(options: argparse.Namespace, tools: Tools = TOOLS) -> int:
    """Measure the parts and print the report; 0, 1 where a row failed or is wrong, 2 for no GPU."""
    layers = [layer for layer in read(options.zoo) if options.all or layer.core]
    parts = _parts(options, layers)
    known = _known(options.out) if options.resume or options.report else {}
    if options.predict:
        _set_switches("tf32")
        print_predictions([job for part in parts for job in part], ABSENT)
        return 0
    if options.compile_only:
        return _compiled(parts, options.compile or os.cpu_count() or 1, ABSENT, tools)
    failed: list[str] = []
    if not options.report:
        if not torch.cuda.is_available():
            message = "dense_zoo: error: it measures a GPU, and torch sees none"
            print(message, file=sys.stderr)
            return 2
        waiting = [[job for job in part if job.name not in known] for part in parts]
        if options.compile:
            from layoutconv.gpu.machines import machine_of

            _compiled(waiting, options.compile, machine_of(0), tools)
        failed = _measured_parts(waiting, known, options, tools)
    rows = list(known.values())
    print_report(rows, layers)
    if options.plot and rows:
        write_plot(rows, layers, options.plot)
    wrong = [row.name for row in rows if not row.right]
    print(f"{len(rows)} rows, {len(failed)} failed, {len(wrong)} wrong")
    return 1 if failed or wrong else 0


def _parts(options: argparse.Namespace, layers: Sequence[Layer]) -> list[list[ZooJob]]:
    """The rows, a list for each type."""
    chosen = sample(layers, options.sample, options.seed)
    batches = BATCHES if options.batch == "both" else (options.batch,)
    types, passes = (_names(n, t) for n, t in ((options.types, TYPES), (options.passes, PASSES)))
    parts = [zoo_jobs(chosen, passes, dtype, batches) for dtype in types]
    return [[j for j in part if re.search(options.rows, f"{j.name} {j.layer}")] for part in parts]


def _names(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in known]
    if unknown:
        raise SystemExit(f"dense_zoo: error: expected some of {', '.join(known)}, got {text!r}")
    return names


def _known(file: Path | None) -> dict[str, ZooRow]:
    """The rows of a file of lines; the last line of a run that was killed may be none."""
    found: dict[str, ZooRow] = {}
    if file is None or not file.is_file():
        return found
    for line in file.read_text("utf-8").splitlines():
        with suppress(ValueError, TypeError):
            row = ZooRow(**json.loads(line))
            found[row.name] = row
    return found


def _measured_parts(
    parts: Sequence[Sequence[ZooJob]],
    known: dict[str, ZooRow],
    options: argparse.Namespace,
    tools: Tools,
) -> list[str]:
    """Measure part after part, into ``known`` and the file; the names of rows that failed."""
    failed = []
    end = tools.now() + 60 * options.minutes
    mode = "a" if options.resume else "w"
    with open(options.out or os.devnull, mode, encoding="utf-8") as lines:
        for at, part in enumerate(parts):
            clock = Clock((end - tools.now()) / (len(parts) - at), tools.now(), tools.now)
            for job, found in _measured(part, clock, tools.measured(part, measure)):
                if isinstance(found, str):
                    failed.append(job.name)
                    print(f"{job.name:26s} {job.layer}: FAILED: {found}", flush=True)
                    continue
                known[found.name] = found
                lines.write(json.dumps(found.__dict__) + "\n")
                lines.flush()
                if not found.right:
                    print(f"{job.name:26s} {job.layer}: WRONG by {found.error}", flush=True)
    return failed


def _measured(
    part: Sequence[ZooJob], clock: Clock, rows: Generator[ZooRow | str, None, None]
) -> Iterator[tuple[ZooJob, ZooRow | str]]:
    with Progress().step("Measuring") as progress:
        for done, job in enumerate(part):
            progress.tick(done, len(part))
            if clock.over:
                print(f"{part[0].dtype}: {done} of {len(part)} rows, and the time is over")
                break
            yield job, next(rows)
    rows.close()


@torch.no_grad()
def measure(job: ZooJob) -> ZooRow:
    """Compare both sides with the reference, then time them in turns."""
    _set_switches(job.dtype)
    _adopt()
    case = ZooCase(job)
    errors, calls = case.error(case.ours), [case.ours]
    peer_error = None
    try:
        peer_error = case.error(case.theirs)[0]
        calls.append(case.theirs)
    except RuntimeError as error:  # cuDNN has no kernel of it, or no memory
        print(f"{job.name}: no peer: {first_line(error)}")
    ours, *theirs = interleaved_microseconds(calls, BATCH, REPEATS)
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else ""
    roof = roof_of(gpu)
    floor = roof.floor(job.dtype, job.flop, job.elements * case.dtype.itemsize) if roof else None
    return ZooRow(
        job.layer.id, job.kind, job.dtype, job.batch, ours, theirs[0] if theirs else None,
        floor, errors[0], peer_error, case.is_right(errors), gpu,
    )  # fmt: skip


def _set_switches(dtype: str) -> None:
    torch.backends.cudnn.allow_tf32 = dtype == "tf32"
    torch.backends.cudnn.benchmark = True


# -- kernels before they are wanted ----------------------------------------------------------------


def _compiled(
    parts: Sequence[Sequence[ZooJob]], processes: int, machine: Machine, tools: Tools
) -> int:
    """Compile the kernels of rows for a machine, whether it is here or not."""
    jobs = [job for part in parts for job in part]
    with Progress().step("Compiling") as progress:
        compile = partial(compile_row, machine=machine)
        errors = tools.in_processes(compile, jobs, processes, progress.tick)
    for job, error in zip(jobs, errors, strict=True):
        if error:
            print(f"while compiling {job.name}: {first_line(error)}", file=sys.stderr)
    return int(any(errors))


@torch.no_grad()
def compile_row(job: ZooJob, machine: Machine) -> None:
    """In a process of its own: compile what a row launches, on memory that is never touched."""
    _stand_in(machine)
    _set_switches(job.dtype)
    ZooCase(job, "cpu", empty=True).ours()


@cache
def _stand_in(machine: Machine) -> None:
    """Make this process compile as if it had a GPU."""
    stand_in.install("compile", lambda digest: None, machine)


@cache
def _adopt() -> None:
    """Use kernels that another machine compiled, if this one can."""
    stand_in.adopt(cache_directory())
