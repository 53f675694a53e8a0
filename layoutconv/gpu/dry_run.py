"""Dry runs: note the kernels that calls would launch, and return zeros as results.

A dry run covers the kernels of the template alone, or those of every kind. In the second case torch
makes the kernel maps, since a network's work depends on them, and the dry run also notes the
kernels that a GPU would have launched to make the maps.
"""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from io import BytesIO
from operator import attrgetter
from typing import Any, NamedTuple

import torch

from ..base.dry_hooks import dry_hooks
from ..kernels.compile.store import load, load_kernel
from ..planning.kernel_spec import KernelSpec
from ..view.gemm_view import GemmView
from .dry_maps import ask
from .kernel_source import DeferredKernel, Load, source, take_from

Need = tuple[GemmView, KernelSpec]
Note = Callable[[GemmView, KernelSpec], None]


class OtherKernel(NamedTuple):
    """A kernel other than the template's: its key, and the function that compiles it."""

    key: Hashable
    compile: Callable[[], Any]


NoteOther = Callable[[Hashable, bytes], None]  # gets a key and the dumped kernel


_one_at_a_time = threading.RLock()


def _forgets(view: GemmView, spec: KernelSpec) -> None:
    """Note nothing."""


@contextmanager
def dry(
    note: Note = _forgets,
    *,
    others: bool = True,
    note_other: NoteOther | None = None,
    stands_in: bool = False,
) -> Iterator[None]:
    """Launch none of the kernels that calls in this context plan for; ``note`` gets each of them.

    With ``others`` this holds for all threads, since torch runs GPU backward passes in threads of
    its own; no other thread may convolve meanwhile. Without it, other threads load and launch as
    usual. ``note_other`` gets the kernels of other kinds; none of them runs unless it was loaded
    before or cannot be pickled. If a CPU ``stands_in`` for the GPU, ``note_other`` also gets the
    kernels of maps of voxels on the CPU. Dry runs nest: the outer one resumes after this one.

    >>> with dry(print):
    ...     pass
    """
    with _one_at_a_time:
        run = _Dry(source(), note, None if others else threading.get_ident())
        before = take_from(run.load)
        others_before = dry_hooks.load, dry_hooks.covers, dry_hooks.note
        if note_other is not None:
            dry_hooks.load, dry_hooks.note = partial(run.load_other, note_other), ask
            dry_hooks.covers = (lambda _: True) if stands_in else attrgetter("is_cuda")
        try:
            yield
        finally:
            take_from(before)
            dry_hooks.load, dry_hooks.covers, dry_hooks.note = others_before
            run.over = True
            run.note = _forgets  # cached plans keep the run alive, but should not keep its notes


class _Dry:
    """A source of kernels that notes each one and loads none."""

    def __init__(self, load: Load, note: Note, thread: int | None) -> None:
        self.note = note
        self.over, self._load, self._thread = False, load, thread

    def is_on(self) -> bool:
        """Return whether the dry run is still on, for this thread."""
        return not self.over and self._thread in (None, threading.get_ident())

    def load(self, view: GemmView, spec: KernelSpec) -> Callable[..., None]:
        if not self.is_on():
            found: Callable[..., None] = self._load(view, spec)
            return found
        self.note(view, spec)
        return DeferredKernel(self.is_on, partial(loaded, dumped((view, spec))), (2,))

    def load_other(
        self,
        note: NoteOther,
        key: Hashable,
        compile: Callable[[], Any],
        writes: tuple[int, ...],
    ) -> Callable[..., None] | None:
        if not self.is_on():
            return None
        try:
            request = dumped(OtherKernel(key, compile))
        except (pickle.PicklingError, AttributeError, TypeError):  # a user's function
            return None
        note(key, request)
        return DeferredKernel(self.is_on, partial(load, key, compile), writes)


def loaded(request: bytes) -> Callable[..., None]:
    """Return a kernel that was :func:`dumped`: load it from disk, or compile it."""
    need = _Unpickler(BytesIO(request)).load()
    return load(*need) if isinstance(need, OtherKernel) else load_kernel(*need)


def dumped(need: Need | OtherKernel) -> bytes:
    """Pickle a kernel for another process: its view and spec, or its key and compile function.

    Raises what pickling raises for a user's function.
    """
    if not isinstance(need, OtherKernel):
        view, spec = need
        need = replace(view), spec  # without its plans
    stream = BytesIO()
    _Pickler(stream).dump(need)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Pickle views without the contents of their index buffers: no kernel depends on them."""

    def persistent_id(self, obj: Any) -> str | None:
        return "index" if isinstance(obj, torch.Tensor) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: str) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int32)
