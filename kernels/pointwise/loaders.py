"""Loaders of kernels of dense layers beside the template: from memory, from a pack, from disk, or
compiled now. Only compiling imports the CuTe DSL.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from functools import partial
from typing import Any

from layoutconv.planning.depthwise_schedule import DotSchedule
from layoutconv.planning.kernel_spec import VECTOR_BYTES
from layoutconv.planning.reduction_schedule import ReduceShape

from ..compile.store import load


@dataclass(frozen=True)
class DotKernels:
    """The kernels of a view and their integers, called with flat tensors of the memories.

    If ``workspace`` is not 0, calls need that many elements of ``accumulator``, a type's name.
    """

    launches: tuple[tuple[Callable[..., None], tuple[int, ...]], ...]
    workspace: int
    accumulator: str

    def __call__(
        self, a: Any, b: Any, out: Any, workspace: Any = None, reads: Any = (None, None, None)
    ) -> None:
        """Launch on torch's current stream. ``workspace`` is 16-byte aligned.

        ``reads`` are an epilogue's numbers, and addresses of its vectors and sources.
        """
        (products, integers), *finish = self.launches
        products(a, b, workspace if finish else out, integers, *reads)
        if finish:
            ((reduction, integers),) = finish
            reduction(workspace, out, integers)


def load_dot(plan: DotSchedule, arch: str) -> DotKernels:
    """Load the kernels that :func:`~layoutconv.planning.depthwise_schedule.schedule_dot` planned:
    from memory, from disk, or compiled now.

    The kernels take the memory that each tensor spans as a flat tensor: ``x.as_strided((span,),
    (1,))``, at least one element. Results are the same in every run. Nothing outside the bounds of
    D is written. No GPU is needed.
    """
    shape = plan.products.shape
    kernel = load(("dot", shape, arch), partial(_build_dot, shape, arch), writes=(2,))
    finish = [
        (load_reduction(launch.shape, "sum", "sum", 0, arch), launch.integers)
        for launch in plan.finish
    ]
    launches = ((kernel, plan.products.integers), *finish)
    return DotKernels(launches, plan.workspace, shape.accumulator)


def load_reduction(
    shape: ReduceShape,
    operation: str | Callable[[Any, Any], Any],
    name: Hashable,
    neutral: float,
    arch: str,
) -> Callable[..., None]:
    """Load a kernel ``f(source, target, integers)``: from memory, from disk, or compiled now.

    ``operation`` is a name in ``OPERATIONS`` or a function of two values, which ``name``
    identifies. No GPU is needed. The launch goes to torch's current stream.
    """
    compile = partial(_build_reduction, shape, operation, neutral, arch)
    return load(("reduce", shape, name, neutral, arch), compile, writes=(1,))


def packing_vector(width: int, itemsize: int) -> int:
    """Return the elements that a thread writes at once: 16 bytes, or less to divide a position.

    >>> packing_vector(4, 2), packing_vector(24, 2), packing_vector(3, 2)
    (4, 8, 1)
    """
    return min(VECTOR_BYTES // itemsize, width & -width)


def load_packing(itemsize: int, vector: int, arch: str) -> Callable[..., None]:
    """Load the kernel of an element size: from memory, from disk, or compiled now, without a GPU.

    Call it as ``build`` says; it launches on torch's current stream.
    """
    of = itemsize, vector, arch
    return load(("pack lines", *of), partial(_build_packing, *of), writes=(1,))


def load_voxel_runs(arch: str) -> Callable[..., None]:
    """Load the kernel that makes runs over voxels: from memory, from disk, or compiled now.

    Call it as ``build`` says; it launches on torch's current stream. No GPU is needed.
    """
    return load(("voxel runs", arch), partial(_build_voxel_runs, arch), writes=(1,))


# -- compilations, which import the DSL; they can be sent to another process ----------------------


def _build_dot(shape: Any, arch: str) -> Any:
    from .depthwise import build

    return build(shape, arch)


def _build_reduction(shape: ReduceShape, operation: Any, neutral: float, arch: str) -> Any:
    from .reduce import OPERATIONS, build

    combine = OPERATIONS[operation] if isinstance(operation, str) else operation
    return build(shape, combine, neutral, operation == "mean", arch)


def _build_packing(*of: Any) -> Any:
    from .pack_lines import build

    return build(*of)


def _build_voxel_runs(arch: str) -> Any:
    from .voxel_runs import build

    return build(arch)
