"""The common base of kernels of a ``GemmView``: what a view and a spec settle before a trace, and
the one entry of a launch, which calls what a kernel does of its own.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutconv.planning.kernel_key import divisors, runtime_integers
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.legality import check
from layoutconv.view.gemm_view import GemmView

from ..common.pdl import starts_early
from ..common.plain_types import AnyTuple
from .epilogue.ops import Steps
from .mma_atoms import MULTIPLY, OUTPUT


class Given(NamedTuple):
    """Arguments of a launch: addresses of elements as kernels read them, None where none is.

    Attributes:
        memory: of A, B and D.
        indices: of the index buffers of A, B and D.
        splits, split_stride: CTAs that share a sum, and the elements between their results.
        integers: of a persistent kernel the most CTAs; then the view's ``runtime_integers``.
        reads: the epilogue's numbers, columns and sources, tuples.
        statistics: memory of the sums of columns.
    """

    memory: tuple[Any, Any, Any]
    indices: tuple[Any, Any, Any]
    splits: Any
    split_stride: Any
    integers: list[Any]
    reads: tuple[Any, Any, Any]
    statistics: Any


class Start(NamedTuple):
    """A kernel with its arguments, and where it differs from others: grid, CTAs along k, PDL."""

    kernel: Any
    grid: list[Any]
    early: Any
    cluster: list[int] | None = None


class GemmKernel:
    """One kind of view and a spec that ``planning/legality.py`` allows; it refuses others.

    A kernel is a device function, and ``start``, which applies it to what a launch brings.
    """

    def __init__(self, view: GemmView, spec: KernelSpec) -> None:
        check(view, spec)
        self.view, self.spec = view, spec
        self.data, self.out = MULTIPLY[spec.dtype], OUTPUT[spec.out_dtype]
        self.steps = Steps(spec.epilogue)
        self.pdl = starts_early(spec.arch)
        self.names = list(runtime_integers(view))
        self.dividing = divisors(view)

    @cute.jit
    def __call__(
        self,
        a: Any,
        b: Any,
        d: cute.Tensor,
        index_a: Any,
        index_b: Any,
        index_d: Any,
        integers: AnyTuple,
        numbers: Any,
        columns: Any,
        sources: Any,
        statistics: Any,
        stream: Any,
    ) -> None:
        element, out, spec = self.data.element, self.out.element, self.spec
        splits, split_stride, *others = integers
        start = self.start(
            Given(
                (pointer(a, element), pointer(b, element), pointer(d.iterator, out)),
                (pointer(index_a, Int32), pointer(index_b, Int32), pointer(index_d, Int32)),
                splits,
                split_stride,
                others,
                (numbers, columns, sources),
                statistics,
            )
        )
        start.kernel.launch(
            grid=start.grid,
            block=[spec.tile.threads, 1, 1],
            cluster=start.cluster,
            min_blocks_per_mp=spec.ctas_per_sm,
            preferred_smem_carveout=spec.carveout(spec.ctas_per_sm),
            stream=stream,
            use_pdl=start.early,
        )

    def start(self, given: Given) -> Start:
        """Return the kernel of this class, applied to what a launch brings; traced on the host."""
        raise NotImplementedError

    def values_of(self, integers: Iterable[Any]) -> dict[str, Any]:
        """Return the view's runtime integers by name, of a launch's, which are in that order."""
        return {name: Int64(v) for name, v in zip(self.names, integers, strict=True)}


def pointer(address: Any, dtype: Any) -> Any:
    """The start of memory, read as ``dtype`` (fp32 data as tf32)."""
    return None if address is None else cute.recast_ptr(address, dtype=dtype)
