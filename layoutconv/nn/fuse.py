"""What follows the sums of a convolution, fused into it wherever that can be differentiated."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..ops.dense_operators import conv_dgrad, conv_fprop, conv_fprop_statistics, has_gradient
from ..ops.torch_internals import refuse_transforms
from ..tensors.epilogue_in_torch import activate, column_statistics, convert

if TYPE_CHECKING:
    from torch import Tensor


class Ending(NamedTuple):
    """``activation(scale * sum + bias + residual)``, in the dtype ``out_dtype``."""

    bias: Tensor | None = None
    scale: Tensor | None = None
    residual: Tensor | None = None
    activation: str | None = None
    slope: float = 0.01
    out_dtype: torch.dtype | None = None


def fprop(x: Tensor, w: Tensor, numbers: tuple[Any, ...], ending: Ending) -> Tensor:
    """The forward pass of tensors in the order of memory, and its ending."""
    return fused_or_not(conv_fprop, x, w, numbers, ending)


def dgrad(y: Tensor, w: Tensor, numbers: tuple[Any, ...], ending: Ending) -> Tensor:
    """The transposed convolution, and its ending."""
    return fused_or_not(conv_dgrad, y, w, numbers, ending)


def fprop_statistics(
    x: Tensor, w: Tensor, numbers: tuple[Any, ...], ending: Ending
) -> tuple[Tensor, Tensor]:
    """The forward pass, and the sums and sums of squares of its channels, fp32 (2, K)."""
    if _is_fused(x, w, ending):
        _refuse_transforms(x, w, ending)
        return conv_fprop_statistics(x, w, *numbers, *ending)
    y = fprop(x, w, numbers, ending)
    return y, column_statistics(y.detach())


def _is_fused(a: Tensor, b: Tensor, ending: Ending) -> bool:
    """Whether no gradient is wanted, or one that the operators have."""
    if not torch.is_grad_enabled():
        return True
    tensors = (a, b, ending.bias, ending.scale, ending.residual)
    if not any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return True
    scales = ending.scale is not None and ending.scale.requires_grad
    return not scales and has_gradient(ending.activation, ending.slope)


def fused_or_not(op: Any, a: Tensor, b: Tensor, numbers: tuple[Any, ...], ending: Ending) -> Tensor:
    """One operator, or one and the rest of the ending as operations of torch."""
    bias, scale, residual, activation, slope, out_dtype = ending
    _refuse_transforms(a, b, ending)
    if _is_fused(a, b, ending):
        return op(a, b, *numbers, *ending)
    if scale is None or not scale.requires_grad:
        y = op(a, b, *numbers, bias, scale, residual)
        return after(y, Ending(None, None, None, activation, slope, out_dtype))
    return after(op(a, b, *numbers), ending)


def _refuse_transforms(a: Tensor, b: Tensor, ending: Ending) -> None:
    others = {"bias": ending.bias, "scale": ending.scale, "residual": ending.residual}
    refuse_transforms(input=a, weight=b, **others)


def after(y: Tensor, ending: Ending) -> Tensor:
    """What follows sums, as operations of torch."""
    bias, scale, residual, activation, slope, out_dtype = ending
    kind, value = y.dtype, y
    if not (bias is None and scale is None and residual is None):
        exact = torch.promote_types(kind, torch.float32)
        value = y.to(exact)
        value = value if scale is None else value * scale.to(exact)
        value = value if bias is None else value + bias.to(exact)
        value = value if residual is None else value + residual.to(exact)
    if activation is not None:
        value = activate(value, activation, slope)
    return convert(value, out_dtype or kind)
