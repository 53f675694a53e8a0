"""The blocks of residual networks, with MinkowskiEngine's names of their parts."""

from __future__ import annotations

from typing import Any

import torch

from ..MinkowskiConvolution import MinkowskiConvolution
from ..MinkowskiNonlinearity import MinkowskiReLU
from ..MinkowskiNormalization import MinkowskiBatchNorm


class _Block(torch.nn.Module):
    expansion = 1

    def forward(self, x: Any) -> Any:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self._body(x) + shortcut)

    downsample: Any
    relu: Any

    def _body(self, x: Any) -> Any:
        raise NotImplementedError

    def _conv(self, inplanes: int, planes: int, size: int, **options: Any) -> MinkowskiConvolution:
        return MinkowskiConvolution(inplanes, planes, kernel_size=size, **options)


class BasicBlock(_Block):
    """Two convolutions of 3 and a shortcut."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: Any = None,
        bn_momentum: float = 0.1,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        sizes = {"dilation": dilation, "dimension": dimension}
        self.conv1 = self._conv(inplanes, planes, 3, stride=stride, **sizes)
        self.norm1 = MinkowskiBatchNorm(planes, momentum=bn_momentum)
        self.conv2 = self._conv(planes, planes, 3, **sizes)
        self.norm2 = MinkowskiBatchNorm(planes, momentum=bn_momentum)
        self.relu = MinkowskiReLU(inplace=True)
        self.downsample = downsample

    def _body(self, x: Any) -> Any:
        return self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))


class Bottleneck(_Block):
    """Convolutions of 1, 3 and 1 and a shortcut."""

    expansion = 4

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: Any = None,
        bn_momentum: float = 0.1,
        dimension: int = -1,
    ) -> None:
        super().__init__()
        wide = planes * self.expansion
        self.conv1 = self._conv(inplanes, planes, 1, dimension=dimension)
        self.norm1 = MinkowskiBatchNorm(planes, momentum=bn_momentum)
        self.conv2 = self._conv(
            planes, planes, 3, stride=stride, dilation=dilation, dimension=dimension
        )
        self.norm2 = MinkowskiBatchNorm(planes, momentum=bn_momentum)
        self.conv3 = self._conv(planes, wide, 1, dimension=dimension)
        self.norm3 = MinkowskiBatchNorm(wide, momentum=bn_momentum)
        self.relu = MinkowskiReLU(inplace=True)
        self.downsample = downsample

    def _body(self, x: Any) -> Any:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.norm3(self.conv3(y))
