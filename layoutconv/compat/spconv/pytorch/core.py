"""spconv's sparse tensor: features, their cells, and the kernel maps known so far."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ....errors import ArgumentError, ArgumentTypeError
from ....sparse import Coordinates, SparseTensor
from ....sparse.coords.known_cells import version_of
from ....sparse.coords.no_tensor import NoTensor
from ...whole_numbers import whole, whole_per_mode
from ..absent import explain
from ..core import ConvAlgo
from ..tools import CUDAKernelTimer
from ..version import INTERFACE
from .indice_data import ImplicitGemmIndiceData, IndiceData

if TYPE_CHECKING:
    from torch import Tensor


__all__ = [
    "CUDAKernelTimer",
    "ConvAlgo",
    "ImplicitGemmIndiceData",
    "IndiceData",
    "SparseConvTensor",
    "expand_nd",
    "scatter_nd",
]

__getattr__ = explain(__name__)


class SparseConvTensor(NoTensor):
    """Features at cells of a batch of grids, as in spconv.

    Args:
        features: (rows, C), read-only: :meth:`replace_feature` makes another tensor. The interface
            of 1.2 allows assignment.
        indices: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3. All rows of a
            repeated cell are kept, and layers compute the same as spconv on a CPU: see
            :attr:`layoutconv.sparse.Coordinates.repeats`.
        spatial_shape: extents ``[D, H, W]`` of the grid, one to four of them.
        batch_size: the number of grids.
        grid, voxel_num, benchmark, permanent_thrust_allocator, enable_timer, force_algo: kept for
            programs that read them; they have no effect.
        indice_dict: kernel maps by the ``indice_key`` of the layers that made them.

    The constructor checks dtypes and shapes. The first layer that makes a kernel map checks the
    cells, and refuses one that is outside the grid.

    Raises :class:`~layoutconv.errors.ArgumentError`, a ``ValueError``.

    >>> indices = torch.tensor([[0, 0, 1, 2], [1, 3, 0, 0]], dtype=torch.int32)
    >>> x = SparseConvTensor(torch.tensor([[5.0], [7.0]]), indices, [4, 2, 3], batch_size=2)
    >>> x.dense().shape, x.dense()[1, :, 3, 0, 0]
    (torch.Size([2, 1, 4, 2, 3]), tensor([7.]))
    >>> x.features = x.features + 1
    Traceback (most recent call last):
    ValueError: features are read-only; x = x.replace_feature(features) makes another tensor
    """

    _container = "SparseSequential"
    _applied = "x.replace_feature(function(x.features))"
    _features: Tensor
    _coordinates: Coordinates | None
    _version: int  # of `indices`, when `_coordinates` was made from them

    def __init__(
        self,
        features: Tensor,
        indices: Tensor,
        spatial_shape: Sequence[int],
        batch_size: int,
        grid: Tensor | None = None,
        voxel_num: Any = None,
        indice_dict: dict[Any, IndiceData] | None = None,
        benchmark: bool = False,
        permanent_thrust_allocator: bool = False,
        enable_timer: bool = False,
        force_algo: Any = None,
    ) -> None:
        if not isinstance(features, torch.Tensor):
            raise ArgumentTypeError("features", "a torch tensor", type(features).__name__)
        if not isinstance(indices, torch.Tensor) or indices.dtype != torch.int32:
            got = indices.dtype if isinstance(indices, torch.Tensor) else type(indices).__name__
            raise ArgumentTypeError("indices", "a torch tensor of int32", got)
        if isinstance(spatial_shape, str | bytes) or not hasattr(spatial_shape, "__iter__"):
            raise ArgumentTypeError("spatial_shape", "integers", repr(spatial_shape))
        shape = [whole("spatial_shape", extent) for extent in spatial_shape]
        if indices.dim() != 2 or indices.shape[1] != len(shape) + 1:
            expected = f"(rows, {len(shape) + 1}): the batch, and a column per extent of {shape}"
            raise ArgumentError("indices", expected, tuple(indices.shape))
        if features.dim() != 2 or features.shape[0] != indices.shape[0]:
            expected = f"({len(indices)}, C), a row per row of indices"
            raise ArgumentError("features", expected, tuple(features.shape))
        self._features = features
        self.indices = indices
        self.spatial_shape = shape
        self.batch_size = whole("batch_size", batch_size)
        self.indice_dict = {} if indice_dict is None else indice_dict
        self.grid = torch.Tensor() if grid is None else grid
        self.voxel_num = voxel_num
        self.benchmark = benchmark
        self.benchmark_record: dict[str, Any] = {}
        self.thrust_allocator: Any = None
        self._timer = CUDAKernelTimer(enable_timer)
        self.force_algo = force_algo
        self.int8_scale: Any = None
        self._coordinates, self._version = None, 0

    def __getstate__(self) -> dict[str, Any]:
        """Return the state to pickle or copy; facts about the cells are derived again."""
        return {**self.__dict__, "_coordinates": None}

    def __repr__(self) -> str:
        return f"SparseConvTensor[shape={self._features.shape}]"

    # -- features --------------------------------------------------------------------------------

    @property
    def features(self) -> Tensor:
        """(rows, C)."""
        return self._features

    @features.setter
    def features(self, features: Tensor) -> None:
        if INTERFACE.is_1x:
            self._features = features
            return
        raise ValueError(
            "features are read-only; x = x.replace_feature(features) makes another tensor"
        )

    def replace_feature(self, feature: Tensor) -> SparseConvTensor:
        """Return the same cells and kernel maps with other features, (rows, any C)."""
        made = object.__new__(type(self))
        made.__dict__ = own = self.__dict__.copy()
        own["_features"] = feature
        return made

    def __dir__(self) -> list[str]:
        """Return attribute names; projects look for ``replace_feature`` there at every layer."""
        if type(self) is SparseConvTensor:
            return [*_NAMES, *self.__dict__]
        return list(super().__dir__())

    def shadow_copy(self) -> SparseConvTensor:
        """Return another tensor with the same members."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def select_by_index(self, valid_indices: Tensor) -> SparseConvTensor:
        """Return the rows of an index or a mask, without kernel maps.

        >>> x = SparseConvTensor.from_dense(torch.eye(3)[None, :, :, None])
        >>> x.select_by_index(torch.tensor([2, 0])).indices.tolist()
        [[0, 2, 2], [0, 0, 0]]
        """
        made = self.replace_feature(self._features[valid_indices])
        made.indices = self.indices[valid_indices]
        made.indice_dict = {}
        return made

    def minus(self) -> SparseConvTensor:
        """Return the tensor with negated features."""
        return self.replace_feature(-self._features)

    def __add__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        """Sum of the features, row by row; ``functional.sparse_add`` adds cell by cell."""
        return self.replace_feature(self._features + _features_of(other))

    __radd__ = __add__  # and `+=` makes another tensor

    def __sub__(self, other: SparseConvTensor | Tensor) -> SparseConvTensor:
        return self.replace_feature(self._features - _features_of(other))

    @property
    def is_quantized(self) -> bool:
        """Return whether the features are torch's quantized integers, which no layer takes."""
        return self._features.dtype == torch.qint8

    def q_scale(self) -> float:
        if not self.is_quantized:
            raise ValueError("this tensor is not quantized, so it has no scale")
        return self._features.q_scale()

    def dequantize(self) -> SparseConvTensor:
        return self.replace_feature(self._features.dequantize())

    # -- cells -----------------------------------------------------------------------------------

    @property
    def spatial_size(self) -> int:
        """The number of cells of a grid."""
        return prod(self.spatial_shape)

    @property
    def coordinates(self) -> Coordinates:
        """layoutconv's coordinates; tensors that share them share their kernel maps."""
        found, cells = self._coordinates, self.indices
        if (
            found is None
            or found.cells is not cells
            or self._version != version_of(cells)
            or list(found.spatial_shape) != self.spatial_shape
            or found.batch_size != self.batch_size
        ):
            found = Coordinates(cells, self.spatial_shape, self.batch_size, repeated=True)
            found.argument = "indices"
            self._coordinates, self._version = found, version_of(cells)
        return found

    def find_indice_pair(self, key: Any) -> IndiceData | None:
        """Return the kernel map that a layer with this ``indice_key`` made, if there is one."""
        return None if key is None else self.indice_dict.get(key)

    def on(
        self,
        features: Tensor,
        coordinates: Coordinates,
        indice_dict: dict[Any, IndiceData],
        version: int | None = None,
    ) -> SparseConvTensor:
        """Return a layer's result: features at the cells that it computed, of this ``version``."""
        made = object.__new__(type(self))
        made.__dict__ = own = self.__dict__.copy()
        own["indices"] = cells = coordinates.cells
        own["_features"], own["_coordinates"] = features, coordinates
        own["_version"] = version_of(cells) if version is None else version
        own["indice_dict"], own["spatial_shape"] = indice_dict, list(coordinates.spatial_shape)
        return made

    # -- other tensors ---------------------------------------------------------------------------

    def dense(self, channels_first: bool = True) -> Tensor:
        """Return the dense grid, (N, C, D, H, W) or (N, D, H, W, C); zeros where no row is.

        A repeated cell gets its last row, and the gradient goes to all rows of the cell, as in
        spconv.
        """
        x = self.to_layoutconv().check()
        repeats = x.coordinates.repeats
        if repeats is not None:
            x = x.replace(_LikeLast.apply(x.features, repeats.last))  # type: ignore[no-untyped-call]
        grid = x.dense()
        return grid.movedim(-1, 1).contiguous() if channels_first else grid

    @classmethod
    def from_dense(cls, x: Tensor) -> SparseConvTensor:
        """Return a tensor of the cells of ``x`` (N, D, H, W, C) that have a nonzero channel.

        >>> SparseConvTensor.from_dense(torch.eye(3)[None, :, :, None]).indices.tolist()
        [[0, 0, 0], [0, 1, 1], [0, 2, 2]]
        """
        return cls.from_layoutconv(SparseTensor.from_dense(x))

    def to_layoutconv(self) -> SparseTensor:
        """Return the same tensor for :mod:`layoutconv.nn`.

        >>> x = SparseConvTensor.from_dense(torch.eye(3)[None, :, :, None])
        >>> SparseConvTensor.from_layoutconv(x.to_layoutconv()).coordinates is x.coordinates
        True
        """
        return SparseTensor(self._features, self.coordinates)

    @classmethod
    def from_layoutconv(cls, x: SparseTensor) -> SparseConvTensor:
        """Convert a tensor of :mod:`layoutconv.nn`, with its coordinates and their kernel maps."""
        made = cls(x.features, x.coords, x.spatial_shape, x.batch_size)
        made._coordinates, made._version = x.coordinates, version_of(x.coords)
        return made


