"""Note the kernels of a sparse program's maps, where a CPU stands in for the GPU.

There, maps are made by torch, so that the rest of the program meets true ones. Each operator that
makes one is called once more beside it, with tensors of cells that claim to be on the GPU: it takes
the GPU's path, and its launches load their kernels and run none.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from ..gpu.dry_maps import launches_ask
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
    cuda: Any = torch.cuda
    own: Any = stand_in
    cuda.is_current_stream_capturing = lambda: False
    cuda.get_device_properties = lambda _: SimpleNamespace(multi_processor_count=like.sm_count)

    def ask(*arguments: Any) -> None:
        copies = [each.clone() if isinstance(each, torch.Tensor) else each for each in arguments]
        before, own.INDICES = own.INDICES, ()
        try:
            with launches_ask(like.arch):
                target_of(name)(*copies)
        finally:
            own.INDICES = before

    return ask
