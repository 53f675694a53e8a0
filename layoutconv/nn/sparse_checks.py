"""Checks of a sparse convolution's tensors; errors use the names of its arguments."""

from __future__ import annotations

from collections.abc import Set
from numbers import Integral
from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError, ArgumentTypeError, shown
from ..ops.autocast import LOWERED
from ..ops.epilogue_args import EpilogueArgs, tensors_in
from ..ops.guard import wants_gradient
from ..view.epilogue import is_number

_EXACT = torch.float64
_FLOATS = LOWERED | {_EXACT}
NARROW = frozenset({torch.int8, torch.float8_e4m3fn, torch.float8_e5m2})


def check_features(x: Tensor, narrow: Set[torch.dtype] = frozenset()) -> None:
    """Raise unless features have a supported dtype; 8-bit ones have to be in ``narrow``.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` that names ``input``.

    >>> check_features(torch.zeros(1, 4).to(torch.int8), NARROW)
    """
    if x.dtype not in _FLOATS and x.dtype not in narrow:
        last = ", float64, int8, float8_e4m3fn or float8_e5m2" if narrow else " or float64"
        kinds = f"features of float16, bfloat16, float32{last}"
        raise ArgumentTypeError("input", kinds, str(x.dtype))


def check_operands(
    x: Tensor,
    weight: Tensor,
    taps: tuple[int, ...],
    rows: int,
    groups: int,
    ending: EpilogueArgs,
) -> None:
    """Raise unless tensors fit a convolution with these ``taps`` and output ``rows``.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> from ..ops.epilogue_args import EpilogueArgs
    >>> check_operands(torch.zeros(1, 4), torch.zeros(8, 3, 4), (3,), 1, 1, EpilogueArgs())
    """
    if not isinstance(weight, torch.Tensor):
        raise ArgumentTypeError("weight", "a torch tensor", type(weight).__name__)
    if weight.dim() != len(taps) + 2:
        expected = f"(K, {len(taps)} modes of taps, C / groups)"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    if not isinstance(groups, int) or isinstance(groups, bool) or groups < 1 or (
        x.shape[1] % groups or weight.shape[0] % groups
    ):  # fmt: skip
        expected = f"an int >= 1 that divides C = {x.shape[1]} and K = {weight.shape[0]}"
        raise ArgumentError("groups", expected, shown(groups))
    shape: tuple[int, ...] = weight.shape[0], *taps, x.shape[1] // groups
    if tuple(weight.shape) != shape:
        expected = f"shape {shape}, (K, *taps, C / groups)"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    _check_weight_dtype(x, weight)
    K = weight.shape[0]
    shapes: dict[str, tuple[int, ...]] = {"bias": (K,), "scale": (K,), "residual": (rows, K)}
    for (name, shape), tensor in zip(shapes.items(), tensors_in(ending), strict=True):
        if tensor is None or (name == "scale" and is_number(tensor)):
            continue
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentTypeError(name, "a torch tensor", type(tensor).__name__)
        if tuple(tensor.shape) != shape:
            raise ArgumentError(name, f"shape {shape}", f"shape {tuple(tensor.shape)}")
        if tensor.device != x.device:
            raise ArgumentError(name, f"{x.device}, where the input is", str(tensor.device))
        narrow = name == "residual" and tensor.dtype == x.dtype and x.dtype in NARROW
        wide = tensor.dtype == _EXACT and x.dtype != _EXACT
        if (tensor.dtype not in _FLOATS or wide) and not narrow:
            own = f", or a residual of {x.dtype}" if x.dtype in NARROW else ""
            kinds = f"float16, bfloat16 or float32 where the input is {x.dtype}{own}"
            raise ArgumentTypeError(name, kinds, str(tensor.dtype))
    if weight.device != x.device:
        raise ArgumentError("weight", f"{x.device}, where the input is", str(weight.device))


def _check_weight_dtype(x: Tensor, weight: Tensor) -> None:
    lowered = torch.is_autocast_enabled(x.device.type) and x.dtype in LOWERED
    if weight.dtype != x.dtype and not (lowered and weight.dtype in LOWERED):
        raise ArgumentTypeError(
            "weight", f"{x.dtype}, the dtype of the features", str(weight.dtype)
        )


def check_narrow(
    x: Tensor, weight: Tensor, groups: int, ending: EpilogueArgs, *, repeated: bool
) -> None:
    """Raise for convolutions that do not exist in 8 bits: with a gradient, with one channel per
    group, or over cells that occur more than once.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> from ..ops.epilogue_args import EpilogueArgs
    >>> x, w = torch.zeros(1, 4).to(torch.int8), torch.zeros(4, 3, 1).to(torch.int8)
    >>> check_narrow(x, w, 4, EpilogueArgs(), repeated=False)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `groups`: expected fewer than C = 4 where the input\
 is torch.int8: depthwise layers take floating types of 16 bits or more, got 4
    """
    if isinstance(groups, int) and groups == x.shape[1] > 1:
        expected = (
            f"fewer than C = {groups} where the input is {x.dtype}: depthwise layers take "
            "floating types of 16 bits or more"
        )
        raise ArgumentError("groups", expected, shown(groups))
    bias, scale, residual = tensors_in(ending)
    named = {"input": x, "weight": weight, "bias": bias, "scale": scale, "residual": residual}
    for name, tensor in named.items():
        if isinstance(tensor, torch.Tensor) and wants_gradient(tensor):
            expected = f"a tensor without gradients, as {x.dtype} is for inference only"
            raise ArgumentError(name, expected, "one that requires a gradient")
    if repeated:
        expected = f"distinct cells where the input is {x.dtype}, as repeated ones are summed"
        raise ArgumentError("input", expected, "cells that are repeated")


def check_count(name: str, number: Any) -> int:
    """Return a number of channels or groups, NumPy's too, as an int.

    Raises :class:`~layoutconv.errors.ArgumentError` if it is no integer, or less than 1.

    >>> check_count("groups", 2)
    2
    """
    if not isinstance(number, Integral) or isinstance(number, bool) or number < 1:
        raise ArgumentError(name, "an int >= 1", shown(number))
    if int(number) >= 2**31:
        raise ArgumentError(name, "an int below 2**31", number)
    return int(number)


def device_of(device: Any) -> torch.device | None:
    """Return the device of a layer's weights, None for torch's default.

    >>> device_of("cpu:0"), device_of(None)
    (device(type='cpu', index=0), None)
    """
    try:
        return None if device is None else torch.device(device)
    except (RuntimeError, TypeError, ValueError):
        expected = "None, or a device of torch such as 'cuda'"
        raise ArgumentError("device", expected, shown(device)) from None


def dtype_of(dtype: Any) -> torch.dtype | None:
    """Return the dtype of a layer's weights, None for torch's default; Python's float is float64.

    Raises :class:`~layoutconv.errors.ArgumentTypeError` for anything but floating-point numbers.

    >>> dtype_of(float), dtype_of(None)
    (torch.float64, None)
    """
    dtype = torch.float64 if dtype is float else dtype
    if dtype is None or (isinstance(dtype, torch.dtype) and dtype.is_floating_point):
        return dtype
    raise ArgumentTypeError("dtype", "None, or a floating-point torch.dtype", shown(dtype))
