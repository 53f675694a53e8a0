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


class Later:
    """A kernel that writes zeros during a dry run, and is loaded when it is launched after that.

    Plans that were made in the dry run are kept, and go on with it; :func:`now` takes its place.
    ``is_dry`` says whether the call goes on, ``writes`` are the numbers of the arguments that are
    results.
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
        now(self)(*arguments)

    def load(self) -> Callable[..., None]:
        """The kernel."""
        if self._kernel is None:
            self._kernel = self._load()
        return self._kernel


def now(kernel: Any) -> Any:
    """A kernel itself, also if it was loaded late: launches save one Python call."""
    return kernel.load() if type(kernel) is Later and not kernel.is_dry() else kernel
