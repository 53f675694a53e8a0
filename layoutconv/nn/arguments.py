"""Checks of the arguments of torch's convolutions; errors use torch's argument names."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from operator import index as as_int
from typing import Any

import torch
from torch import Tensor

from ..conv.problem import Padding, padding_pairs
from ..errors import ArgumentError, ArgumentTypeError, check_choice
from ..ops.autocast import AUTOCAST
from ..ops.epilogue_args import EpilogueArgs, tensors_in
from ..tensors.tensor_checks import PAIRS
from ..view.epilogue import ACTIVATIONS, Pointwise, check_number, is_number

# Tuples, as torch 2.6 cannot compile sets of dtypes.
_FLOATS = torch.float16, torch.bfloat16, torch.float32
_OWN = torch.float64, torch.complex64, torch.complex128
_NARROW = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2
_ACTIVATION = f"None or one of {', '.join(ACTIVATIONS)}, or an lc.Pointwise"


def near_and_far(
    padding: Padding | str,
    stride: Sequence[int],
    dilation: Sequence[int],
    taps: Sequence[int],
) -> tuple[tuple[int, int], ...]:
    """Return (near, far) of each spatial mode; an odd 'same' pads more at the far side, like torch.

    >>> near_and_far("same", (1, 1), (1, 1), (3, 4))
    ((1, 1), (1, 2))
    """
    if not isinstance(padding, str):  # an array compared with a name gives an array
        return padding_pairs(padding, len(taps))
    if padding == "valid":
        return ((0, 0),) * len(taps)
    if padding == "same":
        if any(step != 1 for step in stride):
            raise ArgumentError(
                "padding", "numbers where the stride is not 1", f"'same' with stride {stride}"
            )
        total = [d * (t - 1) for d, t in zip(dilation, taps, strict=True)]
        return tuple((cells // 2, cells - cells // 2) for cells in total)
    raise ArgumentError("padding", "'same', 'valid' or numbers", repr(padding))


def check_dense_operands(
    rank: int,
    input: Tensor,
    weight: Tensor,
    ending: EpilogueArgs,
    groups: int,
    *,
    transposed: bool,
    part: bool = False,
) -> None:
    """Check shapes, dtypes and devices; :func:`check_like_output` checks the residual's shape.

    If ``part``, the input may have empty spatial modes.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.
    """
    bias, scale, residual = tensors_in(ending)
    numeric = is_number(scale)
    if numeric:
        if scale != scale:
            raise ArgumentError("scale", "a torch tensor or a number", scale)
        check_number("scale", scale)  # an integer may be too large for a float
    named: dict[str, Any] = {"input": input, "weight": weight, "bias": bias, "residual": residual}
    named["scale"] = None if numeric else scale
    for name, tensor in named.items():
        optional = name not in ("input", "weight")
        if not isinstance(tensor, torch.Tensor) and not (optional and tensor is None):
            kinds = "a torch tensor or a number" if name == "scale" else "a torch tensor"
            raise ArgumentTypeError(name, kinds, type(tensor).__name__)
        if tensor is not None and (tensor.is_nested or tensor.layout != torch.strided):
            got = "a nested tensor" if tensor.is_nested else str(tensor.layout)
            raise ArgumentTypeError(name, "a tensor of torch.strided layout", got)
    if not rank + 1 <= input.dim() <= rank + 2:  # also for a rank that is a symbol of a compiler
        expected = f"(N, C) or (C,) and {rank} spatial modes"
        raise ArgumentError("input", expected, f"shape {tuple(input.shape)}")
    if weight.dim() != rank + 2:
        expected = f"2 modes of channels and {rank} of taps"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    of_input = input.shape[-rank - 1 :][: 1 if part else None]
    for name, extents in (("input", of_input), ("weight", weight.shape)):
        if 0 in extents:  # the batch may be empty
            shape = f"shape {tuple(named[name].shape)}"
            raise ArgumentError(name, "every extent but the batch's >= 1", shape)
    K = _check_channels(input.shape[-rank - 1], weight, groups, transposed)
    for name, tensor in (("bias", bias), ("scale", named["scale"])):
        if tensor is not None and tuple(tensor.shape) != (K,):
            expected = f"shape ({K},), an entry per channel of the output"
            raise ArgumentError(name, expected, f"shape {tuple(tensor.shape)}")
    _check_dtypes(named)


def check_groups(groups: Any) -> int:
    """Return the number of groups, which may be 0: :func:`check_dense_operands` divides by it.

    Raises :class:`~layoutconv.errors.ArgumentError` if it is no integer.

    >>> check_groups(2)
    2
    """
    try:
        number = as_int(groups)
    except TypeError:
        number = None
    if number is None or isinstance(groups, bool):
        raise ArgumentTypeError("groups", "an int >= 1", repr(groups))
    return number


def _check_channels(channels: int, weight: Tensor, groups: int, transposed: bool) -> int:
    """Return the number of output channels."""
    first, second = weight.shape[:2]
    if groups < 1 or channels % groups or first % groups:
        of_filter = "" if transposed else f" and the {first} of the output"
        expected = f"an int >= 1 that divides the {channels} channels of the input{of_filter}"
        raise ArgumentError("groups", expected, groups)
    into, wanted = (0, channels) if transposed else (1, channels // groups)
    if weight.shape[into] != wanted:
        part = ", as in the input" if transposed or groups == 1 else ", a group of the input's"
        expected = f"{wanted} channels in mode {into}{part}"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    return second * groups if transposed else first


def _check_dtypes(named: dict[str, Any]) -> None:
    input = named.pop("input")
    if input.dtype not in (*_FLOATS, *_OWN, *_NARROW):
        kinds = (
            "float16, bfloat16, float32, float64, int8, float8_e4m3fn, float8_e5m2, complex64 or"
            " complex128"
        )
        raise ArgumentTypeError("input", kinds, str(input.dtype))
    kind = input.device.type
    lowered = kind in AUTOCAST and torch.is_autocast_enabled(kind)
    for name, tensor in named.items():
        if tensor is None:
            continue
        same = tensor.dtype == input.dtype
        if name == "weight":
            if not same and not lowered:
                raise ArgumentTypeError(
                    name, f"{input.dtype}, the dtype of the input", str(tensor.dtype)
                )
        elif name == "scale" and tensor.dtype.is_complex:
            raise ArgumentTypeError(name, "real numbers", str(tensor.dtype))
        elif input.dtype.is_complex and name != "scale":
            if not same:
                raise ArgumentTypeError(
                    name, f"{input.dtype}, the dtype of the input", str(tensor.dtype)
                )
        elif tensor.dtype not in _FLOATS:
            narrow = same and name == "residual" and input.dtype in _NARROW
            real = torch.float64, torch.complex128
            if not narrow and not (input.dtype in real and tensor.dtype == torch.float64):
                expected = f"float16, bfloat16 or float32 where the input is {input.dtype}"
                raise ArgumentTypeError(name, expected, str(tensor.dtype))
        if tensor.device != input.device:
            raise ArgumentError(name, f"{input.device}, where the input is", str(tensor.device))


def check_activation(activation: str | None, slope: float, input: Tensor) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` for an unknown activation, or a ``slope``
    that is no number.
    """
    check_number("slope", slope)
    if activation is None:
        return
    check_choice("activation", activation, ACTIVATIONS, _ACTIVATION)
    if input.dtype.is_complex:
        raise ArgumentError("activation", "None for complex numbers", repr(activation))