_NAMES = dir(SparseConvTensor)  # calling dir takes ten times as long


class _LikeLast(torch.autograd.Function):
    """The identity on features; all rows of a cell get the gradient of its last row."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, last: Tensor) -> Tensor:
        ctx.last = last
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:  # type: ignore[override]
        return grad.index_select(0, ctx.last), None


def scatter_nd(indices: Tensor, updates: Tensor, shape: Sequence[int]) -> Tensor:
    """Return zeros of ``shape`` with ``updates`` (rows, ...) at ``indices`` (rows, modes). Of
    several rows at one place, the last counts.

    >>> scatter_nd(torch.tensor([[2], [0]]), torch.tensor([5, 7]), [3])
    tensor([7, 0, 5])
    """
    modes = indices.shape[-1]
    places, extents = indices.reshape(-1, modes).long(), list(shape)
    strides = [prod(extents[axis + 1 : modes]) for axis in range(modes)]
    keys = (places * places.new_tensor(strides)).sum(1)
    _, group = torch.unique(keys, return_inverse=True)
    rows = torch.arange(len(keys), device=keys.device)
    last = rows.new_zeros(len(keys)).scatter_reduce(0, group, rows, "amax")[group]
    chosen = (last == rows).nonzero()[:, 0]
    values = updates.reshape(len(keys), *extents[modes:]).index_select(0, chosen)
    grid = updates.new_zeros((prod(extents[:modes]), *extents[modes:]))
    return grid.index_copy(0, keys.index_select(0, chosen), values).view(extents)


def _features_of(other: SparseConvTensor | Tensor) -> Tensor:
    return other.features if isinstance(other, SparseConvTensor) else other


def check_input(input: Any, ndim: int | None = None, name: str = "input") -> None:
    """Raises :class:`~layoutconv.errors.ArgumentError` for what such a layer does not take."""
    if not isinstance(input, SparseConvTensor):
        raise ArgumentTypeError(name, "a SparseConvTensor", type(input).__name__)
    if ndim is not None and len(input.spatial_shape) != ndim:
        got = f"spatial_shape {input.spatial_shape}"
        raise ArgumentError("input", f"{ndim} spatial modes, as the layer has", got)


def expand_nd(ndim: int, value: Any) -> list[int]:
    """Return a number per spatial mode.

    >>> expand_nd(3, 2), expand_nd(2, (1, 3))
    ([2, 2, 2], [1, 3])
    """
    return whole_per_mode("value", value, ndim)
