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
    Launcher,
    Reads,
    aligned_to,
    launcher_of,
    launcher_over,
    multiplied_as,
    plan_of,
)
from .map_views import Over, kind_over

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
        self._launchers: dict[Any, tuple[Launcher, ...]] = {}

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
        precision = multiplied_as(self.dtype) if self.dtype is torch.float32 else None
        key = precision, aligned
        launchers = self._launchers.get(key)
        if launchers is None:
            launchers = self._launchers[key] = self._bind(self._of(precision, aligned))
        for launch in launchers:
            launch(a, b, out, reads)

    def _bind(self, of: tuple[Any, ...]) -> tuple[Launcher, ...]:
        return tuple(launcher_of(plan_of(view, *of)) for view in self.views)

    def _of(self, precision: str | None, aligned: tuple[int, int, int]) -> tuple[Any, ...]:
        """What plans are kept for."""
        return self.dtype, self.device, self.out_dtype, precision, False, self.structure, aligned


class OverMap(Launch):
    """One pass over a kernel map, which makes its result, too.

    Its view is made only where it is the first of its kind and size.

    Args:
        of: of all maps.
        shape, stride, device: of the result.
    """

    def __init__(
        self,
        of: Launch,
        over: Over,
        shape: tuple[int, ...],
        stride: tuple[int, ...],
        device: torch.device,
    ) -> None:
        self.__dict__.update(of.__dict__)
        self._launchers, self._over, self._kind = {}, over, kind_over(over)
        self._result = shape, stride, device
        self._empty = 0 in shape
        if self._kind is None:
            self.views = (over.make(),)

    def __call__(
        self,
        a: Tensor,
        b: Tensor,
        bias: Tensor | None = None,
        scale: Tensor | float | None = None,
        residual: Tensor | None = None,
    ) -> Tensor:
        """What the pass makes of contiguous tensors."""
        shape, stride, device = self._result
        out = torch.empty_strided(shape, stride, dtype=self.out_dtype, device=device)
        if not self._empty:
            self.run(a, b, out, bias, scale, residual)
        return out

    def _bind(self, of: tuple[Any, ...]) -> tuple[Launcher, ...]:
        if self._kind is None:
            return super()._bind(of)
        return (launcher_over(self._kind, self._over, of),)
