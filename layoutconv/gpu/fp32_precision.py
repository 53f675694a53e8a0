"""torch's setting of how convolutions multiply float32 on a GPU, read by its new API and its old.

torch 2.9 brought ``torch.backends.cudnn.conv.fp32_precision``: "tf32", "ieee", or "none" for that
of ``torch.backends.cudnn``, which if "none" is that of ``torch.backends``. Where one of these was
set, the older ``torch.backends.cudnn.allow_tf32`` may raise when it is read; the new API answers
for both. Older versions of torch have ``allow_tf32`` alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def reader_of(library: Any) -> Callable[[], str]:
    """Return a function that says how convolutions of ``library``, a torch, multiply float32.

    It returns "tf32" or "fp32". The private functions are what the public attributes call, in 0.1
    us where those take 0.5 to 0.9: each call of a float32 convolution asks.

    >>> reader_of(torch)() == multiplied_now()
    True
    """
    precision = getattr(library._C, "_get_fp32_precision_getter", None)
    if precision is not None:
        return lambda: "tf32" if precision("cuda", "conv") == "tf32" else "fp32"
    cudnn = library.backends.cudnn
    if hasattr(getattr(cudnn, "conv", None), "fp32_precision"):
        return lambda: "tf32" if cudnn.conv.fp32_precision == "tf32" else "fp32"
    allowed = getattr(library._C, "_get_cudnn_allow_tf32", lambda: cudnn.allow_tf32)
    return lambda: "tf32" if allowed() else "fp32"


multiplied_now = reader_of(torch)


def multiplied_as(dtype: torch.dtype, precision: str | None = None) -> str | None:
    """Return how data are multiplied if ``precision`` was asked for: fp32, by torch's setting.

    >>> multiplied_as(torch.float32, "fp32"), multiplied_as(torch.float16)
    ('fp32', None)
    """
    if dtype is torch.float32 and precision is None:
        return multiplied_now()
    return precision
