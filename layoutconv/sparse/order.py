"""Orders of rows: by the taps they have, and along a Morton curve."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

    there = index.T >= 0
    words = [_bits(there[first : first + WORD]) for first in range(0, index.shape[1], WORD)]
    if not words:
        return torch.zeros(len(index), 0, dtype=torch.int32, device=index.device)
    unsigned = torch.stack(words, dim=1)
    return (unsigned - ((unsigned >> (WORD - 1)) << WORD)).int()


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


def by_taps(index: Tensor) -> tuple[Tensor, Tensor]:
    """A kernel map with its rows sorted by the taps they have, and the order, int32 (rows,).

    Rows with the same taps stay in their order. Of more than 63 taps, several share a bit of the
    key.

    >>> import torch
    >>> index = torch.tensor([[4, 3], [-1, 0], [1, -1], [2, 5]], dtype=torch.int32)
    >>> by_taps(index)[1].tolist()
    [2, 1, 0, 3]
    """
    import torch

    there = index.T >= 0
    taps = len(there)
    if taps > _KEY:
        bit = torch.arange(taps, device=index.device) * _KEY // taps
        shared = torch.zeros(_KEY, len(index), dtype=torch.int32, device=index.device)
        there = shared.index_add_(0, bit, there.int()) > 0
    keys = _bits(there)
    if len(there) < WORD:
        keys = keys.int()  # sorts in half the time
    order = torch.sort(keys, stable=True).indices
    return index.T[:, order].T, order.int()


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
    keys = torch.zeros(len(cells), dtype=torch.int64, device=cells.device)
    for axis in range(rank):
        column = cells[:, 1 + axis].long()
        for bit in range(_KEY // rank):
            keys |= ((column >> bit) & 1) << (bit * rank + rank - 1 - axis)
    order = torch.sort(keys, stable=True).indices
    return order[torch.sort(cells[order, 0], stable=True).indices]


def _bits(there: Tensor) -> Tensor:
    """Bit t of a number for row t of ``there``, bool (bits, rows): int64 (rows,)."""
    import torch

    found = torch.zeros(there.shape[1], dtype=torch.int64, device=there.device)
    for bit, row in enumerate(there):
        found |= row.long() << bit
    return found