def check_out_dtype(out_dtype: torch.dtype | None, input: Tensor) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` if ``out_dtype`` cannot store sums."""
    if out_dtype is None:
        return
    if isinstance(out_dtype, torch.dtype) and (input.dtype, out_dtype) in PAIRS:
        return
    if input.is_complex():
        raise ArgumentError("out_dtype", "None for complex numbers", out_dtype)
    *some, last = sorted(str(d) for operand, d in PAIRS if operand == input.dtype)
    expected = f"{', '.join(some)} or {last} where the input is {input.dtype}"
    raise ArgumentTypeError("out_dtype", expected, repr(out_dtype))


def check_fits(
    extents: Sequence[int],
    taps: Sequence[int],
    padding: Sequence[tuple[int, int]],
    dilation: Sequence[int],
) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` for a filter larger than the padded input.

    >>> check_fits((4,), (3,), [(0, 1)], [2])
    """
    modes = zip(extents, taps, padding, dilation, strict=True)
    for mode, (extent, tap, (near, far), apart) in enumerate(modes):
        cells, span = extent + near + far, apart * (tap - 1) + 1
        if span > cells:
            expected = f"a filter that fits the padded input, {cells} cells in spatial mode {mode}"
            raise ArgumentError("weight", expected, f"one that spans {span}")


def checked_executor(executor: Any) -> str | None:
    """Return the checked ``executor`` for CPUs; None stands for torch.

    >>> checked_executor("views")
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `executor`: expected None or 'view', got 'views'
    """
    if executor is not None:
        check_choice("executor", executor, ("view",), "None or 'view'")
    return executor  # type: ignore[no-any-return]


def check_size(shape: Sequence[int], name: str, *numbers: Any) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` for an output too large for any memory.

    Only huge ``numbers`` can make it so large; ``name`` is the argument that they come from.

    >>> check_size((1, 1, 2**62), "padding", [2**61])
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `padding`: expected fewer than 2^60 elements in the\
 output, got shape (1, 1, 4611686018427387904)
    """
    if max(max(flat) for flat in numbers) >= 1 << 31 and prod(shape) >= 1 << 60:
        raise ArgumentError(name, "fewer than 2^60 elements in the output", f"shape {tuple(shape)}")


