"""Convolutions that take the number of input channels from their first input, as torch's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    to_channels_last,
)


class _Lazy:
    """A mixin in front of torch's lazy module, which is in front of the one that it becomes."""

    def __init__(
        self: Any, *sizes: Any, activation: str | None = None, slope: float = 0.01, **options: Any
    ) -> None:
        super().__init__(*sizes, **options)  # type: ignore[call-arg]
        self._activate(activation, slope)

    def initialize_parameters(self: Any, input: Tensor, *more: Any, **named: Any) -> None:
        super().initialize_parameters(input, *more, **named)  # type: ignore[misc]
        to_channels_last(self.weight)  # also of a weight that a state dict has brought


class LazyConv1d(_Lazy, torch.nn.LazyConv1d, Conv1d):  # type: ignore[misc]
    """A :class:`torch.nn.LazyConv1d` that becomes a :class:`Conv1d` in its first call.

    >>> net = LazyConv1d(8, 3, activation="relu")
    >>> net(torch.randn(2, 5, 7)).shape, net
    (torch.Size([2, 8, 5]), Conv1d(5, 8, kernel_size=(3,), stride=(1,), activation=relu))
    """

    cls_to_become = Conv1d  # type: ignore[assignment]


class LazyConv2d(_Lazy, torch.nn.LazyConv2d, Conv2d):  # type: ignore[misc]
    """A :class:`torch.nn.LazyConv2d` that becomes a :class:`Conv2d` in its first call.

    >>> net = LazyConv2d(8, 3)
    >>> net(torch.randn(2, 5, 7, 7)).shape[1], net
    (8, Conv2d(5, 8, kernel_size=(3, 3), stride=(1, 1)))
    """

    cls_to_become = Conv2d  # type: ignore[assignment]


class LazyConv3d(_Lazy, torch.nn.LazyConv3d, Conv3d):  # type: ignore[misc]
    """A :class:`torch.nn.LazyConv3d` that becomes a :class:`Conv3d` in its first call.

    >>> net = LazyConv3d(8, 3)
    >>> net(torch.randn(2, 5, 7, 7, 7)).shape[1], net
    (8, Conv3d(5, 8, kernel_size=(3, 3, 3), stride=(1, 1, 1)))
    """

    cls_to_become = Conv3d  # type: ignore[assignment]


class LazyConvTranspose1d(_Lazy, torch.nn.LazyConvTranspose1d, ConvTranspose1d):  # type: ignore[misc]
    """A :class:`torch.nn.LazyConvTranspose1d` that becomes a :class:`ConvTranspose1d`.

    >>> LazyConvTranspose1d(8, 2, stride=2)(torch.randn(2, 5, 7)).shape
    torch.Size([2, 8, 14])
    """

    cls_to_become = ConvTranspose1d  # type: ignore[assignment]


class LazyConvTranspose2d(_Lazy, torch.nn.LazyConvTranspose2d, ConvTranspose2d):  # type: ignore[misc]
    """A :class:`torch.nn.LazyConvTranspose2d` that becomes a :class:`ConvTranspose2d`.

    >>> LazyConvTranspose2d(8, 2, stride=2)(torch.randn(2, 5, 7, 7)).shape
    torch.Size([2, 8, 14, 14])
    """

    cls_to_become = ConvTranspose2d  # type: ignore[assignment]


class LazyConvTranspose3d(_Lazy, torch.nn.LazyConvTranspose3d, ConvTranspose3d):  # type: ignore[misc]
    """A :class:`torch.nn.LazyConvTranspose3d` that becomes a :class:`ConvTranspose3d`.

    >>> LazyConvTranspose3d(8, 2, stride=2)(torch.randn(2, 5, 7, 7, 7)).shape
    torch.Size([2, 8, 14, 14, 14])
    """

    cls_to_become = ConvTranspose3d  # type: ignore[assignment]
