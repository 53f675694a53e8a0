"""The encoder of detectors: residual blocks over ever coarser cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import nn

from ..tensor import SparseTensor
from .modules import SparseConvBlock, SparseResBlock

__all__ = ["SparseResNet21D"]

Stage = tuple[int, int, Any, Any]


class SparseResNet(nn.ModuleList):
    """Stages ``(blocks, channels, kernel_size, stride)``: a strided block, then residual ones.

    A call returns the results of all stages. ``width_multiplier`` scales their channels.
    """

    def __init__(
        self, blocks: Sequence[Stage], *, in_channels: int = 4, width_multiplier: float = 1.0
    ) -> None:
        super().__init__()
        self.blocks, self.in_channels = blocks, in_channels
        self.width_multiplier = width_multiplier
        for count, channels, kernel_size, stride in blocks:
            width = int(channels * width_multiplier)
            first = SparseConvBlock(in_channels, width, kernel_size, stride)
            others = [SparseResBlock(width, width, kernel_size) for _ in range(count - 1)]
            self.append(nn.Sequential(first, *others))
            in_channels = width

    def forward(self, x: SparseTensor) -> list[SparseTensor]:
        found = []
        for stage in self:
            x = stage(x)
            found.append(x)
        return found


class SparseResNet21D(SparseResNet):
    """Five stages of 16, 32, 64, 128 and 128 channels; the last has a filter only along y."""

    def __init__(self, **kwargs: Any) -> None:
        stages: list[Stage] = [(3, 16, 3, 1), (3, 32, 3, 2), (3, 64, 3, 2), (3, 128, 3, 2)]
        super().__init__([*stages, (1, 128, (1, 3, 1), (1, 2, 1))], **kwargs)
