"""FlexGEMM's sparse convolutions; a weight is (K, W, H, D, C), as in layoutconv."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError, ArgumentTypeError
from ....nn import sparse
from ....sparse import Coordinates, KernelMap, SparseTensor, strided_map, submanifold_map
from ...tensor_arguments import check_tensors
from ...whole_numbers import triple, whole_numbers

__all__ = [
    "Algorithm",
    "SerializationMode",
    "SparseConv3dNeighborCache",
    "SubMConv3dNeighborCache",
    "set_algorithm",
    "set_hashmap_ratio",
    "sparse_conv3d",
    "sparse_submanifold_conv3d",
]

Triple = int | Sequence[int]


class Algorithm:
    """Names of FlexGEMM's kernels; they make no difference here."""

    EXPLICIT_GEMM = "explicit_gemm"
    IMPLICIT_GEMM = "implicit_gemm"
    IMPLICIT_GEMM_SPLITK = "implicit_gemm_splitk"
    MASKED_IMPLICIT_GEMM = "masked_implicit_gemm"
    MASKED_IMPLICIT_GEMM_SPLITK = "masked_implicit_gemm_splitk"


class SerializationMode:
    """Orders of the coordinates that a layer makes; here always lexicographic, ``BXYZ``."""

    BXYZ = 0
    Z_ORDER = 1
    HILBERT = 2


def set_algorithm(algorithm: str) -> None:
    """Kept for those who call it; it has no effect."""


def set_hashmap_ratio(ratio: float) -> None:
    """Kept for those who call it; it has no effect."""


class SubMConv3dNeighborCache:
    """A kernel map that layers on the same coordinates share, and the arguments that made it."""

    def __init__(self, kernel_map: KernelMap, coords: Tensor, **sizes: tuple[int, ...]) -> None:
        self.kernel_map, self.sizes = kernel_map, sizes
        self._coords = coords

    def check(self, coords: Tensor, sizes: dict[str, tuple[int, ...]]) -> None:
        """Raise :class:`~layoutconv.errors.ArgumentError` if it is of other cells or sizes.

        Another tensor is compared once, which waits for the device; layers pass one tensor on.
        While a CUDA graph is captured, which cannot wait, its shape and device are compared alone.
        """
        if self.sizes != sizes:
            raise ArgumentError("neighbor_cache", f"a cache that was made with {sizes}", self.sizes)
        if coords is self._coords or torch.compiler.is_compiling():
            return
        cells = self.kernel_map.inputs.cells
        same = coords.shape == cells.shape and coords.device == cells.device
        captured = coords.is_cuda and torch.cuda.is_current_stream_capturing()
        if same and not captured:
            same = torch.equal(coords, cells.to(coords.dtype))
        if not same:
            expected = "the cache of a call on the same coords"
            raise ArgumentError("neighbor_cache", expected, "the cache of other coords")
        if not captured:
            self._coords = coords

    @property
    def neighbor_map(self) -> Tensor:
        """uint32 (rows, taps): the row that each tap reads, 0xffffffff for none."""
        return self.kernel_map.index.contiguous().view(torch.uint32)

    def __getitem__(self, key: str) -> Any:
        return getattr(self, key)


class SparseConv3dNeighborCache(SubMConv3dNeighborCache):
    """The same for a convolution that makes coordinates."""


def sparse_submanifold_conv3d(
    feats: Tensor,
    coords: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    bias: Tensor | None = None,
    neighbor_cache: SubMConv3dNeighborCache | None = None,
    dilation: Triple = (1, 1, 1),
) -> tuple[Tensor, SubMConv3dNeighborCache]:
    """A submanifold convolution, differentiable in features, weight and bias.

    Args:
        feats: (rows, C).
        coords: int32 (rows, 4), ``(batch, x, y, z)``.
        shape: (N, C, W, H, D).
        weight: (K, kw, kh, kd, C), odd sizes.
        bias: (K,).
        neighbor_cache: from another call on the same coordinates, with these sizes. Coordinates in
            another tensor are compared, which waits for the device; while a CUDA graph is captured,
            only their shape is.
        dilation: a number, or one per mode.

    Returns features (rows, K) and the cache.

    Raises :class:`~layoutconv.errors.ArgumentError`, also for the cache of other coordinates or
    sizes.

    >>> coords = torch.tensor([[0, 1, 1, 1], [0, 1, 1, 2]]).int()
    >>> y, cache = sparse_submanifold_conv3d(
    ...     torch.tensor([[1.0], [10.0]]), coords, (1, 1, 4, 4, 4), torch.ones(1, 1, 1, 3, 1))
    >>> y.T, cache.neighbor_map.dtype
    (tensor([[11., 11.]]), torch.uint32)
    """
    sizes = _sizes(feats, weight)
    if not all(size % 2 for size in sizes):
        raise ArgumentError("weight", "(K, kw, kh, kd, C) of odd sizes", tuple(weight.shape))
    apart = triple("dilation", dilation, 1)
    if neighbor_cache is None:
        found = submanifold_map(_cells(coords, shape), sizes, apart)
        neighbor_cache = SubMConv3dNeighborCache(found, coords, kernel_size=sizes, dilation=apart)
    else:
        _check_cache(neighbor_cache, coords, kernel_size=sizes, dilation=apart)
    return _convolved(feats, weight, bias, neighbor_cache), neighbor_cache


