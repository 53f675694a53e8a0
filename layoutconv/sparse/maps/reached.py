"""Output coordinates: the cells of another grid that input cells reach through a filter's taps."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from math import prod

import torch
from torch import Tensor

from ...base.dry_hooks import dry_hooks
from ..coords import row_plan
from ..coords.cell_errors import overflow
from ..coords.coordinates import Coordinates
from ..coords.keys import MAX_KEY, key_strides, unpack
from .taps import Taps

Offsets = Sequence[Sequence[int]]


def reached(
    coordinates: Coordinates,
    taps: Taps,
    spatial_shape: tuple[int, ...],
    capacity: int | None = None,
    *,
    transposed: bool,
) -> Coordinates:
    """Return the cells ``y`` of a grid of ``spatial_shape`` that some x of ``coordinates`` reach.

    These have ``x = y * stride + offset`` for some tap; or, if ``transposed``, ``y = x * stride +
    offset``. They are in lexicographic order. With a ``capacity`` there are that many rows, see
    :func:`~layoutconv.sparse.strided_map`.

    >>> import torch
    >>> from .taps import Taps
    >>> cells = Coordinates(torch.tensor([[0, 0], [0, 5]], dtype=torch.int32), (6,), 1)
    >>> reached(cells, Taps.strided(1, 3, stride=2, padding=1), (3,), transposed=False).cells
    tensor([[0, 0],
            [0, 2]], dtype=torch.int32)
    """
    batch_size = coordinates.batch_size
    if batch_size * prod(spatial_shape) > MAX_KEY:
        key_strides(spatial_shape, batch_size)  # raises if the grid is too large
    given = coordinates.cells, taps.stride, taps.offsets, spatial_shape, batch_size, capacity
    if dry_hooks.covers(coordinates.cells):
        dry_hooks.note(_on_gpu(), *given, transposed=transposed)
    elif coordinates.cells.is_cuda:
        cells, total = _on_gpu()(*given, transposed=transposed)
        return _found(cells, spatial_shape, batch_size, capacity, total)
    keys = coordinates.keys()
    if coordinates.padded:
        keys = keys[coordinates.cells[:, 0] >= 0]
    if len(keys):
        keys = _Reach(taps.stride, coordinates.spatial_shape, spatial_shape, transposed)(
            keys, taps.offsets
        )
    total = torch.tensor(len(keys), device=keys.device)
    if capacity is not None and len(keys) > capacity:
        if row_plan.fixed() is None:
            raise overflow(len(keys), capacity)
        keys = keys[:capacity]  # as on a GPU; whoever fixed the rows checks the total later
    cells = unpack(keys, spatial_shape)
    if capacity is not None:
        kept = len(cells)
        cells = torch.nn.functional.pad(cells, (0, 0, 0, capacity - kept))
        cells[kept:, 0] = -1
    return _found(cells, spatial_shape, batch_size, capacity, total)


@cache
def _on_gpu() -> Callable[..., tuple[Tensor, Tensor]]:
    """Import kernels only for a GPU, and only once: an import statement takes 1 us per call."""
    from ...kernels.maps import output_coords

    return output_coords.reached


def _found(
    cells: Tensor,
    spatial_shape: tuple[int, ...],
    batch_size: int,
    capacity: int | None,
    total: Tensor,
) -> Coordinates:
    padded = capacity is not None
    made = Coordinates.of_map(cells, spatial_shape, batch_size, padded=padded)
    if padded:
        made.total = total
    return made


class _Reach:
    """From the keys of a grid to those of another, axis by axis.

    Cells that coincide on an axis go on to the next as one: 3x3x3 taps take 9 candidates per row,
    not 27. Axes that shrink come first, so that no intermediate grid has more cells than the first
    and the last.
    """

    def __init__(
        self,
        stride: Sequence[int],
        inputs: Sequence[int],
        outputs: Sequence[int],
        transposed: bool,
    ) -> None:
        self.stride, self.inputs, self.outputs = stride, tuple(inputs), tuple(outputs)
        self.transposed = transposed
        self.axes = sorted(range(len(inputs)), key=lambda axis: outputs[axis] > inputs[axis])

    def __call__(self, keys: Tensor, offsets: Offsets) -> Tensor:
        """Return the distinct keys, in order."""
        return self._from_axis(0, keys, [tuple(o[axis] for axis in self.axes) for o in offsets])

    def _from_axis(self, done: int, keys: Tensor, offsets: Offsets) -> Tensor:
        """Go through the axes from ``self.axes[done]`` on, which have these offsets."""
        if done == len(self.axes) or not len(keys):
            return keys
        then: dict[int, list[tuple[int, ...]]] = {}
        for first, *others in offsets:
            then.setdefault(first, []).append(tuple(others))
        # Offsets with the same rest go on together: all of them, if the taps fill a box.
        alike: dict[tuple[tuple[int, ...], ...], list[int]] = {}
        for first, rest in then.items():
            alike.setdefault(tuple(sorted(rest)), []).append(first)
        parts = [
            self._from_axis(done + 1, self._along(done, keys, firsts), rest)
            for rest, firsts in alike.items()
        ]
        return parts[0] if len(parts) == 1 else _distinct(parts)

    def _along(self, done: int, keys: Tensor, offsets: Sequence[int]) -> Tensor:
        """Return what keys reach along ``self.axes[done]``: distinct keys of a grid with its new
        extent.
        """
        axis = self.axes[done]
        stride, before, after = self.stride[axis], self.inputs[axis], self.outputs[axis]
        stays = stride == 1 and before == after and tuple(offsets) == (0,)
        if stays and done + 1 < len(self.axes):  # the last axis must sort them
            return keys
        within = prod(
            (self.outputs if inner in self.axes[:done] else self.inputs)[inner]
            for inner in range(axis + 1, len(self.axes))
        )
        outer = keys // within
        base = keys - outer * within  # of the axes inside this one
        images = outer // before
        at = outer - images * before
        base += images * (within * after)
        parts = []
        for offset in offsets:
            if self.transposed:
                cell, rows = at * stride + offset, None
            elif stride == 1:
                cell, rows = at - offset, None
            else:
                rows = (at % stride == offset % stride).nonzero()[:, 0]
                cell = (at.index_select(0, rows) - offset) // stride
            inside = ((cell >= 0) & (cell < after)).nonzero()[:, 0]
            rows = inside if rows is None else rows.index_select(0, inside)
            parts.append(cell.index_select(0, inside) * within + base.index_select(0, rows))
        return _distinct(parts)


def _distinct(keys: Sequence[Tensor]) -> Tensor:
    """Return distinct keys in order, in less than half the time of ``torch.unique``."""
    return torch.unique_consecutive(torch.sort(torch.cat(list(keys))).values)
