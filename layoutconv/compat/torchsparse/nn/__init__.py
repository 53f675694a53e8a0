"""Layers, as ``torchsparse.nn``; a ``kernel`` is (taps, C, K), or (C, K) for one tap."""

from __future__ import annotations

import math
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from ....errors import ArgumentTypeError
from ....nn.image_norm import per_image
from ....nn.scripting import refuse_scripting
from ...whole_numbers import triple, whole
from ..tensor import SparseTensor, check_input
from ..version import batch_last
from . import functional, utils
from .bev import ToBEVConvolution, ToBEVHeightCompression, ToBEVReduction, ToDenseBEVConvolution
from .utils import fapply

__all__ = [
    "BatchNorm",
    "Conv3d",
    "GlobalAvgPool",
    "GlobalMaxPool",
    "GroupNorm",
    "InstanceNorm",
    "LeakyReLU",
    "ReLU",
    "SiLU",
    "SparseCrop",
    "ToBEVConvolution",
    "ToBEVHeightCompression",
    "ToBEVReduction",
    "ToDenseBEVConvolution",
    "functional",
    "utils",
]


class Conv3d(nn.Module):
    """A convolution; arguments as of TorchSparse 2.1: ``in_channels, out_channels, kernel_size=3,
    stride=1, padding=0, dilation=1, bias=False, transposed=False, generative=False, config=None``;
    the interface of 1.4 has ``dilation, bias, transposed`` behind the stride.

    The padding of an odd filter at stride 1 is set automatically. Only the ``downsample_mode`` of
    ``config`` has an effect: "minkowski" computes the cells ``floor(x / stride)``.

    >>> Conv3d(4, 8, 3).kernel.shape, Conv3d(4, 8, 1).kernel.shape
    (torch.Size([27, 4, 8]), torch.Size([4, 8]))
    """

    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        *others: Any,
        **options: Any,
    ) -> None:
        super().__init__()
        given = _further(others, options)
        padding, bias = given["padding"], given["bias"]
        self.in_channels = in_channels = whole("in_channels", in_channels, 1)
        self.out_channels = out_channels = whole("out_channels", out_channels, 1)
        self.kernel_size = triple("kernel_size", kernel_size, 1)
        self.stride = triple("stride", stride, 1)
        sides = zip(self.kernel_size, self.stride, triple("padding", padding, 0), strict=True)
        self.padding = tuple((k - 1) // 2 if k % 2 and s == 1 else p for k, s, p in sides)
        self.dilation, self.transposed = given["dilation"], given["transposed"]
        self.generative, self._config = given["generative"], given["config"]
        self.kernel_volume = prod(self.kernel_size)
        strided = self.stride != (1, 1, 1) and not batch_last()
        shape: tuple[int, ...] = in_channels, out_channels
        if self.kernel_volume > 1 or strided:
            shape = self.kernel_volume, *shape
        self.kernel = nn.Parameter(torch.empty(shape))
        self.register_parameter("bias", nn.Parameter(torch.empty(out_channels)) if bias else None)
        self.reset_parameters()

    bias: Any

    def reset_parameters(self) -> None:
        """Uniform, by the numbers that a sum has."""
        channels = self.out_channels if self.transposed else self.in_channels
        bound = 1 / math.sqrt(channels * self.kernel_volume)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -bound, bound)

    def extra_repr(self) -> str:
        text = f"{self.in_channels}, {self.out_channels}, kernel_size={self.kernel_size}"
        text += "" if self.stride == (1, 1, 1) else f", stride={self.stride}"
        text += "" if self.bias is not None else ", bias=False"
        return text + (", transposed=True" if self.transposed else "")

    def forward(self, input: SparseTensor) -> SparseTensor:
        return functional.conv3d(
            input, self.kernel, self.kernel_size, self.bias, self.stride, self.padding,
            self.dilation, self._config, self.transposed, self.generative, self.training,
        )  # fmt: skip


_DEFAULTS = {
    "padding": 0, "dilation": 1, "bias": False, "transposed": False, "generative": False,
    "config": None,
}  # fmt: skip


def _further(others: tuple[Any, ...], options: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments after the stride, in the order of the interface."""
    names = ("dilation", "bias", "transposed") if batch_last() else tuple(_DEFAULTS)
    named = dict(zip(names, others, strict=False))
    again = [name for name in options if name in named or name not in _DEFAULTS]
    if again or len(others) > len(names):
        got = ", ".join(again) or f"{len(others)} after the stride"
        raise ArgumentTypeError("arguments", f"at most one each of {', '.join(names)}", got)
    return {**_DEFAULTS, **named, **options}


def _of_features(function: Any, input: Any) -> Any:
    return fapply(input, function)


class _OfFeatures:
    """A mixin that applies torch's forward pass to the features of a tensor."""

    def forward(self, input: Any) -> Any:
        return fapply(input, super().forward)  # type: ignore[misc]


class BatchNorm(_OfFeatures, nn.BatchNorm1d):
    """``torch.nn.BatchNorm1d`` over all rows."""

    of_features = staticmethod(_of_features)


class InstanceNorm(_OfFeatures, nn.InstanceNorm1d):
    """``torch.nn.InstanceNorm1d`` of the features; as in TorchSparse, a row is an instance."""


class GroupNorm(nn.GroupNorm):
    """``torch.nn.GroupNorm`` over the rows of each image."""

    def forward(self, input: Any) -> Any:
        check_input(input)
        return input.on(per_image(self, input.to_layoutconv()))


class ReLU(_OfFeatures, nn.ReLU):
    """``torch.nn.ReLU`` of the features."""


class LeakyReLU(_OfFeatures, nn.LeakyReLU):
    """``torch.nn.LeakyReLU`` of the features."""


class SiLU(_OfFeatures, nn.SiLU):
    """``torch.nn.SiLU`` of the features."""


class GlobalAvgPool(nn.Module):
    """The mean of the rows of each image, (N, C)."""

    __prepare_scriptable__ = refuse_scripting

    def forward(self, input: SparseTensor) -> Tensor:
        return functional.global_avg_pool(input)


class GlobalMaxPool(nn.Module):
    """The maximum of the rows of each image, (N, C)."""

    __prepare_scriptable__ = refuse_scripting

    def forward(self, input: SparseTensor) -> Tensor:
        return functional.global_max_pool(input)


class SparseCrop(nn.Module):
    """The rows within bounds, see :func:`~.functional.spcrop`."""

    __prepare_scriptable__ = refuse_scripting

    def __init__(self, coords_min: Any = None, coords_max: Any = None) -> None:
        super().__init__()
        self.coords_min, self.coords_max = coords_min, coords_max

    def forward(self, input: SparseTensor) -> SparseTensor:
        return functional.spcrop(input, self.coords_min, self.coords_max)
