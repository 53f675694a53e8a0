"""MinkowskiEngine's field: features at floating coordinates, and the voxels that contain them."""

from __future__ import annotations

from itertools import product
from typing import Any

import torch
from torch import Tensor as TorchTensor

from ...errors import ArgumentError
from ...nn import sparse_global_pool
from ...sparse import Coordinates
from ...sparse import SparseTensor as _SparseTensor
from ...sparse.coords.rows import add_rows
from ..tensor_arguments import check_tensors
from ..whole_numbers import whole_per_mode
from .MinkowskiCoordinateManager import CoordinateManager, CoordinateMapKey
from .MinkowskiKernelGenerator import Ints
from .MinkowskiSparseTensor import SparseTensor, quantized
from .MinkowskiTensor import SparseTensorQuantizationMode as Mode
from .MinkowskiTensor import Tensor, manager_for


class TensorField(Tensor):
    """Features at floating coordinates; arguments as in MinkowskiEngine.

    Args:
        features: (points, C).
        coordinates: (points, 1 + D), columns ``(batch, x, y, z)``.
        quantization_mode: how :meth:`sparse` merges points of one voxel.
        coordinate_field_map_key: instead of coordinates, those of another field of the same
            ``coordinate_manager``.
        coordinate_manager: of the sparse tensors; by default a new one.

    >>> field = TensorField(
    ...     torch.tensor([[1.0], [3.0], [5.0]]), torch.tensor([[0, 0.2], [0, 0.9], [0, -1.5]]),
    ...     quantization_mode=Mode.UNWEIGHTED_AVERAGE,
    ... )
    >>> x = field.sparse()
    >>> x.C.tolist(), x.F.T, x.slice(field).F.T
    ([[0, 0], [0, -2]], tensor([[2., 5.]]), tensor([[2., 2., 5.]]))
    """

    def __init__(
        self,
        features: TorchTensor,
        coordinates: TorchTensor | None = None,
        tensor_stride: Ints = 1,
        coordinate_field_map_key: CoordinateMapKey | None = None,
        coordinate_manager: CoordinateManager | None = None,
        quantization_mode: Mode = Mode.UNWEIGHTED_AVERAGE,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
        requires_grad: bool | None = None,
        device: Any = None,
    ) -> None:
        key = coordinate_field_map_key
        check_tensors(features=features)
        if coordinates is not None:
            check_tensors(coordinates=coordinates)
            if coordinates.ndim != 2:
                raise ArgumentError("coordinates", "(points, 1 + D)", tuple(coordinates.shape))
            coordinates = coordinates if device is None else coordinates.to(device)
            self._manager = coordinate_manager or manager_for(coordinates.shape[1] - 1)
            key = self._manager.insert_field(coordinates, tensor_stride)
        elif coordinate_manager is None or key is None:
            expected = "coordinates, or a coordinate_field_map_key with its coordinate_manager"
            raise ArgumentError("coordinates", expected, None)
        else:
            self._manager = coordinate_manager
        assert key is not None
        self.coordinate_field_map_key, self._D = key, self._manager.D
        self._points, self._rows = self._manager.field(key)
        if features.ndim != 2 or len(features) != len(self._points):
            expected = f"({len(self._points)}, C), a row per point"
            raise ArgumentError("features", expected, tuple(features.shape))
        self._F = features if device is None else features.to(device)
        self.quantization_mode = quantization_mode
        if requires_grad is not None:
            self._F.requires_grad_(requires_grad)

    @property
    def C(self) -> TorchTensor:
        """(points, 1 + D), columns ``(batch, x, y, z)``."""
        return self._points

    coordinates = C

    @property
    def coordinate_key(self) -> CoordinateMapKey:
        """The key of the field, ``coordinate_field_map_key``."""
        return self.coordinate_field_map_key

    @property
    def _batchwise_row_indices(self) -> list[TorchTensor]:
        image = self._points[:, 0].round().long()
        count = int(image.max()) + 1 if len(image) else 0
        return [(image == number).nonzero()[:, 0] for number in range(count)]

    def _is_at(self, other: Any) -> bool:
        return self._points is other._points

    def _binary_functor(self, other: Any, function: Any) -> TensorField:
        beside = self._beside(other) if isinstance(other, TensorField) else other
        return self.on(function(self._F, beside))

    def sparse(
        self,
        tensor_stride: Ints = 1,
        coordinate_map_key: CoordinateMapKey | None = None,
        quantization_mode: Mode | None = None,
    ) -> SparseTensor:
        """Return the points' voxels, or those of a key, with their points' merged features."""
        manager, mode = self._manager, quantization_mode or self.quantization_mode
        if coordinate_map_key is None:
            steps = whole_per_mode("tensor_stride", tensor_stride, self._D, 1)
            divisor = self._points.new_tensor([1, *steps])
            coords = (self._points / divisor).floor() * divisor
            coordinate_map_key, (rows, place) = manager.insert_and_map(coords, steps)
            self._rows[coordinate_map_key] = place
            features = quantized(self._F, rows, place, mode)
        else:
            place = self.inverse_mapping(coordinate_map_key)
            count = manager.size(coordinate_map_key)
            features = add_rows(self._F, place, count)
            if mode == Mode.UNWEIGHTED_AVERAGE:
                points = torch.bincount(place, minlength=count).clamp(min=1)
                features = features / points[:, None].to(features.dtype)
            elif mode != Mode.UNWEIGHTED_SUM:
                expected = "UNWEIGHTED_AVERAGE or UNWEIGHTED_SUM, with a key"
                raise ArgumentError("quantization_mode", expected, mode)
        return SparseTensor(
            features, coordinate_map_key=coordinate_map_key, coordinate_manager=manager
        )

    def pooled(self, kind: str) -> SparseTensor:
        """Return the maximum, mean or sum ("max", "avg", "sum") over the points of each image."""
        image = self._points[:, 0].round().int()
        self._manager.count_images(int(image.max()) + 1 if len(image) else 0)
        rows = torch.arange(len(image), dtype=torch.int32, device=image.device)
        cells = Coordinates.unbounded(torch.stack([image, rows], 1), self._manager.batch_size)
        values = sparse_global_pool(_SparseTensor(self._F, cells), kind)
        return SparseTensor(
            values,
            coordinate_map_key=self._manager.origin(self.device),
            coordinate_manager=self._manager,
        )

    def splat(self) -> SparseTensor:
        """Distribute the features to the voxels around points, by linear interpolation."""
        low = self._points.floor()
        corners = [low + low.new_tensor([0, *offset]) for offset in product((0, 1), repeat=self._D)]
        key, _ = self._manager.insert_and_map(torch.cat(corners))
        count = self._manager.size(key)
        empty = SparseTensor(
            self._F.new_zeros(count, 1), coordinate_map_key=key, coordinate_manager=self._manager
        )
        rows, weights = empty.interpolation(self._points)
        given = torch.cat([w.to(self._F.dtype)[:, None] * self._F for w in weights])
        return empty.at(add_rows(given, rows.flatten(), count), key)

    def inverse_mapping(self, sparse_tensor_map_key: CoordinateMapKey) -> TorchTensor:
        """Return the row of each point's voxel, int64, among the voxels of a key."""
        found = self._rows.get(sparse_tensor_map_key)
        if found is None:
            own = self.coordinate_field_map_key
            found = self._manager.voxels_of_points(own, sparse_tensor_map_key)
            if (found < 0).any():
                row = int((found < 0).nonzero()[0])
                expected = "coordinates with a voxel for every point"
                raise ArgumentError("sparse_tensor_map_key", expected, f"none for point {row}")
            self._rows[sparse_tensor_map_key] = found
        return found

    def __repr__(self) -> str:
        return f"TensorField(\n  coordinates={self.C}\n  features={self._F})"


Tensor.field = TensorField
