"""TorchSparse's tensors: features, coordinates, a stride, and a cache of coordinates and maps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ...conv.problem import Ints
from ...errors import ArgumentError, ArgumentTypeError
from ...sparse import Coordinates
from ...sparse import SparseTensor as _SparseTensor
from ...sparse.coords.no_tensor import NoTensor
from ..tensor_arguments import check_tensors
from ..whole_numbers import int32_cells, triple, whole_per_mode
from .utils import to_dense
from .utils.tensor_cache import cache_for
from .version import batch_last

if TYPE_CHECKING:
    from typing_extensions import Self


class _Negative:
    allowed = False


def get_allow_negative_coordinates() -> bool:
    return _Negative.allowed


def set_allow_negative_coordinates(allow_negative_coordinates: bool) -> None:
    """Let strided layers keep cells below zero, or not; see :class:`~.nn.Conv3d`."""
    _Negative.allowed = bool(allow_negative_coordinates)


def _of_caches(name: str, told: str | None = None) -> property:
    """Return a property of a tensor that reads and writes an attribute of its caches."""
    return property(
        lambda self: getattr(self._caches, name),
        lambda self, value: setattr(self._caches, name, value),
        doc=told,
    )


class SparseTensor(NoTensor):
    """Features at coordinates; arguments as in TorchSparse.

    Args:
        feats: (rows, C).
        coords: any integers, (rows, 4), ``(batch, x, y, z)`` in units of ``stride``, each
            coordinate once; :func:`~layoutconv.compat.torchsparse.set_interface` changes the order
            and the units.
        stride: distance of this tensor's cells, in cells of the first tensor.
        spatial_range: extents ``(batch, X, Y, Z)`` for :meth:`dense`. They also bound the cells of
            strided layers, and layers pass on the extents of their results.

    Attributes can be assigned, as in ``x.F = ...``; the results of a layer share its input's
    ``_caches``.

    >>> x = SparseTensor(torch.ones(2, 3), torch.tensor([[0, -1, 0, 0], [0, 4, 1, 1]]).int())
    >>> x.s, (x + x).F[0]
    ((1, 1, 1), tensor([2., 2., 2.]))
    """

    _container = "a torchsparse.nn module"
    _applied = "torchsparse.nn.utils.fapply(x, function)"
    _own = "x.feats"

    def __init__(
        self,
        feats: Tensor,
        coords: Tensor,
        stride: Ints = 1,
        spatial_range: Sequence[int] | None = None,
    ) -> None:
        self.feats, self.coords = feats, coords
        self.stride = triple("stride", stride, 1)
        self.spatial_range = extents_of(spatial_range)
        self._caches = cache_for()

    F = property(lambda self: self.feats, lambda self, feats: setattr(self, "feats", feats))
    C = property(lambda self: self.coords, lambda self, coords: setattr(self, "coords", coords))

    @property
    def s(self) -> tuple[int, ...]:
        return self.stride

    @s.setter
    def s(self, stride: Ints) -> None:
        self.stride = triple("stride", stride, 1)

    cmaps = _of_caches("cmaps", "Coordinates by stride, as 1.4 has them.")
    kmaps = _of_caches("kmaps")

    def __repr__(self) -> str:
        return f"SparseTensor(feats={tuple(self.feats.shape)}, stride={self.stride})"

    def __len__(self) -> int:
        return len(self.feats)

    def _moved(self, feats: Tensor, coords: Tensor) -> Self:
        self.feats, self.coords = feats, coords
        return self

    def to(self, device: Any, non_blocking: bool = True) -> Self:
        where = {"device": device, "non_blocking": non_blocking}
        return self._moved(self.feats.to(**where), self.coords.to(**where))

    def cpu(self) -> Self:
        return self.to("cpu")

    def cuda(self) -> Self:
        return self.to("cuda")

    def half(self) -> Self:
        return self._moved(self.feats.half(), self.coords)

    def detach(self) -> Self:
        return self._moved(self.feats.detach(), self.coords.detach())

    def on(self, feats: Tensor) -> SparseTensor:
        """Return other features, (rows, any C), at the same coordinates."""
        made = SparseTensor(feats, self.coords, self.stride, self.spatial_range)
        made._caches = self._caches
        return made

    def __add__(self, other: SparseTensor) -> SparseTensor:
        if not isinstance(other, SparseTensor):
            raise ArgumentTypeError("other", "a SparseTensor", type(other).__name__)
        if len(self.feats) != len(other.feats):
            expected = f"{len(self.feats)} rows, as this tensor has"
            raise ArgumentError("other", expected, len(other.feats))
        return self.on(self.feats + other.feats)

    def dense(self) -> Tensor:
        """Return the grid ``(batch, X, Y, Z, C)``; ``spatial_range`` must hold all cells."""
        if self.spatial_range is None:
            raise ArgumentError("spatial_range", "the extents (batch, X, Y, Z)", None)
        return to_dense(self.feats, batch_first(self.coords, self.stride), self.spatial_range)

    # -- layoutconv's coordinates -----------------------------------------------------------------

    @property
    def cells(self) -> Coordinates:
        """layoutconv's coordinates, in units of the stride; the cache's, if made of this tensor."""
        kept = self._caches.levels.get(self.stride)
        coords = self.coords
        if kept is not None and _same(kept[0], coords):
            return kept[1]
        made = Coordinates.unbounded(int32_cells("coords", batch_first(coords, self.stride)))
        if kept is None:
            self._caches.levels[self.stride] = coords, made
        return made

    def at(
        self,
        feats: Tensor,
        cells: Coordinates,
        stride: tuple[int, ...],
        spatial_range: Sequence[int] | None = None,
    ) -> SparseTensor:
        """Return features at cells of another stride, as layers do."""
        kept = self._caches.levels.get(stride)
        if kept is None or kept[1].cells is not cells.cells:
            kept = self._caches.levels[stride] = in_convention(cells.coords, stride), cells
        made = SparseTensor(feats, kept[0], stride, spatial_range)
        made._caches = self._caches
        made.remember()
        return made

    def remember(self) -> None:
        """Keep this stride's coordinates, and their extents, for layers that return to them."""
        of = self.coords if batch_last() else (self.coords, self.spatial_range)
        self._caches.cmaps.setdefault(self.stride, of)

    def to_layoutconv(self) -> _SparseTensor:
        """Return the same tensor for :mod:`layoutconv.nn`, in units of the stride."""
        return _SparseTensor(self.feats, self.cells)


