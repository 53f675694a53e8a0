"""Orders of rows: by the taps they have, and along a Morton curve."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from itertools import product
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch
    from torch import Tensor

WORD = 32  # bits of a word of a tap mask
_KEY = 63  # bits of a key that rows are sorted by


def tap_masks(index: Tensor) -> Tensor:
    """The taps that each row of a kernel map has, a bit each: int32 (rows, ceil(taps / 32)).

    Bit ``t % 32`` of word ``t // 32`` is tap ``t``.

    >>> import torch
    >>> tap_masks(torch.tensor([[4, -1, 7], [-1, -1, -1]], dtype=torch.int32)).tolist()
    [[5], [0]]
    """
    import torch

    rows, taps = index.shape
    words = torch.zeros(-(-taps // WORD), rows, dtype=torch.int32, device=index.device)
    for tap in range(taps):
        _set_bit(words[tap // WORD], index[:, tap], tap % WORD)
    return words.T.contiguous()


def tile_taps(index: Tensor, rows: int) -> Tensor:
    """Which taps a tile of ``rows`` consecutive rows has: bool (tiles, taps).

    These are what a kernel multiplies; it finds them itself.

    >>> import torch
    >>> tile_taps(torch.tensor([[4, -1], [-1, -1], [-1, 0]], dtype=torch.int32), 2).tolist()
    [[True, False], [False, True]]
    """
    import torch

    there = index >= 0
    missing = -len(index) % rows
    there = torch.nn.functional.pad(there, (0, 0, 0, missing))
    return there.view(-1, rows, index.shape[1]).any(1)


def by_taps(index: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A kernel map with its rows sorted by the taps they have, and the order, int32 (rows,).

    ``taps`` are the extents of the filter. Masks are in the order of a Gray code, so that rows at a
    border of the order differ in few taps, and its most significant bits are the taps that are
    farthest from the centre: they are the rarest, and rows that have one then share tiles. In tiles
    of 128 rows that leaves 1.85, 1.50 and 1.18 products for one that exists (lidar_kitti, indoor,
    shape512; masks sorted as numbers 2.21, 1.65 and 1.24; unsorted 4.80, 2.43 and 2.03).

    Rows with the same taps stay in their order. Of more than 63 taps, several share a bit.

    >>> import torch
    >>> index = torch.tensor([[4, 3, -1], [-1, 0, -1], [1, -1, 5], [2, 5, -1]], dtype=torch.int32)
    >>> by_taps(index, (3,))[1].tolist()
    [1, 0, 3, 2]
    """
    import torch

    rows, count = index.shape
    bits = _significance(tuple(map(int, taps)))
    width = max(bits, default=0) + 1
    # Keys of 32 bits sort in half the time.
    dtype = torch.int32 if width < WORD else torch.int64
    if index.is_cuda:
        keys = _bits_at_once(index.T >= 0, bits, dtype)
    else:
        keys = torch.zeros(rows, dtype=dtype)
        for tap, bit in enumerate(bits):
            _set_bit(keys, index[:, tap], bit)
    shift = 1
    while shift < width:  # the number of a Gray code is the parity of all bits above each
        keys ^= keys >> shift
        shift *= 2
    order = torch.sort(keys, stable=True).indices
    return index.T.gather(1, order.expand(count, rows)).T, order.int()


@lru_cache(256)
def _significance(taps: tuple[int, ...]) -> tuple[int, ...]:
    """The bit of a key for each tap, from 0 up: the farther from the centre, the higher.

    >>> _significance((3,)), _significance((2, 2))
    ((1, 0, 2), (0, 1, 2, 3))
    """
    cells = product(*(range(extent) for extent in taps))
    far = [sum(abs(2 * c - e + 1) for c, e in zip(cell, taps, strict=True)) for cell in cells]
    near_first = sorted(range(len(far)), key=far.__getitem__)
    bits = min(len(far), _KEY)
    found = [0] * len(far)
    for place, tap in enumerate(near_first):
        found[tap] = place * bits // len(far)
    return tuple(found)


def morton_order(cells: Tensor) -> Tensor:
    """Rows in the order of a Morton curve through their cells, images apart: int64 (rows,).

    Bits of the coordinates are interleaved, z's above y's above x's, as many as 63 bits hold (21
    of each in 3-D): rows that are near in space are near in memory.

    >>> import torch
    >>> grid = torch.cartesian_prod(*[torch.arange(2)] * 2)
    >>> cells = torch.nn.functional.pad(grid.flip(0), (1, 0)).int()
    >>> cells[morton_order(cells)].tolist()
    [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    """
    import torch

    rank = cells.shape[1] - 1
    bits = min(_KEY // rank, 31)
    # Bits of a byte, ``rank`` apart: three look-ups of a coordinate, in place of its 21 bits.
    spread = [sum((byte >> bit & 1) << bit * rank for bit in range(8)) for byte in range(256)]
    apart = torch.tensor(spread, dtype=torch.int64, device=cells.device)
    keys = torch.zeros(len(cells), dtype=torch.int64, device=cells.device)
    for axis in range(rank):
        column = cells[:, 1 + axis] & ((1 << bits) - 1)
        for bit in range(0, bits, 8):
            byte = apart.index_select(0, column >> bit & 255)
            keys |= byte << bit * rank + rank - 1 - axis
    order = torch.sort(keys, stable=True).indices
    images = cells[:, 0].index_select(0, order)
    return order.index_select(0, torch.sort(images, stable=True).indices)


def _bits_at_once(there: Tensor, bits: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """A key of each column of ``there``, bool (taps, rows): few launches, where memory is fast."""
    import torch

    places, width = _on_device(bits, there.device), max(bits) + 1
    if len(bits) > width:
        counts = torch.zeros(width, there.shape[1], dtype=torch.int32, device=there.device)
        there = counts.index_add_(0, places, there.int()) > 0
        places = _on_device(tuple(range(width)), there.device)
    return (there.to(dtype) << places[:, None].to(dtype)).sum(0, dtype=dtype)


@lru_cache(256)
def _on_device(numbers: tuple[int, ...], device: torch.device) -> Tensor:
    import torch

    return torch.tensor(numbers, device=device)


def _set_bit(words: Tensor, rows: Tensor, bit: int) -> None:
    """Set a bit of the words of those rows that there are."""
    sign = bit == WORD - 1 and words.element_size() == 4
    value = -(1 << bit) if sign else 1 << bit
    words |= (rows >= 0).to(words.dtype) * value
