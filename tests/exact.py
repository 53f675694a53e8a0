"""Numbers whose products and sums are exact, in any order."""

from __future__ import annotations

import torch


def integers(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    """Random integers from -3 to 3, others for other shapes."""
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randint(-3, 4, shape, generator=generator).to(dtype)
