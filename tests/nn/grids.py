"""Clouds of float64 on small grids, as dense tensors and back."""

from __future__ import annotations

import torch

from layoutconv.sparse import SparseTensor


def cloud(
    shape: tuple[int, ...], C: int = 3, N: int = 2, density: float = 0.4, seed: int = 0
) -> SparseTensor:
    """Cells in any order, of which the first image may have none."""
    generator = torch.Generator().manual_seed(seed)
    there = torch.rand(N, *shape, generator=generator) < density
    cells = there.nonzero().int()
    cells = cells[torch.randperm(len(cells), generator=generator)]
    features = torch.randn(len(cells), C, generator=generator, dtype=torch.float64)
    return SparseTensor(features, cells, shape, N)


def grid(x: SparseTensor, features: torch.Tensor, fill: float) -> torch.Tensor:
    """(N, C, *shape), ``fill`` where no cell is."""
    C = features.shape[1]
    dense = features.new_full((x.batch_size, *x.spatial_shape, C), fill)
    dense = dense.index_put(tuple(x.coords.long().T), features)
    return dense.movedim(-1, 1)


def at_cells(dense: torch.Tensor, x: SparseTensor) -> torch.Tensor:
    return dense.movedim(1, -1)[tuple(x.coords.long().T)]
