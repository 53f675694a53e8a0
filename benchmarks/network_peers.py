"""A peer's side of ``bench_network.py``, in a process of its own, with a limit of time.

A peer may tune for minutes before its first result, or hang. What it tunes is its own to keep: a
second run finds it where the first one left off.
"""

from __future__ import annotations

import importlib
import importlib.util
import multiprocessing
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

import torch
from bench_sparse import Cloud
from network_calls import CAPTURED, TOLERANCE, Case, theirs
from timing import median_microseconds

Say = Callable[[str], None]
SLOW = 1.0  # seconds of a layer that are worth a line


@dataclass(frozen=True)
class Request:
    """Request to a peer's process: a module, a cloud on the CPU, rows."""

    module: str
    cloud: Cloud
    kinds: tuple[str, ...]
    repeats: int
    device: str
    width: float = 1.0


Result = tuple[str, str, float | str]  # a row, a peer's variant, microseconds or what went wrong


def measure_peer(spconv: Any, name: str, request: Request, case: Case, say: Say) -> list[Result]:
    """Both variants of a peer, as it is and with batch norms folded into its weights."""
    found: list[Result] = []
    for kind in request.kinds:
        if kind in CAPTURED:  # it has none: its eager time stands there
            continue
        for folded in (False, True) if kind != "training" else (False,):
            variant = f"{name} folded" if folded else name
            say(f"{variant}: {kind}")
            try:
                call = theirs(kind, case, spconv, folded)
                with _Watched(spconv, say):
                    result = call()
                error = case.error(kind, result)
                if not error <= TOLERANCE[kind]:
                    raise RuntimeError(f"its error is {error:.1e}")
                found.append((kind, variant, median_microseconds(call, 5, request.repeats)))
            except Exception as failure:  # the others are wanted
                text = str(failure).strip().partition("\n")[0] or repr(failure)
                found.append((kind, variant, text))
    return found


class _Watched:
    """Says which layers of a first call take long, as those that a library tunes do."""

    def __init__(self, spconv: Any, say: Say) -> None:
        self.kinds = spconv.SubMConv3d, spconv.SparseConv3d, spconv.SparseInverseConv3d
        self.say, self.started, self.done = say, 0.0, 0
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        hooks = torch.nn.modules.module
        self.handles = [
            hooks.register_module_forward_pre_hook(self._before),
            hooks.register_module_forward_hook(self._after),
        ]

    def __exit__(self, *error: object) -> None:
        for handle in self.handles:
            handle.remove()

    def _before(self, module: Any, given: Any) -> None:
        if isinstance(module, self.kinds):
            self.started = time.perf_counter()

    def _after(self, module: Any, given: Any, y: Any) -> None:
        if isinstance(module, self.kinds):
            self.done += 1
            took = time.perf_counter() - self.started
            if took > SLOW:
                self.say(f"  layer {self.done}, {tuple(module.weight.shape)}: {took:.1f} s")


def in_time(request: Request, seconds: float, say: Say) -> list[Result]:
    """Return a process's results within a time limit; rows not reached say so."""
    context = multiprocessing.get_context("spawn")
    ours, its = context.Pipe(duplex=False)
    process = context.Process(target=_serve, args=(its, request), daemon=True)
    process.start()
    its.close()
    name, until = request.module.partition(".")[0], time.monotonic() + seconds
    found: list[Result] = []
    why = f"exceeded {seconds:.0f} s"
    try:
        while ours.poll(max(0.0, until - time.monotonic())):
            kind, content = ours.recv()
            if kind == "say":
                say(content)
            else:
                found += content
                if kind == "done":
                    return found
    except EOFError:
        why = "its process died"
    finally:
        process.kill()
        process.join()
        ours.close()
    reached = {row for row, *_ in found}
    return found + [(k, name, why) for k in request.kinds if k not in (*CAPTURED, *reached)]


def _serve(answers: Connection, request: Request) -> None:
    """The process of a peer."""
    try:
        spconv = importlib.import_module(request.module)
    except Exception as error:  # missing, or broken on this machine
        text = f"does not import: {str(error).partition(chr(10))[0]}"
        name = request.module.partition(".")[0]
        answers.send(("done", [(k, name, text) for k in request.kinds if k not in CAPTURED]))
        return
    given = request.cloud
    cloud = Cloud(given.name, given.cells.to(request.device), given.shape, given.images)
    case = Case(cloud, request.width)
    name = request.module.partition(".")[0]
    for kind in request.kinds:  # row by row: what is done is not lost
        one = Request(request.module, given, (kind,), request.repeats, request.device)
        rows = measure_peer(spconv, name, one, case, lambda text: answers.send(("say", text)))
        answers.send(("rows", rows))
    answers.send(("done", []))


def names_of(modules: Sequence[str]) -> list[str]:
    """Return the installed peers' names without importing them: their process does that."""
    found = []
    for module in modules:
        try:
            if importlib.util.find_spec(module.partition(".")[0]) is not None:
                found.append(module)
        except (ImportError, ValueError):
            continue
    return found
