"""Bird's-eye views: one of three axes summed, averaged or turned into channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import ArgumentError
from ....nn import sparse
from ....nn.scripting import refuse_scripting
from ....sparse import Coordinates, strided_map
from ....sparse import SparseTensor as _SparseTensor
from ....sparse.coords.rows import add_rows, runs_of
from ...whole_numbers import whole, whole_per_mode
from ..tensor import SparseTensor, check_input, in_convention
from ..utils import keys_in

__all__ = ["ToBEVConvolution", "ToBEVHeightCompression", "ToBEVReduction", "ToDenseBEVConvolution"]


class ToBEVReduction(nn.Module):
    """The mean of the rows that differ only in one axis, in lexicographic order.

    Args:
        dim: the axis of (x, y, z) that is left out, 0, 1 or 2: its coordinate is then 0.

    >>> x = SparseTensor(torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 5, 1, 2], [0, 5, 4, 2]]))
    >>> y = ToBEVReduction()(x)
    >>> y.C.tolist(), y.F.tolist()
    ([[0, 5, 0, 2]], [[2.0]])
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(self, dim: int = 1) -> None:
        super().__init__()
        self.dim = _axis(dim)

    def extra_repr(self) -> str:
        return f"dim={self.dim}"

    def forward(self, input: SparseTensor) -> SparseTensor:
        check_input(input)
        cells = input.cells.coords.clone()
        cells[:, 1 + self.dim] = 0
        return _merged(input.feats, cells, True, input.stride)


class _Columns(nn.Module):
    """Base of layers with a matrix (C, K) per coordinate along an axis, and sums over the axis.

    It is a convolution whose filter and stride are as long as the axis. The bias is added to every
    row, so a sum includes it once per row.
    """

    __prepare_scriptable__ = refuse_scripting

    n_kernels: int
    dim: int
    bias: Any

    def _make(self, in_channels: int, out_channels: int, bias: bool) -> None:
        self.in_channels = whole("in_channels", in_channels, 1)
        self.out_channels = whole("out_channels", out_channels, 1)
        shape = self.n_kernels, self.in_channels, self.out_channels
        self.kernel = nn.Parameter(torch.empty(shape))
        offsets = nn.Parameter(torch.zeros(1, self.out_channels)) if bias else None
        self.register_parameter("bias", offsets)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform, by the channels of a row; a bias stays as it is."""
        bound = 1 / math.sqrt(self.in_channels)
        nn.init.uniform_(self.kernel, -bound, bound)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, n_kernels={self.n_kernels}"

    def _sums(self, input: SparseTensor) -> tuple[Tensor, Coordinates]:
        check_input(input)
        if input.feats.ndim != 2 or input.feats.shape[1] != self.in_channels:
            expected = f"{self.in_channels} channels, as the kernel has"
            raise ArgumentError("input", expected, f"features {tuple(input.feats.shape)}")
        cells, level = input.cells, input.cells.coords[:, 1 + self.dim]
        outside = (level < 0) | (level >= self.n_kernels)
        if bool(outside.any()):
            expected = f"coordinates in [0, {self.n_kernels}) along axis {self.dim}"
            raise ArgumentError("input", expected, int(level[outside][0]))
        taps = [1, 1, 1]
        taps[self.dim] = self.n_kernels
        rows: Tensor = input.feats
        kernel: Tensor = self.kernel
        if self.bias is not None:  # the matrix of an extra channel that is 1
            rows = torch.cat([rows, torch.ones_like(rows[:, :1])], 1)
            kernel = torch.cat([kernel, self.bias.expand(self.n_kernels, 1, -1)], 1)
        weight = kernel.permute(2, 0, 1).reshape(self.out_channels, *taps, -1)
        found = strided_map(cells, taps, taps)
        x = _SparseTensor(rows, found.inputs)
        return sparse.sparse_conv(x, weight, kernel_map=found).features, found.outputs


class ToBEVConvolution(_Columns):
    """The sums, over one axis, of rows times the matrix of their coordinate there; a sparse tensor.

    Args:
        in_channels, out_channels: C and K.
        n_kernels: coordinates along the axis, from 0 on; others are an error.
        stride: input cells per output cell, along the other axes.
        dim: the axis of (x, y, z).
        bias: (1, K), added to every row before the sum.

    >>> x = SparseTensor(torch.ones(2, 4), torch.tensor([[0, 5, 1, 2], [0, 5, 4, 2]]).int())
    >>> layer = ToBEVConvolution(4, 8, n_kernels=5)
    >>> torch.allclose(layer(x).F[0], layer.kernel[[1, 4]].sum((0, 1)))
    True
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        n_kernels: int,
        stride: int = 1,
        dim: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.n_kernels, self.dim = whole("n_kernels", n_kernels, 1), _axis(dim)
        self.stride = whole("stride", stride, 1)
        self._make(in_channels, out_channels, bias)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, stride={self.stride}"

    def forward(self, input: SparseTensor) -> SparseTensor:
        feats, cells = self._sums(input)
        strides = tuple(step * self.stride for step in input.stride)
        coords = cells.coords
        if self.stride > 1:
            coords = torch.div(
                coords, coords.new_tensor([1] + [self.stride] * 3), rounding_mode="floor"
            )
        return _merged(feats, coords, False, strides)


