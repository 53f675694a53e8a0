"""Functions that others may override: torch's protocol ``__torch_function__``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch.overrides import handle_torch_function

if TYPE_CHECKING:
    import torch


def overridden(
    function: Any,
    tensors: tuple[Any, ...],
    numbers: tuple[Any, ...],
    activation: str | None,
    slope: float,
    out_dtype: torch.dtype | None,
    **more: Any,
) -> Any:
    """Hand a call of a public convolution to what overrides it: a symbolic tracer, a subclass.

    ``tensors`` are its input, weight, bias, scale and residual. What is at its default is not
    handed on, so that a traced graph reads as the call did.

    >>> import torch
    >>> from .functional import conv1d
    >>> traced = torch.fx.symbolic_trace(lambda x, w: conv1d(x, w, padding=1))
    >>> [node.name for node in traced.graph.nodes]
    ['x', 'w', 'conv1d', 'output']
    """
    *operands, scale, residual = tensors
    options = {"activation": activation, "scale": scale, "residual": residual}
    options |= {"out_dtype": out_dtype, "slope": None if slope == 0.01 else slope}
    given = {key: value for key, value in options.items() if value is not None}
    return handle_torch_function(function, tensors, *operands, *numbers, **given, **more)
