"""The elements of a tensor that a copy through its tensor map names (PTX ISA 5.5).

A tiled copy names a box: from a corner on, every so many elements along each mode. An im2col copy
names pixels and some channels of each: one after the other inside a bounding box, w first, then h
and d, then images, and of each what lies the offsets of a filter tap away. The bounding box reaches
from the lower corner to the upper one, which is counted from the far end of the tensor.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .faults import Fault
from .tensor_map import TensorMap


def elements(
    found: TensorMap, corner: tuple[int, ...], offsets: tuple[int, ...] = ()
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the elements' addresses in the order of shared memory, and which elements exist."""
    if corner[0] * found.size % 16:  # an illegal instruction to an H200
        raise Fault(f"a box starts at element {corner[0]} of mode 0, not a multiple of 16 bytes")
    coordinates = _box(found, corner) if found.im2col is None else _pixels(found, corner, offsets)
    at, inside = np.full(coordinates.shape[1], found.address), True
    for c, extent, stride in zip(
        coordinates, found.shape, (found.size, *found.strides), strict=True
    ):
        at += c * stride
        inside &= (c >= 0) & (c < extent)
    return at, np.asarray(inside)


def _box(found: TensorMap, corner: tuple[int, ...]) -> NDArray[np.int64]:
    """Coordinates of a box: shape (modes, elements), mode 0 fastest."""
    # The hardware takes every element of mode 0.
    steps = (1, *found.element_strides[1:])
    lines = [
        np.arange(first, first + extent, step)
        for first, extent, step in zip(corner, found.box, steps, strict=True)
    ]
    grid = np.meshgrid(*lines[::-1], indexing="ij")[::-1]
    return np.stack([g.ravel() for g in grid])


def _pixels(
    found: TensorMap, corner: tuple[int, ...], offsets: tuple[int, ...]
) -> NDArray[np.int64]:
    """Coordinates of a column of pixels: shape (modes, elements), channels fastest."""
    column = found.im2col
    assert column is not None
    last = [size - 1 + u for size, u in zip(found.shape[1:-1], column.upper, strict=True)]
    pixel = list(corner[1:])
    for c, low, high in zip(pixel, column.lower, last, strict=False):
        if not low <= c <= high:
            raise Fault(f"a column starts at {c}, outside its bounding box from {low} to {high}")
    pixels = []
    for _ in range(column.pixels):
        pixels.append([*(c + o for c, o in zip(pixel, offsets, strict=False)), pixel[-1]])
        for mode, (low, high) in enumerate(zip(column.lower, last, strict=True)):
            pixel[mode] += found.element_strides[1 + mode]
            if pixel[mode] <= high:
                break
            pixel[mode] = low
        else:
            pixel[-1] += 1
    channels = np.arange(corner[0], corner[0] + column.channels)
    rest = np.repeat(np.array(pixels).T, channels.size, axis=1)
    return np.concatenate([np.tile(channels, column.pixels)[None], rest])
