"""Coordinates without bounds: their bounding box, and cells relative to its corner."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import TYPE_CHECKING

import torch

from ...errors import ArgumentError, ArgumentTypeError
from . import row_plan
from .graphs import is_compiling
from .keys import check_coords_type

if TYPE_CHECKING:
    from torch import Tensor

# Corners are multiples of it: four layers of stride 2 then move the taps of every cloud alike, and
# the taps that a GPU caches serve all clouds.
STEP = 16

RUN_ON = ("cpu", "cuda")  # device types that layers run on


def bounding_box(
    coords: Tensor, batch_size: int | None, padded: bool
) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Return the corner of a box around coordinates, its extents, and the number of images.

    Raises :class:`~layoutconv.errors.ArgumentError` for coordinates that are not int32 (rows, 1 +
    rank), and for a box of 2**31 cells or more along an axis.

    >>> bounding_box(torch.tensor([[0, -3, 5], [1, 8, 20]], dtype=torch.int32), None, False)
    ((-16, 0), (25, 21), 2)
    """
    if is_compiling() or row_plan.fixed() is not None:
        graph = "a graph of torch.export, torch.compile or lc.pack"
        raise RuntimeError(
            f"{graph if is_compiling() else 'a CUDA graph'} cannot read coordinates without "
            "bounds: give a spatial_shape, as lc.SparseTensor and spconv's tensors have one"
        )
    rank = coords.shape[1] - 1 if isinstance(coords, torch.Tensor) and coords.ndim == 2 else 3
    if not 1 <= rank <= 4:
        expected = "(rows, 1 + rank) of 1 to 4 spatial modes"
        raise ArgumentError("coords", expected, tuple(coords.shape))
    check_coords_type(coords, (0,) * rank)
    if coords.device.type not in RUN_ON:
        raise ArgumentError("coords", "cells on a CPU or a GPU", str(coords.device))
    there = coords[coords[:, 0] >= 0] if padded else coords
    if not len(there):
        return (0,) * rank, (0,) * rank, batch_size or 0
    lowest, highest = torch.stack([there.amin(0), there.amax(0)]).tolist()
    corner = tuple(first // STEP * STEP for first in lowest[1:])
    extents = tuple(last - first + 1 for first, last in zip(corner, highest[1:], strict=True))
    return corner, _checked(extents), highest[0] + 1 if batch_size is None else batch_size


def moved(coords: Tensor, by: Sequence[int], padded: bool) -> Tensor:
    """Add an offset per axis to coordinates (rows, 1 + rank); rows without an image become zero."""
    found = (coords.long() + coords.new_tensor([0, *by], dtype=torch.int64)).int()
    if padded:
        found[:, 1:].masked_fill_(coords[:, :1] < 0, 0)
    return found


def check_corner(corner: Sequence[int], spatial_shape: Sequence[int]) -> tuple[int, ...]:
    """Return a corner as a tuple, with an integer per axis."""
    try:
        found = tuple(map(index, corner))
    except TypeError:
        expected = f"{len(spatial_shape)} integers"
        raise ArgumentTypeError("corner", expected, corner) from None
    if len(found) != len(spatial_shape):
        raise ArgumentError("corner", f"{len(spatial_shape)} integers", found)
    return found


def checked_box(corner: Sequence[int], extents: Sequence[int]) -> tuple[int, ...]:
    """Return the corner of a layer's result on unbounded coordinates; refuse over 32 bits.

    >>> checked_box((0, 2**31 - 3), (4, 3))
    (0, 2147483645)
    >>> checked_box((0, 2**31 - 3), (4, 4))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `coords`: expected ones whose results lie in\
 [-2**31, 2**31), got results from (0, 2147483645) to (3, 2147483648)
    """
    last = tuple(first + extent - 1 for first, extent in zip(corner, extents, strict=True))
    if min(extents) and (min(corner) < -(2**31) or max(last) >= 2**31):
        expected = "ones whose results lie in [-2**31, 2**31)"
        raise ArgumentError("coords", expected, f"results from {tuple(corner)} to {last}")
    return tuple(corner)


def joint(
    boxes: Sequence[tuple[Sequence[int], Sequence[int]]],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the corner and extents of the smallest box around boxes, each a corner and extents.

    Raises :class:`~layoutconv.errors.ArgumentError` for one of 2**31 cells or more along an axis.

    >>> joint([((0, 5), (3, 3)), ((-2, 6), (1, 9))])
    ((-2, 5), (5, 10))
    """
    filled = [box for box in boxes if min(box[1])] or list(boxes[:1])
    corner = tuple(map(min, zip(*(first for first, _ in filled), strict=True)))
    ends = [[a + e for a, e in zip(first, extents, strict=True)] for first, extents in filled]
    beyond = map(max, zip(*ends, strict=True))
    return corner, _checked(tuple(end - a for end, a in zip(beyond, corner, strict=True)))


def _checked(extents: tuple[int, ...]) -> tuple[int, ...]:
    if max(extents) >= 2**31:
        raise ArgumentError("coords", "a box of fewer than 2**31 cells along each axis", extents)
    return extents
