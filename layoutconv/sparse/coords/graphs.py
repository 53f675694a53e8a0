"""Guards for code that ``torch.compile`` traces: it runs once, on tensors without memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from torch import Tensor

REFUSED = (
    "argument `kernel_map`: expected one that has run before, outside of what torch.compile"
    " compiles, as it will run; got one whose tables are still to be made"
)


is_compiling = torch.compiler.is_compiling  # whether ``torch.compile`` is tracing
# Whether dynamo interprets this code, in a third of the time: for code that only reads attributes
# of tensors, which exporters without dynamo may trace, too.
is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def refuse_in_graphs(tensor: Tensor) -> None:
    """Refuse to trace a kernel of ours that reads a kernel map's tensor on a GPU.

    Raises ``RuntimeError``: an error class of ours would have to be traced itself.

    >>> import torch
    >>> refuse_in_graphs(torch.ones(2))
    """
    if tensor.is_cuda and torch.compiler.is_compiling():
        raise RuntimeError(REFUSED)
