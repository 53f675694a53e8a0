"""Broadcast one row per image to all coordinates of the image."""

from __future__ import annotations

from enum import Enum

import torch
from torch import Tensor

from ...sparse import broadcast
from .MinkowskiCommon import MinkowskiModuleBase, check_input
from .MinkowskiSparseTensor import SparseTensor


class BroadcastMode(Enum):
    ELEMENTWISE_ADDITON = 0
    ELEMENTWISE_MULTIPLICATION = 1


class MinkowskiBroadcast(MinkowskiModuleBase):
    """The features of an image at all of its coordinates.

    ``forward(input, input_glob)`` takes a tensor, and one with a row per image, such as a result of
    global pooling.
    """

    def forward(self, input: SparseTensor, input_glob: SparseTensor) -> SparseTensor:
        check_input(input)._check_manager(check_input(input_glob, name="input_glob"))
        values = broadcast(input_glob.F, input.to_layoutconv()).features
        return input.on(self._joined(input.F, values))

    def _joined(self, own: Tensor, values: Tensor) -> Tensor:
        return values

    def __repr__(self) -> str:
        return type(self).__name__


class MinkowskiBroadcastAddition(MinkowskiBroadcast):
    """The sum of both."""

    operation_type = BroadcastMode.ELEMENTWISE_ADDITON

    def _joined(self, own: Tensor, values: Tensor) -> Tensor:
        return own + values


class MinkowskiBroadcastMultiplication(MinkowskiBroadcast):
    """The product of both."""

    operation_type = BroadcastMode.ELEMENTWISE_MULTIPLICATION

    def _joined(self, own: Tensor, values: Tensor) -> Tensor:
        return own * values


class MinkowskiBroadcastConcatenation(MinkowskiBroadcast):
    """The channels of both."""

    def _joined(self, own: Tensor, values: Tensor) -> Tensor:
        return torch.cat([own, values], 1)
