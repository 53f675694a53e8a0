"""Kernels compiled in several processes, each kept on disk as it is done."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import Any

import torch

from ..base.processes import Tick, in_processes
from ..gpu import plan as gpu_plan
from ..gpu.measured_choices import wanted
from ..kernels.compile.store import KernelKey, is_kept, load_kernel
from ..planning.kernel_key import signature
from ..planning.kernel_spec import KernelSpec
from ..view.gemm_view import GemmView

Need = tuple[GemmView, KernelSpec]


def precompile(
    function: Callable[..., object],
    *arguments: Any,
    processes: int | None = None,
    tick: Tick | None = None,
) -> int:
    """Compile the kernels that a call needs, in several processes at once; how many were missing.

    A kernel takes a second or two, and a network has dozens, which its first call compiles one
    after another. Here ``function(*arguments)``, a forward pass or a step of training, is called
    once *dry*: it runs, but where a convolution would be launched, its result is zeros. What it
    asked for is compiled and kept on disk, and the next call finds it::

        lc.precompile(net, x)
        y = net(x)

    Args:
        function: what is going to be called. It meets zeros, so it should not be what writes
            results down, or what updates weights. Nothing else may convolve meanwhile.
        processes: as many as there are cores, if None.
        tick: ``tick(done, total)`` is called as kernels are compiled.

    Kernels of tensor cores alone: others, those of kernel maps and of depthwise convolutions among
    them, are few, and compiled as the call runs. On a CPU there is nothing to compile, and 0 comes
    back; so it does with LAYOUTCONV_TUNE=1, whose races compile in several processes by themselves.

    >>> import layoutconv as lc
    >>> lc.precompile(lc.nn.Conv2d(3, 8, 3), torch.ones(1, 3, 5, 5))
    0
    """
    if wanted():
        return 0
    dry = _Dry()
    before = gpu_plan.load_kernel
    gpu_plan.load_kernel = dry.load
    try:
        function(*arguments)
    finally:
        gpu_plan.load_kernel = before
        dry.over = True
    missing = _missing(dry.needs)
    dry.needs.clear()  # plans are kept, and with them this; index buffers are not
    _compile_all(missing, processes, tick)
    return len(missing)


def compile_kernels(
    needs: Iterable[Need], processes: int | None = None, tick: Tick | None = None
) -> None:
    """Compile what is not on disk yet, in several processes at once; needs no GPU.

    What cannot be compiled is passed over: whoever loads it gets the error. ``processes``: as many
    as there are cores, if nobody says. ``tick``: as of ``in_processes``.
    """
    _compile_all(_missing(needs), processes, tick)


def _missing(needs: Iterable[Need]) -> list[bytes]:
    """Return what is not on disk, each once, as it travels to another process."""
    found: dict[KernelKey, Need] = {}
    for view, spec in needs:
        found.setdefault(KernelKey(signature(view, spec.along), spec), (view, spec))
    return [_dump(need) for need in found.values() if not is_kept(*need)]


def _compile_all(requests: Sequence[bytes], processes: int | None, tick: Tick | None) -> None:
    if len(requests) < 2:  # this process is as quick
        return
    count = processes or os.cpu_count() or 1
    with suppress(BrokenExecutor):  # a process was killed, for want of memory, say
        in_processes(_compile, requests, count, tick)


class _Dry:
    """What is loaded instead of kernels, and what would have been."""

    def __init__(self) -> None:
        self.needs: list[Need] = []
        self.over = False

    def load(self, view: GemmView, spec: KernelSpec) -> Callable[..., None]:
        self.needs.append((view, spec))
        return _Later(self, _dump((view, spec)))


class _Later:
    """A kernel that writes zeros while a call is dry, and is loaded when it is launched after that.

    Plans that were made in the dry call are kept, and go on with it.
    """

    def __init__(self, dry: _Dry, request: bytes) -> None:
        self.dry, self.request = dry, request
        self.kernel: Callable[..., None] | None = None

    def __call__(self, a: Any, b: Any, out: Any, *rest: Any) -> None:
        if self.kernel is None:
            if not self.dry.over:
                out.zero_()
                return
            self.kernel = _load(self.request)
        self.kernel(a, b, out, *rest)


def _compile(request: bytes) -> None:
    _load(request)


def _load(request: bytes) -> Callable[..., None]:
    return load_kernel(*_Unpickler(BytesIO(request)).load())


def _dump(request: Need) -> bytes:
    view, spec = request
    stream = BytesIO()
    _Pickler(stream).dump((replace(view), spec))  # without its plans
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Views travel without what is in their index buffers: no kernel depends on it."""

    def persistent_id(self, obj: Any) -> str | None:
        return "index" if isinstance(obj, torch.Tensor) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: str) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int32)
