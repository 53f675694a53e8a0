"""Kernels compiled in several processes, each kept on disk as it is done."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from ..base.processes import Tick, Workers, in_processes
from ..base.progress import Progress
from ..errors import ArgumentError, ArgumentTypeError
from ..gpu.dry_run import Need, Note, dry, dumped, loaded
from ..gpu.measured_choices import wanted
from ..kernels.compile.store import KernelKey, is_kept, ready_to_compile
from ..planning.kernel_key import signature
from ..planning.kernel_spec import KernelSpec
from ..planning.machine import MACHINES
from ..view.gemm_view import GemmView

Request = tuple[bytes, float]  # a kernel as it travels, and the weight of its compilation


def precompile(
    function: Callable[..., object],
    *arguments: Any,
    arch: str | None = None,
    processes: int | None = None,
    tick: Tick | None = None,
) -> int:
    """Compile the kernels that a call needs, in several processes at once; how many were missing.

    A kernel takes a second or two, and a network has dozens, which its first call compiles one
    after another. Here ``function(*arguments)``, a forward pass or a step of training, is called
    once *dry*: it runs, but where a convolution would be launched, its result is zeros. What it
    asked for is compiled meanwhile and kept on disk, and the next call finds it::

        lc.precompile(net, x)
        y = net(x)

    Args:
        function: what is going to be called. It meets zeros, so it should not be what writes
            results down, or what updates weights. Nothing else may convolve meanwhile.
        arch: compile for this GPU, which need not be here: "sm_80" (A100), "sm_86" (RTX 3090),
            "sm_89" (L40S, RTX 4090) or "sm_90a" (H100, H200). The call runs dry in a process of
            its own, which ``function`` and ``arguments``, of tensors on a CPU, are sent to.
        processes: as many as there are cores, if None.
        tick: ``tick(done, total)`` is called as kernels are compiled; if None, a terminal shows a
            bar.

    Kernels of tensor cores alone: others, those of kernel maps and of depthwise convolutions among
    them, are few, and compiled as the call runs. On a CPU there is nothing to compile, and 0 comes
    back, unless ``arch`` says for which GPU; so it does with LAYOUTCONV_TUNE=1, whose races compile
    in several processes by themselves. Kept kernels are found by machines with a processor like
    this one, since part of each runs there.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument, for ``arch``.

    >>> import layoutconv as lc
    >>> lc.precompile(lc.nn.Conv2d(3, 8, 3), torch.ones(1, 3, 5, 5))
    0
    """
    if tick is None:
        with Progress().step("Compiling kernels") as step:
            return precompile(function, *arguments, arch=arch, processes=processes, tick=step.tick)
    if arch is not None:
        missing, others = _asked_for(arch, function, arguments)
        _compile_all(missing, processes, tick)
        return len(missing) + others
    if wanted():
        return 0
    with _compilers(processes) as compilers:
        if torch.cuda.is_available():  # they import while the call runs dry
            compilers.start()
        with dry(_each_missing(compilers.add)):
            function(*arguments)
        with suppress(BrokenExecutor):
            compilers.finish(tick)
        return len(compilers)


def _each_missing(add: Callable[[bytes, float], None]) -> Note:
    """A note of a dry call: each kernel that is not on disk is added once, as it travels to another
    process, with the weight of its compilation."""
    asked: set[KernelKey] = set()

    def note(view: GemmView, spec: KernelSpec) -> None:
        key = KernelKey(signature(view, spec.along, spec.epilogue), spec)
        if key not in asked:
            asked.add(key)
            if not is_kept(view, spec):
                # The compiler is slow at accumulators: 0.3 s for 64x64, 0.9 for 256x128.
                add(dumped((view, spec)), float(spec.tile.m * spec.tile.n))

    return note


def _asked_for(
    arch: str, function: Callable[..., object], arguments: Any
) -> tuple[list[Request], int]:
    """Return what a call asks for, on a GPU that is not here, that is not on disk, and how many
    kernels of other kinds were compiled on the way.

    A CPU stands in for the GPU in a process of its own, which then does nothing else.
    """
    if arch not in MACHINES:
        raise ArgumentError("arch", f"one of {', '.join(sorted(MACHINES))}", repr(arch))
    for name, value in (("function", function), ("arguments", arguments)):
        if any(tensor.is_cuda for tensor in _tensors(value)):
            raise ArgumentError(
                name, "tensors on a CPU, which stands in for the GPU", "one on a GPU"
            )
    try:
        call = pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        expected = "what another process can be sent: no lambda and no local function"
        raise ArgumentTypeError("function", expected, str(error)) from error
    with TemporaryDirectory() as folder:
        found = Path(folder, "requests")
        (wrong,) = in_processes(
            _look, [(str(found), arch, call)], 1, main=b"__main__" in call, ready=ready_to_compile
        )
        if wrong is not None:
            raise wrong
        requests, others = pickle.loads(found.read_bytes())
    return requests, others


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _look(request: tuple[str, str, bytes]) -> None:
    """Run a call on the stand-in, and leave behind what it asked for."""
    from ..testing import stand_in

    path, arch, call = request
    others: list[str] = []
    stand_in.install("compile", others.append, MACHINES[arch])
    function, arguments = pickle.loads(call)
    requests: list[Request] = []
    with dry(_each_missing(lambda *request: requests.append(request))):
        function(*arguments)
    Path(path).write_bytes(pickle.dumps((requests, len(others))))


def compile_kernels(
    needs: Iterable[Need], processes: int | None = None, tick: Tick | None = None
) -> None:
    """Compile what is not on disk yet, in several processes at once; needs no GPU.

    What cannot be compiled is passed over: whoever loads it gets the error. ``processes``: as many
    as there are cores, if nobody says. ``tick``: as of ``in_processes``.
    """
    requests: list[Request] = []
    note = _each_missing(lambda *request: requests.append(request))
    for need in needs:
        note(*need)
    if len(requests) > 1:  # of one, this process is as quick
        _compile_all(requests, processes, tick)


def _compile_all(requests: Sequence[Request], processes: int | None, tick: Tick | None) -> None:
    with _compilers(processes) as compilers:
        for request in requests:
            compilers.add(*request)
        with suppress(BrokenExecutor):
            compilers.finish(tick)


def _compilers(processes: int | None) -> Workers[bytes]:
    """Processes that compile, or load, what was dumped. They may be killed, for want of memory,
    say: whoever loads the kernel compiles it."""
    return Workers(loaded, processes or os.cpu_count() or 1, ready=ready_to_compile)
