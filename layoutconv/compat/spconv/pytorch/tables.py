"""Modules on lists of sparse tensors at the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from ....errors import ArgumentError, ArgumentTypeError, shown
from .core import SparseConvTensor, check_input
from .functional import sparse_add_hash_based
from .modules import SparseModule


def _check_list(tensors: Sequence[SparseConvTensor]) -> None:
    """Raise :class:`~layoutconv.errors.ArgumentTypeError` for anything but a list of tensors."""
    if not isinstance(tensors, Sequence) or not tensors:
        raise ArgumentTypeError("input", "a list of SparseConvTensors", shown(tensors))
    for x in tensors:
        check_input(x)


def _check_cells(tensors: Sequence[SparseConvTensor]) -> SparseConvTensor:
    """Return the first tensor if all have the same number of rows and the same grid; else raise."""
    _check_list(tensors)
    first, *others = tensors
    for x in others:
        own = x.spatial_shape, x.batch_size, len(x.indices)
        wanted = first.spatial_shape, first.batch_size, len(first.indices)
        if own != wanted:
            expected = f"tensors on the same cells, {wanted[2]} rows in {wanted[1]} x {wanted[0]}"
            raise ArgumentError("input", expected, f"{own[2]} rows in {own[1]} x {own[0]}")
    return first


class JoinTable(SparseModule):
    """Concatenates the channels of several tensors at the same cells.

    >>> x = SparseConvTensor.from_dense(torch.eye(3)[None, :, :, None])
    >>> JoinTable()([x, x]).features.shape
    torch.Size([3, 2])
    """

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        first = _check_cells(input)
        return first.replace_feature(torch.cat([x.features for x in input], 1))

    def input_spatial_size(self, out_size: Any) -> Any:
        return out_size


class AddTable(SparseModule):
    """The sum of several tensors at the same cells.

    >>> x = SparseConvTensor.from_dense(torch.eye(3)[None, :, :, None])
    >>> AddTable()([x, x]).features.T
    tensor([[2., 2., 2.]])
    """

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        first, total = _check_cells(input), input[0].features
        for x in input[1:]:
            total = total + x.features
        return first.replace_feature(total)

    def input_spatial_size(self, out_size: Any) -> Any:
        return out_size


class AddTableMisaligned(SparseModule):
    """The sum of several tensors at different cells: ``functional.sparse_add``."""

    def forward(self, input: Sequence[SparseConvTensor]) -> SparseConvTensor:
        _check_list(input)
        return sparse_add_hash_based(*input)

    def input_spatial_size(self, out_size: Any) -> Any:
        return out_size


class ConcatTable(SparseModule):
    """The list of the results of several modules for one tensor.

    >>> from .identity import Identity
    >>> ConcatTable().add(Identity()).add(Identity())(7)
    [7, 7]
    """

    def forward(self, input: Any) -> list[Any]:
        return [module(input) for module in self._modules.values()]  # type: ignore[misc]

    def add(self, module: nn.Module) -> ConcatTable:
        self.add_module(str(len(self._modules)), module)
        return self

    def input_spatial_size(self, out_size: Any) -> Any:
        return self._modules["0"].input_spatial_size(out_size)  # type: ignore[union-attr, operator]
