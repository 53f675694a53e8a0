"""Depthwise convolution over a kernel map."""

from __future__ import annotations

from torch import Tensor

from ..errors import ArgumentError
from ..ops import gathered_operators as ops
from ..ops.guard import may_want_gradient
from ..sparse import KernelMap
from .given_maps import check_map
from .repeated import through

CHUNK = 128  # pairs of rows that a thread multiplies for a filter's gradient


def sparse_depthwise(features: Tensor, weight: Tensor, kernel_map: KernelMap) -> Tensor:
    """Convolve depthwise over a map: ``y[o, k] = sum_t x[index[o, t], k // m] * w[k, t]``.

    Args:
        features: (inputs, C), a row for each of ``kernel_map.inputs``.
        weight: ``(K, *taps, 1)``, the map's taps, of the same dtype; ``m = K / C`` filters for each
            channel, adjacent as in torch with ``groups=C``.
        kernel_map: any kernel map.

    Returns (outputs, K). Differentiable in both, any number of times. Under autocast, both are
    lowered as a convolution's are.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> import torch
    >>> from layoutconv.sparse import Coordinates, submanifold_map
    >>> cells = torch.tensor([[0, 0], [0, 1], [0, 4]], dtype=torch.int32)
    >>> kernel_map = submanifold_map(Coordinates(cells, (6,), 1), 3)
    >>> x, w = torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([100.0, 10.0, 1.0])
    >>> sparse_depthwise(x, w.view(1, 3, 1), kernel_map).tolist()
    [[12.0], [120.0], [30.0]]
    """
    check_map(kernel_map)
    # Shapes, not len(): a tracer's may be symbols.
    if features.dim() != 2 or features.shape[0] != kernel_map.inputs.cells.shape[0]:
        expected = f"({len(kernel_map.inputs)}, C), a row for each input of the map"
        raise ArgumentError("features", expected, f"shape {tuple(features.shape)}")
    C, filters = features.shape[1], weight.shape[0] if weight.dim() else 0
    if tuple(weight.shape[1:]) != (*kernel_map.taps, 1) or not C or filters % C or not filters:
        expected = f"(a multiple of {C}, *{kernel_map.taps}, 1), filters of one channel each"
        raise ArgumentError("weight", expected, f"shape {tuple(weight.shape)}")
    if kernel_map.extended is not None:
        return through(kernel_map, features, lambda x, over: sparse_depthwise(x, weight, over))
    table = weight.reshape(filters, -1).T
    inverse = kernel_map.inverse.index if may_want_gradient(features) else None
    over = ops.Ways(kernel_map.index, inverse)
    if may_want_gradient(weight):
        pairs = kernel_map.pairs(CHUNK)
        over = ops.Ways(kernel_map.index, inverse, pairs.outputs, pairs.inputs, pairs.lengths)
    return ops.sparse_depthwise(features, table, over, filters)
