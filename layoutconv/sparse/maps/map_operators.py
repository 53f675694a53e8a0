"""Kernel maps as operators, which ``torch.compile`` and ``torch.export`` take into graphs whole.

The number of cells is known when a graph runs; to a tracer it is a symbol. ``grid`` is the number
of images and the extents, ``taps`` the strides and then the offset of every tap. ``checked`` cells
are known to be cells of the grid; others are checked when the graph runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from ..coords.coordinates import Coordinates
from .reached import reached
from .taps import Taps

Ints = Sequence[int]

torch.library.define(
    "layoutconv::reached_cells",
    "(Tensor cells, SymInt[] grid, bool checked, bool padded, int[] taps, SymInt[] outputs, "
    "SymInt? capacity, bool transposed) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)
torch.library.define(
    "layoutconv::neighbours",
    "(Tensor cells, SymInt[] grid, bool checked, bool padded, Tensor centres, int[] taps, "
    "bool mirrored) -> Tensor",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("layoutconv::reached_cells", ("cpu", "cuda"))
def _reached_cells(
    cells: Tensor,
    grid: Ints,
    checked: bool,
    padded: bool,
    taps: Ints,
    outputs: Ints,
    capacity: int | None,
    transposed: bool,
) -> tuple[Tensor, Tensor]:
    inputs = _coordinates(cells, grid, checked, padded)
    through = _taps(taps, len(grid) - 1)
    made = reached(inputs, through, tuple(outputs), capacity, transposed=transposed)
    total = made.total
    return made.cells, torch.tensor(len(made), device=cells.device) if total is None else total


@torch.library.register_fake("layoutconv::reached_cells")
def _fake_reached_cells(cells: Tensor, *rest: Any) -> tuple[Tensor, Tensor]:
    outputs, capacity, _ = rest[-3:]
    # torch's batch norms ask whether there is a row: a graph fails if a level has none.
    rows: Any = torch.library.get_ctx().new_dynamic_size(min=1) if capacity is None else capacity
    return cells.new_empty((rows, 1 + len(outputs))), cells.new_empty((), dtype=torch.int64)


@torch.library.impl("layoutconv::neighbours", ("cpu", "cuda"))
def _neighbours(
    cells: Tensor,
    grid: Ints,
    checked: bool,
    padded: bool,
    centres: Tensor,
    taps: Ints,
    mirrored: bool,
) -> Tensor:
    table = _coordinates(cells, grid, checked, padded).table
    wanted = _taps(taps, len(grid) - 1)
    if mirrored:
        return table.search_own(wanted.offsets)
    return table.search(centres, wanted.stride, wanted.offsets)


@torch.library.register_fake("layoutconv::neighbours")
def _fake_neighbours(cells: Tensor, grid: Ints, *rest: Any) -> Tensor:
    centres, taps, _ = rest[-3:]
    return centres.new_empty((len(taps) // (len(grid) - 1) - 1, centres.shape[0])).T


def reached_cells(
    inputs: Coordinates,
    taps: Taps,
    spatial_shape: tuple[int, ...],
    capacity: int | None,
    *,
    transposed: bool,
) -> Coordinates:
    """Call :func:`~layoutconv.sparse.maps.reached.reached` as an operator."""
    numbers = _numbers(taps), spatial_shape, capacity, transposed
    cells, total = torch.ops.layoutconv.reached_cells(*_known(inputs), *numbers)
    padded = capacity is not None
    made = Coordinates(cells, spatial_shape, inputs.batch_size, padded=padded, valid=True)
    if padded:
        made.total = total
    return made


def neighbours(inputs: Coordinates, centres: Tensor, taps: Taps, mirrored: bool = False) -> Tensor:
    """Return the rows of ``inputs`` that taps of ``centres`` read, int32 (centres, taps).

    >>> cells = Coordinates(torch.tensor([[0, 1], [0, 2]], dtype=torch.int32), (4,), 1)
    >>> neighbours(cells, cells.cells, Taps.centred(1, 3))
    tensor([[-1,  0,  1],
            [ 0,  1, -1]], dtype=torch.int32)
    """
    numbers = centres, _numbers(taps), mirrored
    found: Tensor = torch.ops.layoutconv.neighbours(*_known(inputs), *numbers)
    return found


def _known(inputs: Coordinates) -> tuple[Tensor, list[int], bool, bool]:
    grid = [inputs.batch_size, *inputs.spatial_shape]
    return inputs.cells, grid, inputs.valid, inputs.padded


def _numbers(taps: Taps) -> list[int]:
    return list(chain(taps.stride, *taps.offsets))


def _coordinates(cells: Tensor, grid: Ints, checked: bool, padded: bool) -> Coordinates:
    images, *shape = grid
    return Coordinates(cells, shape, images, padded=padded, valid=checked).check()


def _taps(numbers: Ints, rank: int) -> Taps:
    stride, *offsets = (
        tuple(numbers[start : start + rank]) for start in range(0, len(numbers), rank)
    )
    return Taps((len(offsets),), tuple(offsets), stride)