def sparse_conv3d(
    feats: Tensor,
    coords: Tensor,
    shape: Sequence[int],
    weight: Tensor,
    bias: Tensor | None = None,
    neighbor_cache: SparseConv3dNeighborCache | None = None,
    out_coords: Tensor | None = None,
    stride: Triple = (1, 1, 1),
    padding: Triple = (0, 0, 0),
    dilation: Triple = (1, 1, 1),
) -> tuple[Tensor, Tensor, SparseConv3dNeighborCache]:
    """A convolution whose outputs are all cells of a dense convolution's grid that read some input.

    Arguments as for :func:`sparse_submanifold_conv3d`; ``out_coords``, int32 (outputs, 4), are the
    outputs to compute instead.

    Returns features (outputs, K), coordinates in lexicographic order, and the cache.
    """
    sizes = _sizes(feats, weight)
    steps, apart = triple("stride", stride, 1), triple("dilation", dilation, 1)
    options = steps, triple("padding", padding, 0), apart
    asked = dict(zip(("stride", "padding", "dilation"), options, strict=True))
    if neighbor_cache is None:
        cells = _cells(coords, shape)
        given = None
        if out_coords is not None:
            grid = strided_map(cells, sizes, *options).outputs.spatial_shape
            given = Coordinates(out_coords, grid, cells.batch_size)
        found = strided_map(cells, sizes, *options, outputs=given)
        neighbor_cache = SparseConv3dNeighborCache(found, coords, kernel_size=sizes, **asked)
    else:
        _check_cache(neighbor_cache, coords, kernel_size=sizes, **asked)
    y = _convolved(feats, weight, bias, neighbor_cache)
    return y, neighbor_cache.kernel_map.outputs.cells, neighbor_cache


def _sizes(feats: Tensor, weight: Tensor) -> tuple[int, ...]:
    check_tensors(feats=feats, weight=weight)
    if feats.ndim != 2:
        raise ArgumentError("feats", "(rows, C)", tuple(feats.shape))
    if weight.dim() != 5 or weight.shape[-1] != feats.shape[-1]:
        expected = f"(K, kw, kh, kd, {feats.shape[-1]})"
        raise ArgumentError("weight", expected, tuple(weight.shape))
    return tuple(weight.shape[1:4])


def _sizes_of(shape: Any) -> list[int]:
    """Return the five sizes (N, C, W, H, D) of a tensor.

    >>> _sizes_of((1, 4, 8, 8))
    Traceback (most recent call last):
    layoutconv.errors.ArgumentError: argument `shape`: expected (N, C, W, H, D), got (1, 4, 8, 8)
    """
    sizes = whole_numbers("shape", shape, 0, "(N, C, W, H, D)")
    if len(sizes) != 5:
        raise ArgumentError("shape", "(N, C, W, H, D)", tuple(sizes))
    return sizes


def _cells(coords: Tensor, shape: Sequence[int]) -> Coordinates:
    images, _, *extents = _sizes_of(shape)
    return Coordinates(coords, extents, images)


def _check_cache(cache: Any, coords: Tensor, **sizes: tuple[int, ...]) -> None:
    if not isinstance(cache, SubMConv3dNeighborCache):
        expected = "a cache that a call of layoutconv returned"
        raise ArgumentTypeError("neighbor_cache", expected, type(cache).__name__)
    cache.check(coords, sizes)


def _convolved(
    feats: Tensor, weight: Tensor, bias: Tensor | None, cache: SubMConv3dNeighborCache
) -> Tensor:
    x = SparseTensor(feats, cache.kernel_map.inputs)
    return sparse.sparse_conv(x, weight, bias, kernel_map=cache.kernel_map).features
