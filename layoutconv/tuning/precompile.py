"""Compile kernels in several processes; each is kept on disk as soon as it is done."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Hashable, Iterable, Iterator
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from functools import partial
from typing import Any

import torch

from ..base.cache_folder import cache_directory, make_folder
from ..base.caches import clear_caches
from ..base.fork_server import add_item
from ..base.forked_call import call_in_fork, can_fork
from ..base.processes import Tick, Workers
from ..base.progress import Progress
from ..errors import ArgumentError, ArgumentTypeError, check_choice, shown
from ..gpu.dry_run import Need, dry, dumped, loaded
from ..gpu.measured_choices import wanted
from ..kernels.compile.store import KernelKey, is_kept, keeps, ready_to_compile
from ..planning.kernel_key import signature
from ..planning.kernel_spec import KernelSpec
from ..planning.machine import MACHINES
from ..sparse.maps.foresight import foresight
from ..view.gemm_view import GemmView

Item = bytes | tuple[str, bytes]  # a pickled kernel; or a GPU and a pickled call to run dry
# The compile cost of a kernel outside the GEMM template, in elements of a tile: kernels that search
# and sort take two to four times as long as any kernel of the template.
OTHERS = float(1 << 20)


def precompile(
    function: Callable[..., object],
    *arguments: Any,
    arch: str | None = None,
    processes: int | None = None,
    tick: Tick | None = None,
) -> int:
    """Compile the missing kernels of a call in several processes; return how many there were.

    A kernel takes a second or two to compile, and a network has dozens, which its first call
    compiles one after another. This function calls ``function(*arguments)``, a forward pass or a
    training step, once *dry*: instead of launching kernels it returns zeros, and torch makes the
    kernel maps. Other processes meanwhile compile the kernels that it asks for and keep them on
    disk, where the next call finds them::

        lc.precompile(net, x)
        y = net(x)

    Args:
        function: the function that will be called. It sees zeros, so it should neither store
            results nor update weights. Nothing else may convolve meanwhile.
        arch: compile for this GPU, which this machine need not have: "sm_80" (A100), "sm_86" (RTX
            3090), "sm_89" (L40S, RTX 4090) or "sm_90a" (H100, H200). The dry run is in another
            process, which receives ``function`` and ``arguments`` pickled, with tensors on the CPU.
            If the main module (a script, a notebook) defines them, that process is a fork.
        processes: number of processes; if None, one per core.
        tick: ``tick(done, total)`` is called as kernels are compiled; if None, a terminal shows a
            progress bar.

    All kinds of kernels are compiled, also those of kernel maps and norms; a kernel with a user
    function that cannot be pickled is compiled by the call itself. A kernel that fails to compile
    is skipped: the next call raises the error. Without ``arch`` there is nothing to compile on a
    CPU, nor with LAYOUTCONV_TUNE=1, whose races compile in several processes by themselves: both
    return 0. Machines with a processor like this one can use the kept kernels, since part of each
    kernel is host code.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument, for a ``function``
    that is not callable and for ``arch``. With ``arch``, as no call follows, it also raises the
    error of a kernel that fails to compile, and ``OSError`` if the cache folder cannot be written.

    >>> import layoutconv as lc
    >>> lc.precompile(lc.nn.Conv2d(3, 8, 3), torch.ones(1, 3, 5, 5))
    0
    """
    if not callable(function):
        raise ArgumentTypeError("function", "a callable", type(function).__name__)
    if tick is None:
        with Progress().step("Compiling kernels") as step:
            return precompile(function, *arguments, arch=arch, processes=processes, tick=step.tick)
    if arch is not None:
        return _for_another(arch, function, arguments, processes, tick)
    if wanted():
        return 0
    with _compilers(processes) as compilers:
        if torch.cuda.is_available():  # workers import during the dry run
            compilers.start()
        missing = _Missing(compilers.add)
        with dry(missing.note, note_other=missing.note_other), foresight.noted():
            function(*arguments)
        with suppress(BrokenExecutor):
            compilers.finish(tick)
        return len(compilers)


class _Missing:
    """Records a dry run: each kernel that is not on disk is added once, pickled for another
    process, with its compile cost."""

    def __init__(self, add: Callable[[bytes, float], object]) -> None:
        self._add, self._asked = add, set[Hashable]()

    def note(self, view: GemmView, spec: KernelSpec) -> None:
        key = KernelKey(signature(view, spec.along, spec.epilogue), spec)
        if self._is_new(key) and not is_kept(view, spec):
            # The compiler is slow at accumulators: 0.3 s for 64x64, 0.9 for 256x128.
            self._add(dumped((view, spec)), float(spec.tile.m * spec.tile.n))

    def note_other(self, key: Hashable, request: bytes) -> None:
        if self._is_new(key) and not keeps(key):
            self._add(request, OTHERS)

    def _is_new(self, key: Hashable) -> bool:
        new = key not in self._asked
        self._asked.add(key)
        return new


def _for_another(
    arch: str, function: Callable[..., object], arguments: Any, processes: int | None, tick: Tick
) -> int:
    """Compile what a call asks for on an absent GPU; return the number of missing kernels.

    A CPU stands in for the GPU in another process, while more processes compile its kernels.
    """
    check_choice("arch", arch, sorted(MACHINES))
    for name, value in (("function", function), ("arguments", arguments)):
        if any(tensor.is_cuda for tensor in _tensors(value)):
            raise ArgumentError(
                name, "tensors on the CPU, which stands in for the GPU", "one on a GPU"
            )
    try:
        call = pickle.dumps((function, arguments))
    except (pickle.PicklingError, AttributeError, TypeError) as error:
        expected = (
            "a function that can be sent to another process, not a lambda or a local function"
        )
        raise ArgumentTypeError("function", expected, str(error)) from error
    make_folder(cache_directory())  # fail before anything is compiled
    main = b"__main__" in call
    forks = main and can_fork()
    looks = 0 if forks else 1  # items that are not kernels but the call itself
    with _compilers(processes, main=main and not forks) as compilers:
        if forks:
            _look_in_fork(arch, call, compilers.add)
        else:
            compilers.add((arch, call))
        errors = compilers.finish(lambda done, total: tick(max(0, done - looks), total - looks))
    for wrong in filter(None, errors):  # no call here would raise it
        raise wrong
    return len(errors) - looks


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, torch.nn.Module):
        yield from value.parameters()
        yield from value.buffers()
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _tensors(each)


def _compile_or_look(item: Item) -> None:
    """Compile or load a pickled kernel; or run a call on the stand-in, and add what it asks for.

    A worker calls it, which does nothing else.
    """
    if isinstance(item, bytes):
        loaded(item)
        return
    _look(*item, add_item)


def _look(arch: str, call: bytes, add: Callable[[bytes, float], object]) -> None:
    """Run a call on the stand-in, in a process that does nothing else; add what it asks for."""
    from ..testing import stand_in

    torch.set_num_threads(1)  # a fork of the caller has none of its threads
    clear_caches()  # cached calls of this processor must not run for the stand-in
    stand_in.install("compile", lambda name: None, MACHINES[arch])
    function, arguments = pickle.loads(call)
    missing = _Missing(add)
    noted = dry(missing.note, note_other=missing.note_other, stands_in=True)
    with noted, foresight.noted():
        function(*arguments)


def _look_in_fork(arch: str, call: bytes, add: Callable[[bytes, float], object]) -> None:
    try:
        call_in_fork(partial(_look, arch, call), add)
    except RuntimeError as error:
        if "fork-based multiprocessing" not in str(error):
            raise
        expected = (
            "a function of a module that can be imported, as torch runs no backward pass in a fork "
            "of a process that ran one on a machine with a GPU"
        )
        raise ArgumentError("function", expected, "a function of the main module") from error


def compile_kernels(
    needs: Iterable[Need], processes: int | None = None, tick: Tick | None = None
) -> None:
    """Compile the kernels that are not on disk, in several processes; needs no GPU.

    A kernel that fails to compile is skipped: whoever loads it gets the error. ``processes``: if
    None, one per core. ``tick``: as for ``in_processes``.
    """
    requests: list[tuple[bytes, float]] = []
    missing = _Missing(lambda *request: requests.append(request))
    for need in needs:
        missing.note(*need)
    if len(requests) < 2:  # for one kernel, this process is as fast
        return
    with _compilers(processes) as compilers:
        for request in requests:
            compilers.add(*request)
        with suppress(BrokenExecutor):
            compilers.finish(tick)


def check_processes(processes: Any) -> int | None:
    """Return ``processes``, a number >= 1 or None; else raise ``ArgumentError``."""
    if processes is not None and (type(processes) is not int or processes < 1):
        raise ArgumentError("processes", "an int >= 1, or None", shown(processes))
    return processes


def _compilers(processes: int | None, *, main: bool = False) -> Workers[Item]:
    """Make processes that compile. If one is killed, loading the kernel compiles it."""
    count = check_processes(processes) or os.cpu_count() or 1
    return Workers(_compile_or_look, count, main=main, ready=ready_to_compile)
