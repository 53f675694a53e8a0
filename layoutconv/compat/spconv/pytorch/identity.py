"""A module that does nothing."""

from __future__ import annotations

from typing import Any

from torch import nn


class Identity(nn.Module):
    """Return its input, sparse or not.

    >>> Identity()(5)
    5
    """

    def forward(self, input: Any) -> Any:
        return input

    def input_spatial_size(self, out_size: Any) -> Any:
        return out_size
