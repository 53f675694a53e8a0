"""Results of sparse layers, by torch's dense layers on the same grid, in float64."""

from __future__ import annotations

from itertools import product

import torch
from torch import Tensor

import layoutconv.compat.spconv.pytorch as spconv

CONV = {1: torch.conv1d, 2: torch.conv2d, 3: torch.conv3d}
TRANSPOSED = {1: torch.conv_transpose1d, 2: torch.conv_transpose2d, 3: torch.conv_transpose3d}


def cloud(
    shape: list[int], channels: int, *, batch: int = 2, rows: int = 40, seed: int = 0
) -> spconv.SparseConvTensor:
    """Random cells in random order, with random features."""
    random = torch.Generator().manual_seed(seed)
    cells = torch.tensor(list(product(range(batch), *map(range, shape))), dtype=torch.int32)
    kept = torch.randperm(len(cells), generator=random)[:rows]
    features = torch.randn(len(kept), channels, generator=random, dtype=torch.float64)
    return spconv.SparseConvTensor(features, cells[kept], shape, batch)


def at(grid: Tensor, indices: Tensor) -> Tensor:
    """The rows of a grid (N, C, ...) at cells."""
    return grid.movedim(1, -1)[tuple(indices.long().T)]


def occupied(x: spconv.SparseConvTensor) -> Tensor:
    """1 where ``x`` has a row: (N, 1, ...)."""
    return x.replace_feature(torch.ones_like(x.features[:, :1])).dense()


def torch_weight(weight: Tensor) -> Tensor:
    """(K, C, *taps) of (K, *taps, C)."""
    return weight.movedim(-1, 1)


def one_tap(layer: spconv.conv.SparseConvolution) -> bool:
    """Return whether a filter (K, 1, C) is read as a matrix (C, K)."""
    ones = layer.kernel_size == [1] * layer.ndim
    return ones and layer.groups == 1 and (layer.subm or layer.stride == layer.kernel_size)


def same_pad(grid: Tensor, kernel_size: list[int], dilation: list[int]) -> Tensor:
    """A grid with the border that a submanifold filter reads: even ones reach further down."""
    sides = []
    for size, step in zip(reversed(kernel_size), reversed(dilation), strict=True):
        sides += [size // 2 * step, (size - 1 - size // 2) * step]
    return torch.nn.functional.pad(grid, sides)


def dense_conv(layer: spconv.conv.SparseConvolution, grid: Tensor) -> Tensor:
    """A layer on a dense grid (N, C, ...); for an inverse one see the tests."""
    weight, bias = layer.weight, layer.bias
    if one_tap(layer):
        weight = weight.view(layer.in_channels, layer.out_channels).T.reshape(weight.shape)
    w = torch_weight(weight)
    if layer.subm:
        grid = same_pad(grid, layer.kernel_size, layer.dilation)
        return CONV[layer.ndim](grid, w, bias, 1, 0, layer.dilation, layer.groups)
    if layer.transposed:
        of = layer.stride, layer.padding, layer.output_padding, layer.groups, layer.dilation
        K, C = layer.out_channels, layer.in_channels
        parts = w.view(layer.groups, K // layer.groups, C // layer.groups, *w.shape[2:])
        swapped = parts.transpose(1, 2).reshape(C, K // layer.groups, *w.shape[2:])
        return TRANSPOSED[layer.ndim](grid, swapped, bias, *of)
    of = layer.stride, layer.padding, layer.dilation, layer.groups
    return CONV[layer.ndim](grid, w, bias, *of)


def reached(layer: spconv.conv.SparseConvolution, x: spconv.SparseConvTensor) -> Tensor:
    """Return a mask of the output cells of a layer that read some input: (N, 1, ...)."""
    ones = torch.ones(1, 1, *layer.kernel_size, dtype=x.features.dtype)
    if layer.transposed:
        of = layer.stride, layer.padding, layer.output_padding, 1, layer.dilation
        found = TRANSPOSED[layer.ndim](occupied(x), ones, None, *of)
    else:
        of = layer.stride, layer.padding, layer.dilation
        found = CONV[layer.ndim](occupied(x), ones, None, *of)
    return found > 0.5
