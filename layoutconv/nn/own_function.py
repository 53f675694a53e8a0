"""A user's function after a dense convolution: from the call cache, a bound launch, or torch."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..ops import dense_calls
from ..ops.autocast import AUTOCAST, lower
from ..ops.epilogue_args import EpilogueArgs, tensors_in
from ..ops.function_gradients import tensors_of
from ..view.epilogue import Pointwise
from . import fuse
from .batches import batch, like, of_batch


def known(
    given: tuple[Any, ...], operands: tuple[Tensor, Tensor], asked: EpilogueArgs
) -> Tensor | None:
    """Return the result if the call cache knows the call; else None.

    ``given`` are the numbers of the call and of the function, ``asked`` is the caller's epilogue.
    """
    bias, scale, residual, function, _, out_dtype = asked
    assert isinstance(function, Pointwise)
    named = tensors_of(function)
    call = dense_calls.find(given, out_dtype, *operands, bias, scale, residual, *named)
    return None if call is None else call.run_function(function, *operands, bias, scale, residual)


def with_function(
    convolve: Any,
    rank: int,
    given: tuple[Any, ...],
    operands: tuple[Tensor, Tensor],
    numbers: tuple[Any, ...],
    endings: tuple[EpilogueArgs, EpilogueArgs],
    shape: tuple[int, ...],
) -> Tensor:
    """Return the result, fused if the call is only a launch.

    Args:
        convolve: the fallback pass, after which torch runs the function: ``fuse.fprop`` or
            ``dgrad``.
        numbers: those of the operator.
        endings: the caller's epilogue, and the same with a tensor for a scale that is a number.
        shape: of the result.
    """
    input, weight = operands
    kind = input.device.type  # autocast is on here only in torch.compile, see below_autocast
    if kind in AUTOCAST and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        with torch.autocast(kind, enabled=False):
            low = lower(input, dtype), lower(weight, dtype)
            return with_function(convolve, rank, given, low, numbers, endings, shape)
    asked, ending = (of_batch(each, rank) for each in endings)
    x = batch(input, rank)
    asked = contiguous_columns(asked)
    y = known(given, (x, weight), asked)
    if y is None:
        name = "dgrad" if convolve is fuse.dgrad else "fprop"
        first = dense_calls.FirstCall(given, (x, weight), asked, numbers, name)
        call = dense_calls.bound(first, (x.shape[0], *shape[1:]))
        if call is None:
            y = convolve(x, weight, numbers, ending)
        else:
            function: Any = asked.activation
            y = call.run_function(function, x, weight, *tensors_in(asked))
    return like(y, input, rank)


def contiguous_columns(ending: EpilogueArgs) -> EpilogueArgs:
    """Make the columns that a function reads contiguous, as kernels need them."""
    bias, scale, residual, function, slope, out_dtype = ending
    assert isinstance(function, Pointwise)
    if all(tensor.is_contiguous() for tensor in function.per_column):
        return ending
    columns = [tensor.contiguous() for tensor in function.per_column]
    function = function.with_tensors(columns, function.per_row, function.like_d)
    return EpilogueArgs(bias, scale, residual, function, slope, out_dtype)
