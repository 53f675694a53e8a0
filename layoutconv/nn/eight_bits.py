"""8-bit numbers: scales, codes, and fake quantisation for training.

Quantisation is symmetric: a number ``x`` has an 8-bit code ``q`` with ``x ~ scale * q``, and zero
is zero. ``scale = amax / 127`` for int8 and ``amax / 448`` for float8_e4m3fn, so the largest
magnitude gets the largest code. ``q`` is ``x / scale`` in fp32, rounded to nearest even; values
beyond the range saturate.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentTypeError
from ..tensors.epilogue_in_torch import convert

# The largest code of each type; for int8, the largest whose negative is a code, too.
LARGEST = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}
_LEAST = torch.finfo(torch.float32).tiny


def check_narrow_dtype(dtype: Any) -> None:
    """Raise :class:`~layoutconv.errors.ArgumentTypeError` unless numbers quantise to ``dtype``.

    >>> check_narrow_dtype(torch.float16)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `dtype`: expected torch.int8 or\
 torch.float8_e4m3fn, got torch.float16
    """
    if not isinstance(dtype, torch.dtype) or dtype not in LARGEST:
        raise ArgumentTypeError("dtype", " or ".join(map(str, LARGEST)), str(dtype))


def scale_of(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the scale for a largest magnitude, fp32 of the same shape; 1 if all numbers are zeros.

    >>> scale_of(torch.tensor([254.0, 0.0]), torch.int8)
    tensor([2., 1.])
    """
    scale = amax.float() / LARGEST[dtype]
    return torch.where(scale < _LEAST, 1.0, scale)


def to_codes(x: Tensor, scale: Any, dtype: torch.dtype) -> Tensor:
    """Return the codes of numbers; ``scale`` is a number, or a tensor that is broadcast.

    >>> to_codes(torch.tensor([1.0, -0.6, 300.0]), 0.5, torch.int8)
    tensor([  2,  -1, 127], dtype=torch.int8)
    """
    return convert(x.float() / scale, dtype)


def of_codes(codes: Tensor, scale: Any, dtype: torch.dtype) -> Tensor:
    """Return the numbers that codes represent.

    >>> of_codes(torch.tensor([2, -1], dtype=torch.int8), 0.5, torch.float16)
    tensor([ 1.0000, -0.5000], dtype=torch.float16)
    """
    return (codes.float() * scale).to(dtype)


def fake_quantized(x: Tensor, scale: Any, dtype: torch.dtype) -> Tensor:
    """Quantise ``x`` and convert back to its dtype; gradients pass straight through.

    Outside the range, where codes saturate, the gradient is zero.

    >>> x = torch.tensor([0.3, 100.0], requires_grad=True)
    >>> y = fake_quantized(x, 0.5, torch.int8)
    >>> y.detach(), torch.autograd.grad(y.sum(), x)[0]
    (tensor([ 0.5000, 63.5000]), tensor([1., 0.]))
    """
    most = LARGEST[dtype] * scale
    inside = x.float().clamp(-most, most)
    with torch.no_grad():
        error = to_codes(inside, scale, dtype).float() * scale - inside
    return (inside + error).to(x.dtype)
