"""What is left of a call that is known: choose plans by where memory starts, and launch them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ..epilogue import Epilogue
from ..gemm_view import GemmView
from .gpu import (
    ALIGNED,
    NOTHING,
    Reads,
    aligned_to,
    launcher_of,
    multiplied_as,
    plan_of,
    plan_over,
)
from .map_views import Kind, Over, kind_over

if TYPE_CHECKING:
    from torch import Tensor


class Launch:
    """Views that together write a result, bound to dtypes, a GPU and an epilogue's structure.

    Args:
        views: of tensors with the memory of ``a`` and ``b`` and of the result.
        a: the first operand, or one like it.
        out_dtype: the dtype of the result.
        epilogue: one with the structure and the numbers of those of calls.

    Kernels depend on how float32 is multiplied and on where memory starts, too, which every call
    shows anew.
    """

    def __init__(
        self,
        views: Sequence[GemmView],
        a: Tensor,
        out_dtype: torch.dtype,
        epilogue: Epilogue | None,
    ) -> None:
        self.views, self.out_dtype = views, out_dtype
        self.dtype, self.device = a.dtype, a.get_device()
        self.structure = "" if epilogue is None else epilogue.structure
        self.numbers = () if epilogue is None else epilogue.numbers
        self._plans: dict[Any, tuple[Any, ...]] = {}

    def over(self, *views: GemmView) -> Launch:
        """The same of other views."""
        made = object.__new__(Launch)
        made.__dict__.update(self.__dict__, views=views, _plans={})
        return made

    def over_map(self, over: Over) -> Launch:
        """The same of a pass over a kernel map."""
        kind = kind_over(over)
        return self.over(over.make()) if kind is None else _OverMap(self, kind, over)

    def run(
        self,
        a: Tensor,
        b: Tensor,
        out: Tensor,
        bias: Tensor | None = None,
        scale: Tensor | float | None = None,
        residual: Tensor | None = None,
    ) -> None:
        """Launch, on tensors whose memory is as the views have it, contiguous in their order."""
        reads, aligned = NOTHING, ALIGNED
        if self.structure:
            columns: tuple[Tensor, ...] = (scale,) if isinstance(scale, torch.Tensor) else ()
            columns = columns if bias is None else (*columns, bias)
            sources = () if residual is None else (residual,)
            reads = Reads(self.numbers, columns, sources)
            aligned = aligned_to(a, b, out, sources)
        elif (a.data_ptr() | b.data_ptr() | out.data_ptr()) & 15:
            aligned = aligned_to(a, b, out)
        key = multiplied_as(self.dtype), aligned
        plans = self._plans.get(key)
        if plans is None:
            plans = self._plans[key] = self._bind(*key)
        for launch in plans:
            launch(a, b, out, reads)

    def _bind(self, precision: str | None, aligned: tuple[int, int, int]) -> tuple[Any, ...]:
        of = self._of(precision, aligned)
        return tuple(launcher_of(plan_of(view, *of)) for view in self.views)

    def _of(self, precision: str | None, aligned: tuple[int, int, int]) -> tuple[Any, ...]:
        """What plans are kept for."""
        return self.dtype, self.device, self.out_dtype, precision, False, self.structure, aligned


class _OverMap(Launch):
    """Of one pass over a kernel map, whose view is made only for those who are the first."""

    def __init__(self, of: Launch, kind: Kind, over: Over) -> None:
        self.__dict__.update(of.__dict__)
        self._plans, self._kind, self._over = {}, kind, over

    def _bind(self, precision: str | None, aligned: tuple[int, int, int]) -> tuple[Any, ...]:
        of = self._of(precision, aligned)
        return (launcher_of(plan_over(self._kind, self._over, of)),)
