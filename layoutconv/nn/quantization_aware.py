"""Quantisation-aware training: convolutions that round to 8-bit codes, and learn in floats."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call

from .eight_bits import fake_quantized, scale_of
from .layer_kinds import kind_of_layer

_SHARE = 0.1  # weight of a batch's largest magnitude in the running mean


class QuantizationAware(torch.nn.Module):
    """A convolution module that rounds its weights and inputs to codes;
    :func:`~layoutconv.nn.quantize` makes it with ``training=True``.

    Forward, it computes with the numbers that the codes represent: weights by the current scale of
    each output channel, inputs by a running mean of their largest magnitude, which training
    updates. Backward, gradients pass straight through the rounding, but are zero if a code
    saturates.

    State: ``input_amax``, and the ``weight`` and ``bias`` of ``conv``, which an optimizer changes.

    >>> from .modules import Conv1d
    >>> layer = QuantizationAware(Conv1d(2, 3, 1), torch.int8, 4.0)
    >>> layer(torch.randn(1, 2, 5)).sum().backward()
    >>> layer.conv.weight.grad.shape
    torch.Size([3, 2, 1])
    """

    input_amax: Tensor

    def __init__(self, conv: Any, dtype: torch.dtype, input_amax: float) -> None:
        super().__init__()
        home = kind_of_layer(conv)
        assert home is not None
        self.home, self.dtype, self.conv = home, dtype, conv
        amax = torch.tensor(input_amax, dtype=torch.float32, device=conv.weight.device)
        self.register_buffer("input_amax", amax)

    def forward(self, input: Any, *arguments: Any, **named: Any) -> Any:
        """Convolve; arguments are those of the module inside."""
        conv, home = self.conv, self.home
        x = home.features(conv, input)
        if self.training and x.numel():
            with torch.no_grad():
                self.input_amax.lerp_(x.detach().abs().amax().float(), _SHARE)
        x = fake_quantized(x, scale_of(self.input_amax, self.dtype), self.dtype)
        weight = conv.weight
        amax = home.by_output(conv, weight.detach()).abs().amax(1)
        scale = home.like_weight(conv, scale_of(amax, self.dtype))
        weight = fake_quantized(weight, scale, self.dtype)
        call = home.with_features(input, x), *arguments
        return functional_call(conv, {"weight": weight}, call, named)

    def extra_repr(self) -> str:
        return str(self.dtype).removeprefix("torch.")
