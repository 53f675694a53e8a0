"""spconv itself, for tests that compare with it; they skip where it is not installed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import layoutconv.compat.spconv.pytorch as compat

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
from spconv_agreement import Run, agreement, in_order, run
from spconv_reference import is_installed, reference

sys.path.pop(0)

__all__ = ["Run", "agreement", "both", "grids", "in_order", "needs_spconv", "one_run", "reference"]

needs_spconv = pytest.mark.skipif(
    not is_installed(), reason="spconv is not installed: pip install spconv"
)
EXACT = 1e-12  # of float64, and sums in another order


def grids(
    shape: Sequence[int], rows: int, channels: int, seed: int, *, images: int = 2, again: int = 0
) -> tuple[Tensor, Tensor]:
    """Features and indices of random cells in random order: all different, and ``again`` others."""
    random = torch.Generator().manual_seed(seed)
    extents = [images, *shape]
    keys = torch.randperm(int(torch.tensor(extents).prod()), generator=random)[:rows]
    columns = []
    for extent in reversed(extents):
        columns.append(keys % extent)
        keys = keys // extent
    indices = torch.stack(columns[::-1], dim=1).int()
    more = torch.randint(len(indices), (again,), generator=random)
    order = torch.randperm(len(indices) + again, generator=random)
    indices = torch.cat([indices, indices[more]])[order]
    return torch.randn(len(indices), channels, generator=random, dtype=torch.float64), indices


def both(
    make: Any, features: Tensor, indices: Tensor, shape: Sequence[int], images: int = 2
) -> tuple[Any, Any]:
    """Compare what ``make(spconv)`` computes on the two sides; return both modules.

    Each side loads the other's state dict: first ours loads theirs, then theirs loads ours.
    """
    ours, theirs = make(compat).double(), make(reference()).double()
    for source, target in ((theirs, ours), (ours, theirs)):
        with torch.no_grad():
            for parameter in source.parameters():
                parameter.normal_(0, 0.3)
        target.load_state_dict(source.state_dict())
        found = agreement(
            one_run(compat, ours, features, indices, shape, images),
            one_run(reference(), theirs, features, indices, shape, images),
        )
        assert max(found) < EXACT, found
    return ours, theirs


def one_run(
    side: Any,
    net: nn.Module,
    features: Tensor,
    indices: Tensor,
    shape: Sequence[int],
    images: int = 2,
    gradients: bool = True,
) -> Any:
    """Run one side on a cloud, and return its results."""
    leaf = features.clone().requires_grad_(gradients)
    x = side.SparseConvTensor(leaf, indices.clone(), list(shape), images)
    return run(net, x, features=[leaf] if gradients else [])