class _Grid:
    """The extents and the origin of a grid, in cells of stride 1."""

    offset: Tensor
    shape: Tensor
    dim: int

    def _lay(self: Any, shape: Any, offset: Any, dim: int) -> None:
        self.dim = _axis(dim)
        extents = shape.tolist() if isinstance(shape, Tensor) else shape
        begin = [*whole_per_mode("offset", offset, 3), 0]
        self.register_buffer("offset", torch.tensor([begin], dtype=torch.int32))
        self._extents = whole_per_mode("shape", extents, 3, 1)
        self.register_buffer("shape", torch.tensor(self._extents, dtype=torch.int32))
        self.bev_dims = [axis for axis in range(3) if axis != self.dim]

    def _places(self, input: SparseTensor, coords: Tensor) -> Tensor:
        """Return coordinates (batch, x, y, z) of a tensor's cells, counted from the offset."""
        steps = coords.new_tensor(input.stride)
        own = coords[:, 1:] * steps - self.offset[:, :3].to(coords.device)
        own = torch.div(own, steps, rounding_mode="floor")
        return torch.cat([coords[:, :1], own], 1).long()


class ToDenseBEVConvolution(_Columns, _Grid):
    """:class:`ToBEVConvolution` of stride 1 as a dense tensor (N, K, X, Z).

    Args:
        in_channels, out_channels, dim, bias: as for :class:`ToBEVConvolution`.
        shape: extents (X, Y, Z) of the grid, in cells of the input; that of ``dim`` is the number
            of matrices.
        offset: where the grid begins, in cells of stride 1; along ``dim`` it has no effect.

    Raises :class:`~layoutconv.errors.ArgumentError` for rows outside the grid (waits for the
    device).
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        shape: Sequence[int] | Tensor,
        offset: Sequence[int] = (0, 0, 0),
        dim: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self._lay(shape, offset, dim)
        self.n_kernels = self._extents[self.dim]
        self._make(in_channels, out_channels, bias)

    def forward(self, input: SparseTensor) -> Tensor:
        feats, cells = self._sums(input)
        places = self._places(input, cells.coords)[:, [0, *(1 + axis for axis in self.bev_dims)]]
        return _dense(feats, places, self.shape[self.bev_dims].tolist())


class ToBEVHeightCompression(nn.Module, _Grid):
    """The dense grid with one axis among the channels: (N, Y * C, X, Z), channels fastest.

    Args:
        channels: C.
        shape, offset, dim: as of :class:`ToDenseBEVConvolution`. Rows beyond the ends of ``dim``
            count to its first or last cell; rows with one cell are summed.

    Raises :class:`~layoutconv.errors.ArgumentError` for rows outside the other axes (waits for the
    device).

    >>> x = SparseTensor(torch.tensor([[1.0], [3.0]]), torch.tensor([[0, 1, 1, 0], [0, 1, 2, 0]]))
    >>> ToBEVHeightCompression(1, (2, 3, 1))(x)[0, :, :, 0]
    tensor([[0., 0.],
            [0., 1.],
            [0., 3.]])
    """

    def __init__(
        self,
        channels: int,
        shape: Sequence[int] | Tensor,
        offset: Sequence[int] = (0, 0, 0),
        dim: int = 1,
    ) -> None:
        super().__init__()
        self.channels = whole("channels", channels, 1)
        self._lay(shape, offset, dim)

    def extra_repr(self) -> str:
        return f"channels={self.channels}"

    def forward(self, input: SparseTensor) -> Tensor:
        check_input(input)
        axes = [*self.bev_dims, self.dim]
        places = self._places(input, input.cells.coords)[:, [0, *(1 + axis for axis in axes)]]
        extents = self.shape[axes].tolist()
        places[:, -1].clamp_(0, extents[-1] - 1)
        return _dense(input.feats, places, extents)


def _axis(dim: int) -> int:
    found = whole("dim", dim, 0)
    if found > 2:
        raise ArgumentError("dim", "0, 1 or 2, an axis of (x, y, z)", found)
    return found


def _merged(feats: Tensor, cells: Tensor, mean: bool, stride: tuple[int, ...]) -> SparseTensor:
    """Return the sums, or means, at coordinates (batch, x, y, z) in units of the stride."""
    runs = runs_of(Coordinates.unbounded(cells, repeated=True).keys())
    coords = in_convention(cells[runs.order[runs.first]], stride)
    place = torch.empty_like(runs.order).scatter(0, runs.order, runs.place)
    sums = add_rows(feats, place, len(coords))
    return SparseTensor(sums / runs.counts[:, None] if mean else sums, coords, stride)


def _dense(feats: Tensor, places: Tensor, extents: list[int]) -> Tensor:
    """Return (N, channels, two extents) of rows at places (batch, and one per extent)."""
    images = int(places[:, 0].max()) + 1 if len(places) else 0
    keys = keys_in("shape", places, [images, *extents])
    grid = add_rows(feats, keys, images * math.prod(extents))
    channels = math.prod(extents[2:]) * feats.shape[1]
    return grid.view(images, *extents[:2], channels).permute(0, 3, 1, 2).contiguous()
