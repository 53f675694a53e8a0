"""Kernels that a race needs, compiled in several processes, each kept on disk as it is done."""

from __future__ import annotations

import os
import pickle
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor
from contextlib import suppress
from dataclasses import replace
from io import BytesIO
from typing import Any

import torch

from ..gemm_view import GemmView
from ..kernels.spec import Spec
from ..kernels.store import is_kept, load_kernel
from ..processes import Tick, in_processes


def compile_kernels(
    view: GemmView, specs: Sequence[Spec], processes: int | None = None, tick: Tick | None = None
) -> None:
    """Compile what is not on disk yet; needs no GPU.

    What cannot be compiled is passed over: whoever loads it gets the error. ``processes``: as many
    as there are cores, if nobody says. ``tick``: as of ``in_processes``.
    """
    missing = [spec for spec in dict.fromkeys(specs) if not is_kept(view, spec)]
    if len(missing) < 2:  # this process is as quick
        return
    count = processes or os.cpu_count() or 1
    with suppress(BrokenExecutor):  # a process was killed, for want of memory, say
        in_processes(_compile, [_dump((replace(view), spec)) for spec in missing], count, tick)


def _compile(request: bytes) -> None:
    load_kernel(*_Unpickler(BytesIO(request)).load())


def _dump(request: tuple[GemmView, Spec]) -> bytes:
    stream = BytesIO()
    _Pickler(stream).dump(request)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Views travel without what is in their index buffers: no kernel depends on it."""

    def persistent_id(self, obj: Any) -> str | None:
        return "index" if isinstance(obj, torch.Tensor) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: str) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int32)
