"""torch's convolution modules, computed by this package: same arguments, attributes, state_dict.

Weights have torch's shapes, in ``channels_last`` memory, which kernels read; ``load_state_dict``
copies into that order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..errors import ArgumentError
from ..tensors.channels_last import with_packed_strides
from ..tensors.epilogue_in_torch import activate
from . import functional
from .arguments import check_activation, near_and_far
from .scripting import refuse_scripting

_REAL = torch.zeros(0)  # of a module without a weight


class _ChannelsLast:
    """Weights in ``channels_last`` memory."""

    def reset_parameters(self: Any) -> None:
        super().reset_parameters()  # type: ignore[misc]
        to_channels_last(self.weight)


def weight_and_bias(module: Any) -> tuple[Tensor, Tensor | None]:
    """Return both by a direct look-up, without ``Module.__getattr__``: 0.8 us faster.

    Weights that are no parameters, as of ``torch.nn.utils.parametrize``, take the slow path.

    >>> module = torch.nn.Linear(2, 2, bias=False)
    >>> weight, bias = weight_and_bias(module)
    >>> weight is module.weight, bias
    (True, None)
    """
    found = module._parameters
    if "weight" in found and "bias" in found:
        return found["weight"], found["bias"]
    return module.weight, module.bias


class Activated:
    """A module with an activation, in its forward pass and its repr."""

    activation: str | None = None  # also of modules that `convert` swaps
    slope: float = 0.01
    __prepare_scriptable__ = refuse_scripting

    def _activate(self: Any, activation: str | None, slope: float) -> None:
        check_activation(activation, slope, _REAL if self.weight is None else self.weight)
        self.activation, self.slope = activation, slope

    def _activated(self, value: Tensor) -> Tensor:
        """Activate a value by operations of torch."""
        return value if self.activation is None else activate(value, self.activation, self.slope)

    def extra_repr(self: Any) -> str:
        text = super().extra_repr()  # type: ignore[misc]
        if self.activation is not None:
            text += f", activation={self.activation}"
        return text + f", slope={self.slope}" if self.activation == "leaky_relu" else text


class _Conv(_ChannelsLast, Activated):
    """A mixin that replaces torch's function in the forward pass of torch's modules."""

    _function: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
        super().__init__(*sizes, bias, padding_mode, device, dtype)  # type: ignore[call-arg]
        self._activate(activation, slope)

    def forward(self: Any, input: Tensor) -> Tensor:
        result: Tensor = self._conv_forward(input, *weight_and_bias(self))
        return result

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        padding = self.padding
        if self.padding_mode != "zeros":
            pairs = near_and_far(padding, self.stride, self.dilation, self.kernel_size)
            sides = [side for pair in reversed(pairs) for side in pair]
            input = torch.nn.functional.pad(input, sides, mode=self.padding_mode)
            padding = 0
        return self._function(
            input, weight, bias, self.stride, padding, self.dilation, self.groups,
            activation=self.activation, slope=self.slope,
        )  # fmt: skip


class _ConvTranspose(_ChannelsLast, Activated):
    """The constructor and forward pass of transposed convolutions."""

    _function: Any

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Any,
        stride: Any = 1,
        padding: Any = 0,
        output_padding: Any = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: Any = 1,
        padding_mode: str = "zeros",
        device: Any = None,
        dtype: Any = None,
        *,
        activation: str | None = None,
        slope: float = 0.01,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, padding, output_padding, groups
        others = bias, dilation, padding_mode, device, dtype
        super().__init__(*sizes, *others)  # type: ignore[call-arg]
        self._activate(activation, slope)

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        rank = len(self.kernel_size)
        if output_size is not None and any(isinstance(side, tuple) for side in self.padding):
            expected = "None where padding is a pair (near, far)"
            raise ArgumentError("output_size", expected, output_size)
        extra = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size, rank, self.dilation
        )
        return self._function(
            input, *weight_and_bias(self), self.stride, self.padding, tuple(extra),
            self.groups, self.dilation, activation=self.activation, slope=self.slope,
        )  # fmt: skip


def to_channels_last(weight: torch.nn.Parameter) -> None:
    """Reorder the memory of a weight (K, C, *taps) to (K, *taps, C), C fastest.

    Its strides equal its gradient's, for modes of extent 1, too: if they differ for one parameter,
    torch's optimizers (``foreach``) process all of a list one by one.

    >>> weight, pointwise = (torch.nn.Parameter(torch.ones(2, 3, taps)) for taps in (5, 1))
    >>> to_channels_last(weight), to_channels_last(pointwise)
    (None, None)
    >>> weight.stride(), pointwise.stride()
    ((15, 1, 3), (3, 1, 3))
    """
    weight.data = with_packed_strides(weight.data.movedim(1, -1).contiguous().movedim(-1, 1))


class Conv1d(_Conv, torch.nn.Conv1d):
    """A :class:`torch.nn.Conv1d` computed by :func:`layoutconv.conv1d`, with its limits.

    ``padding`` may also hold a pair ``(near, far)``, for a causal convolution. ``activation`` and
    ``slope`` are those of the function, fused into it; they are not in the ``state_dict``.

    >>> causal = Conv1d(8, 16, 3, padding=((2, 0),))
    >>> x = torch.randn(1, 8, 10)
    >>> torch.allclose(causal(x)[..., :5], causal(x[..., :5]), atol=1e-5)
    True
    """

    _function = staticmethod(functional.conv1d)


class Conv2d(_Conv, torch.nn.Conv2d):
    """A :class:`torch.nn.Conv2d` computed by :func:`layoutconv.conv2d`, with its limits.

    >>> net, x = Conv2d(3, 8, (3, 5), 2, "valid"), torch.randn(2, 3, 9, 9)
    >>> torch.allclose(net(x), torch.nn.Conv2d.forward(net, x), atol=1e-5)
    True
    >>> net
    Conv2d(3, 8, kernel_size=(3, 5), stride=(2, 2), padding=valid)
    >>> Conv2d(8, 8, 3, groups=8, activation="relu")
    Conv2d(8, 8, kernel_size=(3, 3), stride=(1, 1), groups=8, activation=relu)
    """

    _function = staticmethod(functional.conv2d)


class Conv3d(_Conv, torch.nn.Conv3d):
    """A :class:`torch.nn.Conv3d` computed by :func:`layoutconv.conv3d`, with its limits.

    >>> theirs, ours = torch.nn.Conv3d(3, 8, 3, padding=1), Conv3d(3, 8, 3, padding=1)
    >>> ours.load_state_dict(theirs.state_dict())
    <All keys matched successfully>
    >>> x = torch.randn(2, 3, 4, 5, 6)
    >>> torch.allclose(ours(x), theirs(x), atol=1e-5)
    True
    """

    _function = staticmethod(functional.conv3d)


class ConvTranspose1d(_ConvTranspose, torch.nn.ConvTranspose1d):
    """A :class:`torch.nn.ConvTranspose1d` computed by :func:`layoutconv.conv_transpose1d`.

    ``activation`` and ``slope`` are those of the function, as in :class:`Conv1d`.

    >>> ConvTranspose1d(8, 4, 3, stride=2)(torch.randn(1, 8, 10), output_size=[22]).shape
    torch.Size([1, 4, 22])
    """

    _function = staticmethod(functional.conv_transpose1d)


class ConvTranspose2d(_ConvTranspose, torch.nn.ConvTranspose2d):
    """A :class:`torch.nn.ConvTranspose2d` computed by :func:`layoutconv.conv_transpose2d`.

    ``activation`` and ``slope`` are those of the function, as in :class:`Conv2d`.

    >>> ConvTranspose2d(8, 4, 3, 2, padding=1, output_padding=1)(torch.randn(1, 8, 5, 5)).shape
    torch.Size([1, 4, 10, 10])
    """

    _function = staticmethod(functional.conv_transpose2d)


class ConvTranspose3d(_ConvTranspose, torch.nn.ConvTranspose3d):
    """A :class:`torch.nn.ConvTranspose3d` computed by :func:`layoutconv.conv_transpose3d`.

    ``activation`` and ``slope`` are those of the function, as in :class:`Conv3d`.

    >>> ConvTranspose3d(8, 4, 2, stride=2)(torch.randn(1, 8, 2, 3, 4)).shape
    torch.Size([1, 4, 4, 6, 8])
    """

    _function = staticmethod(functional.conv_transpose3d)
