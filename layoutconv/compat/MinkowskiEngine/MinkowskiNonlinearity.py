"""torch's activations on the features of sparse tensors and fields, in a submodule ``module``."""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from .MinkowskiCommon import MinkowskiModuleBase
from .MinkowskiTensor import over_features


class MinkowskiNonlinearityBase(MinkowskiModuleBase):
    """``MODULE`` of torch, made of the arguments, over features."""

    MODULE: ClassVar[Any] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self.module = self.MODULE(*args, **kwargs)

    def forward(self, input: Any) -> Any:
        return over_features(input, self.module)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class MinkowskiSinusoidal(MinkowskiModuleBase):
    """``sin(x kernel + bias) * coef``."""

    def __init__(self, in_channel: int, out_channel: int) -> None:
        super().__init__()
        self.in_channel, self.out_channel = in_channel, out_channel
        self.kernel = torch.nn.Parameter(torch.rand(in_channel, out_channel))
        self.bias = torch.nn.Parameter(torch.rand(1, out_channel))
        self.coef = torch.nn.Parameter(torch.rand(1, out_channel))

    def forward(self, input: Any) -> Any:
        return over_features(input, self._of)

    def _of(self, features: torch.Tensor) -> torch.Tensor:
        return torch.sin(features.mm(self.kernel) + self.bias) * self.coef


class MinkowskiELU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.ELU


class MinkowskiHardshrink(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Hardshrink


class MinkowskiHardsigmoid(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Hardsigmoid


class MinkowskiHardtanh(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Hardtanh


class MinkowskiHardswish(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Hardswish


class MinkowskiLeakyReLU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.LeakyReLU


class MinkowskiLogSigmoid(MinkowskiNonlinearityBase):
    MODULE = torch.nn.LogSigmoid


class MinkowskiPReLU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.PReLU


class MinkowskiReLU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.ReLU


class MinkowskiReLU6(MinkowskiNonlinearityBase):
    MODULE = torch.nn.ReLU6


class MinkowskiRReLU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.RReLU


class MinkowskiSELU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.SELU


class MinkowskiCELU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.CELU


class MinkowskiGELU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.GELU


class MinkowskiSigmoid(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Sigmoid


class MinkowskiSiLU(MinkowskiNonlinearityBase):
    MODULE = torch.nn.SiLU


class MinkowskiSoftplus(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Softplus


class MinkowskiSoftshrink(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Softshrink


class MinkowskiSoftsign(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Softsign


class MinkowskiTanh(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Tanh


class MinkowskiTanhshrink(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Tanhshrink


class MinkowskiThreshold(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Threshold


class MinkowskiSoftmin(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Softmin


class MinkowskiSoftmax(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Softmax


class MinkowskiLogSoftmax(MinkowskiNonlinearityBase):
    MODULE = torch.nn.LogSoftmax


class MinkowskiDropout(MinkowskiNonlinearityBase):
    MODULE = torch.nn.Dropout


class MinkowskiAlphaDropout(MinkowskiNonlinearityBase):
    MODULE = torch.nn.AlphaDropout
