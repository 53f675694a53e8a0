"""The blocks of residual networks, with MinkowskiEngine's names of their parts."""

from __future__ import annotations

from typing import Any

import torch

from ..MinkowskiConvolution import MinkowskiConvolution
from ..MinkowskiNonlinearity import MinkowskiReLU
from ..MinkowskiNormalization import MinkowskiBatchNorm

Sizes = tuple[int, int, int, int, int]


class _ResidualBlock(torch.nn.Module):
    """Convolutions, each with a norm: ``conv1``, ``norm1``, ``conv2`` and so on, and a shortcut."""

    expansion = 1
    conv1: Any
    norm1: Any
    conv2: Any
    norm2: Any

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
        convs = self._convs(inplanes, planes, stride, dilation)
        for number, (of, to, size, step, apart) in enumerate(convs, 1):
            conv = MinkowskiConvolution(of, to, size, step, apart, dimension=dimension)
            setattr(self, f"conv{number}", conv)
            setattr(self, f"norm{number}", MinkowskiBatchNorm(to, momentum=bn_momentum))
        self.relu = MinkowskiReLU(inplace=True)
        self.downsample = downsample

    def forward(self, x: Any) -> Any:
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.relu(self._body(x) + shortcut)

    def _body(self, x: Any) -> Any:
        raise NotImplementedError

    def _convs(self, inplanes: int, planes: int, stride: int, dilation: int) -> list[Sizes]:
        """Channels in and out, extent, stride and dilation of each convolution."""
        raise NotImplementedError


class BasicBlock(_ResidualBlock):
    """Two convolutions of 3 and a shortcut."""

    def _convs(self, inplanes: int, planes: int, stride: int, dilation: int) -> list[Sizes]:
        return [(inplanes, planes, 3, stride, dilation), (planes, planes, 3, 1, dilation)]

    def _body(self, x: Any) -> Any:
        return self.norm2(self.conv2(self.relu(self.norm1(self.conv1(x)))))


class Bottleneck(_ResidualBlock):
    """Convolutions of 1, 3 and 1 and a shortcut."""

    expansion = 4
    conv3: Any
    norm3: Any

    def _convs(self, inplanes: int, planes: int, stride: int, dilation: int) -> list[Sizes]:
        return [
            (inplanes, planes, 1, 1, 1),
            (planes, planes, 3, stride, dilation),
            (planes, planes * self.expansion, 1, 1, 1),
        ]

    def _body(self, x: Any) -> Any:
        y = self.relu(self.norm1(self.conv1(x)))
        y = self.relu(self.norm2(self.conv2(y)))
        return self.norm3(self.conv3(y))
