"""Which cells of another grid some cells reach through the taps of a filter."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .coordinates import Coordinates
from .keys import key_strides, pack, unpack
from .taps import Taps

if TYPE_CHECKING:
    from torch import Tensor


def reached(
    coordinates: Coordinates,
    taps: Taps,
    spatial_shape: tuple[int, ...],
    capacity: int | None = None,
    *,
    transposed: bool,
) -> Coordinates:
    """The cells ``y`` of a grid of ``spatial_shape`` that some of ``coordinates``, x, reach.

    Those with ``x = y * stride + offset`` for some tap, or, if ``transposed``, ``y = x * stride +
    offset``; in lexicographic order. With a ``capacity`` there are that many rows, see
    :func:`strided_map`.
    """
    import torch

    strides = key_strides(spatial_shape, coordinates.batch_size)
    keys = torch.cat([
        _keys(coordinates.cells, taps, offset, spatial_shape, strides, transposed=transposed)
        for offset in taps.offsets
    ])  # fmt: skip
    if capacity is None:
        keys = torch.unique(keys)
        found = unpack(keys[1:] if len(keys) and keys[0] < 0 else keys, spatial_shape)
        return Coordinates(found, spatial_shape, coordinates.batch_size, valid=True)
    keys = torch.sort(keys).values
    first = torch.ones_like(keys, dtype=torch.bool)
    first[1:] = keys[1:] != keys[:-1]
    first &= keys >= 0
    place = torch.where(first, first.cumsum(0) - 1, capacity).clamp_(max=capacity)
    kept = keys.new_full((capacity + 1,), -1).scatter_(0, place, keys)[:capacity]
    cells = unpack(kept.clamp(min=0), spatial_shape)
    cells[:, 0].masked_fill_(kept < 0, -1)
    return Coordinates(cells, spatial_shape, coordinates.batch_size, padded=True, valid=True)


def _keys(
    cells: Tensor,
    taps: Taps,
    offset: tuple[int, ...],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    *,
    transposed: bool,
) -> Tensor:
    """The cell that each cell reaches through one tap, as a key: -1 where it reaches none."""
    import torch

    step = cells.new_tensor(taps.stride)
    at = cells[:, 1:].long()
    there = cells[:, 0] >= 0
    if transposed:
        at = at * step + cells.new_tensor(offset)
    else:
        at = at - cells.new_tensor(offset)
        there = there & (at % step == 0).all(1)
        at = torch.div(at, step, rounding_mode="floor")
    there = there & ((at >= 0) & (at < cells.new_tensor(shape))).all(1)
    keys = pack(torch.cat([cells[:, :1].long(), at], dim=1), strides)
    return keys[there] if not cells.is_cuda else torch.where(there, keys, -1)
