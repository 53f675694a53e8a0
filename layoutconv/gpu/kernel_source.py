"""Where plans take kernels from: the store, or what stands in for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernels.compile.store import load_kernel
from ..planning.kernel_spec import KernelSpec
from ..view.gemm_view import GemmView

Load = Callable[[GemmView, KernelSpec], Any]
_source: Load = load_kernel


def kernel_of(view: GemmView, spec: KernelSpec) -> Any:
    """The kernel of a view and a spec, as a plan launches it."""
    return _source(view, spec)


def source() -> Load:
    """Return the function that plans take kernels from now."""
    return _source


def take_from(load: Load) -> Load:
    """Let plans of all threads take kernels from ``load`` from now on.

    Returns what they took them from before, to go back to.
    """
    global _source
    before, _source = _source, load
    return before
