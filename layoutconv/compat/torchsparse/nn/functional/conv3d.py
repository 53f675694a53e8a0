"""TorchSparse's convolution, by layoutconv's kernel maps."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor

from .....errors import ArgumentError
from .....nn import sparse
from .....sparse import Coordinates, KernelMap, downsample, strided_map, submanifold_map
from .....sparse import SparseTensor as _SparseTensor
from ....tensor_arguments import check_dtype, check_tensors
from ....whole_numbers import triple
from ...tensor import SparseTensor, check_input, get_allow_negative_coordinates
from ...version import batch_last
from ..utils import fapply
from .conv_config import downsample_mode_of

Triple = tuple[int, ...]


def conv3d(
    input: SparseTensor,
    weight: Tensor,
    kernel_size: Any,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    config: Any = None,
    transposed: bool = False,
    generative: bool = False,
    training: bool = False,
) -> SparseTensor:
    """Convolve with a ``weight`` (taps, C, K), or (C, K) for one tap.

    Output cell y reads ``y * stride + t - (size - 1) // 2`` for every tap t; ``padding`` determines
    the output cells: from 0, or with ``set_allow_negative_coordinates(True)`` from the least, up to
    the ``spatial_range`` or else the greatest cell of the input. A transposed convolution returns
    to the coordinates of the finer stride, through the map of the layer that left them. Only the
    ``downsample_mode`` of ``config`` has an effect, see :mod:`.conv_config`; ``training`` has none.

    Raises :class:`~layoutconv.errors.ArgumentError` for a dilation, which TorchSparse ignores when
    it makes a map, and for ``generative``.
    """
    check_input(input)
    check_tensors(feats=input.feats, weight=weight)
    sizes, steps = triple("kernel_size", kernel_size, 1), triple("stride", stride, 1)
    mode = downsample_mode_of(config)
    if set(triple("dilation", dilation, 1)) != {1}:
        expected = "1, as TorchSparse's maps ignore it; lc.nn.SubmConv3d has a dilation"
        raise ArgumentError("dilation", expected, dilation)
    if generative:
        expected = "False; lc.nn.SparseConvTranspose3d generates the cells that it reaches"
        raise ArgumentError("generative", expected, True)
    if weight.ndim < 2 or weight.numel() != prod(sizes) * prod(weight.shape[-2:]):
        expected = f"({prod(sizes)}, C, K), a matrix per tap of {sizes}"
        raise ArgumentError("weight", expected, tuple(weight.shape))
    if input.feats.ndim != 2 or input.feats.shape[1] != weight.shape[-2]:
        expected = f"{weight.shape[-2]} channels, as the weight has"
        raise ArgumentError("input", expected, f"features {tuple(input.feats.shape)}")
    if sizes == steps == (1, 1, 1):
        check_dtype(input.feats, weight)
        y = fapply(input, torch.matmul, weight if weight.dim() == 2 else weight[0])
        return y if bias is None else y.on(y.feats + bias)
    if transposed:
        finer = tuple(a // b for a, b in zip(input.stride, steps, strict=True))
        if any(a % b for a, b in zip(input.stride, steps, strict=True)):
            expected = f"a divisor of the tensor's stride {input.stride}"
            raise ArgumentError("stride", expected, steps)
        kept = input._caches.levels.get(finer)
        if kept is None:
            expected = f"a tensor whose _caches have coordinates of stride {finer}"
            raise ArgumentError("input", expected, list(input._caches.levels))
        found = _map(kept[1], input.cells, sizes, steps).inverse
        cells, strides, extents = kept[1], finer, _extents_at(input, finer)
    else:
        input.remember()
        strides = tuple(a * b for a, b in zip(input.stride, steps, strict=True))
        cells, extents = input.cells, input.spatial_range
        if steps != (1, 1, 1):
            pads = triple("padding", padding, 0)
            extents = _extents_after(extents, sizes, steps, pads)
            cells = _strided_cells(input, sizes, steps, pads, mode, extents)
        found = _map(input.cells, cells, sizes, steps)
    x = _SparseTensor(input.feats, found.inputs)
    feats = sparse.sparse_conv(x, weight_of(weight, sizes), bias, kernel_map=found).features
    return input.at(feats, cells, strides, extents)


def weight_of(kernel: Tensor, sizes: Triple) -> Tensor:
    """Return layoutconv's weight (K, *taps, C) of a ``kernel`` (taps, C, K): with an odd number of
    taps the first axis is fastest, with an even one the last."""
    kernel = kernel[None] if kernel.dim() == 2 else kernel
    if prod(sizes) % 2:
        return kernel.reshape(*sizes[::-1], *kernel.shape[1:]).permute(4, 2, 1, 0, 3)
    return kernel.reshape(*sizes, *kernel.shape[1:]).permute(4, 0, 1, 2, 3)


def _map(inputs: Coordinates, outputs: Coordinates, sizes: Triple, steps: Triple) -> KernelMap:
    near = [((size - 1) // 2, 0) for size in sizes]
    if inputs is outputs and all(size % 2 for size in sizes):
        return submanifold_map(inputs, sizes)
    if sizes == steps and not any(low for low, _ in near):
        found = strided_map(inputs, sizes, steps)  # most likely the map that made the outputs
        if found.outputs.cells is outputs.cells:
            return found
    return strided_map(inputs, sizes, steps, near, outputs=outputs)


def _extents_after(
    extents: Triple | None, sizes: Triple, steps: Triple, padding: Triple
) -> Triple | None:
    """Return extents (batch, X, Y, Z) of a dense convolution's result."""
    if extents is None:
        return None
    axes = zip(extents[1:], sizes, steps, padding, strict=True)
    return extents[0], *((extent + 2 * pad - k) // s + 1 for extent, k, s, pad in axes)


def _extents_at(input: SparseTensor, stride: Triple) -> Triple | None:
    """Return the extents of the tensor from which the coordinates of a stride came."""
    kept = input._caches.cmaps.get(stride)
    return kept[1] if isinstance(kept, tuple) else None


def _strided_cells(
    input: SparseTensor,
    sizes: Triple,
    steps: Triple,
    padding: Triple,
    mode: str,
    extents: Triple | None,
) -> Coordinates:
    """Return the cells of a strided layer: those of the cache, if it was made for these inputs; or
    ``floor(x / stride)`` if along each axis the filter is as large as the stride or the stride is
    1, or if the mode is "minkowski"; or the cells that the filter reaches, within TorchSparse's
    bounds."""
    cells, made = input.cells, input._caches.made
    key = input.stride, sizes, steps, padding, mode, extents, get_allow_negative_coordinates()
    kept = made.get(key)
    if kept is not None and kept[0] is cells:
        return kept[1]
    pairs = list(zip(sizes, steps, strict=True))
    if mode == "minkowski" or all(step in (1, size) for size, step in pairs):
        found = downsample(cells, steps)
    else:
        found = _bounded(cells, sizes, steps, padding, extents)
    made[key] = cells, found
    return found


def _bounded(
    cells: Coordinates, sizes: Triple, steps: Triple, padding: Triple, extents: Any
) -> Coordinates:
    near = [(size - 1) // 2 for size in sizes] if batch_last() else padding
    every = strided_map(cells, sizes, steps, [(low, 0) for low in near]).outputs
    if not len(cells):
        return every
    batch, y = every.coords[:, 0], every.coords[:, 1:]
    first, last = (bound(cells.coords[:, 1:], 0) for bound in (torch.amin, torch.amax))
    size, step, pad = (y.new_tensor(values) for values in (sizes, steps, padding))
    if batch_last():
        there = y * step >= first
    else:
        low = torch.zeros_like(first)
        if get_allow_negative_coordinates():
            low = ((first - 2 * pad + size - 1) / step).int()
        if extents is None:
            high = torch.div(last + 2 * pad - (size - 1), step, rounding_mode="floor")
        else:
            high = y.new_tensor(extents[1:]) - 1
        there = (y >= low) & (y <= high)
        if extents is not None:
            there = there & (batch < extents[0])[:, None]
    rows = there.all(1).nonzero()[:, 0]
    return every if len(rows) == len(every) else every.at(every.cells[rows])
