"""torch's setting of how float32 is multiplied on a GPU, for switches of other libraries."""

from __future__ import annotations


def is_allowed() -> bool:
    """Return whether layers multiply float32 as tf32 now.

    It can be read where torch's newer ``fp32_precision`` was set, too.

    >>> is_allowed() in (True, False)
    True
    """
    from ..gpu.fp32_precision import multiplied_now

    return multiplied_now() == "tf32"


def allow(allowed: object) -> None:
    """Set ``torch.backends.cudnn.allow_tf32``, which the layers follow."""
    import torch

    torch.backends.cudnn.allow_tf32 = bool(allowed)
