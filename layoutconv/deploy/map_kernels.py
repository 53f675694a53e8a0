"""Kernels that make the maps of a sparse program, asked for where a CPU stands in for the GPU.

There, maps are made by torch, so that the rest of the program meets true ones. Each operator that
makes one is called once more beside it, with tensors of cells that claim to be on the GPU: it takes
the GPU's path, and its launches load their kernels and run none.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ..planning.machine import Machine
from ..testing import stand_in
from .program import target_of

# Operators that make maps, as a program names them.
OPERATORS = tuple(
    f"layoutconv.{name}.default"
    for name in ("neighbours", "reached_cells", "reversed_index", "by_taps")
)


def asker(name: str, like: Machine) -> Callable[..., None]:
    """A function of an operator's arguments that loads the kernels which it launches on a GPU.

    For a process in which a CPU stands in for the GPU ``like``, and which does nothing else.
    """
    from ..kernels.maps import per_rank

    def load(kernel: Any, tensors: tuple[torch.Tensor, ...], *_: Any) -> None:
        per_rank.load_per_rank(kernel, like.arch)
        for tensor in tensors[1:]:  # tables of taps too, which nobody reads here
            if tensor.dtype is torch.int32:
                tensor.fill_(-1)  # a table without a cell that is twice there, or outside
            elif tensor.numel():
                tensor.view(-1)[[0, -1]] = 0 if tensor.numel() > 2 else 1  # a cell is reached

    cuda: Any = torch.cuda
    rank: Any = per_rank
    own: Any = stand_in
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=like.sm_count)

    def ask(*arguments: Any) -> None:
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
        before = rank.launch, own.INDICES
        rank.launch, own.INDICES = load, ()
        try:
            target_of(name)(*copies)
        finally:
            rank.launch, own.INDICES = before

    return ask
