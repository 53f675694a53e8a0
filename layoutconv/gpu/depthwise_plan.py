"""Views of one row and one column on a GPU, all problems at once: depthwise convolutions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from ..errors import ArgumentError, ArgumentTypeError
from ..kernels.pointwise.depthwise import load_dot
from ..planning.cost_model import Machine
from ..tensors.epilogue_in_torch import apply_steps, column_statistics, convert
from ..tensors.tensor_checks import columns_of
from ..view.epilogue import Epilogue
from ..view.gemm_view import GemmView

if TYPE_CHECKING:
    from torch import Tensor

DTYPES = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


class DotPlan:
    """A view with nothing but problems, bound to the kernels of CUDA cores that run it.

    An epilogue is applied by torch to sums that are stored in fp32 (fp64 for float64).

    Raises ``ArgumentTypeError`` for a dtype that the kernels do not have, ``UnsupportedViewError``
    for a view that they cannot run, ``ArgumentError`` for an epilogue where the last mode of D is
    not that of the columns.
    """

    def __init__(
        self,
        view: GemmView,
        dtype: torch.dtype,
        device: int,
        out_dtype: torch.dtype,
        machine: Machine,
        *,
        structure: str = "",
        aligned: tuple[int, int, int] = (16, 16, 16),
    ) -> None:
        if dtype not in DTYPES:
            kinds = "float16, bfloat16, float32 or float64 for a view of one row and one column"
            raise ArgumentTypeError("a", kinds, str(dtype))
        self.device, self.columns, self.structure = device, columns_of(view), structure
        self.sums = torch.float64 if dtype == torch.float64 else torch.float32
        stored = self.sums if structure or out_dtype not in DTYPES else out_dtype
        self.in_torch = bool(structure) or stored is not out_dtype
        if self.in_torch:
            aligned = (*aligned[:2], 16)
        kind, stored_kind = (str(of).removeprefix("torch.") for of in (dtype, stored))
        of_machine = machine.arch, aligned, machine.sm_count
        self.kernels = load_dot(view, kind, stored_kind, *of_machine)

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        epilogue: Epilogue | None = None,
        statistics: Tensor | None = None,
    ) -> None:
        with torch.cuda.device(self.device):
            if not self.in_torch:
                self._launch(a, b, out)
                return
            if out.shape[-1] != self.columns:
                expected = f"a view whose D has its {self.columns} columns last"
                raise ArgumentError("epilogue", expected, f"shape {tuple(out.shape)}")
            sums = torch.zeros_like(out, dtype=self.sums)
            self._launch(a, b, sums)
            if epilogue is not None:
                row = torch.zeros(1, dtype=torch.int64, device=out.device)
                sums = apply_steps(epilogue.steps, sums, slice(None), epilogue.sources, row)
            out.copy_(convert(sums, out.dtype))
            if statistics is not None:
                statistics.copy_(column_statistics(out))

    def launch(self, a: Tensor, b: Tensor, out: Tensor, *_: Any) -> None:
        """As a ``gpu.Launcher``, of which nothing follows the sums."""
        assert not self.structure
        self(a, b, out)

    def _launch(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        workspace = None
        if self.kernels.workspace:
            kind = getattr(torch, self.kernels.accumulator)
            workspace = torch.empty(self.kernels.workspace, dtype=kind, device=a.device)
        self.kernels(_flat(a), _flat(b), _flat(out), workspace)


def _flat(tensor: Tensor) -> Tensor:
    """The memory that a tensor spans."""
    pairs = zip(tensor.shape, tensor.stride(), strict=True)
    span = sum((extent - 1) * stride for extent, stride in pairs) + 1 if tensor.numel() else 0
    return tensor.as_strided((span,), (1,))
