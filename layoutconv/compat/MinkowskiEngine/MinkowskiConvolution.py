"""MinkowskiEngine's convolutions; ``kernel`` is (taps, C, K), or (C, K) for one tap."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from ...nn import sparse, sparse_depthwise
from ...sparse import SparseTensor as _SparseTensor
from ..tensor_arguments import check_dtype
from ..whole_numbers import whole
from .MinkowskiCommon import MinkowskiModuleBase, check_input, region_text
from .MinkowskiCoordinateManager import CoordinateMapKey, weight_of
from .MinkowskiKernelGenerator import Ints, KernelGenerator, check_dimension, region_of
from .MinkowskiSparseTensor import SparseTensor, key_of


def key_of_convolution(
    input: SparseTensor, coordinates: Any, region: KernelGenerator, is_transpose: bool
) -> CoordinateMapKey:
    """Return the key of a convolution's outputs; a region that expands makes new coordinates."""
    if not region.expand_coordinates:
        return key_of(input, coordinates, region, is_transpose)
    if is_transpose:
        return key_of(input, None, region, is_transpose)
    return input.coordinate_manager.expanded(input.coordinate_map_key, region)


def convolved(
    input: SparseTensor,
    kernel: Tensor,
    bias: Tensor | None,
    region: KernelGenerator,
    key: CoordinateMapKey,
    is_transpose: bool,
) -> Tensor:
    """Convolve with ``kernel`` (taps, C, K), at the coordinates of a key."""
    own, manager = input.coordinate_map_key, input.coordinate_manager
    found = manager.map_of(own, key, region, is_transpose=is_transpose)
    x = _SparseTensor(input.F, found.inputs)
    return sparse.sparse_conv(x, weight_of(kernel, region), bias, kernel_map=found).features


class MinkowskiConvolutionBase(MinkowskiModuleBase):
    """The base of convolutions; a ``kernel_generator`` overrides the sizes beside it."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints = -1,
        stride: Ints = 1,
        dilation: Ints = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        is_transpose: bool = False,
        expand_coordinates: bool = False,
        convolution_mode: Any = None,
        dimension: int | None = -1,
    ) -> None:
        super().__init__()
        dimension = check_dimension(dimension)
        in_channels = whole("in_channels", in_channels, 1)
        out_channels = whole("out_channels", out_channels, 1)
        kernel_generator = region_of(kernel_generator, kernel_size, stride, dilation, dimension)
        kernel_generator.expand_coordinates = expand_coordinates
        self.in_channels, self.out_channels = in_channels, out_channels
        self.is_transpose, self.dimension = is_transpose, dimension
        self.kernel_generator, self.convolution_mode = kernel_generator, convolution_mode
        volume = kernel_generator.kernel_volume
        self.use_mm = volume == 1 and kernel_generator.requires_strided_coordinates
        shape = (in_channels, out_channels) if self.use_mm else (volume, in_channels, out_channels)
        self.kernel = torch.nn.Parameter(torch.empty(shape))
        self.bias = torch.nn.Parameter(torch.empty(1, out_channels)) if bias else None
        self.reset_parameters(is_transpose)

    def reset_parameters(self, is_transpose: bool = False) -> None:
        """Uniform, by the numbers that a sum has."""
        channels = self.out_channels if is_transpose else self.in_channels
        bound = 1 / math.sqrt(channels * self.kernel_generator.kernel_volume)
        for parameter in (self.kernel, self.bias):
            if parameter is not None:
                torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: SparseTensor, coordinates: Any = None) -> SparseTensor:
        """Convolve; ``coordinates`` are the outputs to compute: a tensor, a SparseTensor or a key.

        Without them, a layer of stride s computes the cells ``floor(x / s)``; a transposed one
        computes the manager's cells of the finer tensor stride, or else all cells that its filter
        reaches.
        """
        check_input(input, self.dimension)
        if input.F.shape[1] != self.in_channels:
            expected = f"{self.in_channels} channels"
            raise ArgumentError("input", expected, input.F.shape[1])
        bias = None if self.bias is None else self.bias[0]
        if self.use_mm and coordinates is None:
            check_dtype(input.F, self.kernel)
            y = input.F.mm(self.kernel)
            return input.on(y if bias is None else y + bias)
        region = self.kernel_generator
        key = key_of_convolution(input, coordinates, region, self.is_transpose)
        kernel = self.kernel[None] if self.use_mm else self.kernel
        return input.at(convolved(input, kernel, bias, region, key, self.is_transpose), key)

    def __repr__(self) -> str:
        sizes = region_text(self.kernel_generator)
        return f"{type(self).__name__}(in={self.in_channels}, out={self.out_channels}, {sizes})"


class _Convolution(MinkowskiConvolutionBase):
    """A convolution whose class says if it is transposed."""

    _transposed: bool

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints = -1,
        stride: Ints = 1,
        dilation: Ints = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        expand_coordinates: bool = False,
        convolution_mode: Any = None,
        dimension: int | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, dilation, bias, kernel_generator,
            self._transposed, expand_coordinates, convolution_mode, dimension,
        )  # fmt: skip


class MinkowskiConvolution(_Convolution):
    """A convolution; a stride of 1 keeps the coordinates, one of s leaves ``floor(x / s)``.

    >>> x = SparseTensor(torch.ones(3, 1), torch.tensor([[0, -3], [0, -2], [0, 5]]).int())
    >>> net = MinkowskiConvolution(1, 1, kernel_size=3, stride=2, dimension=1)
    >>> net.kernel.data = torch.tensor([1.0, 10.0, 100.0]).view(3, 1, 1)
    >>> y = net(x)
    >>> y.C.tolist(), y.tensor_stride, y.F.T  # -3 lies in the window of -4 and in that of -2
    ([[0, -4], [0, -2], [0, 4]], [2], tensor([[100.,  11., 100.]], grad_fn=<PermuteBackward0>))
    """

    _transposed = False


class MinkowskiConvolutionTranspose(_Convolution):
    """A transposed convolution, to coordinates of a finer tensor stride.

    >>> x = SparseTensor(torch.ones(3, 1), torch.tensor([[0, -2], [0, -1], [0, 5]]).int())
    >>> down = MinkowskiConvolution(1, 1, kernel_size=2, stride=2, dimension=1)
    >>> up = MinkowskiConvolutionTranspose(1, 1, kernel_size=2, stride=2, dimension=1)
    >>> down.kernel.data = up.kernel.data = torch.tensor([1.0, 10.0]).view(2, 1, 1)
    >>> y = up(down(x))
    >>> y.C.tolist(), y.F.T
    ([[0, -2], [0, -1], [0, 5]], tensor([[ 11., 110., 100.]], grad_fn=<PermuteBackward0>))
    """

    _transposed = True


class MinkowskiGenerativeConvolutionTranspose(MinkowskiConvolutionBase):
    """A transposed convolution that makes all coordinates that its filter reaches.

    >>> cells = torch.tensor([[0, -2], [0, 4]]).int()
    >>> x = SparseTensor(torch.tensor([[1.0], [2.0]]), cells, tensor_stride=2)
    >>> net = MinkowskiGenerativeConvolutionTranspose(1, 1, kernel_size=2, stride=2, dimension=1)
    >>> net.kernel.data = torch.tensor([1.0, 10.0]).view(2, 1, 1)
    >>> y = net(x)
    >>> y.C.tolist(), y.tensor_stride, y.F.flatten().tolist()
    ([[0, -2], [0, -1], [0, 4], [0, 5]], [1], [1.0, 10.0, 2.0, 20.0])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Ints = -1,
        stride: Ints = 1,
        dilation: Ints = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        convolution_mode: Any = None,
        dimension: int | None = None,
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, dilation, bias, kernel_generator,
            True, True, convolution_mode, dimension,
        )  # fmt: skip


