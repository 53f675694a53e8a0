"""Source of the kernels of plans: the store, or a replacement during a dry run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..kernels.compile.store import load_kernel
from ..planning.kernel_spec import KernelSpec
from ..view.gemm_view import GemmView

Load = Callable[[GemmView, KernelSpec], Any]
_source: Load = load_kernel


def kernel_of(view: GemmView, spec: KernelSpec) -> Any:
    """Return the kernel of a view and a spec, as plans launch it."""
    return _source(view, spec)


def source() -> Load:
    """Return the function that plans currently take kernels from."""
    return _source


def take_from(load: Load) -> Load:
    """Let plans of all threads take kernels from ``load`` from now on.

    Returns the previous function, to restore it later.
    """
    global _source
    before, _source = _source, load
    return before


class DeferredKernel:
    """A kernel that writes zeros during a dry run, and is loaded at its first launch after that.

    Plans made in a dry run are cached and keep using it, until :func:`resolved` replaces it.
    ``is_dry`` says whether the dry run is still on; ``writes`` are the positions of the results
    among the arguments.
    """

    def __init__(
        self,
        is_dry: Callable[[], bool],
        load: Callable[[], Callable[..., None]],
        writes: tuple[int, ...],
    ) -> None:
        self.is_dry, self._load, self._writes = is_dry, load, writes
        self._kernel: Callable[..., None] | None = None

    def __call__(self, *arguments: Any) -> None:
        if self._kernel is None and self.is_dry():
            for place in self._writes:
                if arguments[place] is not None:
                    arguments[place].zero_()
            return
        resolved(self)(*arguments)

    def load(self) -> Callable[..., None]:
        """Return the kernel, loaded once."""
        if self._kernel is None:
            self._kernel = self._load()
        return self._kernel


def resolved(kernel: Any) -> Any:
    """Return the kernel itself, loaded, in place of a ``DeferredKernel``: saves a Python call."""
    return kernel.load() if type(kernel) is DeferredKernel and not kernel.is_dry() else kernel
