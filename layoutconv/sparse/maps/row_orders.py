"""Orders of rows: by the taps they have, and along a Morton curve."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from ...base.caches import remembered
from ...base.dry_hooks import dry_hooks
from ...errors import ArgumentError, ArgumentTypeError
from ..coords import morton
from ..coords.graphs import refuse_in_graphs

WORD = 32  # bits of a word of a tap mask
PLACE_BITS = 12  # of where a row is among all, about
GRAY_BITS = 50  # of the Gray code of its taps
KEY_BITS = 31  # of the whole number: with a row's number in its window less, 31 bits once more


class RowWindows(NamedTuple):
    """Windows of rows, each of which is sorted by more than 12 bits."""

    number: int = 132  # one for each CTA of an H200, ...
    fewest: int = 256  # ... but of so many rows at least,
    bits: int = 12  # and of two to that at most


WINDOWS = RowWindows()


def tap_masks(index: Tensor) -> Tensor:
    """The taps that each row of a kernel map has, a bit each: int32 (rows, ceil(taps / 32)).

    Bit ``t % 32`` of word ``t // 32`` is tap ``t``. ``index`` is the ``index`` of a kernel map,
    int32 (rows, taps); anything else is an :class:`~layoutconv.errors.ArgumentError`.

    >>> import torch
    >>> tap_masks(torch.tensor([[4, -1, 7], [-1, -1, -1]], dtype=torch.int32)).tolist()
    [[5], [0]]
    """
    rows, taps = _check_table("index", "(rows, taps), the `index` of a kernel map", index)
    words = torch.zeros(-(-taps // WORD), rows, dtype=torch.int32, device=index.device)
    for tap in range(taps):
        _set_bit(words[tap // WORD], index[:, tap], tap % WORD)
    return words.T.contiguous()


def tile_taps(index: Tensor, rows: int) -> Tensor:
    """The active taps of each tile of ``rows`` consecutive rows: bool (tiles, taps).

    These are what a kernel multiplies; it finds them itself. ``index`` is as of :func:`tap_masks`.

    >>> import torch
    >>> tile_taps(torch.tensor([[4, -1], [-1, -1], [-1, 0]], dtype=torch.int32), 2).tolist()
    [[True, False], [False, True]]
    """
    _check_table("index", "(rows, taps), the `index` of a kernel map", index)
    if not isinstance(rows, int) or isinstance(rows, bool) or rows < 1:
        raise ArgumentError("rows", "an integer >= 1", rows)
    there = index >= 0
    missing = -len(index) % rows
    there = torch.nn.functional.pad(there, (0, 0, 0, missing))
    return there.view(-1, rows, index.shape[1]).any(1)


def by_taps(index: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
    """A kernel map with its rows sorted by the taps they have, and the order, int32 (rows,).

    ``taps`` are the extents of the filter. Masks are in the order of a Gray code, so that rows at a
    border of the order differ in few taps, and its most significant bits are the taps that are
    farthest from the centre: they are the rarest, and rows that have one then share tiles. Of more
    than 50 taps, several share a bit.

    A row's key is a *place*, a number of 31 bits: how many of all rows come before it in that
    order, if each tap were there with a probability that is one more than the farther taps that
    are, of five more than there could be. A GPU sorts short keys faster. So rows are sorted by the
    12 most significant bits, and then windows of them, each 256 to 4096 rows in a row, by what
    follows, 19 bits from the first in which the rows' 12 bits differ. Rows that are the same to
    both stay in their order. In tiles of 128 rows that leaves 1.88, 1.53 and 1.21 products for one
    that exists (lidar_kitti, indoor, shape512, windows of 704, 1408 and 3776 rows; of 4096 rows
    1.86, 1.51 and 1.21; all rows by the Gray code 1.85, 1.50 and 1.19; by its 12 most significant
    bits 2.86, 1.70 and 1.36; masks sorted as numbers 2.21, 1.65 and 1.24; unsorted 4.80, 2.43 and
    2.03).

    >>> import torch
    >>> index = torch.tensor([[4, 3, -1], [-1, 0, -1], [1, -1, 5], [2, 5, -1]], dtype=torch.int32)
    >>> by_taps(index, (3,))[1].tolist()
    [1, 0, 3, 2]
    """
    order = tap_order(tuple(map(int, taps)))
    if dry_hooks.covers(index):
        if index.numel():
            dry_hooks.note(_on_gpu(), index, order)
    elif index.is_cuda and index.numel():
        refuse_in_graphs(index)
        return _on_gpu()(index, order)
    return sorted_in_torch(index, order)


def sorted_in_torch(index: Tensor, order: TapOrder) -> tuple[Tensor, Tensor]:
    """Sort as :func:`by_taps`, by torch on any device."""
    rows, count = index.shape
    keys = order.keys(index)
    found = torch.sort(keys >> (KEY_BITS - PLACE_BITS), stable=True).indices
    sorted_by = _in_windows(keys.index_select(0, found), order.window(rows))
    within = torch.sort(sorted_by, stable=True).indices
    found = found.index_select(0, within)
    return index.T.gather(1, found.expand(count, rows)).T, found.int()


@cache
def _on_gpu() -> Callable[..., tuple[Tensor, Tensor]]:
    """Kernels are loaded for a GPU alone, and to look for them at every call takes 1 us."""
    from ...kernels.maps.build_map import sort_index

    return sort_index


def _in_windows(keys: Tensor, rows: int) -> Tensor:
    """Keys that are in the order of their places, as what they are sorted by in their windows."""
    low = KEY_BITS - PLACE_BITS
    window = torch.arange(len(keys), device=keys.device) // rows
    last = ((window + 1) * rows - 1).clamp_(max=len(keys) - 1)
    first = keys.index_select(0, window * rows) >> low
    span = (keys.index_select(0, last) >> low) - first
    bits = torch.frexp(span.double()).exponent  # of the places of a window
    return (window << KEY_BITS) + ((keys - (first << low)) >> bits)


@dataclass(frozen=True)
class TapOrder:
    """Taps in the order in which a row's key is made, from the most significant on.

    A tap has a weight: 2^16 over five more than the bits before its own; 0 if it shares its bit
    with the next one.
    """

    visits: tuple[int, ...]
    weights: tuple[int, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Return what kernels are told of an order is looked up at every call."""
        return hash(self.visits)

    def window(self, rows: int) -> int:
        """Return how many rows a window has, of that many.

        Whole warps, and no GPU changes the order: they come from the number of rows alone.

        >>> [tap_order((3,)).window(rows) for rows in (0, 60_000, 100_000, 1_000_000)]
        [256, 480, 768, 4096]
        """
        number, fewest, bits = WINDOWS
        of_each = -(-rows // (32 * number)) * 32
        if of_each < fewest:
            return fewest
        return of_each if of_each < 1 << bits else 1 << bits

    def keys(self, index: Tensor) -> Tensor:
        """The place of every row, int64 (rows,), below 2^31."""
        # The rows before one's are a part of all, ``width`` those of the bits so far.
        before = torch.zeros(len(index), dtype=torch.int64, device=index.device)
        width = torch.full_like(before, (1 << KEY_BITS) - 1)
        count = torch.zeros_like(before)
        digit = torch.zeros_like(before, dtype=torch.bool)
        there = torch.zeros_like(digit)
        for tap, weight in zip(self.visits, self.weights, strict=True):
            there = there | (index[:, tap] >= 0)
            if not weight:
                continue
            share = width * ((count + 1) * weight) >> 16  # of those that have the tap
            share = torch.where(there, share, width - share)
            digit = digit ^ there  # that of a Gray code is the parity of all bits so far
            before += (width - share) * digit  # those of the digit 0 come first
            width = share
            count += there
            there = torch.zeros_like(there)
        return before


@remembered(64)
def tap_order(taps: tuple[int, ...]) -> TapOrder:
    """The farther a tap is from the centre, the more significant; at most 50 bits.

    >>> tap_order((3,))
    TapOrder(visits=(2, 0, 1), weights=(13107, 10922, 9362))
    """
    cells = product(*(range(extent) for extent in taps))
    far = [sum(abs(2 * c - e + 1) for c, e in zip(cell, taps, strict=True)) for cell in cells]
    near_first = sorted(range(len(far)), key=far.__getitem__)
    bits = min(len(far), GRAY_BITS)
    bit = [place * bits // len(far) for place in range(len(far))]
    last = [place == 0 or bit[place - 1] != bit[place] for place in range(len(far))]
    weights = [
        (1 << 16) // (bits - 1 - b + 5) if ends else 0 for b, ends in zip(bit, last, strict=True)
    ]
    return TapOrder(tuple(reversed(near_first)), tuple(reversed(weights)))


def morton_order(cells: Tensor) -> Tensor:
    """Rows in the order of a Morton curve through their cells, images apart: int64 (rows,).

    Bits of the coordinates are interleaved, z's above y's above x's, as many as 63 bits hold (21
    of each in 3-D): rows that are near in space are near in memory. ``cells`` are the ``coords`` of
    a sparse tensor, int32 (rows, 1 + modes), images first; anything else is an
    :class:`~layoutconv.errors.ArgumentError`.

    >>> import torch
    >>> grid = torch.cartesian_prod(*[torch.arange(2)] * 2)
    >>> cells = torch.nn.functional.pad(grid.flip(0), (1, 0)).int()
    >>> cells[morton_order(cells)].tolist()
    [[0, 0, 0], [0, 0, 1], [0, 1, 0], [0, 1, 1]]
    """
    expected = "(rows, 1 + modes), the `coords` of a sparse tensor"
    rank = _check_table("cells", expected, cells)[1] - 1
    if not 1 <= rank <= 4:
        raise ArgumentError("cells", f"{expected} of 1 to 4 modes", tuple(cells.shape))
    # In a grid of any extent; its images, which may be negative, are sorted apart.
    bits = min(morton.KEY_BITS // rank, 31)
    keys = morton.Curve(((1 << bits) - 1,) * rank, 1).along(cells[:, 1:])
    order = torch.sort(keys, stable=True).indices
    images = cells[:, 0].index_select(0, order)
    return order.index_select(0, torch.sort(images, stable=True).indices)


def _check_table(name: str, expected: str, table: Tensor) -> tuple[int, int]:
    """Rows and columns of a matrix of integers; ``ArgumentError`` for what is none."""
    if not isinstance(table, torch.Tensor):
        got = type(table).__name__
        raise ArgumentTypeError(name, f"a torch tensor {expected}", got)
    if table.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(name, "a torch tensor of int32", table.dtype)
    if table.dim() != 2:
        raise ArgumentError(name, expected, tuple(table.shape))
    return table.shape[0], table.shape[1]


def _set_bit(words: Tensor, rows: Tensor, bit: int) -> None:
    """Set a bit of the words of those rows that there are."""
    sign = bit == WORD - 1 and words.element_size() == 4
    value = -(1 << bit) if sign else 1 << bit
    words |= (rows >= 0).to(words.dtype) * value
