"""Sparse convolutions of :mod:`layoutconv.nn`, fused with what follows them in a container."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..sparse import KernelMap, SparseTensor, strided_map, submanifold_map, transposed_map
from .fused_norm import normalised, runs_only_forward
from .sparse import placed
from .sparse_modules import ConvOf, ConvTransposeOf, InverseOf, SparseConvolution, SubmOf
from .trained_layer import trained_layer


def _around(conv: Any, x: SparseTensor) -> KernelMap:
    return submanifold_map(x.coordinates, conv.kernel_size, conv.dilation, conv.offsets)


def _strided(conv: Any, x: SparseTensor, **cells: Any) -> KernelMap:
    sizes = conv.kernel_size, conv.stride, conv.padding, conv.dilation
    return strided_map(x.coordinates, *sizes, **cells)


def _transposed(conv: Any, x: SparseTensor, **cells: Any) -> KernelMap:
    sizes = conv.kernel_size, conv.stride, conv.padding, conv.output_padding, conv.dilation
    return transposed_map(x.coordinates, *sizes, **cells)


def _back(conv: Any, x: SparseTensor) -> KernelMap | None:
    found = x.coordinates.origin
    return found.inverse if found is not None and x.coordinates is found.outputs else None


# The kernel map of a call, by forward pass; ``outputs`` and ``capacity`` if it makes cells.
MAPS: dict[Any, Callable[..., KernelMap | None]] = {
    SubmOf.forward: _around,
    ConvOf.forward: _strided,
    ConvTransposeOf.forward: _transposed,
    InverseOf.forward: _back,
}


def with_following(
    conv: SparseConvolution, x: Any, norm: Any, last: Any, past: Any = None
) -> SparseTensor | None:
    """Compute ``last(norm(conv(x)) + past)`` as one launch, or, if the norm trains, as one function
    that autograd records. ``norm``, ``last`` and ``past`` may each be None.

    Returns None, and has done nothing, if it cannot be one: the caller then runs module after
    module, with the same result but for rounding. The features of ``x`` have passed
    :func:`.fused_norm.may_fuse`.
    """
    map_of = MAPS.get(type(conv).forward)
    if map_of is None or conv.activation is not None or not runs_only_forward(conv):
        return None
    fits = isinstance(x, SparseTensor) and (past is None or isinstance(past, SparseTensor))
    if not fits or x.coordinates.rank != conv.rank or x.features.shape[1] != conv.in_channels:
        return None  # or an error, which the module raises
    found = map_of(conv, x)
    if found is None or (past is not None and past.coordinates is not found.outputs):
        return None
    added = None if past is None else past.features
    training = norm is not None and norm.training
    if training and found.outputs.padded:
        return None
    y = (trained_layer if training else normalised)(conv, x.features, found, norm, last, added)
    return None if y is None else placed(x, found.outputs, y)
