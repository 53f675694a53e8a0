"""torch's setting for float32 convolutions on a GPU, read through its new API or its old one.

torch 2.9 brought ``torch.backends.cudnn.conv.fp32_precision``: "tf32", "ieee", or "none", which
defers to ``torch.backends.cudnn``, whose "none" defers to ``torch.backends``. Once one of these is
set, reading the older ``torch.backends.cudnn.allow_tf32`` may raise; the new API answers for both.
Older versions of torch have only ``allow_tf32``.
"""

from __future__ import annotations

import torch

from ..base.torch_internals import reader_of

multiplied_now = reader_of(torch)


def multiplied_as(dtype: torch.dtype, precision: str | None = None) -> str | None:
    """Return ``precision`` as requested; for float32 without a request, torch's setting.

    >>> multiplied_as(torch.float32, "fp32"), multiplied_as(torch.float16)
    ('fp32', None)
    """
    if dtype is torch.float32 and precision is None:
        return multiplied_now()
    return precision