class MinkowskiChannelwiseConvolution(MinkowskiModuleBase):
    """A filter for each channel: ``kernel`` is (taps, C).

    >>> cells = torch.tensor([[0, 0], [0, 1]]).int()
    >>> x = SparseTensor(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), cells)
    >>> net = MinkowskiChannelwiseConvolution(2, kernel_size=3, dimension=1)
    >>> net.kernel.data = torch.tensor([[1.0, 0.0], [10.0, 1.0], [100.0, 0.0]])
    >>> net(x).F.tolist()
    [[310.0, 2.0], [31.0, 4.0]]
    """

    def __init__(
        self,
        in_channels: int,
        kernel_size: Ints = -1,
        stride: Ints = 1,
        dilation: Ints = 1,
        bias: bool = False,
        kernel_generator: KernelGenerator | None = None,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        in_channels = whole("in_channels", in_channels, 1)
        kernel_generator = region_of(kernel_generator, kernel_size, stride, dilation, dimension)
        self.in_channels, self.dimension = in_channels, dimension
        self.kernel_generator = kernel_generator
        volume = kernel_generator.kernel_volume
        self.kernel = torch.nn.Parameter(torch.empty(volume, in_channels))
        self.bias = torch.nn.Parameter(torch.empty(1, in_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Uniform, by the numbers that a sum has."""
        bound = 1 / math.sqrt(self.in_channels * self.kernel_generator.kernel_volume)
        for parameter in self.parameters():
            torch.nn.init.uniform_(parameter, -bound, bound)

    def forward(self, input: SparseTensor, coords: Any = None) -> SparseTensor:
        """The convolution."""
        check_input(input, self.dimension)
        region, manager = self.kernel_generator, input.coordinate_manager
        key = manager.stride(input.coordinate_map_key, region.kernel_stride)
        found = manager.map_of(input.coordinate_map_key, key, region)
        weight = weight_of(self.kernel[:, None], region).contiguous()
        y = sparse_depthwise(input.F, weight, found)
        return input.at(y if self.bias is None else y + self.bias, key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}(in={self.in_channels}, {region_text(self.kernel_generator)})"


MinkowskiDepthwiseConvolution = MinkowskiChannelwiseConvolution  # the name in ConvNeXt V2's fork
