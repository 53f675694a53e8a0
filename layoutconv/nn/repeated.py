"""Layers over repeated cells, by way of extended rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from ..sparse import KernelMap
from ..sparse.maps.repeated_maps import evened


def through(
    kernel_map: KernelMap,
    features: Tensor,
    function: Callable[[Tensor, KernelMap], Tensor],
    joined: Literal["sum", "max"] = "sum",
) -> Tensor:
    """Compute ``function(rows, kernel_map)`` over the extended rows of a map: (outputs, K).

    Args:
        kernel_map: one with ``extended`` rows.
        features: (inputs, C).
        function: linear in its inputs, as the rows of a cell are summed first. With
            ``joined="max"`` it takes maxima of its inputs.

    >>> from layoutconv.sparse import Coordinates, strided_map
    >>> cells = torch.tensor([[0, 1], [0, 1]], dtype=torch.int32)
    >>> twice = strided_map(Coordinates(cells, (4,), 1, repeated=True), 2, 2)
    >>> x = torch.tensor([[1.0], [10.0]])
    >>> through(twice, x, lambda rows, found: rows[found.index[:, 1]])
    tensor([[11.]])
    """
    extended = kernel_map.extended
    assert extended is not None
    inside, outside = kernel_map.repeats
    if inside is not None:
        features = inside.with_sums(features) if joined == "sum" else inside.with_maxima(features)
    y = function(features, extended)
    return y if outside is None else outside.onto_rows(y)


def pooled(
    mode: str,
    features: Tensor,
    kernel_map: KernelMap,
    divisor: int,
    reduce: Callable[[str, Tensor, KernelMap, int], Tensor],
) -> Tensor:
    """Pool by ``reduce(mode, features, kernel_map, divisor)``, so that every row counts."""
    if kernel_map.inputs is kernel_map.outputs:
        kernel_map = evened(kernel_map)

    def over(mode: str, rows: Tensor, joined: Literal["sum", "max"] = "sum") -> Tensor:
        return through(kernel_map, rows, lambda x, found: reduce(mode, x, found, divisor), joined)

    if mode == "max":
        return over(mode, features, "max")
    if mode == "sum" or divisor:
        return over(mode, features)
    exact = features.to(torch.promote_types(features.dtype, torch.float32))
    counts = over("sum", exact.new_ones(len(exact), 1))
    return (over("sum", exact) / counts.clamp(min=1)).to(features.dtype)
