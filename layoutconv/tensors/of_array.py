"""Tensors over the memory of a user's NumPy arrays."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import torch
from torch import Tensor


def tensor_of_array(array: Any, device: Any = None) -> Tensor:
    """Return a NumPy array, or what NumPy reads as one, as a tensor of the same type.

    It shares the array's memory where torch can, also that of a GPU's array, such as CuPy's. A
    reversed array and one of another byte order, such as a big-endian file's, are copied: torch
    refuses both. Do not write to the result: the array may be read-only.

    Raises ``TypeError`` for types that torch lacks, such as text.

    >>> tensor_of_array(np.arange(3)[::-1])
    tensor([2, 1, 0])
    """
    if hasattr(array, "__cuda_array_interface__"):  # which NumPy cannot read
        return torch.as_tensor(array, device=device)
    array = np.asarray(array)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if any(stride < 0 for stride in array.strides):
        array = array.copy()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.as_tensor(array, device=device)
