"""Note the kernels of a sparse program's maps while a CPU stands in for the GPU.

On the stand-in torch makes the maps, so that the rest of the program gets real ones. Beside it,
each operator that makes a map is called once more, with tensors of cells that claim to be on the
GPU: it takes the GPU's path, and its launches load their kernels but run none.
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

# Operators that make maps, by their names in a program.
OPERATORS = tuple(
    f"layoutconv.{name}.default"
    for name in ("neighbours", "reached_cells", "reversed_index", "by_taps")
)


def asker(name: str, like: Machine) -> Callable[..., None]:
    """Return a function of an operator's arguments that loads the kernels it launches on a GPU.

    Use it only in a process where a CPU stands in for the GPU ``like``, and which does nothing
    else.
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
