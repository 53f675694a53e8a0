"""The cache that the tensors of one network share: coordinates by their stride."""

from __future__ import annotations

from enum import Enum
from typing import Any

from torch import Tensor

from ....errors import ArgumentTypeError
from ....sparse import Coordinates


class TensorCacheMode(Enum):
    SEPARATE_TENSOR_CACHE = 0
    GLOBAL_TENSOR_CACHE = 1


class TensorCache:
    """Coordinates and maps by stride; programs read and share them, and add their own data."""

    def __init__(self) -> None:
        self.cmaps: dict[Any, Any] = {}
        self.kmaps: dict[Any, Any] = {}
        self.hashmaps: dict[Any, Any] = {}

    @property
    def levels(self) -> dict[tuple[int, ...], tuple[Tensor, Coordinates]]:
        """The coordinates of each stride, which hold the layers' kernel maps.

        They are in ``kmaps``, which programs of 1.4 pass from one tensor to another.
        """
        found: dict[Any, Any] = self.kmaps.setdefault("levels", {})
        return found

    @property
    def made(self) -> dict[Any, tuple[Coordinates, Coordinates]]:
        """The inputs and the outputs of strided layers."""
        found: dict[Any, Any] = self.kmaps.setdefault("made", {})
        return found

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"'TensorCache' object has no attribute {name!r}")

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)


class _Shared:
    mode = TensorCacheMode.SEPARATE_TENSOR_CACHE
    cache: TensorCache | None = None


def set_tensor_cache_mode(mode: TensorCacheMode) -> None:
    """Let new tensors share one cache, to be cleared after each step, or not."""
    if not isinstance(mode, TensorCacheMode):
        raise ArgumentTypeError("mode", "a TensorCacheMode", type(mode).__name__)
    _Shared.mode = mode


def get_tensor_cache_mode() -> TensorCacheMode:
    return _Shared.mode


def get_global_tensor_cache() -> TensorCache | None:
    return _Shared.cache


def set_global_tensor_cache(tensor_cache: TensorCache | None) -> None:
    _Shared.cache = tensor_cache


def clear_global_tensor_cache() -> None:
    _Shared.cache = None


def cache_for() -> TensorCache:
    """Return the cache for a new tensor."""
    if _Shared.mode == TensorCacheMode.SEPARATE_TENSOR_CACHE:
        return TensorCache()
    if _Shared.cache is None:
        _Shared.cache = TensorCache()
    return _Shared.cache
