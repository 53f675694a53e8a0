"""Kernels of kernel maps in a dry run: requested while torch makes the map.

While torch makes the map, the GPU's function is also called, with tensors on the CPU. Its launches
load their kernels but run none, and fill in the values that the function then reads on the host.
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
    """Call a GPU's function on stand-ins of its tensors, so that its kernels are noted.

    The results have the right shapes but made-up values.
    """
    devices = (each.get_device() for each in arguments if isinstance(each, torch.Tensor))
    device = next(devices, None)
    if device is None:
        device = torch.cuda.current_device()
    copies = [_like(each) if isinstance(each, torch.Tensor) else each for each in arguments]
    with launches_ask(machines.machine_of(device).arch):
        return make(*copies, **named)


def _like(tensor: torch.Tensor) -> torch.Tensor:
    """Return a zero tensor on the CPU with the shape and strides of a tensor."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype).zero_()


@contextmanager
def launches_ask(arch: str) -> Iterator[None]:
    """Let launches of map kernels on CPU tensors load their kernels, and run none."""
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
                    tensor.fill_(-1)  # a table without duplicate or out-of-bounds cells
                elif tensor.numel():
                    tensor.view(-1)[[0, -1]] = 0 if tensor.numel() > 2 else 1  # a cell is reached

        module.launch = load
        try:
            yield
        finally:
            module.launch = launch
