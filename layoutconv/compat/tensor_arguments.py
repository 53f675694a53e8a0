"""Arguments of other libraries' functions that must be tensors, or are converted to tensors."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError, shown
from ..tensors.of_array import tensor_of_array


def check_tensors(**tensors: Any) -> None:
    """Raise :class:`~layoutconv.errors.ArgumentTypeError` for an argument that is no torch tensor.

    >>> check_tensors(coords=[[0, 1]])
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `coords`: expected a torch tensor, got list
    """
    for name, value in tensors.items():
        if not isinstance(value, Tensor):
            raise ArgumentTypeError(name, "a torch tensor", type(value).__name__)


def check_dtype(features: Tensor, weight: Tensor) -> None:
    """Raise :class:`~layoutconv.errors.ArgumentTypeError` for a weight of another dtype than the
    features, where autocast does not make them one.

    >>> check_dtype(torch.ones(1).half(), torch.ones(1))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `weight`: expected torch.float16, the dtype of\
 the features, got torch.float32
    """
    if features.dtype is not weight.dtype and not torch.is_autocast_enabled(features.device.type):
        raise ArgumentTypeError(
            "weight", f"{features.dtype}, the dtype of the features", weight.dtype
        )


def as_numbers(name: str, value: Any, modes: str = "", device: Any = None) -> Tensor:
    """Return a tensor, an array or a list of real numbers as a tensor, on a device if not one yet.

    ``modes``, such as "(points, D)", gives the number of modes. Raises
    :class:`~layoutconv.errors.ArgumentTypeError` for anything but real numbers, such as text or
    complex numbers, and :class:`~layoutconv.errors.ArgumentError` for another number of modes.

    >>> as_numbers("coordinates", ["a"])
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `coordinates`: expected a tensor or an array of\
 numbers, got ['a']
    """
    try:
        found = tensor_of(value, device)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentTypeError(name, "a tensor or an array of numbers", shown(value)) from error
    if found.is_complex() or found.dtype == torch.bool:
        raise ArgumentTypeError(name, "a tensor or an array of numbers", found.dtype)
    if modes and found.ndim != modes.count(",") + (modes[-2] != ","):
        raise ArgumentError(name, modes, tuple(found.shape))
    return found


def tensor_of(value: Any, device: Any = None) -> Tensor:
    """Return a tensor as it is, and an array as one on a device: ``torch.as_tensor`` alone would
    move tensors to the device of ``torch.set_default_device``.

    >>> with torch.device("meta"):
    ...     tensor_of(torch.ones(1, device="cpu")).device
    device(type='cpu')
    """
    if isinstance(value, torch.Tensor):
        return value
    if isinstance(value, np.ndarray):
        return tensor_of_array(value, device)
    return torch.as_tensor(value, device=device)


def check_places(name: str, places: Any, count: int) -> Tensor:
    """Return places (n,) among ``count`` rows, a tensor of integers, as int64.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for anything but a tensor of integers, and
    :class:`~layoutconv.errors.ArgumentError` for another number of modes or a place out of range.
    The range check waits for the device, and is skipped while a CUDA graph is captured.

    >>> check_places("rows", torch.tensor([0, 2]), 2)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `rows`: expected numbers from 0 to 1, got 2
    """
    check_tensors(**{name: places})
    if places.is_floating_point() or places.is_complex() or places.dtype == torch.bool:
        raise ArgumentTypeError(name, "a tensor of integers", places.dtype)
    if places.ndim != 1:
        raise ArgumentError(name, "shape (entries,)", tuple(places.shape))
    if not (places.is_cuda and torch.cuda.is_current_stream_capturing()):
        other = (places < 0) | (places >= count)
        if bool(other.any()):
            raise ArgumentError(name, f"numbers from 0 to {count - 1}", places[other][0].item())
    return places.long()


def as_device(name: str, value: Any) -> torch.device:
    """Return a device that torch knows, and a GPU only if it is there; the CPU for None.

    >>> as_device("device", "x")
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `device`: expected a device of torch, got 'x'
    """
    try:
        found = torch.device("cpu" if value is None else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(name, "a device of torch", shown(value)) from error
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        expected = f"a device of this machine, where torch sees {torch.cuda.device_count()} GPUs"
        raise ArgumentError(name, expected, shown(value))
    return found
