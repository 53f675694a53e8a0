"""Arrays in host memory: a user's, and new ones."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, ArgumentTypeError

_LINE = 64  # bytes of a cache line, which holds a row of 32 halves


def on_host(name: str, array: Any) -> Tensor:
    """Return a CPU tensor over the memory of a tensor, a NumPy array or a memmap."""

    if isinstance(array, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array)
    if not isinstance(array, torch.Tensor):
        raise ArgumentTypeError(name, "a torch tensor or a NumPy array", type(array).__name__)
    if array.device.type != "cpu":
        raise ArgumentError(name, "a tensor on the CPU", str(array.device))
    return array


def new_on_host(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Allocate memory, in huge pages if Linux grants them on request, as NumPy does and torch not.

    The first write to a page waits for it: 256 MB take 40 ms this way, and 140 in pages of 4 kB.
    >>> import torch
    >>> new_on_host((2, 3), torch.float16).zero_()
    tensor([[0., 0., 0.],
            [0., 0., 0.]], dtype=torch.float16)
    """
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE
    return torch.from_numpy(room[first : first + size]).view(dtype).view(shape)
