"""Launch group norms of channels-last images (``kernels/pointwise/group_norm.py``)."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ..base.caches import remembered
from ..base.dry_hooks import dry_hooks
from ..base.memory import maker
from ..planning.norm_schedule import BYTES, NormShape, columns_per_load, schedule
from ..tensors.channels_last import channels_last_stride
from . import machines
from .row_norm import LEAST, MOST, TYPES, bits

if TYPE_CHECKING:
    from torch import Tensor

    from ..kernels.maps.per_rank import Chain

PARTS = 512  # over all images, at most: more take longer to merge
ACTIVATIONS = frozenset({"relu", "leaky_relu", "silu"})


class GroupNormArgs(NamedTuple):
    """A group norm, as kernels take it.

    Attributes:
        groups: the number of channel groups, a divisor of C; C for an instance norm.
        weight, bias: (C,), or None, both or neither.
        activation, slope: the activation after the norm, as for convolutions.
        dtype: of the result.
    """

    groups: int
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    activation: str | None
    slope: float
    dtype: torch.dtype

    def of(self, weight: Tensor | None, bias: Tensor | None) -> GroupNormArgs:
        """Return the same norm with other parameters."""
        return self._replace(weight=weight, bias=bias)

    def alone(self) -> GroupNormArgs:
        """Return the same norm without an activation."""
        return self._replace(activation=None)


def takes(x: Tensor, norm: GroupNormArgs) -> bool:
    """Return whether kernels can compute a norm of images ``x`` (N, C, ...), by memory, dtypes and
    shapes: images must be ``channels_last``.
    """
    if x.dim() < 3 or x.dtype not in TYPES or norm.dtype not in TYPES or not is_in_order(x):
        return False
    images, C, rows = sizes(x)
    if not (images and rows and C) or C % norm.groups or images * max(rows, C) >= 1 << 31:
        return False
    if images >= 1 << 16 or not (
        norm.activation is None or norm.activation in ACTIVATIONS
    ):  # images are a mode of the grid
        return False
    if not (LEAST < norm.eps < MOST and abs(norm.slope) < MOST):
        return False
    if (norm.weight is None) is not (norm.bias is None):
        return False
    for tensor in norm.weight, norm.bias:
        if tensor is not None and (
            tensor.dtype not in TYPES
            or tensor.dtype is not norm.weight.dtype  # type: ignore[union-attr]
            or tensor.shape != (C,)
            or not tensor.is_contiguous()
            or tensor.device != x.device
        ):
            return False
    return True


def normalised(x: Tensor, norm: GroupNormArgs) -> tuple[Tensor, Tensor]:
    """Return the norm of images ``x`` (N, C, ...) on a GPU, and the mean and inverse standard
    deviation of every group, float32 (N, G, 2). ``takes`` must accept ``x``.
    """
    x, (images, C, rows) = _aligned(x), sizes(x)
    kernels = _kernels_of(x, norm)
    cut = _schedule(rows, C, kernels.vector, images)
    make = maker(x.device)
    # A dry run writes nothing.
    out = make(tuple(x.shape), channels_last_stride(x.shape), norm.dtype)
    statistics = make((images, norm.groups, 2), (2 * norm.groups, 2, 1), torch.float32)
    if dry_hooks.load is not None:
        out.zero_()
        statistics.zero_()
    size = images * cut.parts * (2 * C + 1)
    words = make((1, size), (size, 1), torch.int32)  # moments, the first tensor of launches
    weight, bias = (words if t is None else t for t in (norm.weight, norm.bias))
    tensors = x, words, statistics, weight, bias, out, words
    numbers = *cut, images, C // norm.groups, bits(norm.slope), bits(norm.eps)
    _launch(kernels.forward, words, tensors, numbers)
    return out, statistics


def gradients(
    x: Tensor, norm: GroupNormArgs, statistics: Tensor, grad: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of the images, like these, and of bias and weight, float32 (2, C), from
    the gradient of the result.
    """
    x, grad, (images, C, rows) = _aligned(x), _aligned(grad), sizes(x)
    kernels = _kernels_of(x, norm)
    cut = _schedule(rows, C, kernels.vector, images)
    make = maker(x.device)
    dx = make(tuple(x.shape), channels_last_stride(x.shape), x.dtype)
    of_parameters = make((2, C), (C, 1), torch.float32)
    if dry_hooks.load is not None:
        dx.zero_()
        of_parameters.zero_()
    parts = images * cut.parts
    size = parts * 2 * C
    words = make((1, size), (size, 1), torch.int32)
    means = make((images, norm.groups, 2), (2 * norm.groups, 2, 1), torch.float32)
    weight, bias = (words if t is None else t for t in (norm.weight, norm.bias))
    tensors = x, grad, statistics, weight, bias, words, means, dx, of_parameters
    merge = schedule(parts, 2 * C, 1)._replace(parts=parts)
    numbers = *cut, images, C // norm.groups, bits(norm.slope), *merge
    _launch(kernels.backward, words, tensors, numbers)
    return dx, of_parameters


class _Kernels(NamedTuple):
    forward: Chain
    backward: Chain
    vector: int


def _kernels_of(x: Tensor, norm: GroupNormArgs) -> _Kernels:
    """Return the kernels of a norm of images ``x``."""
    parameters = None if norm.weight is None else norm.weight.dtype
    early = x.is_cuda and machines.starts_early(x.get_device())
    vector = columns_per_load(x.shape[1], x.element_size())
    return _kernels(x.dtype, vector, parameters, norm.activation, norm.dtype, early)


@remembered(256)
def _kernels(
    dtype: torch.dtype,
    vector: int,
    parameters: torch.dtype | None,
    activation: str | None,
    stored: torch.dtype,
    early: bool,
) -> _Kernels:
    from ..kernels.pointwise import group_norm as kernels

    kinds = dtype, parameters, None if stored is dtype else stored
    names = ("" if kind is None else str(kind).removeprefix("torch.") for kind in kinds)
    name, of_parameters, of_results = names
    shape = NormShape(
        name, vector, of_parameters, early=early, images=True, activation=activation or "",
        stored=of_results,
    )  # fmt: skip
    return _Kernels(kernels.forward(shape), kernels.backward(shape), vector)


def _schedule(rows: int, columns: int, vector: int, images: int) -> Any:
    """Return the parts of an image, enough for all images together to fill a GPU."""
    return schedule(rows, columns, vector, max(1, PARTS // images))


def _launch(
    chain: Chain, words: Tensor, tensors: tuple[Tensor, ...], numbers: tuple[int, ...]
) -> None:
    from ..kernels.maps import per_rank

    addresses = tuple(tensor.data_ptr() for tensor in tensors)
    per_rank.launch(chain, (words, *tensors), addresses, numbers)


def sizes(x: Tensor) -> tuple[int, int, int]:
    """Return the number of images, of channels, and of voxels per image."""
    images, C, *extents = x.shape
    return images, C, prod(extents)


def is_in_order(x: Tensor) -> bool:
    """Return whether images (N, C, ...) are ``channels_last``, without gaps."""
    return x.movedim(1, -1).is_contiguous()


def _aligned(x: Tensor) -> Tensor:
    """Return images in ``channels_last`` memory, aligned for vectors."""
    if not is_in_order(x):
        x = x.movedim(1, -1).contiguous().movedim(-1, 1)
    if not x.data_ptr() & (BYTES - 1):
        return x
    return x.new_empty_strided(x.shape, channels_last_stride(x.shape)).copy_(x)
