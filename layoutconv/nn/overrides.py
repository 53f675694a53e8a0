"""Calls that others may override: torch's protocol ``__torch_function__``."""

from __future__ import annotations

from typing import Any

from torch.overrides import handle_torch_function

from ..ops.epilogue_args import EpilogueArgs, tensors_in
from ..ops.function_gradients import tensors_of
from ..view.epilogue import Pointwise


def tensors_given(operands: tuple[Any, Any], ending: EpilogueArgs) -> tuple[Any, ...]:
    """Return all tensors of a call, any of which may override it."""
    function = ending.activation
    named = tensors_of(function) if isinstance(function, Pointwise) else ()
    return *operands, *tensors_in(ending), *named


def overridden(
    function: Any,
    operands: tuple[Any, Any],
    ending: EpilogueArgs,
    numbers: tuple[Any, ...],
    **more: Any,
) -> Any:
    """Pass a call of a public convolution to what overrides it: a symbolic tracer, a subclass.

    ``operands`` are the input and the weight. Defaults are left out, so that a traced graph reads
    like the call.

    >>> import torch
    >>> from .functional import conv1d
    >>> traced = torch.fx.symbolic_trace(lambda x, w: conv1d(x, w, padding=1))
    >>> [node.name for node in traced.graph.nodes]
    ['x', 'w', 'conv1d', 'output']
    """
    options = ending._asdict()
    bias = options.pop("bias")
    if ending.slope == 0.01:
        del options["slope"]
    given = {key: value for key, value in options.items() if value is not None}
    tensors = tensors_given(operands, ending)
    call: Any = handle_torch_function
    return call(function, tensors, *operands, bias, *numbers, **given, **more)
