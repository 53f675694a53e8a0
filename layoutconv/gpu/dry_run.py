"""Calls that run dry: what they would launch is noted, and results are zeros.

Kernels of tensor cores alone. Those of kernel maps do run: what a network does depends on them.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from io import BytesIO
from typing import Any

import torch

from ..kernels.compile.store import load_kernel
from ..planning.kernel_spec import KernelSpec
from ..view.gemm_view import GemmView
from .kernel_source import Load, source, take_from

Need = tuple[GemmView, KernelSpec]
Note = Callable[[GemmView, KernelSpec], None]


_one_at_a_time = threading.RLock()


def _forgets(view: GemmView, spec: KernelSpec) -> None:
    """Note nothing."""


@contextmanager
def dry(note: Note = _forgets, *, others: bool = True) -> Iterator[None]:
    """Launch none of the kernels that calls in this context plan for; ``note`` is told
    of each.

    With ``others`` that is so of all threads, as torch has some of its own for backward passes on a
    GPU: nothing else may convolve meanwhile. Without, other threads load and launch as ever.

    >>> with dry(print):
    ...     pass
    """
    with _one_at_a_time:
        run = _Dry(source(), note, None if others else threading.get_ident())
        before = take_from(run.load)
        try:
            yield
        finally:
            take_from(before)
            run.over = True
            run.note = _forgets  # plans are kept, and with them the run; what was noted is not


class _Dry:
    """A stand-in that is loaded instead of kernels, and notes what would have been."""

    def __init__(self, load: Load, note: Note, thread: int | None) -> None:
        self.note = note
        self.over, self._load, self._thread = False, load, thread

    def is_on(self) -> bool:
        """Return whether it is still on, for this thread."""
        return not self.over and self._thread in (None, threading.get_ident())

    def load(self, view: GemmView, spec: KernelSpec) -> Callable[..., None]:
        if not self.is_on():
            found: Callable[..., None] = self._load(view, spec)
            return found
        self.note(view, spec)
        return _Later(self, dumped((view, spec)))


class _Later:
    """A kernel that writes zeros while a call is dry, and is loaded when it is launched after that.

    Plans that were made in the dry call are kept, and go on with it.
    """

    def __init__(self, run: _Dry, request: bytes) -> None:
        self.run, self.request = run, request
        self.kernel: Callable[..., None] | None = None

    def __call__(self, a: Any, b: Any, out: Any, *rest: Any) -> None:
        if self.kernel is None:
            if self.run.is_on():
                out.zero_()
                return
            self.kernel = loaded(self.request)
        self.kernel(a, b, out, *rest)


def loaded(request: bytes) -> Callable[..., None]:
    """The kernel that was :func:`dumped`: from disk, or compiled now."""
    return load_kernel(*_Unpickler(BytesIO(request)).load())


def dumped(need: Need) -> bytes:
    """A kernel's view and spec as they travel to another process."""
    view, spec = need
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
