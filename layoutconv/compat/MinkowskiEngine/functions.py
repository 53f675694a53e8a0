"""MinkowskiEngine's autograd functions, as ``function.apply(features, ..., manager)``.

Programs usually call layers; these compute the same from features and keys. If the key of results
is not set yet, or None, the layer's own coordinates are used, and the key is set to theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ...errors import ArgumentError
from .MinkowskiBroadcast import (
    BroadcastMode,
    MinkowskiBroadcastAddition,
    MinkowskiBroadcastMultiplication,
)
from .MinkowskiConvolution import convolved, key_of_convolution
from .MinkowskiCoordinateManager import CoordinateManager, CoordinateMapKey
from .MinkowskiKernelGenerator import KernelGenerator
from .MinkowskiNormalization import normed
from .MinkowskiOps import MinkowskiInterpolation, MinkowskiPruning, MinkowskiUnion
from .MinkowskiPooling import MinkowskiGlobalPooling, PoolingMode, pooled
from .MinkowskiSparseTensor import SparseTensor, key_of
from .MinkowskiTensorField import TensorField

Key = CoordinateMapKey


def _tensor(
    features: Tensor,
    key: Key,
    manager: CoordinateManager | None,
    name: str = "coordinate_manager",
) -> SparseTensor:
    if manager is None:
        raise ArgumentError(name, "the CoordinateManager of the keys", None)
    return SparseTensor(features, coordinate_map_key=key, coordinate_manager=manager)


def _set(key: Key | None, found: Key) -> None:
    if key is not None and not key.is_key_set():
        key.set_key(found.get_key())


def _given_or(key: Key | None, find: Callable[[], Key]) -> Key:
    """Return the key of a result; if it is not set, set it to the one that is found."""
    if key is not None and key.is_key_set():
        return key
    found = find()
    _set(key, found)
    return found


class MinkowskiConvolutionFunction:
    """A convolution of ``kernel_weights`` (taps, C, K), or (C, K) of one tap.

    >>> x = SparseTensor(torch.ones(2, 1), torch.tensor([[0, 0], [0, 1]]).int())
    >>> region, out = KernelGenerator(2, 2, dimension=1), CoordinateMapKey(2)
    >>> of = x.F, torch.ones(2, 1, 1), region, None, x.coordinate_map_key, out
    >>> MinkowskiConvolutionFunction.apply(*of, x.coordinate_manager), out.get_tensor_stride()
    (tensor([[2.]]), [2])
    """

    _transposed = False

    @classmethod
    def apply(
        cls,
        input_features: Tensor,
        kernel_weights: Tensor,
        kernel_generator: KernelGenerator,
        convolution_mode: Any,
        in_coordinate_map_key: Key,
        out_coordinate_map_key: Key | None = None,
        coordinate_manager: CoordinateManager | None = None,
    ) -> Tensor:
        x = _tensor(input_features, in_coordinate_map_key, coordinate_manager)
        kernel = kernel_weights if kernel_weights.ndim == 3 else kernel_weights[None]
        found = partial(key_of_convolution, x, None, kernel_generator, cls._transposed)
        key = _given_or(out_coordinate_map_key, found)
        return convolved(x, kernel, None, kernel_generator, key, cls._transposed)


class MinkowskiConvolutionTransposeFunction(MinkowskiConvolutionFunction):
    """A transposed convolution, as of :class:`MinkowskiConvolutionTranspose`."""

    _transposed = True


class MinkowskiLocalPoolingFunction:
    """A pooling whose ``pooling_mode`` is one of the local ones."""

    _transposed = False

    @classmethod
    def apply(
        cls,
        input_features: Tensor,
        pooling_mode: PoolingMode,
        kernel_generator: KernelGenerator,
        in_coordinate_map_key: Key,
        out_coordinate_map_key: Key | None = None,
        coordinate_manager: CoordinateManager | None = None,
    ) -> Tensor:
        x = _tensor(input_features, in_coordinate_map_key, coordinate_manager)
        found = partial(key_of, x, None, kernel_generator, cls._transposed)
        key = _given_or(out_coordinate_map_key, found)
        return pooled(x, kernel_generator, key, pooling_mode, cls._transposed)


class MinkowskiLocalPoolingTransposeFunction(MinkowskiLocalPoolingFunction):
    """The sum at finer cells, as of :class:`MinkowskiPoolingTranspose`."""

    _transposed = True


class MinkowskiGlobalPoolingFunction:
    """A row for each image."""

    @staticmethod
    def apply(
        input_features: Tensor,
        pooling_mode: PoolingMode,
        in_coordinate_map_key: Key,
        out_coordinate_map_key: Key | None = None,
        coordinate_manager: CoordinateManager | None = None,
    ) -> Tensor:
        x: Any
        if coordinate_manager is not None and coordinate_manager.has_field(in_coordinate_map_key):
            x = TensorField(
                input_features,
                coordinate_field_map_key=in_coordinate_map_key,
                coordinate_manager=coordinate_manager,
            )
        else:
            x = _tensor(input_features, in_coordinate_map_key, coordinate_manager)
        y = MinkowskiGlobalPooling(pooling_mode)(x)
        _set(out_coordinate_map_key, y.coordinate_map_key)
        return y.F


class MinkowskiBroadcastFunction:
    """A row of each image added to its rows, or multiplied with them."""

    @staticmethod
    def apply(
        input_features: Tensor,
        input_features_global: Tensor,
        operation_type: BroadcastMode,
        in_coords_key: Key,
        glob_coords_key: Key,
        coords_manager: CoordinateManager,
    ) -> Tensor:
        x = _tensor(input_features, in_coords_key, coords_manager, "coords_manager")
        adds = BroadcastMode(operation_type) == BroadcastMode.ELEMENTWISE_ADDITON
        kind = MinkowskiBroadcastAddition if adds else MinkowskiBroadcastMultiplication
        y: Tensor = kind()(
            x, _tensor(input_features_global, glob_coords_key, coords_manager, "coords_manager")
        ).F
        return y


class MinkowskiPruningFunction:
    """The rows where ``mask`` is True."""

    @staticmethod
    def apply(
        in_feat: Tensor,
        mask: Tensor,
        in_coords_key: Key,
        out_coords_key: Key | None = None,
        coords_manager: CoordinateManager | None = None,
    ) -> Tensor:
        y = MinkowskiPruning()(
            _tensor(in_feat, in_coords_key, coords_manager, "coords_manager"), mask
        )
        _set(out_coords_key, y.coordinate_map_key)
        return y.F


class MinkowskiUnionFunction:
    """The sum over the union of coordinates."""

    @staticmethod
    def apply(
        in_coords_keys: Sequence[Key],
        out_coords_key: Key | None,
        coordinate_manager: CoordinateManager,
        *in_feats: Tensor,
    ) -> Tensor:
        pairs = zip(in_feats, in_coords_keys, strict=True)
        y = MinkowskiUnion()(*(_tensor(x, key, coordinate_manager) for x, key in pairs))
        _set(out_coords_key, y.coordinate_map_key)
        return y.F


class MinkowskiInterpolationFunction:
    """Features at floating coordinates, the rows they come from and go to, and the weights."""

    @staticmethod
    def apply(
        input_features: Tensor,
        tfield: Tensor,
        in_coordinate_map_key: Key,
        coordinate_manager: CoordinateManager | None = None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = _tensor(input_features, in_coordinate_map_key, coordinate_manager)
        y, (rows, points), weights = MinkowskiInterpolation(True, True)(x, tfield)
        return y, rows, points, weights


class MinkowskiInstanceNormFunction:
    """Each channel of each image over its rows, without weight and bias."""

    @staticmethod
    def apply(
        in_feat: Tensor,
        in_coords_key: Key,
        glob_coords_key: Key | None = None,
        coords_manager: CoordinateManager | None = None,
        gpooling_mode: PoolingMode = PoolingMode.GLOBAL_AVG_POOLING_KERNEL,
    ) -> Tensor:
        x = _tensor(in_feat, in_coords_key, coords_manager, "coords_manager")
        _set(glob_coords_key, x.coordinate_manager.origin())
        return normed(x, 1e-8)


class MinkowskiDirectMaxPoolingFunction:
    """The maximum of rows ``in_map`` of ``in_feat`` at rows ``out_map``; 0 for rows without any.

    >>> rows, to = torch.tensor([0, 1, 0]), torch.tensor([0, 0, 2])
    >>> MinkowskiDirectMaxPoolingFunction.apply(rows, to, torch.tensor([[1.0], [3.0]]), 3).T
    tensor([[3., 0., 1.]])
    """

    @staticmethod
    def apply(
        in_map: Tensor, out_map: Tensor, in_feat: Tensor, out_nrows: int, is_sorted: bool = False
    ) -> Tensor:
        values = in_feat.index_select(0, in_map.long())
        place = out_map.long()
        # The first of equal rows gets the gradient, as in our other maxima.
        with torch.no_grad():
            where = place[:, None].expand_as(values)
            zeros = values.new_zeros(out_nrows, values.shape[1])
            top = zeros.scatter_reduce(0, where, values, "amax", include_self=False)
            count = len(values)
            own = torch.arange(count, device=values.device)[:, None].expand_as(values)
            ranks = torch.where(values == top[place], own, count)
            first = torch.full_like(top, count, dtype=torch.long)
            first = first.scatter_reduce(0, where, ranks, "amin")
            there = first < count
        found = values.gather(0, first.clamp(max=max(count - 1, 0))) if count else zeros
        return torch.where(there, found, zeros)
