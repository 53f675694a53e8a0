"""A Morton curve through a batch of grids: nearby cells have nearby 64-bit keys.

A cloud is cut into parts, over ranks or over time, at ranges of such keys. The *halo* of a part,
the cells of other parts that a filter reads, is derived here from the filter's taps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...errors import ArgumentError
from .keys import check_spatial_shape

if TYPE_CHECKING:
    from torch import Tensor

KEY_BITS = 63
_BYTE = 8
KEYS_AT_ONCE = 1 << 22  # keys of rows and taps: 32 MB


class Curve:
    """The curve through the cells ``(batch, z, y, x)`` of grids of ``spatial_shape``.

    A key has the image's bits on top. Below, the bits of the coordinates are interleaved, z's above
    y's above x's, each mode with as many as its extent needs: the order is that of
    :func:`morton_order`, and a flat grid of many cells has short keys, too.

    Args:
        spatial_shape: extents ``(D, H, W)``, one to four of them.
        batch_size: number of grids.

    Raises :class:`~layoutconv.errors.ArgumentError` for a grid whose keys have more than 63 bits.

    >>> import torch
    >>> curve = Curve((4, 2), batch_size=2)
    >>> curve.keys(torch.tensor([[0, 0, 1], [0, 1, 0], [0, 2, 1], [1, 0, 0]], dtype=torch.int32))
    tensor([1, 2, 5, 8])
    >>> curve.cells(torch.tensor([5, 8])).tolist()
    [[0, 2, 1], [1, 0, 0]]
    """

    def __init__(self, spatial_shape: Sequence[int], batch_size: int) -> None:
        self.shape = check_spatial_shape(spatial_shape, batch_size)
        self.batch_size = int(batch_size)
        bits = [max(0, extent - 1).bit_length() for extent in self.shape]
        self.width = sum(bits)
        if self.width + max(0, self.batch_size - 1).bit_length() > KEY_BITS:
            expected = f"extents and images whose bits fit into a key's {KEY_BITS}"
            got = f"{self.shape} with batch_size {batch_size}"
            raise ArgumentError("spatial_shape", expected, got)
        # The position in a key of each bit of a coordinate, the lowest first.
        self.places: list[list[int]] = [[] for _ in bits]
        place = 0
        for level in range(max(bits)):
            for axis in reversed(range(len(bits))):
                if level < bits[axis]:
                    self.places[axis].append(place)
                    place += 1
        self._kept: dict[Any, tuple[Tensor, Tensor]] = {}

    def keys(self, cells: Tensor) -> Tensor:
        """Return the keys of cells (rows, 1 + rank), int64 (rows,); bits beyond the grid's are
        dropped."""
        return self.along(cells[:, 1:]) | cells[:, 0].long() << self.width

    def along(self, places: Tensor) -> Tensor:
        """Return the keys of places (rows, rank) in one image, int64 (rows,)."""
        keys = self._part(0, places[:, 0])
        for axis in range(1, len(self.shape)):
            keys |= self._part(axis, places[:, axis])
        return keys

    def cells(self, keys: Tensor) -> Tensor:
        """Return the cells, int32 (rows, 1 + rank), of keys, int64 (rows,)."""
        columns = [(keys >> self.width).int()]
        for table in self._tables(keys.device)[1]:
            column = torch.zeros_like(columns[0])
            for byte, found in enumerate(table):
                column |= found.index_select(0, keys >> _BYTE * byte & 255)
            columns.append(column)
        return torch.stack(columns, 1)

    def beyond(
        self,
        cells: Tensor,
        offsets: Sequence[Sequence[int]],
        first: int,
        last: int,
        *,
        keys_at_once: int = KEYS_AT_ONCE,
    ) -> Tensor:
        """Return the cells before key ``first`` or behind ``last`` that a filter reads: keys,
        int64, in order.

        Args:
            cells: int32 (rows, 1 + rank), around which the filter reads.
            offsets: the offset of each tap.
            keys_at_once: the most keys of rows and taps at a time, which bounds memory.

        These are cells of the grid; the caller finds out whether they are occupied.

        >>> import torch
        >>> curve = Curve((4, 4), batch_size=1)
        >>> cells = curve.cells(torch.arange(4, 8))
        >>> found = curve.beyond(cells, [(0, -1), (0, 0), (0, 1)], 4, 7)
        >>> curve.cells(found).tolist()
        [[0, 0, 1], [0, 1, 1]]
        """
        # Keys grow with every coordinate, so those of all taps lie between the keys of two corners.
        # Few rows of a range are near its ends: only these are examined, tap by tap.
        corners = []
        for extreme in (min, max):
            reach = [
                extreme(int(offset[axis]) for offset in offsets) for axis in range(len(self.shape))
            ]
            corner = cells[:, 0].long() << self.width
            for axis, step in enumerate(reach):
                # cells and taps are int32: their sum needs int64
                wide = (cells[:, 1 + axis].long() + step).clamp_(0, self.shape[axis] - 1)
                corner |= self._part(axis, wide)
            corners.append(corner)
        near = cells[(corners[0] < first) | (corners[1] > last)]
        found = [near.new_empty(0, dtype=torch.int64)]
        for some in near.split(max(1, keys_at_once // len(offsets))):
            keys = self._keys_around(some, offsets)
            found.append(keys[(keys >= 0) & ((keys < first) | (keys > last))])
        return torch.unique(torch.cat(found))

    def _keys_around(self, cells: Tensor, offsets: Sequence[Sequence[int]]) -> Tensor:
        """Return the keys of cells that a filter reads, int64 (taps, rows); negative outside."""
        keys = (cells[:, 0].long() << self.width).expand(len(offsets), len(cells))
        for axis, extent in enumerate(self.shape):
            steps = sorted({int(offset[axis]) for offset in offsets})
            wide = cells[:, 1 + axis].long() + keys.new_tensor(steps)[:, None]
            outside = (wide < 0) | (wide >= extent)
            parts = self._part(axis, wide.flatten()).view_as(wide).masked_fill_(outside, -1)
            place = {step: at for at, step in enumerate(steps)}
            which = [place[int(offset[axis])] for offset in offsets]
            # -1 sets all bits, so the key stays negative
            keys = keys | parts.index_select(0, torch.tensor(which, device=keys.device))
        return keys

    def _part(self, axis: int, column: Tensor) -> Tensor:
        """Return the bits of a coordinate at their positions in a key: int64."""
        spread = torch.zeros(len(column), dtype=torch.int64, device=column.device)
        for byte in range(-(-len(self.places[axis]) // _BYTE)):
            table = self._tables(column.device)[0][axis, byte]
            spread |= table.index_select(0, column >> _BYTE * byte & 255)
        return spread

    def _tables(self, device: Any) -> tuple[Tensor, Tensor]:
        """Return look-up tables, in place of a shift per bit: of each byte of a coordinate for a
        key, int64 (rank, 4, 256), and of each byte of a key for a coordinate, int32 (rank, 8, 256).
        """
        if device not in self._kept:
            there = torch.zeros(len(self.shape), 4, _BYTE, dtype=torch.int64)
            back = torch.zeros(len(self.shape), -(-self.width // _BYTE), _BYTE, dtype=torch.int32)
            into, out = there.numpy(), back.numpy()
            for axis, places in enumerate(self.places):
                for bit, place in enumerate(places):
                    into[axis, bit // _BYTE, bit % _BYTE] = 1 << place
                    out[axis, place // _BYTE, place % _BYTE] = 1 << bit
            self._kept[device] = _of_bytes(there).to(device), _of_bytes(back).to(device)
        return self._kept[device]


def _of_bytes(weights: Tensor) -> Tensor:
    """Return the sum of the bits' weights for each byte, (..., 256), from weights (..., 8)."""
    bits = torch.arange(256)[:, None] >> torch.arange(_BYTE) & 1
    return (weights[..., None, :] * bits).sum(-1, dtype=weights.dtype)
