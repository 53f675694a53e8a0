"""Clouds on small grids, and the dense convolutions that sparse ones are compared with."""

from __future__ import annotations

import itertools

import torch

from layoutconv.sparse import SparseTensor

EXTENTS = {1: (40,), 2: (9, 11), 3: (6, 5, 7), 4: (4, 5, 3, 4)}


def cloud(rank: int, C: int, share: float = 0.3, dtype=torch.float64, seed: int = 0):
    """Random features at a random ``share`` of the cells of two grids, rows in no order."""
    generator = torch.Generator().manual_seed(seed + rank)
    there = torch.rand(2, *EXTENTS[rank], generator=generator) < share
    cells = there.nonzero().int()
    cells = cells[torch.randperm(len(cells), generator=generator)]
    features = torch.randn(len(cells), C, generator=generator, dtype=torch.float64)
    return SparseTensor(features.to(dtype), cells, EXTENTS[rank], 2)


def numbers(*shape: int, dtype=torch.float64, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed + sum(shape))
    return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)


def per_mode(value, rank):
    return (value,) * rank if isinstance(value, int) else tuple(value)


def dense_conv(grid, w, stride=1, padding=0, dilation=1, groups=1):
    """(N, *grid, C) with (K, *taps, C / groups), padded by pairs; 4-D by a loop."""
    rank = grid.dim() - 2
    stride, dilation = per_mode(stride, rank), per_mode(dilation, rank)
    pairs = [(p, p) if isinstance(p, int) else p for p in per_mode(padding, rank)]
    sides = [side for pair in reversed(pairs) for side in pair]
    grid = torch.nn.functional.pad(grid, (0, 0, *sides))
    if rank < 4:
        function = getattr(torch.nn.functional, f"conv{rank}d")
        x = grid.movedim(-1, 1)
        return function(x, w.movedim(-1, 1), None, stride, 0, dilation, groups).movedim(1, -1)
    taps = w.shape[1:-1]
    shape = [
        (e - d * (t - 1) - 1) // s + 1
        for e, t, s, d in zip(grid.shape[1:-1], taps, stride, dilation, strict=True)
    ]
    K, C = w.shape[0], grid.shape[-1]
    y = 0
    for tap in itertools.product(*map(range, taps)):
        starts = [t * d for t, d in zip(tap, dilation, strict=True)]
        part = (slice(None), *(
            slice(a, a + (n - 1) * s + 1, s) for a, n, s in zip(starts, shape, stride, strict=True)
        ))  # fmt: skip
        x = grid[part].unflatten(-1, (groups, C // groups))
        filter = w[(slice(None), *tap)].view(groups, K // groups, -1)
        y = y + torch.einsum("...gc,gkc->...gk", x, filter).flatten(-2)
    return y


def dense_conv_transpose(grid, w, stride, padding, output_padding, dilation, groups):
    """torch's, of ranks 1 to 3."""
    rank = grid.dim() - 2
    function = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    theirs = w.unflatten(0, (groups, -1)).movedim(-1, 1).flatten(0, 1)  # (C, K / groups, *taps)
    rest = stride, padding, output_padding, groups, dilation
    return function(grid.movedim(-1, 1), theirs, None, *rest).movedim(1, -1)


def at(grid: torch.Tensor, coords: torch.Tensor) -> torch.Tensor:
    """The rows of a grid at some cells."""
    return grid[tuple(coords.long().T)]


def lexicographic(cells: torch.Tensor) -> bool:
    rows = cells.tolist()
    return rows == sorted(rows)
