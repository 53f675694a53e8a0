"""``spconv.pytorch.quantization.utils``: batch norms and activations folded into convolutions."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from torch import nn

from .....errors import ArgumentError, ArgumentTypeError
from .....nn.fold import take_up
from ...absent import explain


def fuse_spconv_bn_eval(conv: Any, bn: Any) -> Any:
    """Return a copy of a convolution with the batch norm after it folded in; for inference.

    :func:`layoutconv.nn.fold_batch_norms` folds all batch norms of a network.

    >>> import layoutconv.compat.spconv.pytorch as spconv
    >>> conv, norm = spconv.SubMConv3d(4, 8, 3, bias=False).eval(), nn.BatchNorm1d(8).eval()
    >>> fuse_spconv_bn_eval(conv, norm).bias.shape, conv.bias
    (torch.Size([8]), None)
    """
    if conv.training or bn.training:
        raise ArgumentError("conv", "modules in evaluation mode: call eval() first", "training")
    fused = deepcopy(conv)
    take_up(fused, bn)
    return fused


def fuse_spconv_act_eval(conv: Any, act: nn.Module) -> Any:
    """Return a copy of a convolution with the ``ReLU`` or ``LeakyReLU`` after it fused in.

    >>> import layoutconv.compat.spconv.pytorch as spconv
    >>> fuse_spconv_act_eval(spconv.SubMConv3d(4, 8, 3).eval(), nn.LeakyReLU(0.2)).act_alpha
    0.2
    """
    if conv.training:
        raise ArgumentError("conv", "a module in evaluation mode: call eval() first", "training")
    fused = deepcopy(conv)
    if isinstance(act, nn.ReLU):
        fused.activation = "relu"
    elif isinstance(act, nn.LeakyReLU):
        fused.activation, fused.slope = "leaky_relu", act.negative_slope
    else:
        raise ArgumentTypeError("act", "a ReLU or a LeakyReLU", type(act).__name__)
    return fused


__getattr__ = explain(__name__)
