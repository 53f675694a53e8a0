"""Kernels of a pack: looked up before the kernel folder, and before compiling."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True, eq=False)
class PackedKernels:
    """Kernels of a pack, named as in the kernel folder of the machine that compiled them.

    ``toolchain`` and ``processor`` are what that machine's names are from besides the kernels'
    keys, ``names`` what there is, and ``get`` loads one, once each.
    """

    toolchain: str
    processor: str
    names: frozenset[str]
    get: Callable[[str], Callable[..., None]]


_packs: list[PackedKernels] = []
_lock = threading.Lock()


def add_pack(kernels: PackedKernels) -> None:
    """Find these kernels from now on, in this process."""
    with _lock:
        if kernels not in _packs:
            _packs.append(kernels)


def remove_pack(kernels: PackedKernels) -> None:
    """Find them no more; those that are loaded stay."""
    with _lock:
        if kernels in _packs:
            _packs.remove(kernels)


def find_packed(name: Callable[[str, str], str]) -> Callable[..., None] | None:
    """The kernel that is called ``name(toolchain, processor)`` in a pack; None if none has it."""
    for kernels in _packs:
        found = name(kernels.toolchain, kernels.processor)
        if found in kernels.names:
            return kernels.get(found)
    return None
