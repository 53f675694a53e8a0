"""Sparse tensors whose features are computed when they are read: from 8-bit codes, say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..base.caches import remembered
from ..sparse import SparseTensor
from .eight_bits import of_codes

if TYPE_CHECKING:
    from typing_extensions import Self

    from ..sparse import Coordinates


def _plain(x: SparseTensor) -> SparseTensor:
    """Return the plain tensor that a lazy one was copied or pickled as."""
    return x


class LazyTensor(SparseTensor):
    """A sparse tensor whose ``features`` a subclass computes when they are read.

    ``like`` is a tensor on the same cells. This is an instance of its class, too, and so are
    tensors made from it: voxels can go back to points.
    """

    like: SparseTensor

    def __new__(cls, like: SparseTensor, *_: Any) -> Self:
        lazy: Any = cls
        kind: Any = type(like)
        return object.__new__(_of_kind(lazy, kind))  # type: ignore[no-any-return]

    def __init__(self, like: SparseTensor, **fields: Any) -> None:
        beside = {name: getattr(like, name) for name in like._beside}
        self.__dict__.update(like=like, coordinates=like.coordinates, **beside, **fields)

    @property
    def features(self) -> Tensor:  # type: ignore[override]
        """The features (rows, C), computed on first access."""
        found: Tensor | None = self.__dict__.get("_features")
        if found is None:
            found = self.__dict__["_features"] = self._read()
        return found

    def _read(self) -> Tensor:
        raise NotImplementedError

    def _with(self, features: Tensor, coordinates: Coordinates) -> Any:
        return self.like._with(features, coordinates)

    def __reduce_ex__(self, protocol: Any) -> Any:
        return _plain, (self.replace(self.features),)


@remembered(64)
def _of_kind(lazy: Any, kind: Any) -> Any:
    """Return the class of lazy tensors of a sparse tensor's class."""
    return lazy if kind is SparseTensor else type(lazy.__name__, (lazy, kind), {})


class QuantizedTensor(LazyTensor):
    """Features of 8 bits and their scale: a quantised layer's result for another one.

    Args:
        like: a tensor on the same cells.
        codes: (rows, C) of int8 or float8_e4m3fn.
        scale: of the codes.
        wide: the dtype of ``features``, which are ``scale * codes``.

    >>> x = SparseTensor.from_dense(torch.tensor([[[1.0], [3.0]]]))
    >>> y = QuantizedTensor(x, torch.tensor([[2], [-4]], dtype=torch.int8), 0.5, torch.float32)
    >>> y.features.T, (y + y).features.T
    (tensor([[ 1., -2.]]), tensor([[ 2., -4.]]))
    """

    codes: Tensor
    scale: float
    wide: torch.dtype

    def __init__(self, like: SparseTensor, codes: Tensor, scale: float, wide: torch.dtype) -> None:
        super().__init__(like, codes=codes, scale=scale, wide=wide)

    def _read(self) -> Tensor:
        return of_codes(self.codes, self.scale, self.wide)

    @property
    def device(self) -> torch.device:
        """The device of codes and coordinates."""
        return self.codes.device

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the features when they are read."""
        return self.wide

    def __repr__(self) -> str:
        rows, channels = self.codes.shape
        kind, about = self.codes.dtype, f"spatial_shape={self.spatial_shape}"
        return f"QuantizedTensor({rows} rows, {channels} channels, {kind}, {about})"


def has_features(x: Any) -> bool:
    """Return whether ``x`` is a sparse tensor with features that need no computation.

    >>> x = SparseTensor.from_dense(torch.ones(1, 2, 1))
    >>> has_features(x), has_features(QuantizedTensor(x, x.features, 1.0, torch.float32))
    (True, False)
    """
    return isinstance(x, SparseTensor) and not isinstance(x, LazyTensor)
