"""Which rows of a sparse problem read which, by the definition; its coordinates and maps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from layoutconv.sparse import Coordinates, strided_map

from .oracle import WrongResultError
from .sparse import Sparse
from .sparse_reference import Window, inverse, offsets_of

Extents = tuple[int, ...]


@dataclass(frozen=True)
class Geometry:
    """Which rows read which, by the definition.

    Args:
        cells, extents: of the input.
        outputs, shape: cells of the result, and their grid; ``count`` of them are cells, of a
            ``capacity``; ``total`` there would be.
        index: (rows of the result, taps).
        coarse: of an inverse convolution, the cells of what is put in.
    """

    cells: Tensor
    extents: Extents
    outputs: Tensor
    shape: Extents
    index: Tensor
    total: int
    coarse: Tensor | None = None

    @property
    def inputs(self) -> int:
        """Rows that are put in."""
        return len(self.cells if self.coarse is None else self.coarse)


def window_of(p: Sparse) -> Window:
    """The taps of the map; of an inverse convolution, of the one that it goes back through."""
    if p.offsets:
        return Window(p.stride, p.offsets)
    near = tuple(pair[0] for pair in p.padding)
    if p.layer == "subm":
        near = tuple(t // 2 * d for t, d in zip(p.taps, p.dilation, strict=True))
    transposed = p.layer == "transposed"
    return Window(p.stride, offsets_of(p.taps, p.dilation, near), transposed)


def shape_of(p: Sparse) -> Extents:
    """The grid of the result; of an inverse convolution, the coarse one."""
    if p.layer == "subm":
        return p.extents
    modes = zip(p.extents, p.taps, p.stride, p.dilation, p.padding, p.output_padding, strict=True)
    if p.layer == "transposed":
        return tuple((e - 1) * s - n - f + d * (t - 1) + 1 + o for e, t, s, d, (n, f), o in modes)
    return tuple((e + n + f - d * (t - 1) - 1) // s + 1 for e, t, s, d, (n, f), _ in modes)


def geometry_of(p: Sparse, cells: Tensor, generator: torch.Generator) -> Geometry:
    window, shape = window_of(p), shape_of(p)
    if p.layer == "subm":
        index = window.index(cells, p.extents, cells)
        return Geometry(cells, p.extents, cells, shape, index, len(cells))
    outputs = window.reached(cells, shape)
    total = len(outputs)
    if p.given:
        outputs = _others(outputs, shape, p.images, generator)
    elif p.capacity >= 0:
        none = outputs.new_zeros(max(0, p.capacity - total), outputs.shape[1])
        none[:, 0] = -1
        outputs = torch.cat([outputs[: p.capacity], none])
    index = window.index(cells, p.extents, outputs)
    if p.layer in ("inverse", "unpool"):
        back = inverse(index, len(cells))
        return Geometry(cells, p.extents, cells, p.extents, back, total, coarse=outputs)
    return Geometry(cells, p.extents, outputs, shape, index, total)


def _others(cells: Tensor, shape: Extents, images: int, generator: torch.Generator) -> Tensor:
    """A part of some cells, and some that are not among them, in any order."""
    device = cells.device
    kept = cells[(torch.rand(len(cells), generator=generator) < 0.7).to(device)]
    modes = [torch.randint(0, e, (9,), generator=generator) for e in (images, *shape)]
    every = torch.cat([kept, torch.stack(modes, 1).to(device)]).unique(dim=0)
    return every[torch.randperm(len(every), generator=generator).to(device)]


def check_cells(p: Sparse, geometry: Geometry, found: Tensor, cloud: Cloud) -> None:
    """The cells of a result and their order; rows that a capacity has left have batch -1."""
    want = geometry.outputs
    if tuple(found.shape) != tuple(want.shape):
        raise WrongResultError(f"cells: shape {tuple(found.shape)}, not {tuple(want.shape)}")
    got = found.long()
    there = want[:, 0] >= 0
    wrong = ((got != want).any(1) & there) | ((got[:, 0] >= 0) & ~there)
    if wrong.any():
        row = int(wrong.nonzero()[0, 0])
        raise WrongResultError(f"cells: row {row} is {got[row].tolist()}, not {want[row].tolist()}")
    total = cloud.total
    if total is not None and total != geometry.total:
        raise WrongResultError(f"cells: total is {total}, not {geometry.total}")


class Cloud:
    """Coordinates of a problem, from which its maps are made."""

    def __init__(self, p: Sparse, geometry: Geometry, cells: Tensor) -> None:
        padded = p.absent > 0
        self.fine = Coordinates(cells, p.extents, p.images, padded=padded)
        self.given = None
        if p.given:
            self.given = Coordinates(geometry.outputs.int(), geometry.shape, p.images)
        self.down: Any = None
        if p.layer in ("inverse", "unpool"):
            options = {"stride": p.stride, "padding": p.padding, "dilation": p.dilation}
            self.down = strided_map(self.fine, p.taps, **options)
        self.result: Any = None

    @property
    def total(self) -> int | None:
        """The number of cells there were, where a capacity set the number of rows."""
        total = None if self.result is None else self.result.total
        return None if total is None else int(total)
