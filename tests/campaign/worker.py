"""A process that runs the problems it is sent, one line of JSON for each.

It reads requests from standard input, ``{"family": .., "size": .., "seed": ..}``, or a whole
``{"problem": ..}``. On standard output it says where it is, ``{"stage": ..}``, and what became of
the problem, a ``Result``. Where a GPU's context is lost it ends: nothing that comes later would
mean anything.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any

import torch

from layoutconv.errors import ArgumentError, DeviceError
from layoutconv.kernels.compile.store import cache_directory
from layoutconv.testing import stand_in

from . import any_tile, problems, results
from .bench import Bench
from .oracle import WrongResultError
from .results import Result

REFUSALS = (ArgumentError, DeviceError)
LOST = ("CUDA error", "CUDA driver error", "AcceleratorError")
SHARE = 0.05  # of a GPU's memory, for what a worker keeps and calls


class Kernels:
    """A count of the kernels this process compiles, or would compile; reports each as it begins.

    ``tiles``: "chosen" by the model, or "any".
    """

    def __init__(self, device: str, stage: Callable[[str], object], tiles: str = "chosen") -> None:
        if tiles == "any":
            any_tile.install()
        self._stage, self._known = stage, set[str]()
        self.count = 0
        if device in ("count", "compile"):
            stand_in.install(device, self._asked)
            return
        if device == "interpreter":
            from . import interpreter

            interpreter.install(self._asked)
            return
        if device == "cuda":
            stage(stand_in.adopt(cache_directory()))
        with suppress(ImportError):
            import cutlass.cute as cute

            compile = cute.compile

            def counted(*arguments: Any, **options: Any) -> Any:
                self._asked(f"kernel {self.count}")
                return compile(*arguments, **options)

            cute.compile = counted

    def _asked(self, name: str) -> None:
        if name not in self._known:
            self._known.add(name)
            self.count += 1
            self._stage("compiles a kernel")


def run(problem: Any, size: str, bench: Bench) -> Result:
    """Run a problem; whatever happens short of the end of the process is a result."""
    written = problems.to_json(problem)
    about = Result(
        problem.family, size, problem.seed, problem.kind, problem.type, "ok",
        device=bench.name, exact=problem.numbers != "normal",
    )  # fmt: skip
    status, message = "ok", ""
    try:
        problems.family(problem.family).run(problem, bench)
    except WrongResultError as wrong:
        status, message = "wrong", str(wrong)
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        refused = isinstance(error, REFUSALS) or type(error).__name__ == "UnsupportedViewError"
        status = "refused" if refused else "crash"
        message = "".join(traceback.format_exception(error))[-4000:]
    return replace(
        about, status=status, message=message, passes=bench.passes, seconds=round(bench.seconds, 3),
        problem=None if status == "ok" else written,
    )  # fmt: skip


def prepare(device: str, stage: Callable[[str], object]) -> Bench:
    """A bench on a device."""
    cores = device in ("cuda", "interpreter")
    where = torch.device("cuda" if device == "cuda" else "cpu")
    return Bench(device, where, cores, stage, device not in ("count", "compile"))


def repeat(problem: Any, device: str = "", tiles: str = "chosen") -> None:
    """Run one problem here, and print what comes of it; on a GPU where there is one."""
    if tiles == "any":
        any_tile.install()
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    found = run(problem, "", prepare(device, lambda stage: print(f"  {stage}")))
    print(f"{found.status}: {found.message or found.passes}")


def serve(device: str, tiles: str = "chosen") -> None:
    """Answer requests until there are no more."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1)
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what else prints is a log
    now = ""

    def stage(name: str) -> None:
        nonlocal now
        now = name
        if device == "cuda":  # a float64 reference may take more than our calls
            torch.cuda.set_per_process_memory_fraction(1.0 if name == "reference" else SHARE)
        print(json.dumps({"stage": name}), file=answers)

    kernels = Kernels(device, stage, tiles)
    bench = prepare(device, stage)
    torch.set_num_threads(1)
    for line in sys.stdin:
        request, before = json.loads(line), kernels.count
        if "problem" in request:
            problem = problems.from_json(request["problem"])
        else:
            problem = problems.family(request["family"]).draw(request["seed"], request["size"])
        found = run(problem, request["size"], replace(bench, passes={}, _begun=time.perf_counter()))
        found = replace(
            found, kernels=kernels.count - before, stage=now if found.status != "ok" else ""
        )
        print(results.write(found), file=answers)
        if found.status == "crash" and any(word in found.message for word in LOST):
            os._exit(3)


if __name__ == "__main__":
    serve(*sys.argv[1:])
