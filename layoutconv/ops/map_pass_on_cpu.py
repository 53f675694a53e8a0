"""A pass of a sparse convolution over a kernel map on a CPU, by the executor of views."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..base.memory import allocator
from ..gpu.map_views import MapPass, map_view
from ..tensors.tensor_checks import check_indices
from .epilogue_args import epilogue_of
from .execute import execute_cpu

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor

    from ..gpu.map_passes import MapTables
    from ..view.epilogue import Pointwise


class PassOnCPU:
    """A pass over a map on a CPU, which reads its index buffers from the memory of ``tables``."""

    def __init__(
        self,
        device: torch.device,
        describe: Callable[[MapTables], MapPass],
        tables: MapTables,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        dtype: torch.dtype,
        ending: tuple[str | None, float] = (None, 0.01),
    ) -> None:
        self.view = map_view(describe(tables))
        check_indices(self.view)
        self.allocate = allocator(shape, stride, dtype, device)
        self.empty, self.ending = 0 in shape, ending

    def result(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        scale: Any = None,
        residual: Tensor | None = None,
        function: Pointwise | None = None,
    ) -> Tensor:
        """Do as :meth:`MapPassLaunch.result` does, on contiguous tensors."""
        out = self.allocate()
        if self.empty:
            return out
        activation, slope = self.ending
        epilogue = epilogue_of(bias, scale, residual, function or activation, slope)
        return execute_cpu(self.view, a, b, out, epilogue)
