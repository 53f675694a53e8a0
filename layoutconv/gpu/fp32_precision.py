"""torch's setting of how convolutions multiply float32 on a GPU, read by its new API and its old.

torch 2.9 brought ``torch.backends.cudnn.conv.fp32_precision``: "tf32", "ieee", or "none" for that
of ``torch.backends.cudnn``, which if "none" is that of ``torch.backends``. Where one of these was
set, the older ``torch.backends.cudnn.allow_tf32`` may raise when it is read; the new API answers
for both. Older versions of torch have ``allow_tf32`` alone.
"""

from __future__ import annotations

import torch

from ..base.torch_internals import reader_of

multiplied_now = reader_of(torch)


def multiplied_as(dtype: torch.dtype, precision: str | None = None) -> str | None:
    """Return how data are multiplied if ``precision`` was asked for: fp32, by torch's setting.

    >>> multiplied_as(torch.float32, "fp32"), multiplied_as(torch.float16)
    ('fp32', None)
    """
    if dtype is torch.float32 and precision is None:
        return multiplied_now()
    return precision
