"""Orders of rows: by their taps, and along a Morton curve."""

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

WORD = 32  # bits per word of a tap mask
PLACE_BITS = 12  # of a row's rough place among all rows
GRAY_BITS = 50  # of the Gray code of its taps
KEY_BITS = 31  # of the whole key: its lower 19 and a row's number in its window take 31 bits again


class RowWindows(NamedTuple):
    """Windows of rows, each of which is sorted by more than 12 bits."""

    number: int = 132  # one per CTA of an H200, ...
    fewest: int = 256  # ... but at least this many rows, ...
    bits: int = 12  # ... and at most two to this


WINDOWS = RowWindows()


def tap_masks(index: Tensor) -> Tensor:
    """Return the taps that each row of a kernel map has, a bit each: int32 (rows, ceil(taps / 32)).

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
    """Return the active taps of each tile of ``rows`` consecutive rows: bool (tiles, taps).

    A kernel multiplies only these; it finds them itself. ``index`` is as for :func:`tap_masks`.

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
    """Sort the rows of a kernel map by their taps; return it, and the order, int32 (rows,).

    ``taps`` are the extents of the filter. Tap masks are in Gray-code order, so that adjacent rows
    differ in few taps. The most significant bits are the taps farthest from the centre: they are
    the rarest, and rows that share one then share tiles. With more than 50 taps, several taps share
    a bit.

    A row's key is a *place*, a 31-bit number: how many of all rows would come before it in that
    order, if each tap were active with a probability of (a + 1) / (n + 5), where n is the number of
    farther taps and a of these are active. A GPU sorts short keys faster. So rows are sorted by the
    12 most significant bits, and then windows of 256 to 4096 consecutive rows by the rest: 19 bits
    from the first in which the rows' 12 bits differ. Rows with equal keys keep their order. With
    tiles of 128 rows this takes 1.88, 1.53 and 1.21 products per existing pair (lidar_kitti,
    indoor, shape512, windows of 704, 1408 and 3776 rows; with 4096 rows 1.86, 1.51 and 1.21; all
    rows by the Gray code 1.85, 1.50 and 1.19; by its 12 most significant bits 2.86, 1.70 and 1.36;
    masks sorted as numbers 2.21, 1.65 and 1.24; unsorted 4.80, 2.43 and 2.03).

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
    """Sort like :func:`by_taps`, with torch on any device."""
    rows, count = index.shape
    keys = order.keys(index)
    found = torch.sort(keys >> (KEY_BITS - PLACE_BITS), stable=True).indices
    sorted_by = _in_windows(keys.index_select(0, found), order.window(rows))
    within = torch.sort(sorted_by, stable=True).indices
    found = found.index_select(0, within)
    return index.T.gather(1, found.expand(count, rows)).T, found.int()


@cache
def _on_gpu() -> Callable[..., tuple[Tensor, Tensor]]:
    """Import kernels only for a GPU, and only once: an import statement takes 1 us per call."""
    from ...kernels.maps.build_map import sort_index

    return sort_index


def _in_windows(keys: Tensor, rows: int) -> Tensor:
    """Return the keys by which rows, in the order of their places, are sorted in their windows."""
    low = KEY_BITS - PLACE_BITS
    window = torch.arange(len(keys), device=keys.device) // rows
    last = ((window + 1) * rows - 1).clamp_(max=len(keys) - 1)
    first = keys.index_select(0, window * rows) >> low
    span = (keys.index_select(0, last) >> low) - first
    bits = torch.frexp(span.double()).exponent  # of the places of a window
    return (window << KEY_BITS) + ((keys - (first << low)) >> bits)


@dataclass(frozen=True)
class TapOrder:
    """Taps in the order in which a row's key takes them, the most significant first.

    A tap has a weight: 2^16 over five more than the number of bits before its own; 0 if it shares
    its bit with the next tap.
    """

    visits: tuple[int, ...]
    weights: tuple[int, ...]

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        """Hash once: kernels look up their arguments for an order at every call."""
        return hash(self.visits)

    def window(self, rows: int) -> int:
        """Return the rows per window for a number of rows.

        Windows have whole warps, and depend on the number of rows alone: all GPUs sort alike.

        >>> [tap_order((3,)).window(rows) for rows in (0, 60_000, 100_000, 1_000_000)]
        [256, 480, 768, 4096]
        """
        number, fewest, bits = WINDOWS
        of_each = -(-rows // (32 * number)) * 32
        if of_each < fewest:
            return fewest
        return of_each if of_each < 1 << bits else 1 << bits

    def keys(self, index: Tensor) -> Tensor:
        """Return the place of every row, int64 (rows,), below 2^31."""
        # An arithmetic code: ``before`` rows precede, ``width`` rows share the bits so far.
        before = torch.zeros(len(index), dtype=torch.int64, device=index.device)
        width = torch.full_like(before, (1 << KEY_BITS) - 1)
        count = torch.zeros_like(before)
        digit = torch.zeros_like(before, dtype=torch.bool)
        there = torch.zeros_like(digit)
        for tap, weight in zip(self.visits, self.weights, strict=True):
            there = there | (index[:, tap] >= 0)
            if not weight:
                continue
            share = width * ((count + 1) * weight) >> 16  # of the rows that have the tap
            share = torch.where(there, share, width - share)
            digit = digit ^ there  # a Gray code's digit is the parity of all bits so far
            before += (width - share) * digit  # rows with the digit 0 come first
            width = share
            count += there
            there = torch.zeros_like(there)
        return before


@remembered(64)
def tap_order(taps: tuple[int, ...]) -> TapOrder:
    """Return the order of taps: farther from the centre is more significant; at most 50 bits.

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
    """Return rows in the order of a Morton curve through their cells, by image: int64 (rows,).

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
    # Grids of any extent; images, which may be negative, are sorted apart.
    bits = min(morton.KEY_BITS // rank, 31)
    keys = morton.Curve(((1 << bits) - 1,) * rank, 1).along(cells[:, 1:])
    order = torch.sort(keys, stable=True).indices
    images = cells[:, 0].index_select(0, order)
    return order.index_select(0, torch.sort(images, stable=True).indices)


def _check_table(name: str, expected: str, table: Tensor) -> tuple[int, int]:
    """Return rows and columns of an integer matrix; ``ArgumentError`` for anything else."""
    if not isinstance(table, torch.Tensor):
        got = type(table).__name__
        raise ArgumentTypeError(name, f"a torch tensor {expected}", got)
    if table.dtype not in (torch.int32, torch.int64):
        raise ArgumentTypeError(name, "a torch tensor of int32", table.dtype)
    if table.dim() != 2:
        raise ArgumentError(name, expected, tuple(table.shape))
    return table.shape[0], table.shape[1]


def _set_bit(words: Tensor, rows: Tensor, bit: int) -> None:
    """Set a bit in the words of the rows that have an entry."""
    sign = bit == WORD - 1 and words.element_size() == 4
    value = -(1 << bit) if sign else 1 << bit
    words |= (rows >= 0).to(words.dtype) * value
