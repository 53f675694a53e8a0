"""Arrays in the host's memory: those that a user gives, and new ones."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import ArgumentError, ArgumentTypeError

_LINE = 64  # bytes of a cache line: a row of 32 halves then is one


def on_host(name: str, array: Any) -> Tensor:
    """A tensor on the CPU, over the memory of what is given: that, a NumPy array or a memmap."""

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
    """New memory, in huge pages if Linux has them for whoever asks, as NumPy does and torch not.

    Whoever first writes to a page waits for it: 256 MB take 40 ms so, and 140 in pages of 4 kB.

    >>> import torch
    >>> new_on_host((2, 3), torch.float16).zero_()
    tensor([[0., 0., 0.],
            [0., 0., 0.]], dtype=torch.float16)
    """
    size = math.prod(shape) * dtype.itemsize
    room = np.empty(size + _LINE, np.uint8)
    first = -room.ctypes.data % _LINE
    return torch.from_numpy(room[first : first + size]).view(dtype).view(shape)
