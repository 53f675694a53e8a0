"""Fuse the epilogue into a convolution if the result can still be differentiated."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..base.torch_internals import asked_while_tracing
from ..ops import dense_passes
from ..ops.autocast import AUTOCAST, lower
from ..ops.dense_operators import conv_dgrad, conv_fprop, conv_fprop_statistics, conv_transpose
from ..ops.epilogue_args import EpilogueArgs, tensors_in
from ..ops.formulas import has_gradient, linear, wide_sums
from ..ops.function_gradients import apply_function, may_be_bound, tensors_of
from ..ops.guard import refuse_transforms, wants_gradient
from ..ops.transforms import Dgrad, Fprop, is_transformed
from ..tensors.epilogue_in_torch import FP8, activate, column_statistics, convert
from ..tensors.tensor_checks import OUTPUTS
from ..view.epilogue import Pointwise
from .convolved_in_graph import is_dynamo_compiling, sums_in_graph


def fprop(x: Tensor, w: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs) -> Tensor:
    """Run the forward pass and its epilogue."""
    found = _torchs_own("fprop", x, w, numbers, ending)
    return fused_or_not(conv_fprop, x, w, numbers, ending) if found is None else found


def dgrad(y: Tensor, w: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs) -> Tensor:
    """Run the transposed convolution and its epilogue."""
    found = _torchs_own("dgrad", y, w, numbers, ending)
    if found is not None:
        return found
    if torch.jit.is_tracing():  # the trace is to serve other sizes
        spatial, stride, *rest = numbers
        modes = zip(spatial, y.shape[2:], stride, strict=True)
        beyond = [int(cells) - (int(extent) - 1) * step for cells, extent, step in modes]
        return fused_or_not(conv_transpose, y, w, (beyond, stride, *rest), ending)
    return fused_or_not(conv_dgrad, y, w, numbers, ending)


def fprop_statistics(
    x: Tensor, w: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs
) -> tuple[Tensor, Tensor]:
    """Run the forward pass; also return sums and sums of squares of its channels, fp32 (2, K)."""
    if isinstance(ending.activation, Pointwise) and _is_bound(x, w, ending):
        return dense_passes.fprop_statistics(x, w, *numbers, *ending)
    if _is_fused(x, w, ending) and not is_transformed():
        return conv_fprop_statistics(x, w, *numbers, *ending)
    y = fprop(x, w, numbers, ending)
    return y, column_statistics(y.detach().movedim(1, -1))


def _is_bound(x: Tensor, w: Tensor, ending: EpilogueArgs) -> bool:
    """Return whether a pass with a user's function is a launch that nothing records."""
    assert isinstance(ending.activation, Pointwise)
    named = tensors_of(ending.activation)
    bound = may_be_bound(ending.activation, (x, w), ending, x.numel())
    return bound and not wants_gradient(x, w, *tensors_in(ending), *named)


def _is_fused(a: Tensor, b: Tensor, ending: EpilogueArgs) -> bool:
    """Return whether no gradient is wanted, or the operators compute it."""
    if isinstance(ending.activation, Pointwise):
        return False
    if not torch.is_grad_enabled():
        return True
    tensors = (a, b, ending.bias, ending.scale, ending.residual)
    if not any(tensor is not None and tensor.requires_grad for tensor in tensors):
        return True
    scales = ending.scale is not None and ending.scale.requires_grad
    return not scales and has_gradient(ending.activation, ending.slope)


