"""Kernel maps of repeated cells, over extended rows.

Each is made from the map of the distinct cells, by replacing their row numbers with those of
extended rows. ``Coordinates.repeats`` says what a layer computes over these.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from .two_way import KernelMap

if TYPE_CHECKING:
    from torch import Tensor

    from ..coords.coordinates import Coordinates
    from .taps import Taps


def around(coordinates: Coordinates, taps: Taps) -> KernelMap:
    """Return the map of a submanifold convolution around cells, some of which are repeated.

    >>> from layoutconv.sparse import Coordinates
    >>> from .taps import Taps
    >>> cells = torch.tensor([[0, 1], [0, 2], [0, 1]], dtype=torch.int32)
    >>> twice = Coordinates(cells, (4,), 1, repeated=True).check()
    >>> around(twice, Taps.centred(1, 3)).index  # row 3 is the sum of rows 0 and 2
    tensor([[-1,  0, -1],
            [ 3,  1, -1],
            [-1,  2, -1],
            [-1, -1,  1]], dtype=torch.int32)
    """
    repeats = coordinates.repeats
    assert repeats is not None
    cells, distinct = coordinates.cells, repeats.distinct
    found = KernelMap.of_search(distinct, distinct, taps, mirrored=taps.mirrored).index.T
    index = _nothing(found, len(repeats.stand_in))
    zero = (0,) * len(taps.offsets[0])
    before = [tap for tap, offset in enumerate(taps.offsets) if offset < zero]
    behind = [tap for tap, offset in enumerate(taps.offsets) if offset > zero]
    for chosen, rows, read in (
        (before, repeats.first, repeats.extended),
        (behind, repeats.extended, repeats.first),
    ):
        if chosen:
            which = torch.tensor(chosen, device=cells.device)
            index[which[:, None], rows] = _at(read, found[which])
    if zero in taps.offsets:
        own = torch.arange(len(cells), dtype=torch.int32, device=cells.device)
        index[taps.offsets.index(zero), : len(cells)] = torch.where(cells[:, 0] >= 0, own, -1)
    return KernelMap.of_extended(coordinates, coordinates, taps.extents, index.T, taps.mirrored)


def between(distinct: KernelMap, inputs: Coordinates, outputs: Coordinates) -> KernelMap:
    """Return the map between cells, some repeated, from the map between the ``distinct`` ones."""
    index = distinct.index.T
    if inputs.repeats is not None:
        index = _at(inputs.repeats.extended, index)
    if outputs.repeats is not None:
        of_cells, repeats = index, outputs.repeats
        index = _nothing(index, len(repeats.stand_in))
        index[:, repeats.extended] = of_cells
    return KernelMap.of_extended(inputs, outputs, distinct.taps, index.T, False)


def _nothing(like: Tensor, rows: int) -> Tensor:
    return like.new_full((len(like), rows), -1)


def _at(rows: Tensor, index: Tensor) -> Tensor:
    """Return ``rows`` at ``index``, int32; -1 where the index is -1."""
    return torch.cat([rows.int(), index.new_full((1,), -1)])[index.long()]


def evened(kernel_map: KernelMap) -> KernelMap:
    """Return a map of cells to themselves in which all rows of a cell read the same: all rows of
    the cells that its taps point to. Pooling needs that; a submanifold map does not have it.

    >>> from layoutconv.sparse import Coordinates, submanifold_map
    >>> cells = torch.tensor([[0, 1], [0, 2], [0, 1]], dtype=torch.int32)
    >>> twice = Coordinates(cells, (4,), 1, repeated=True)
    >>> evened(submanifold_map(twice, 3)).index
    tensor([[-1, -1, -1],
            [ 3,  1, -1],
            [-1, -1, -1],
            [-1,  3,  1]], dtype=torch.int32)
    """
    repeats = kernel_map.repeats[0]
    assert repeats is not None
    index, first, extended = kernel_map.index.T, repeats.first, repeats.extended
    stands_for = torch.arange(index.shape[1], device=index.device)
    stands_for[first] = extended
    of_cells = torch.maximum(index[:, first], index[:, extended])
    even = _nothing(index, index.shape[1])
    even[:, extended] = _at(stands_for, of_cells)
    cells = kernel_map.inputs
    return KernelMap.of_extended(cells, cells, kernel_map.taps, even.T, False)