def check_function(function: Pointwise, input: Tensor, K: int) -> None:
    """Compare the tensors of a user's function with an input, and those per column with K channels.

    Raises :class:`~layoutconv.errors.ArgumentError` that names ``activation`` and the tensor.

    >>> step = Pointwise(lambda x, low: x + low, {"low": torch.zeros(3)})
    >>> check_function(step, torch.zeros(1, 2, 5, 5), 4)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `activation`: expected `low` of shape (4,), a number\
 for each channel of the output, got shape (3,)
    """
    if input.dtype.is_complex:
        raise ArgumentError("activation", "None for complex numbers", "a Pointwise")
    kinds = (*_FLOATS, torch.float64) if input.dtype == torch.float64 else _FLOATS
    wide = *kinds, *_NARROW
    places = (function.columns, kinds), (function.rows, kinds), (function.sources, wide)
    for named, allowed in places:
        for name, tensor in named.items():
            if not isinstance(tensor, torch.Tensor):
                got = type(tensor).__name__
                raise ArgumentTypeError("activation", f"`{name}` to be a torch tensor", got)
            if tensor.dtype not in allowed:
                expected = f"`{name}` of {', '.join(sorted(map(str, allowed)))}"
                raise ArgumentTypeError("activation", expected, str(tensor.dtype))
            if tensor.device != input.device:
                expected = f"`{name}` on {input.device}, where the input is"
                raise ArgumentError("activation", expected, str(tensor.device))
    for name, tensor in function.columns.items():
        _check_shape(name, tensor, (K,), "a number for each channel of the output")


def check_function_places(function: Pointwise, rows: int, shape: Sequence[int]) -> None:
    """Compare a user function's tensors per row and like the output with the output's ``shape``.

    Raises :class:`~layoutconv.errors.ArgumentError` that names ``activation`` and the tensor.
    """
    for name, tensor in function.rows.items():
        _check_shape(name, tensor, (rows,), "a number for each row of the output")
    for name, tensor in function.sources.items():
        _check_shape(name, tensor, shape, "that of the output")


def _check_shape(name: str, tensor: Tensor, shape: Sequence[int], said: str) -> None:
    if tuple(tensor.shape) != tuple(shape):
        expected = f"`{name}` of shape {tuple(shape)}, {said}"
        raise ArgumentError("activation", expected, f"shape {tuple(tensor.shape)}")


def check_like_output(ending: EpilogueArgs, input: Tensor, K: int, spatial: Sequence[int]) -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` for a shape other than the output's."""
    residual, function = ending.residual, ending.activation
    if residual is None and not isinstance(function, Pointwise):
        return
    shape = (*input.shape[: -len(spatial) - 1], K, *spatial)
    if isinstance(function, Pointwise):
        check_function_places(function, prod(shape) // max(K, 1), shape)
    if residual is not None and tuple(residual.shape) != shape:
        expected = f"shape {shape}, that of the output"
        raise ArgumentError("residual", expected, f"shape {tuple(residual.shape)}")
