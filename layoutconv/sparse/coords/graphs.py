"""Guards for what ``torch.compile`` traces: code that runs once, on tensors that have no memory."""

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
# Whether it reads this code in place of running it, in a third of the time: where what is asked of
# tensors is not more than their attributes, as exporters without it may ask, too.
is_dynamo_compiling = torch.compiler.is_dynamo_compiling


def refuse_in_graphs(tensor: Tensor) -> None:
    """Before a kernel of ours reads a tensor of a kernel map: on a GPU, not while that is traced.

    Raises ``RuntimeError``: an error of a class of ours would itself have to be traced.

    >>> import torch
    >>> refuse_in_graphs(torch.ones(2))
    """
    if tensor.is_cuda and torch.compiler.is_compiling():
        raise RuntimeError(REFUSED)
