"""Squeeze-and-excitation blocks: channels weighted by functions of their means over an image."""

from __future__ import annotations

from typing import Any

import torch

from ..MinkowskiBroadcast import MinkowskiBroadcastMultiplication
from ..MinkowskiNonlinearity import MinkowskiReLU, MinkowskiSigmoid
from ..MinkowskiOps import MinkowskiLinear
from ..MinkowskiPooling import MinkowskiGlobalPooling
from .resnet_block import BasicBlock, Bottleneck


class SELayer(torch.nn.Module):
    """Scales channels by weights that two linear layers compute from their means per image.

    The first layer has ``reduction`` times fewer channels; ``D`` is accepted for compatibility.
    """

    def __init__(self, channel: int, reduction: int = 16, D: int = -1) -> None:
        super().__init__()
        self.fc = torch.nn.Sequential(
            MinkowskiLinear(channel, channel // reduction),
            MinkowskiReLU(inplace=True),
            MinkowskiLinear(channel // reduction, channel),
            MinkowskiSigmoid(),
        )
        self.pooling = MinkowskiGlobalPooling()
        self.broadcast_mul = MinkowskiBroadcastMultiplication()

    def forward(self, x: Any) -> Any:
        return self.broadcast_mul(x, self.fc(self.pooling(x)))


class SEBasicBlock(BasicBlock):
    """:class:`BasicBlock` with weighted channels; ``D`` is the dimension."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: Any = None,
        reduction: int = 16,
        D: int = -1,
    ) -> None:
        super().__init__(inplanes, planes, stride, dilation, downsample, dimension=D)
        self.se = SELayer(planes, reduction, D)

    def _body(self, x: Any) -> Any:
        return self.se(super()._body(x))


class SEBottleneck(Bottleneck):
    """:class:`Bottleneck` with weighted channels; ``D`` is the dimension."""

    def __init__(
        self,
        inplanes: int,
        planes: int,
        stride: int = 1,
        dilation: int = 1,
        downsample: Any = None,
        D: int = 3,
        reduction: int = 16,
    ) -> None:
        super().__init__(inplanes, planes, stride, dilation, downsample, dimension=D)
        self.se = SELayer(planes * self.expansion, reduction, D)

    def _body(self, x: Any) -> Any:
        return self.se(super()._body(x))
