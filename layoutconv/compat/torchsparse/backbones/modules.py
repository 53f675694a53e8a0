"""Blocks of the backbones: convolutions with a norm and a ReLU, and residual ones."""

from __future__ import annotations

from typing import Any

from torch import nn

from ...whole_numbers import triple
from ..nn import BatchNorm, Conv3d, ReLU
from ..tensor import SparseTensor

__all__ = ["SparseConvBlock", "SparseConvTransposeBlock", "SparseResBlock"]


class SparseConvBlock(nn.Sequential):
    """A convolution, its norm and a ReLU.

    >>> block = SparseConvBlock(4, 8, 2, stride=2)
    >>> block[0].kernel.shape, block[0].transposed
    (torch.Size([8, 4, 8]), False)
    """

    _transposed = False

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        dilation: int = 1,
    ) -> None:
        options = {"stride": stride, "dilation": dilation, "transposed": self._transposed}
        super().__init__(*_linear(in_channels, out_channels, kernel_size, **options), ReLU(True))


class SparseConvTransposeBlock(SparseConvBlock):
    """The same with a transposed convolution, which goes back to the cells before a stride."""

    _transposed = True


class SparseResBlock(nn.Module):
    """Two convolutions, ``main``, and a ``shortcut``, of one tap if channels or cells change."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        dilation: int = 1,
    ) -> None:
        super().__init__()
        first = SparseConvBlock(in_channels, out_channels, kernel_size, stride, dilation)
        second = _linear(out_channels, out_channels, kernel_size, dilation=dilation)
        self.main = nn.Sequential(*first, *second)
        self.shortcut: nn.Module = nn.Identity()
        if in_channels != out_channels or triple("stride", stride, 1) != (1, 1, 1):
            self.shortcut = nn.Sequential(*_linear(in_channels, out_channels, 1, stride=stride))
        self.relu = ReLU(True)

    def forward(self, x: SparseTensor) -> Any:
        return self.relu(self.main(x) + self.shortcut(x))


def _linear(channels: int, filters: int, kernel_size: Any, **options: Any) -> tuple[Any, Any]:
    """A convolution and its norm."""
    return Conv3d(channels, filters, kernel_size, **options), BatchNorm(filters)
