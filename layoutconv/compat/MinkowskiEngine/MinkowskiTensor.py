"""Base of MinkowskiEngine's sparse tensors and fields, and the modes of both."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from ...errors import ArgumentError, ArgumentTypeError
from ...sparse.coords.no_tensor import NoTensor
from .MinkowskiCoordinateManager import CoordinateManager, CoordinateMapKey

if TYPE_CHECKING:
    import torch
    from torch import Tensor as TorchTensor
    from typing_extensions import Self


class SparseTensorOperationMode(Enum):
    SEPARATE_COORDINATE_MANAGER = 0
    SHARE_COORDINATE_MANAGER = 1


class SparseTensorQuantizationMode(Enum):
    """Modes of merging rows that share a coordinate."""

    RANDOM_SUBSAMPLE = 0  # here always the first row
    UNWEIGHTED_AVERAGE = 1
    UNWEIGHTED_SUM = 2
    NO_QUANTIZATION = 3
    MAX_POOL = 4
    SPLAT_LINEAR_INTERPOLATION = 5


class MinkowskiAlgorithm(Enum):
    """Accepted for compatibility; it has no effect."""

    DEFAULT = 0
    MEMORY_EFFICIENT = 1
    SPEED_OPTIMIZED = 2


class _Shared:
    """The shared coordinate manager, while a program asks for sharing."""

    mode: ClassVar[SparseTensorOperationMode] = (
        SparseTensorOperationMode.SEPARATE_COORDINATE_MANAGER
    )
    manager: ClassVar[CoordinateManager | None] = None


def set_sparse_tensor_operation_mode(operation_mode: SparseTensorOperationMode) -> None:
    """Let tensors that are made without a coordinate manager share one, or not."""
    if not isinstance(operation_mode, SparseTensorOperationMode):
        got = type(operation_mode).__name__
        raise ArgumentTypeError("operation_mode", "a SparseTensorOperationMode", got)
    _Shared.mode = operation_mode


def sparse_tensor_operation_mode() -> SparseTensorOperationMode:
    return _Shared.mode


def global_coordinate_manager() -> CoordinateManager | None:
    return _Shared.manager


def set_global_coordinate_manager(coordinate_manager: CoordinateManager | None) -> None:
    _Shared.manager = coordinate_manager


def clear_global_coordinate_manager() -> None:
    """Forget the shared manager; a program that shares one calls this after every step."""
    _Shared.manager = None


def manager_for(dimension: int) -> CoordinateManager:
    """Return the manager for a tensor that is made without one."""
    if _Shared.mode != SparseTensorOperationMode.SHARE_COORDINATE_MANAGER:
        return CoordinateManager(dimension)
    if _Shared.manager is None:
        _Shared.manager = CoordinateManager(dimension)
    return _Shared.manager


class Tensor(NoTensor):
    """Features in rows, with a coordinate manager that knows their coordinates."""

    _container = "a MinkowskiEngine module"
    _applied = "ME.SparseTensor(function(x.F), coordinate_map_key=..., coordinate_manager=...)"

    field: ClassVar[Any]  # the class of fields, which is made of sparse tensors
    _F: TorchTensor
    _D: int
    _manager: CoordinateManager
    coordinate_map_key: CoordinateMapKey
    quantization_mode: SparseTensorQuantizationMode

    @property
    def coordinate_manager(self) -> CoordinateManager:
        return self._manager

    @property
    def F(self) -> TorchTensor:
        """(rows, C)."""
        return self._F

    features = F

    @property
    def C(self) -> TorchTensor:
        """(rows, 1 + D), columns ``(batch, x, y, z)``."""
        raise NotImplementedError

    @property
    def coordinates(self) -> TorchTensor:
        return self.C

    @property
    def D(self) -> int:
        """The number of spatial modes."""
        return self._D

    dimension = D

    @property
    def shape(self) -> torch.Size:
        return self._F.shape

    def size(self) -> torch.Size:
        return self._F.size()

    @property
    def device(self) -> torch.device:
        return self._F.device

    @property
    def dtype(self) -> torch.dtype:
        return self._F.dtype

    def get_device(self) -> int:
        return self._F.get_device()

    @property
    def requires_grad(self) -> bool:
        return self._F.requires_grad

    def requires_grad_(self, requires_grad: bool = True) -> None:
        self._F.requires_grad_(requires_grad)

    def __len__(self) -> int:
        return len(self._F)

    def float(self) -> Self:
        self._F = self._F.float()
        return self

    def double(self) -> Self:
        self._F = self._F.double()
        return self

    def detach(self) -> Self:
        self._F = self._F.detach()
        return self

    # -- images -----------------------------------------------------------------------------------

    @property
    def _batchwise_row_indices(self) -> list[TorchTensor]:
        raise NotImplementedError

    @property
    def decomposition_permutations(self) -> list[TorchTensor]:
        """The rows of each image, int64."""
        return self._batchwise_row_indices

    @property
    def decomposed_coordinates(self) -> list[TorchTensor]:
        return [self.C[rows, 1:] for rows in self._batchwise_row_indices]

    @property
    def decomposed_features(self) -> list[TorchTensor]:
        return [self._F[rows] for rows in self._batchwise_row_indices]

    @property
    def decomposed_coordinates_and_features(self) -> tuple[list[TorchTensor], list[TorchTensor]]:
        return self.decomposed_coordinates, self.decomposed_features

    def coordinates_at(self, batch_index: int) -> TorchTensor:
        return self.C[self._batchwise_row_indices[batch_index], 1:]

    def features_at(self, batch_index: int) -> TorchTensor:
        return self._F[self._batchwise_row_indices[batch_index]]

    def coordinates_and_features_at(self, batch_index: int) -> tuple[TorchTensor, TorchTensor]:
        return self.coordinates_at(batch_index), self.features_at(batch_index)

    # -- arithmetic -------------------------------------------------------------------------------

    def on(self, features: TorchTensor) -> Self:
        """Return other features, (rows, any C), at the same coordinates."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        made._F = features
        return made

    def _is_at(self, other: Any) -> bool:
        raise NotImplementedError

    def _check_manager(self, other: Tensor, name: str = "other") -> None:
        check_tensor(name, other)
        if self._manager is not other._manager:
            expected = "a tensor with the same coordinate_manager"
            raise ArgumentError(name, expected, "one with another")

    def _beside(self, other: Any) -> TorchTensor:
        """Features of a tensor at the same coordinates; as of in-place operations."""
        self._check_manager(other)
        if not self._is_at(other):
            raise ArgumentError("other", "a tensor at the same coordinates", other.coordinate_key)
        return other._F

    @property
    def coordinate_key(self) -> CoordinateMapKey:
        return self.coordinate_map_key

    def __iadd__(self, other: Any) -> Self:  # type: ignore[misc]
        self._F = self._F + self._beside(other)
        return self

    def __isub__(self, other: Any) -> Self:  # type: ignore[misc]
        self._F = self._F - self._beside(other)
        return self

    def __imul__(self, other: Any) -> Self:  # type: ignore[misc]
        self._F = self._F * self._beside(other)
        return self

    def _binary_functor(self, other: Any, function: Any) -> Any:
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return self._binary_functor(other, lambda x, y: x + y)

    def __sub__(self, other: Any) -> Any:
        return self._binary_functor(other, lambda x, y: x - y)

    def __mul__(self, other: Any) -> Any:
        return self._binary_functor(other, lambda x, y: x * y)

    def __truediv__(self, other: Any) -> Any:
        return self._binary_functor(other, lambda x, y: x / y)

    def __pow__(self, power: Any) -> Self:
        return self.on(self._F**power)


def check_tensor(name: str, value: Any) -> Tensor:
    """Return an argument if it is one of MinkowskiEngine's tensors or fields; else raise.

    >>> check_tensor("x", 3)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `x`: expected a SparseTensor or a TensorField,\
 got int
    """
    if not isinstance(value, Tensor):
        raise ArgumentTypeError(name, "a SparseTensor or a TensorField", type(value).__name__)
    return value


def over_features(input: Any, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Return the tensor or field of ``function(features, ...)``, at the same coordinates.

    >>> import torch
    >>> over_features(torch.ones(2, 3), torch.relu)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `input`: expected a SparseTensor or a\
 TensorField, got Tensor
    """
    of: Any = check_tensor("input", input)
    return of.on(function(of.F, *args, **kwargs))
