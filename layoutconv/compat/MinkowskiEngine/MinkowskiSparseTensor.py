"""MinkowskiEngine's sparse tensor: features at coordinates that a manager keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor as TorchTensor

from ...errors import ArgumentError, ArgumentTypeError
from ...sparse import Coordinates
from ...sparse import SparseTensor as _SparseTensor
from ...sparse.coords.arithmetic import union
from ...sparse.coords.interpolation import around
from ...sparse.coords.rows import Runs, reduce_runs, runs_of, spread, take
from ..tensor_arguments import check_tensors
from .MinkowskiCoordinateManager import CoordinateManager, CoordinateMapKey, strides_after
from .MinkowskiKernelGenerator import Ints, KernelGenerator, convert_to_int_list
from .MinkowskiTensor import SparseTensorQuantizationMode as Mode
from .MinkowskiTensor import Tensor, manager_for


class SparseTensor(Tensor):
    """Features at unbounded integer coordinates; arguments as in MinkowskiEngine.

    Args:
        features: (rows, C).
        coordinates: int (rows, 1 + D), columns ``(batch, x, y, z)``; floats are rounded down.
            ``quantization_mode`` merges rows that share one; by default the first row is kept.
        tensor_stride: coordinates are multiples of it.
        coordinate_map_key, coordinate_manager: existing coordinates of a manager, instead.
        requires_grad, device: of the features, and of features and coordinates.
        allocator_type, minkowski_algorithm: without effect.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> x = SparseTensor(torch.ones(2, 1), torch.tensor([[0, -3], [0, 5]]).int())
    >>> y = SparseTensor(torch.ones(1, 1), torch.tensor([[0, 7]]).int(),
    ...                  coordinate_manager=x.coordinate_manager)
    >>> (x + y).C.tolist(), (x + y).F.T
    ([[0, -3], [0, 5], [0, 7]], tensor([[1., 1., 1.]]))
    """

    def __init__(
        self,
        features: TorchTensor,
        coordinates: TorchTensor | None = None,
        tensor_stride: Ints = 1,
        coordinate_map_key: CoordinateMapKey | None = None,
        coordinate_manager: CoordinateManager | None = None,
        quantization_mode: Mode = Mode.RANDOM_SUBSAMPLE,
        allocator_type: Any = None,
        minkowski_algorithm: Any = None,
        requires_grad: bool | None = None,
        device: Any = None,
    ) -> None:
        if not isinstance(features, torch.Tensor):
            raise ArgumentTypeError("features", "a torch tensor", type(features).__name__)
        if features.ndim != 2:
            raise ArgumentError("features", "(rows, C)", tuple(features.shape))
        if not isinstance(quantization_mode, Mode):
            expected = "a SparseTensorQuantizationMode"
            raise ArgumentTypeError("quantization_mode", expected, repr(quantization_mode))
        if device is not None:
            features = features.to(device)
        self.quantization_mode = quantization_mode
        self.unique_index = self.inverse_mapping = None
        if coordinates is None:
            if coordinate_map_key is None or coordinate_manager is None:
                expected = "coordinates, or a coordinate_map_key with its coordinate_manager"
                raise ArgumentError("coordinates", expected, None)
            self._D, self._manager = coordinate_manager.D, coordinate_manager
            self._F, self.coordinate_map_key = features, coordinate_map_key
            if len(features) != coordinate_manager.size(coordinate_map_key):
                rows = coordinate_manager.size(coordinate_map_key)
                raise ArgumentError("features", f"({rows}, C)", tuple(features.shape))
        else:
            if coordinate_map_key is not None:
                raise ArgumentError(
                    "coordinate_map_key", "None, as `coordinates` are given", "a key"
                )
            check_tensors(coordinates=coordinates)
            if coordinates.ndim != 2:
                raise ArgumentError("coordinates", "(rows, 1 + D)", tuple(coordinates.shape))
            coordinates = coordinates if device is None else coordinates.to(device)
            self._D = coordinates.shape[1] - 1
            self._manager = coordinate_manager or manager_for(self._D)
            self._insert(features, coordinates, tensor_stride)
        if requires_grad is not None:
            self._F.requires_grad_(requires_grad)

    unique_index: TorchTensor | None
    inverse_mapping: TorchTensor | None

    def _insert(self, features: TorchTensor, coordinates: TorchTensor, stride: Ints) -> None:
        if len(features) != len(coordinates):
            expected = f"({len(coordinates)}, C), a row per row of coordinates"
            raise ArgumentError("features", expected, tuple(features.shape))
        if features.device != coordinates.device:
            expected = f"a tensor on the device of coordinates, {coordinates.device}"
            raise ArgumentError("features", expected, features.device)
        if coordinates.is_floating_point():
            coordinates = coordinates.floor()
        key, (rows, place) = self._manager.insert_and_map(coordinates, stride)
        self.coordinate_map_key = key
        self.unique_index, self.inverse_mapping = rows, place
        self._F = features
        if len(rows) < len(features):
            self._F = quantized(features, rows, place, self.quantization_mode)

    def __repr__(self) -> str:
        return (
            f"SparseTensor(\n  coordinates={self.C}\n  features={self._F}\n"
            f"  coordinate_map_key={self.coordinate_map_key}\n"
            f"  coordinate_manager={self._manager}  spatial dimension={self._D})"
        )

    @property
    def tensor_stride(self) -> list[int]:
        """Stride of the coordinates along each axis: they are its multiples."""
        return self.coordinate_map_key.get_tensor_stride()

    @property
    def C(self) -> TorchTensor:
        """int32 (rows, 1 + D), columns ``(batch, x, y, z)``."""
        return self._manager.get_coordinates(self.coordinate_map_key)

    coordinates = C

    @property
    def _batchwise_row_indices(self) -> list[TorchTensor]:
        return self._manager.rows_by_image(self.coordinate_map_key)

    # -- layoutconv's tensor -----------------------------------------------------------------------

    @property
    def cells(self) -> Coordinates:
        """layoutconv's coordinates, in units of the tensor stride."""
        return self._manager.cells(self.coordinate_map_key)

    def to_layoutconv(self) -> _SparseTensor:
        """Return the same for :mod:`layoutconv.nn`, in units of the tensor stride."""
        return _SparseTensor(self._F, self.cells)

    def at(self, features: TorchTensor, key: CoordinateMapKey) -> SparseTensor:
        """Return features at other coordinates of the same manager, as layers do."""
        return SparseTensor(features, coordinate_map_key=key, coordinate_manager=self._manager)

    # -- arithmetic -------------------------------------------------------------------------------

    def _is_at(self, other: Any) -> bool:
        return self.coordinate_map_key == other.coordinate_map_key

    def _binary_functor(self, other: Any, function: Any) -> SparseTensor:
        """Combine two sparse tensors over the union of their coordinates, as MinkowskiEngine does:
        rows that only this tensor has stay as they are, also in a product."""
        if not isinstance(other, SparseTensor):
            return self.on(function(self._F, other))
        self._check_manager(other)
        if self._is_at(other):
            return self.on(function(self._F, other._F))
        if self.tensor_stride != other.tensor_stride:
            expected = f"a tensor with tensor stride {self.tensor_stride}"
            raise ArgumentError("other", expected, other.tensor_stride)
        cells, (own, theirs) = union([self.cells, other.cells])
        features = spread(self._F, own, len(cells))
        beside = function(features.index_select(0, theirs), other._F)
        key = self._manager.keep(cells, self.tensor_stride, "union")
        return self.at(features.index_copy(0, theirs, beside), key)

    # -- other forms ------------------------------------------------------------------------------

    def sparse(
        self,
        min_coords: TorchTensor | None = None,
        max_coords: TorchTensor | None = None,
        contract_coords: bool = True,
    ) -> tuple[TorchTensor, TorchTensor, TorchTensor]:
        """Return torch's sparse COO tensor, the least coordinate, and the tensor stride.

        Raises :class:`~layoutconv.errors.ArgumentError` if a coordinate is outside the bounds.
        """
        if min_coords is None and not len(self):
            expected = "the first coordinate, as the tensor has no rows"
            raise ArgumentError("min_coords", expected, None)
        places, low, steps = self._places(min_coords, contract_coords, "min_coords")
        size: tuple[Any, ...] = ()
        coords = self.C[:, 1:]
        if (places < 0).any():
            expected = f"at most {coords.amin(0).tolist()}"
            raise ArgumentError("min_coords", expected, low.reshape(-1).tolist())
        if max_coords is not None:
            check_tensors(max_coords=max_coords)
            if (coords > max_coords.to(places)).any():
                expected = f"at least {coords.amax(0).tolist()}"
                raise ArgumentError("max_coords", expected, max_coords.tolist())
            last = max_coords.to(places).reshape(-1) - low.reshape(-1)
            last = last // steps.to(last) if contract_coords else last
            size = ([self._manager.batch_size, *(last + 1).tolist(), self._F.shape[1]],)
        both = torch.cat([self.C[:, :1].long(), places.long()], 1).T
        return torch.sparse_coo_tensor(both, self._F, *size), low, steps

    def dense(
        self,
        shape: Sequence[int] | None = None,
        min_coordinate: TorchTensor | int | None = None,
        contract_stride: bool = True,
    ) -> tuple[TorchTensor, TorchTensor, TorchTensor]:
        """Return the grid (N, C, X, Y, Z), differentiable, its first coordinate, and the stride.

        Without ``min_coordinate`` coordinates may not be negative, and the grid begins at zero. The
        channels in ``shape`` are ignored.

        Raises :class:`~layoutconv.errors.ArgumentError` if a coordinate is outside the grid.
        """
        if shape is not None and len(shape) != self._D + 2:
            raise ArgumentError("shape", f"(N, C, and {self._D} extents)", tuple(shape))
        channels, steps = self._F.shape[1], torch.tensor(self.tensor_stride, dtype=torch.int32)
        if not len(self):
            if shape is None:
                raise ArgumentError(
                    "shape", "the shape of the grid, as the tensor has no rows", None
                )
            size = shape[0], channels, *shape[2:]
            return self._F.new_zeros(size), torch.zeros(self._D, dtype=torch.int32), steps
        low = self.C[:, 1:].amin(0, keepdim=True)
        if min_coordinate is None and (low < 0).any():
            raise ArgumentError(
                "min_coordinate", "the smallest coordinate, as some are negative", None
            )
        start = None if isinstance(min_coordinate, int) else min_coordinate
        start = torch.zeros(self._D, dtype=torch.int32) if start is None else start
        places, first, _ = self._places(start, contract_stride)
        if shape is None:
            extents = (places.amax(0) + 1).tolist()
            shape = [int(self.C[:, 0].max()) + 1, channels, *extents]
        if (places < 0).any():
            least = low.reshape(-1).tolist()
            raise ArgumentError("min_coordinate", f"at most {least}", first.reshape(-1).tolist())
        last = [int(self.C[:, 0].max()), *places.amax(0).tolist()]
        extents = [shape[0], *shape[2:]]
        if any(place >= extent for place, extent in zip(last, extents, strict=True)):
            least = [last[0] + 1, channels, *(place + 1 for place in last[1:])]
            raise ArgumentError("shape", f"at least {least}", list(shape))
        grid = self._F.new_zeros(shape[0], *shape[2:], channels)
        where = (self.C[:, 0].long(), *places.long().T)
        grid = grid.index_put(where, self._F).movedim(-1, 1)
        return grid, low if min_coordinate is None else first, steps

    def _places(
        self, start: TorchTensor | None, contract: bool, name: str = "min_coordinate"
    ) -> tuple[TorchTensor, TorchTensor, TorchTensor]:
        steps = torch.tensor(self.tensor_stride, dtype=torch.int32)
        coords = self.C[:, 1:]
        if start is not None:
            check_tensors(**{name: start})
            if start.numel() != self._D:
                raise ArgumentError(name, f"{self._D} coordinates", tuple(start.shape))
        low = coords.amin(0, keepdim=True) if start is None else start.to(coords).reshape(1, -1)
        if (low.cpu() % steps).any():
            expected = f"multiples of the tensor stride {steps.tolist()}"
            raise ArgumentError(name, expected, low.tolist())
        places = coords - low
        return (places // steps.to(places) if contract else places), low, steps

    # -- points -----------------------------------------------------------------------------------

    def features_at_coordinates(self, query_coordinates: TorchTensor) -> TorchTensor:
        """Interpolate linearly at floating coordinates (points, 1 + D); missing voxels count as
        zero, and the weights of the others are not scaled up."""
        rows, weights = self.interpolation(query_coordinates)
        found = self._F.new_zeros(len(query_coordinates), self._F.shape[1])
        for row, weight in zip(rows, weights, strict=True):
            found = found + weight.to(self.dtype)[:, None] * take(self._F, row)
        return found

    def interpolation(
        self, query_coordinates: TorchTensor
    ) -> tuple[TorchTensor, list[TorchTensor]]:
        """Return the rows around points, int64 (2**D, points), -1 for none, and their weights."""
        check_tensors(query_coordinates=query_coordinates)
        if query_coordinates.ndim != 2 or query_coordinates.shape[1] != self._D + 1:
            expected = f"(points, {self._D + 1})"
            raise ArgumentError("query_coordinates", expected, tuple(query_coordinates.shape))
        cells = self.cells
        steps = query_coordinates.new_tensor(self.tensor_stride, dtype=torch.float64)
        places = query_coordinates[:, 1:].double() / steps
        assert cells.corner is not None
        # `around` counts from the corner, and takes a cell's centre to be at half a cell.
        positions = (places - places.new_tensor(cells.corner) + 0.5).flip(1)
        return around(cells, positions, query_coordinates[:, 0].round().int())

    def interpolate(self, X: Any) -> Any:
        """Return a field of the features, interpolated at the coordinates of a field."""
        return X.on(self.features_at_coordinates(X.C.to(self.dtype)))

    def slice(self, X: Any) -> Any:
        """Return the features of each point's voxel, as a field."""
        return self._sliced(X, lambda rows: self._F[rows])

    def cat_slice(self, X: Any) -> Any:
        """Return as :meth:`slice`, with the points' own features appended."""
        return self._sliced(X, lambda rows: torch.cat([self._F[rows], X.F], 1))

    def _sliced(self, X: Any, of_rows: Any) -> Any:
        if isinstance(X, Tensor) and not isinstance(X, SparseTensor):
            return X.on(of_rows(X.inverse_mapping(self.coordinate_map_key)))
        if not isinstance(X, SparseTensor) or X.inverse_mapping is None:
            raise ArgumentTypeError("X", "a TensorField, or the input", type(X).__name__)
        if X.coordinate_map_key != self.coordinate_map_key:
            raise ArgumentError("X", "a tensor at the same coordinates", X.coordinate_map_key)
        rows = X.inverse_mapping
        return self.field(of_rows(rows), self.C[rows], quantization_mode=self.quantization_mode)


def quantized(
    features: TorchTensor, rows: TorchTensor, place: TorchTensor, mode: Mode
) -> TorchTensor:
    """Merge the features (rows, C) of rows with the same ``place`` to one row per coordinate."""
    if mode == Mode.RANDOM_SUBSAMPLE:
        return features[rows]
    kinds = {
        Mode.UNWEIGHTED_AVERAGE: "mean", Mode.UNWEIGHTED_SUM: "sum", Mode.MAX_POOL: "max",
    }  # fmt: skip
    if mode not in kinds:
        raise ArgumentError(
            "quantization_mode", "a mode that merges rows, as some coordinates are repeated", mode
        )
    runs: Runs = runs_of(place)
    return reduce_runs(features, runs, kinds[mode])  # type: ignore[arg-type]


def key_of(
    input: SparseTensor, coordinates: Any, region: KernelGenerator, is_transpose: bool
) -> CoordinateMapKey:
    """The key of the coordinates that a layer computes: those it is told to, or its own."""
    manager, own = input.coordinate_manager, input.coordinate_map_key
    if coordinates is None:
        if is_transpose:
            return manager.upsampled(own, region, region.expand_coordinates)
        return manager.stride(own, region.kernel_stride)
    tensor_stride = strides_after(input.tensor_stride, region.kernel_stride, is_transpose)
    if isinstance(coordinates, CoordinateMapKey):
        return coordinates
    if isinstance(coordinates, SparseTensor):
        input._check_manager(coordinates, "coordinates")
        return coordinates.coordinate_map_key
    if not isinstance(coordinates, torch.Tensor):
        expected = "a tensor, a SparseTensor or a CoordinateMapKey"
        raise ArgumentTypeError("coordinates", expected, type(coordinates).__name__)
    steps = convert_to_int_list(list(tensor_stride), input.D)
    return manager.insert_and_map(coordinates, steps)[0]


def _get_coordinate_map_key(
    input: SparseTensor,
    coordinates: Any = None,
    tensor_stride: Any = 1,
    expand_coordinates: bool = False,
) -> CoordinateMapKey:
    """Return the key of given coordinates, or one for a function to set; for a program's layers.

    A tensor of coordinates is kept at ``tensor_stride``.
    """
    if coordinates is None or expand_coordinates:
        return CoordinateMapKey(input.coordinate_map_key.get_coordinate_size())
    if isinstance(coordinates, torch.Tensor):
        return input.coordinate_manager.insert_and_map(coordinates, tensor_stride)[0]
    return key_of(input, coordinates, KernelGenerator(1, dimension=input.D), False)
