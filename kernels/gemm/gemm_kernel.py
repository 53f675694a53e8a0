"""Base class of the kernels that run a ``GemmView``: trace-time constants and the launch.

``ImplicitGemm`` is the template; ``GroupedConv`` and ``GroupedSums`` serve groups of few channels.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import cutlass.cute as cute
from cutlass import Int32, Int64

from layoutconv.planning.kernel_key import divisors, runtime_integers
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.legality import check
from layoutconv.planning.machine import starts_early
from layoutconv.view.gemm_view import GemmView

from ..common.plain_types import AnyTuple
from .epilogue.ops import Steps
from .mma_atoms import MULTIPLY, OUTPUT


class LaunchArguments(NamedTuple):
    """Arguments of a launch, traced on the host; pointers have the dtypes that the kernel reads.

    Attributes:
        memory: pointers to A, B and D.
        indices: int32 pointers to the index buffers of A, B and D; None for an affine operand.
        splits, split_stride: number of split-K slices, and elements of D between their results.
        place: of a concurrent kernel; else None.
        integers: the view's ``runtime_integers``; a persistent kernel has its maximum grid size in
            front of them.
        reads: the epilogue's scalars, its pointers to vectors (per column or row), and its pointers
            to tensors with D's layout; each a tuple or None.
        statistics: pointer to partial column sums, fp32; None without statistics.
    """

    memory: tuple[Any, Any, Any]
    indices: tuple[Any, Any, Any]
    splits: Any
    split_stride: Any
    place: Any
    integers: list[Any]
    reads: tuple[Any, Any, Any]
    statistics: Any


class KernelLaunch(NamedTuple):
    """A launch: the device function applied to its arguments, grid, use of PDL, cluster shape."""

    kernel: Any
    grid: list[Any]
    early: Any
    cluster: list[int] | None = None


class GemmKernel:
    """The kernel of a ``KernelSpec`` for views of one structure.

    A subclass defines a device function and ``start``, which applies it to a launch's arguments.
    ``planning/legality.py`` refuses a spec that the kernel cannot run.
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
        place = others.pop(0) if spec.concurrent else None
        start = self.start(
            LaunchArguments(
                (pointer(a, element), pointer(b, element), pointer(d.iterator, out)),
                (pointer(index_a, Int32), pointer(index_b, Int32), pointer(index_d, Int32)),
                splits,
                split_stride,
                None if place is None else Int32(place),
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

    def start(self, given: LaunchArguments) -> KernelLaunch:
        """Return the device function applied to a launch's arguments; traced on the host."""
        raise NotImplementedError

    def values_of(self, integers: Iterable[Any]) -> dict[str, Any]:
        """Return the view's runtime integers by name; a launch passes them in ``names`` order."""
        return {name: Int64(v) for name, v in zip(self.names, integers, strict=True)}


def pointer(address: Any, dtype: Any) -> Any:
    """Recast a pointer to ``dtype`` (kernels read fp32 data as tf32); None stays None."""
    return None if address is None else cute.recast_ptr(address, dtype=dtype)
