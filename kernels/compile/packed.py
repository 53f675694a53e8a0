"""Kernels of a pack: looked up before the kernel folder, and before compiling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class PackedKernels:
    """Kernels of a pack, named as in the kernel folder of the machine that compiled them.

    That machine derived the names from the kernels' keys, its ``toolchain`` and its ``processor``.
    ``names`` are the kernels in the pack; ``get`` loads one by name, each once.
    """

    toolchain: str
    processor: str
    names: frozenset[str]
    get: Callable[[str], Callable[..., None]]


_packs: list[PackedKernels] = []
_lock = threading.Lock()


def add_pack(kernels: PackedKernels) -> None:
    """Let ``find_packed`` find these kernels from now on, in this process."""
    with _lock:
        if kernels not in _packs:
            _packs.append(kernels)


def remove_pack(kernels: PackedKernels) -> None:
    """Let ``find_packed`` no longer find these kernels; those already loaded stay."""
    with _lock:
        if kernels in _packs:
            _packs.remove(kernels)


def find_packed(name: Callable[[str, str], str]) -> Callable[..., None] | None:
    """Return the kernel called ``name(toolchain, processor)`` in a pack; None if no pack has it."""
    for kernels in _packs:
        found = name(kernels.toolchain, kernels.processor)
        if found in kernels.names:
            return kernels.get(found)
    return None
