"""MinkowskiEngine's rule for the output cells of a strided layer."""

from __future__ import annotations

from math import prod

from ...conv.problem import Ints
from ...errors import ArgumentTypeError
from ..coords.coordinates import Coordinates
from .kernel_map import strided_map
from .taps import MAX_TAPS, per_axis


def downsample(coordinates: Coordinates, stride: Ints = 2) -> Coordinates:
    """Return the cells ``floor(x / stride)`` of all cells x, each once.

    MinkowskiEngine computes these at a stride, whatever the filter is; a filter as large as its
    stride reaches the same. Pass them as ``outputs`` to a convolution, pooling or map with a larger
    filter, whose default, all cells that read some input, has more cells.

    Args:
        coordinates: with bounds or without.
        stride: an int >= 1, or one per spatial mode.

    Returns cells in lexicographic order, in a grid of ``ceil(extent / stride)``; the same call
    returns the same cells, whose ``origin`` is the map of the filter of ``stride`` taps. If that
    has more taps than a map may have, as 32 x 32 x 32, the modes are divided one after another.

    >>> import torch
    >>> cells = Coordinates.unbounded(torch.tensor([[0, -3], [0, -4], [0, 5]]).int())
    >>> downsample(cells).coords.tolist()
    [[0, -2], [0, 2]]
    """
    if not isinstance(coordinates, Coordinates):
        raise ArgumentTypeError("coordinates", "Coordinates", type(coordinates).__name__)
    steps = per_axis("stride", stride, coordinates.rank)
    if prod(steps) > MAX_TAPS and max(steps) < prod(steps):
        for axis, step in enumerate(steps):
            if step > 1:
                coordinates = downsample(
                    coordinates, [step if axis == other else 1 for other in range(len(steps))]
                )
        return coordinates
    shape = None
    if coordinates.corner is None:
        grid = zip(coordinates.spatial_shape, steps, strict=True)
        shape = tuple(-(-extent // step) for extent, step in grid)
    return strided_map(coordinates, steps, steps, spatial_shape=shape).outputs
