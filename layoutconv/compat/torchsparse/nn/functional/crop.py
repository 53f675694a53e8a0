"""Rows within bounds."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ....whole_numbers import whole_per_mode
from ...tensor import SparseTensor, check_input
from ...version import batch_last


def spcrop(
    input: SparseTensor,
    coords_min: Sequence[int] | None = None,
    coords_max: Sequence[int] | None = None,
) -> SparseTensor:
    """Return the rows whose coordinates (x, y, z), as in ``C``, are at least ``coords_min`` and
    less than ``coords_max``; None is no bound.

    >>> x = SparseTensor(torch.ones(2, 3), torch.tensor([[0, -1, 0, 0], [1, 4, 1, 1]]).int())
    >>> spcrop(x, (0, 0, 0), (5, 5, 5)).C.tolist()
    [[1, 4, 1, 1]]
    """
    check_input(input)
    own = input.coords[:, :3] if batch_last() else input.coords[:, 1:]
    inside = torch.ones(len(own), dtype=torch.bool, device=own.device)
    if coords_min is not None:
        low = own.new_tensor(whole_per_mode("coords_min", coords_min, 3))
        inside &= (own >= low).all(1)
    if coords_max is not None:
        high = own.new_tensor(whole_per_mode("coords_max", coords_max, 3))
        inside &= (own < high).all(1)
    rows = inside.nonzero()[:, 0]
    return SparseTensor(input.feats[rows], input.coords[rows], input.stride)
