"""Unique cells of points."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy
import torch

from ....errors import ArgumentError
from ...whole_numbers import int32_cells

__all__ = ["sparse_quantize"]


def sparse_quantize(
    coords: Any,
    voxel_size: float | Sequence[float] = 1,
    *,
    return_index: bool = False,
    return_inverse: bool = False,
) -> Any:
    """Return the unique cells, int32 (cells, 3), of NumPy points (points, 3), in lexicographic
    order; on request, also the first point of each cell, and the cell of every point.

    >>> sparse_quantize(numpy.array([[0.5, 0.1, -0.1], [0.7, 0.2, -0.2]]), 0.4).tolist()
    [[1, 0, -1]]
    """
    size = numpy.array(voxel_size if isinstance(voxel_size, Sequence) else (voxel_size,) * 3)
    if size.shape != (3,) or not (size > 0).all():
        raise ArgumentError("voxel_size", "a number > 0, or 3 of them", voxel_size)
    if numpy.ndim(coords) != 2 or numpy.shape(coords)[1] != 3:
        raise ArgumentError("coords", "(points, 3)", numpy.shape(coords))
    wide = numpy.floor(coords / size)
    cells = int32_cells("coords", torch.from_numpy(wide)).numpy()
    found, first, inverse = numpy.unique(cells, axis=0, return_index=True, return_inverse=True)
    outputs = [found]
    if return_index:
        outputs.append(first)
    if return_inverse:
        outputs.append(inverse.reshape(-1))
    return outputs[0] if len(outputs) == 1 else outputs
