"""Rows of two tensors that belong together."""

from __future__ import annotations

from torch import Tensor

from ..MinkowskiCommon import check_input
from ..MinkowskiSparseTensor import SparseTensor

__all__ = ["get_coords_map"]


def get_coords_map(x: SparseTensor, y: SparseTensor) -> tuple[Tensor, Tensor]:
    """Return the rows of ``x`` and the rows of ``y`` whose cells contain them, int32 (pairs,) each.

    The tensor stride of ``y`` is a multiple of that of ``x``, and both have one manager.

    >>> import torch
    >>> from ..MinkowskiPooling import MinkowskiSumPooling
    >>> x = SparseTensor(torch.ones(3, 1), torch.tensor([[0, 1], [0, 4], [0, 5]]).int())
    >>> get_coords_map(x, MinkowskiSumPooling(2, 2, dimension=1)(x))[1]
    tensor([0, 1, 1], dtype=torch.int32)
    """
    check_input(x, name="x")._check_manager(check_input(y, name="y"), "y")
    fine, coarse = x.coordinate_map_key, y.coordinate_map_key
    rows: tuple[Tensor, Tensor] = x.coordinate_manager.stride_map(fine, coarse)
    return rows
