"""GEMM views on a GPU: a plan binds a view to a compiled kernel; running it is one call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..algebra.int_tuple import flatten
from ..errors import ArgumentError, ArgumentTypeError
from ..gemm_view import GemmView, stages
from ..kernels.check import check_view
from ..kernels.store import architecture, load_kernel
from ..kernels.structure import index_buffer, runtime_integers
from ..kernels.tile import Tile
from ..kernels.tune import Machine, choose_tile

if TYPE_CHECKING:
    from torch import Tensor

# The kernel's type of data, and its bytes: fp32 is multiplied as tf32, rounded to nearest.
KERNEL_TYPES = {
    torch.float16: ("float16", "float16", 2),
    torch.bfloat16: ("bfloat16", "bfloat16", 2),
    torch.float32: ("tfloat32", "float32", 4),
}


class Plan:
    """A view, a dtype and a device, bound to a compiled kernel and the integers that it takes.

    Calling it launches on torch's current stream and does nothing else: shapes, dtypes and devices
    have been checked by ``execute``. ``tile`` overrides the model's choice.

    Raises ``ArgumentTypeError`` for a dtype that the kernels do not have, ``UnsupportedViewError``
    for a view that the template cannot run, ``RuntimeError`` for a GPU before compute capability 8.
    """

    def __init__(
        self, view: GemmView, dtype: torch.dtype, device: int, tile: Tile | None = None
    ) -> None:
        if dtype not in KERNEL_TYPES:
            kinds = "float16, bfloat16 or float32 on a GPU"
            raise ArgumentTypeError("a", kinds, str(dtype))
        operand, output, size = KERNEL_TYPES[dtype]
        check_view(view, 16 // size, 16 // size)
        machine = machine_of(device)
        channels = int(flatten(stages(view.a)[0].layout.shape[1])[0])
        self.tile = tile or choose_tile(view.m, view.n, channels, size, size, machine)
        self.device = device
        self._kernel = load_kernel(view, operand, output, self.tile, machine.arch)
        self._index_a, self._index_d = index_buffer(view.a), index_buffer(view.d)
        self._integers = tuple(runtime_integers(view).values())

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        if (a.data_ptr() | b.data_ptr() | out.data_ptr()) & 15:
            _refuse_misaligned(a, b, out)
        if torch.cuda.current_device() == self.device:
            self._kernel(a, b, out, self._index_a, self._index_d, self._integers)
        else:
            with torch.cuda.device(self.device):
                self._kernel(a, b, out, self._index_a, self._index_d, self._integers)


def execute_gpu(view: GemmView, a: Tensor, b: Tensor, out: Tensor) -> Tensor:
    """Run a view on the GPU that its tensors are on; ``execute`` has checked them."""
    plans: dict[Any, Plan] = view.__dict__.setdefault("_plans", {})
    key = a.dtype, a.get_device()
    plan = plans.get(key)
    if plan is None:
        plan = plans[key] = Plan(view, *key)
    plan(a, b, out)
    return out


def machine_of(device: int) -> Machine:
    """What decides between tiles on a GPU that is present."""
    found: Any = torch.cuda.get_device_properties(device)
    return Machine(
        architecture((found.major, found.minor)),
        found.multi_processor_count,
        found.shared_memory_per_block_optin,
        found.shared_memory_per_multiprocessor,
    )


def _refuse_misaligned(a: Tensor, b: Tensor, out: Tensor) -> None:
    for name, tensor in (("a", a), ("b", b), ("out", out)):
        if tensor.data_ptr() % 16:
            raise ArgumentError(
                name, "memory that starts at a multiple of 16 bytes", hex(tensor.data_ptr())
            )
