"""The common base of kernels of a ``GemmView``: what a view and a spec settle before a trace."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from cutlass import Int64

from layoutconv.planning.kernel_key import divisors, runtime_integers
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.legality import check
from layoutconv.view.gemm_view import GemmView

from ..common.pdl import starts_early
from .epilogue.ops import Steps
from .mma_atoms import MULTIPLY, OUTPUT


class GemmKernel:
    """One kind of view and a spec that ``planning/legality.py`` allows; it refuses others."""

    def __init__(self, view: GemmView, spec: KernelSpec) -> None:
        check(view, spec)
        self.view, self.spec = view, spec
        self.data, self.out = MULTIPLY[spec.dtype], OUTPUT[spec.out_dtype]
        self.steps = Steps(spec.epilogue)
        self.pdl = starts_early(spec.arch)
        self.names = list(runtime_integers(view))
        self.dividing = divisors(view)

    def values_of(self, integers: Iterable[Any]) -> dict[str, Any]:
        """Return the view's runtime integers by name, of a launch's, which are in that order."""
        return {name: Int64(v) for name, v in zip(self.names, integers, strict=True)}