def fused_or_not(
    op: Any, a: Tensor, b: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs
) -> Tensor:
    """Run one operator with the whole epilogue, or with a part of it and the rest in torch."""
    bias, scale, residual, activation, slope, out_dtype = ending
    _refuse_transforms(a, b, ending)
    if _is_fused(a, b, ending):
        return op(a, b, *numbers, *ending)
    if isinstance(activation, Pointwise):
        kind = out_dtype or OUTPUTS[a.dtype]
        rest = EpilogueArgs(bias, scale, residual, activation, slope, kind)
        return after(op(a, b, *numbers, *wide_sums(a.dtype)), rest)
    middle = before_torch(OUTPUTS.get(a.dtype, a.dtype), out_dtype)
    if scale is None or not scale.requires_grad:
        y = op(a, b, *numbers, bias, scale, residual, None, slope, middle)
        return after(y, EpilogueArgs(None, None, None, activation, slope, out_dtype))
    return after(op(a, b, *numbers, None, None, None, None, slope, middle), ending)


def before_torch(stored: torch.dtype, out_dtype: torch.dtype | None) -> torch.dtype | None:
    """Return the dtype that an operator stores for torch to finish; None for its own, ``stored``.

    It holds every number of ``stored`` and of ``out_dtype``: on the way to float32, sums of
    bfloat16 are not cut to 8 bits.

    >>> before_torch(torch.bfloat16, torch.float16), before_torch(torch.float32, torch.int8)
    (torch.float32, None)
    """
    if out_dtype is None or not out_dtype.is_floating_point or out_dtype in FP8:
        return None
    wide = torch.promote_types(stored, out_dtype)
    return None if wide == stored else wide


def _refuse_transforms(a: Tensor, b: Tensor, ending: EpilogueArgs) -> None:
    others = {"bias": ending.bias, "scale": ending.scale, "residual": ending.residual}
    function = ending.activation
    if isinstance(function, Pointwise):
        refuse_transforms(**{**function.columns, **function.rows, **function.sources})
    refuse_transforms(input=a, weight=b, **others)


def _torchs_own(
    name: str, a: Tensor, b: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs
) -> Tensor | None:
    """Run a pass under a transform, or as torch's own in a graph; None in all other cases."""
    if is_transformed():
        if is_dynamo_compiling():
            _keep_whole()
        return _apart(name, a, b, numbers, ending)
    found = sums_in_graph(name, a, b, numbers, ending)
    return None if found is None else after(*found)


@asked_while_tracing
def _keep_whole() -> None:
    """Let graphs of torch.compile call :func:`_apart`, whose insides it cannot trace.

    A decorator of it would import the compiler: a third of the 3.4 s that ``import layoutconv.nn``
    took.
    """
    torch.compiler.allow_in_graph(_apart)


def _apart(
    name: str, a: Tensor, b: Tensor, numbers: tuple[Any, ...], ending: EpilogueArgs
) -> Tensor:
    """Run a pass that transforms can differentiate and batch, with the epilogue in torch.

    If an epilogue follows, sums are stored in fp32, so that they are rounded once.
    """
    function, device = {"fprop": Fprop, "dgrad": Dgrad}[name], a.device.type
    if device in AUTOCAST and torch.is_autocast_enabled(device):
        dtype = torch.get_autocast_dtype(device)
        a, b = lower(a, dtype), lower(b, dtype)
    bias, scale, residual, activation, slope, out_dtype = ending
    if bias is scale is residual is activation is out_dtype is None:
        return function.apply(a, b, *numbers, None)
    exact = torch.float64 if a.dtype == torch.float64 else torch.float32
    y = function.apply(a, b, *numbers, torch.int32 if a.dtype == torch.int8 else exact)
    kind = out_dtype or OUTPUTS[a.dtype]
    return after(y.to(exact), EpilogueArgs(bias, scale, residual, activation, slope, kind))


def after(y: Tensor, ending: EpilogueArgs) -> Tensor:
    """Apply an epilogue to sums by operations of torch."""
    bias, scale, residual, activation, slope, out_dtype = ending
    kind, value = y.dtype, y
    if not (bias is None and scale is None and residual is None):
        value = linear(y, bias, scale, residual)
    if isinstance(activation, Pointwise):
        value = apply_function(activation, value.to(torch.promote_types(kind, torch.float32)))
    elif activation is not None:
        value = activate(value, activation, slope)
    return convert(value, out_dtype or kind)
