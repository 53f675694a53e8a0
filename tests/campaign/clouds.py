"""Cells of random clouds: scattered, on surfaces and lines, in blocks, far apart, one, none."""

from __future__ import annotations

from math import prod

import torch
from torch import Tensor

from .sparse import Sparse
from .sparse_reference import cells_of, keys_of


def draw_cells(p: Sparse, generator: torch.Generator) -> Tensor:
    """Distinct cells int32 (rows, 1 + rank), columns (batch, z, y, x); some rows have batch -1."""
    used = torch.randperm(p.images, generator=generator)[: p.images - p.empty]
    per_image = -(-p.rows // len(used))
    parts = []
    for image in sorted(used.tolist()):
        place = _places(p, per_image, generator)
        parts.append(torch.cat([torch.full((len(place), 1), image), place], 1))
    cells = torch.cat(parts)
    keys = keys_of(cells, p.extents).unique()
    if len(keys) > p.rows:
        keys = keys[torch.randperm(len(keys), generator=generator)[: p.rows]].sort().values
    cells = cells_of(keys, p.extents)
    if p.absent:
        cells = torch.cat([cells, torch.zeros(p.absent, cells.shape[1], dtype=torch.int64)])
        cells[-p.absent :, 0] = -1
    if not p.sorted:
        cells = cells[torch.randperm(len(cells), generator=generator)]
    return cells.int()


def _places(p: Sparse, count: int, generator: torch.Generator) -> Tensor:
    """About ``count`` places in a grid, int64 (count, rank); some may be there twice."""
    extents = torch.tensor(p.extents)
    size = prod(p.extents)
    if p.cloud == "none":
        return torch.empty(0, p.rank, dtype=torch.int64)
    if p.cloud == "one":
        return _uniform(p, 1, generator)
    if p.cloud in ("full", "block"):
        keys = torch.arange(min(count, size, 10 * count))
        return cells_of(keys, p.extents)[:, 1:]
    if p.cloud == "lines":
        start = _uniform(p, max(1, count // 20), generator)
        mode = torch.randint(0, p.rank, (len(start),), generator=generator)
        along = torch.zeros_like(start).scatter_(1, mode[:, None], 1)
        places = start[:, None] + torch.arange(20)[:, None] * along[:, None]
        places = places.view(-1, p.rank)
        return places[(places < extents).all(1)]
    if p.cloud == "surface":
        places = _uniform(p, count, generator)
        height = (3 * torch.sin(places[:, 1:].double().sum(1) / 5)).long() + p.extents[0] // 2
        places[:, 0] = height.clamp(0, p.extents[0] - 1)
        return places
    if p.cloud == "far":  # a few clusters in a grid of nearly 2^60 cells, at its corners too
        centre = _uniform(p, 6, generator)
        centre[0], centre[1] = 0, extents - 1
        near = torch.randint(-2, 3, (6, -(-count // 6), p.rank), generator=generator)
        return (centre[:, None] + near).view(-1, p.rank).clamp(min=0).minimum(extents - 1)
    return _uniform(p, count, generator)


def _uniform(p: Sparse, count: int, generator: torch.Generator) -> Tensor:
    modes = [torch.randint(0, e, (count,), generator=generator) for e in p.extents]
    return torch.stack(modes, 1)
