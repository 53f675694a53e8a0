"""Dry runs: what calls would launch is noted, and results are zeros.

A dry run covers the kernels of the template alone, or those of every kind. In the second case torch
makes the kernel maps, since a network's work depends on them, and the kernels that a GPU would have
launched for the maps are noted.
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
from .kernel_source import Later, Load, source, take_from

Need = tuple[GemmView, KernelSpec]
Note = Callable[[GemmView, KernelSpec], None]


class Other(NamedTuple):
    """A kernel other than the template's: its key, and the function that compiles it."""

    key: Hashable
    compile: Callable[[], Any]


NoteOther = Callable[[Hashable, bytes], None]  # of a key, and the kernel as it is dumped


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
    """Launch none of the kernels that calls in this context plan for; ``note`` is told
    of each.

    With ``others`` this holds for all threads, since torch runs backward passes on a GPU in threads
    of its own; no other thread may convolve meanwhile. Without it, other threads load and launch as
    usual. ``note_other`` gets the kernels of other kinds, and none of them runs but one that was
    loaded before or cannot be pickled; if a CPU ``stands_in`` for the GPU, it gets the kernels of
    maps of cells on the CPU, too. What a call around this one notes is noted again after it.

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
            run.note = _forgets  # plans are kept, and with them the run; what was noted is not


class _Dry:
    """A source of kernels that notes each one and loads none."""

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
        return Later(self.is_on, partial(loaded, dumped((view, spec))), (2,))

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
            request = dumped(Other(key, compile))
        except (pickle.PicklingError, AttributeError, TypeError):  # of a function of a user
            return None
        note(key, request)
        return Later(self.is_on, partial(load, key, compile), writes)


def loaded(request: bytes) -> Callable[..., None]:
    """The kernel that was :func:`dumped`: from disk, or compiled now."""
    need = _Unpickler(BytesIO(request)).load()
    return load(*need) if isinstance(need, Other) else load_kernel(*need)


def dumped(need: Need | Other) -> bytes:
    """A kernel as it travels to another process: its view and spec, or its key and compilation.

    Raises what pickling does, of a compilation of a user's function.
    """
    if not isinstance(need, Other):
        view, spec = need
        need = replace(view), spec  # without its plans
    stream = BytesIO()
    _Pickler(stream).dump(need)
    return stream.getvalue()


class _Pickler(pickle.Pickler):
    """Views travel without what is in their index buffers: no kernel depends on it."""

    def persistent_id(self, obj: Any) -> str | None:
        return "index" if isinstance(obj, torch.Tensor) else None


class _Unpickler(pickle.Unpickler):
    def persistent_load(self, pid: str) -> torch.Tensor:
        return torch.empty(0, dtype=torch.int32)
