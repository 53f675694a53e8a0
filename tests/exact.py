"""Numbers whose products and sums are exact, in any order."""

from __future__ import annotations

import torch


def integers(
    *shape: int, seed: int = 0, dtype: torch.dtype = torch.float32, top: int = 4
) -> torch.Tensor:
    """Random integers from ``-top`` to ``top``, others for other shapes."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-top, top + 1, shape, generator=generator).to(dtype)
