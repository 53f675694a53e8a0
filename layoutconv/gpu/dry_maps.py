"""Kernels of maps in a dry run: asked for where torch makes the map.

While torch makes the map, the GPU's function is also called, with tensors on the CPU. Its launches
load their kernels and run none; values that it reads on the host afterwards are filled in.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from . import machines

_one_at_a_time = threading.RLock()


def ask(make: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Call a GPU's function on copies of its tensors, so that its kernels are noted.

    What comes back has the shapes of what it makes, with other numbers.
    """
    devices = (each.get_device() for each in arguments if isinstance(each, torch.Tensor))
    device = next(devices, None)
    if device is None:
        device = torch.cuda.current_device()
    copies = [_like(each) if isinstance(each, torch.Tensor) else each for each in arguments]
    with launches_ask(machines.machine_of(device).arch):
        return make(*copies, **named)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Zeros on the CPU in the place of a tensor, in the same order of memory."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


@contextmanager
def launches_ask(arch: str) -> Iterator[None]:
    """Launches of kernels of maps over memory on a CPU load their kernels, and run none."""
    from ..kernels.maps import per_rank
    from ..kernels.maps.device_tables import is_table

    module: Any = per_rank
    with _one_at_a_time:
        launch = module.launch

        def load(kernel: Any, tensors: tuple[torch.Tensor, ...], *rest: Any) -> None:
            if tensors[0].get_device() >= 0:
                launch(kernel, tensors, *rest)
                return
            per_rank.load_per_rank(kernel, arch)
            for tensor in tensors[1:]:
                if is_table(tensor):
                    continue
                if tensor.dtype is torch.int32:
                    tensor.fill_(-1)  # a table without a cell that is twice there, or outside
                elif tensor.numel():
                    tensor.view(-1)[[0, -1]] = 0 if tensor.numel() > 2 else 1  # a cell is reached

        module.launch = load
        try:
            yield
        finally:
            module.launch = launch