class PointTensor:
    """Features at floating coordinates, with caches of lookups, as in 1.4."""

    def __init__(
        self,
        feats: Tensor,
        coords: Tensor,
        idx_query: dict[Any, Any] | None = None,
        weights: dict[Any, Any] | None = None,
    ) -> None:
        self.F, self.C = feats, coords
        self.idx_query = {} if idx_query is None else idx_query
        self.weights = {} if weights is None else weights
        self.additional_features: dict[str, dict[Any, Any]] = {"idx_query": {}, "counts": {}}

    def to(self, device: Any, non_blocking: bool = True) -> Self:
        self.F = self.F.to(device, non_blocking=non_blocking)
        self.C = self.C.to(device, non_blocking=non_blocking)
        return self

    def cuda(self) -> Self:
        return self.to("cuda")

    def detach(self) -> Self:
        self.F, self.C = self.F.detach(), self.C.detach()
        return self

    def __add__(self, other: PointTensor) -> PointTensor:
        made = PointTensor(self.F + other.F, self.C, self.idx_query, self.weights)
        made.additional_features = self.additional_features
        return made


def batch_first(coords: Tensor, stride: Sequence[int]) -> Tensor:
    """Return coordinates (batch, x, y, z) in units of a stride.

    Raises :class:`~layoutconv.errors.ArgumentError` for coordinates of another shape.
    """
    check_tensors(coords=coords)
    if coords.ndim != 2 or coords.shape[1] != 4:
        raise ArgumentError("coords", "(rows, 4)", tuple(coords.shape))
    if not batch_last():
        return coords
    units = coords[:, :3]
    if set(stride) != {1}:
        units = torch.div(units, units.new_tensor(stride), rounding_mode="floor")
    return torch.cat([coords[:, 3:], units], 1)


def in_convention(coords: Tensor, stride: Sequence[int]) -> Tensor:
    """Convert coordinates in units of a stride to the interface's convention."""
    if not batch_last():
        return coords
    return torch.cat([coords[:, 1:] * coords.new_tensor(stride), coords[:, :1]], 1)


def extents_of(spatial_range: Any) -> tuple[int, ...] | None:
    """Return extents ``(batch, X, Y, Z)``, or None.

    Raises :class:`~layoutconv.errors.ArgumentError` for others.

    >>> extents_of([1, 8, 8, 4])
    (1, 8, 8, 4)
    """
    if spatial_range is None:
        return None
    if not getattr(spatial_range, "__len__", None):
        raise ArgumentTypeError("spatial_range", "extents (batch, X, Y, Z)", repr(spatial_range))
    return tuple(whole_per_mode("spatial_range", spatial_range, 4, 0))


def _same(one: Tensor, other: Tensor) -> bool:
    return one is other or (
        one.data_ptr() == other.data_ptr()
        and one.shape == other.shape
        and one.device == other.device
        and one.stride() == other.stride()
    )


def check_input(input: Any, name: str = "input") -> None:
    """Raise :class:`~layoutconv.errors.ArgumentTypeError` for a layer's input that is no tensor.

    >>> check_input(None)
    Traceback (most recent call last):
    layoutconv.errors.ArgumentTypeError: argument `input`: expected a SparseTensor, got NoneType
    """
    if not isinstance(input, SparseTensor):
        raise ArgumentTypeError(name, "a SparseTensor", type(input).__name__)
