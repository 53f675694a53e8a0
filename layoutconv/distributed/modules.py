"""torch's convolution modules for a volume that is split over ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import nn
from ..conv.problem import per_mode
from ..errors import ArgumentError
from ..nn.arguments import near_and_far
from . import functional
from .slab import Slab, checked_slab


class _SplitConv:
    """Mixin of split modules, beside torch's base class."""

    _split: Any

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
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        slab: Slab,
    ) -> None:
        sizes = in_channels, out_channels, kernel_size, stride, padding, dilation, groups
        super().__init__(*sizes, bias, "zeros", device, dtype)  # type: ignore[call-arg]
        self.slab = checked_slab(slab)

    @property
    def output_slab(self: Any) -> Slab:
        """The slab of the output, for the next module."""
        mode = self.slab.mode
        if mode >= len(self.kernel_size):
            expected = f"a slab of one of {len(self.kernel_size)} spatial modes"
            raise ArgumentError("slab", expected, self.slab)
        apart = per_mode("dilation", self.dilation, len(self.kernel_size))
        pairs = near_and_far(self.padding, self.stride, apart, self.kernel_size)
        return self.slab.after(self.kernel_size[mode], self.stride[mode], pairs[mode], apart[mode])

    def _conv_forward(self: Any, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self._split(
            input, weight, bias, self.stride, self.padding, self.dilation, self.groups,
            slab=self.slab,
        )  # fmt: skip

    def extra_repr(self: Any) -> str:
        return f"{super().extra_repr()}, slab={self.slab}"  # type: ignore[misc]


class Conv1d(_SplitConv, nn.Conv1d):
    """:class:`layoutconv.nn.Conv1d` of a split signal, by :func:`conv1d`. As :class:`Conv3d`.

    >>> Conv1d(4, 8, 3, slab=Slab(100)).output_slab.extent
    98
    """

    _split = staticmethod(functional.conv1d)


class Conv2d(_SplitConv, nn.Conv2d):
    """:class:`layoutconv.nn.Conv2d` of a split image, by :func:`conv2d`. As :class:`Conv3d`.

    >>> Conv2d(4, 8, 3, padding="same", slab=Slab(100, mode=1)).output_slab.extent
    100
    """

    _split = staticmethod(functional.conv2d)


class Conv3d(_SplitConv, nn.Conv3d):
    """:class:`layoutconv.nn.Conv3d` of a split volume, by :func:`conv3d`, with its limits.

    The arguments are torch's, without ``padding_mode``, which is zeros. ``slab`` says how the input
    is split, ``output_slab`` how the output is. Assign another ``slab`` for volumes of another
    extent. The state is that of torch's module.

    Ranks must start from the same weights: from one seed, one checkpoint, or a broadcast.

    >>> import torch
    >>> first = Conv3d(1, 8, 3, padding=1, slab=Slab(16))
    >>> second = Conv3d(8, 8, 3, stride=2, padding=1, slab=first.output_slab)
    >>> net = torch.nn.Sequential(first, torch.nn.ReLU(), second)
    >>> net(torch.randn(1, 1, 16, 6, 6)).shape, second.output_slab.extent
    (torch.Size([1, 8, 8, 3, 3]), 8)
    """

    _split = staticmethod(functional.conv3d)
