"""Pooling and unpooling of sparse tensors, with torch's argument names.

An absent cell takes no part: it is no zero for a maximum, and a mean does not count it. The result
has all cells whose window holds a cell, also for a stride of 1, unless a kernel map defines them.
All are differentiable in the features; results are the same in every run.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..conv.problem import Ints, Padding
from ..errors import ArgumentError, ArgumentTypeError, check_choice
from ..ops import gathered_operators as ops
from ..ops.guard import may_want_gradient
from ..sparse import KernelMap, SparseTensor, strided_map
from .given_maps import check_cells_of_map, check_map
from .repeated import pooled, through
from .scripting import refuse_scripting

MODES = ("max", "mean", "sum")
_MODE = f"one of {', '.join(MODES)}"


def sparse_max_pool(
    x: SparseTensor,
    kernel_size: Ints | None = None,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    *,
    kernel_map: KernelMap | None = None,
) -> SparseTensor:
    """Return the maximum of the cells in every window, for 1 to 4 spatial modes.

    Args:
        x: features (rows, C) of float16, bfloat16, float32 or float64.
        kernel_size: an int >= 1, or one per spatial mode.
        stride: likewise; ``kernel_size`` by default.
        padding: cells before and behind the grid: an int >= 0, an int or a pair ``(near, far)`` per
            spatial mode.
        dilation: an int >= 1, or one per spatial mode.
        kernel_map: a map from the cells of ``x``, instead of all those. With a submanifold map the
            result has the cells of ``x``.

    Returns a tensor on the map's ``outputs``. A maximum over NaN is NaN. A row that reads no cell,
    as a map with a capacity may have, is 0. The gradient goes to the cell of the maximum, or to the
    first tap among equal ones.

    Raises :class:`~layoutconv.errors.ArgumentError` that names the argument.

    >>> cells = torch.tensor([[0, 0], [0, 1], [0, 4]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[-3.0], [-1.0], [-2.0]]), cells, (6,), batch_size=1)
    >>> y = sparse_max_pool(x, kernel_size=2)
    >>> y.coords.tolist(), y.features.tolist()
    ([[0, 0], [0, 2]], [[-1.0], [-2.0]])
    """
    return _pool("max", x, kernel_size, stride, padding, dilation, kernel_map)


def sparse_avg_pool(
    x: SparseTensor,
    kernel_size: Ints | None = None,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    count_include_pad: bool = False,
    *,
    kernel_map: KernelMap | None = None,
) -> SparseTensor:
    """Return the mean of the cells in every window; arguments as of :func:`sparse_max_pool`.

    With ``count_include_pad``, sums are divided by the number of taps, so absent cells count as
    zeros: that is ``torch.nn.functional.avg_pool3d`` of the dense grid.

    >>> cells = torch.tensor([[0, 0], [0, 1], [0, 4]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [2.0], [6.0]]), cells, (6,), batch_size=1)
    >>> sparse_avg_pool(x, 2).features.tolist()
    [[1.5], [6.0]]
    >>> sparse_avg_pool(x, 2, count_include_pad=True).features.tolist()
    [[1.5], [3.0]]
    """
    return _pool("mean", x, kernel_size, stride, padding, dilation, kernel_map, count_include_pad)


def sparse_sum_pool(
    x: SparseTensor,
    kernel_size: Ints | None = None,
    stride: Ints | None = None,
    padding: Padding = 0,
    dilation: Ints = 1,
    *,
    kernel_map: KernelMap | None = None,
) -> SparseTensor:
    """Return the sum of the cells in every window; arguments as of :func:`sparse_max_pool`.

    >>> cells = torch.tensor([[0, 0], [0, 1], [0, 4]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [2.0], [6.0]]), cells, (6,), batch_size=1)
    >>> sparse_sum_pool(x, 2).features.tolist()
    [[3.0], [6.0]]
    """
    return _pool("sum", x, kernel_size, stride, padding, dilation, kernel_map)


def sparse_unpool(x: SparseTensor, kernel_map: KernelMap | None = None) -> SparseTensor:
    """Copy the features of coarse cells to every fine cell that they came from.

    Args:
        x: at the cells of ``kernel_map.outputs``.
        kernel_map: from fine cells to coarse ones; by default the one that made the cells of ``x``.

    Returns a tensor on the map's ``inputs``, the fine cells. A cell that several windows read gets
    their sum, a cell that none reads gets 0.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> cells = torch.tensor([[0, 0], [0, 1], [0, 4]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [2.0], [6.0]]), cells, (6,), batch_size=1)
    >>> sparse_unpool(sparse_sum_pool(x, 2)).features.tolist()
    [[3.0], [3.0], [6.0]]
    """
    _check_sparse(x)
    if kernel_map is None:
        kernel_map = x.coordinates.origin
        if kernel_map is None:
            raise ArgumentError(
                "kernel_map", "the kernel map to invert, as no pooling made the cells of x", None
            )
    check_cells_of_map("x", x, check_map(kernel_map).outputs, "outputs")
    back = kernel_map.inverse
    if back.extended is not None:
        y = through(back, x.features, partial(_windows, "sum"))
    else:
        y = _windows("sum", x.features, back)
    return SparseTensor(y, kernel_map.inputs)


def sparse_global_pool(x: SparseTensor, mode: str) -> Tensor:
    """Reduce all cells of each image by maximum, mean or sum to a dense (N, C).

    Args:
        x: (rows, C), in any order; rows whose batch is -1 take no part.
        mode: "max", "mean" or "sum"; "avg" is the mean, too.

    An image without cells has 0, in every mode.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> cells = torch.tensor([[0, 0], [2, 1], [0, 4]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[-1.0], [2.0], [-6.0]]), cells, (6,), batch_size=3)
    >>> sparse_global_pool(x, "max").tolist(), sparse_global_pool(x, "mean").tolist()
    ([[-1.0], [0.0], [2.0]], [[-3.5], [0.0], [2.0]])
    """
    _check_sparse(x)
    check_choice("mode", mode, (*MODES, "avg"), _MODE)
    if mode == "avg":  # torch's name of the pooling
        mode = "mean"
    order, starts, batch = x.coordinates.by_image
    winners = mode == "max" and may_want_gradient(x.features)
    return ops.sparse_global_pool(x.features, order, starts, batch, mode, winners)[0]


# -- implementation --------------------------------------------------------------------------------


def _pool(
    mode: str,
    x: SparseTensor,
    kernel_size: Ints | None,
    stride: Ints | None,
    padding: Padding,
    dilation: Ints,
    kernel_map: KernelMap | None,
    count_include_pad: bool = False,
) -> SparseTensor:
    _check_sparse(x)
    if kernel_map is None:
        if kernel_size is None:
            raise ArgumentError(
                "kernel_size", "an int >= 1, one per spatial mode, or a kernel map instead", None
            )
        step = kernel_size if stride is None else stride
        kernel_map = strided_map(x.coordinates, kernel_size, step, padding, dilation)
    else:
        check_map(
            kernel_map, kernel_size=(kernel_size, None), stride=(stride, None),
            padding=(padding, 0), dilation=(dilation, 1),
        )  # fmt: skip
        check_cells_of_map("x", x, kernel_map.inputs, "inputs")
    divisor = kernel_map.index.shape[1] if count_include_pad else 0
    if kernel_map.ways.extended is not None:
        y = pooled(mode, x.features, kernel_map, divisor, _windows)
    else:
        y = _windows(mode, x.features, kernel_map, divisor)
    return SparseTensor(y, kernel_map.outputs)


def _windows(mode: str, features: Tensor, kernel_map: KernelMap, divisor: int = 0) -> Tensor:
    wanted = may_want_gradient(features)
    inverse = kernel_map.inverse.index if wanted else None
    winners = wanted and mode == "max"
    return ops.sparse_pool(features, kernel_map.index, inverse, mode, divisor, winners)[0]


def _check_sparse(x: Any) -> None:
    if not isinstance(x, SparseTensor):
        raise ArgumentTypeError("x", "a SparseTensor", type(x).__name__)


# -- modules --------------------------------------------------------------------------------------


class _SparsePool(torch.nn.Module):
    """A pooling function for a number of spatial modes, with its sizes."""

    rank: int
    _function: Any
    __prepare_scriptable__ = refuse_scripting

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Padding = 0,
        dilation: Ints = 1,
    ) -> None:
        super().__init__()
        self.kernel_size, self.padding, self.dilation = kernel_size, padding, dilation
        self.stride = kernel_size if stride is None else stride

    def extra_repr(self) -> str:
        sizes = f"kernel_size={self.kernel_size}, stride={self.stride}"
        return f"{sizes}, padding={self.padding}, dilation={self.dilation}"

    def forward(self, x: SparseTensor) -> SparseTensor:
        _check_sparse(x)
        if x.coordinates.rank != self.rank:
            expected = f"a SparseTensor of {self.rank} spatial modes"
            raise ArgumentError("x", expected, f"{x.coordinates.rank}")
        sizes = self.kernel_size, self.stride, self.padding, self.dilation
        return type(self)._function(x, *sizes, *self._others())

    def _others(self) -> tuple[Any, ...]:
        return ()


class _SparseMaxPool(_SparsePool):
    _function = staticmethod(sparse_max_pool)


class _SparseSumPool(_SparsePool):
    _function = staticmethod(sparse_sum_pool)


class _SparseAvgPool(_SparsePool):
    _function = staticmethod(sparse_avg_pool)

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints | None = None,
        padding: Padding = 0,
        dilation: Ints = 1,
        count_include_pad: bool = False,
    ) -> None:
        super().__init__(kernel_size, stride, padding, dilation)
        self.count_include_pad = count_include_pad

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, count_include_pad={self.count_include_pad}"

    def _others(self) -> tuple[Any, ...]:
        return (self.count_include_pad,)


class SparseMaxPool1d(_SparseMaxPool):
    """:func:`sparse_max_pool` over one spatial mode.

    >>> SparseMaxPool1d(3, stride=2)
    SparseMaxPool1d(kernel_size=3, stride=2, padding=0, dilation=1)
    """

    rank = 1


class SparseMaxPool2d(_SparseMaxPool):
    """:func:`sparse_max_pool` over two spatial modes.

    >>> SparseMaxPool2d((1, 2))
    SparseMaxPool2d(kernel_size=(1, 2), stride=(1, 2), padding=0, dilation=1)
    """

    rank = 2


class SparseMaxPool3d(_SparseMaxPool):
    """:func:`sparse_max_pool` over three spatial modes.

    >>> cells = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [5.0]]), cells, (2, 2, 2), batch_size=1)
    >>> SparseMaxPool3d(2)(x).features
    tensor([[5.]])
    """

    rank = 3


class SparseMaxPool4d(_SparseMaxPool):
    """:func:`sparse_max_pool` over four spatial modes.

    >>> SparseMaxPool4d(2).rank
    4
    """

    rank = 4


class SparseAvgPool1d(_SparseAvgPool):
    """:func:`sparse_avg_pool` over one spatial mode.

    >>> SparseAvgPool1d(2, count_include_pad=True).count_include_pad
    True
    """

    rank = 1


class SparseAvgPool2d(_SparseAvgPool):
    """:func:`sparse_avg_pool` over two spatial modes.

    >>> SparseAvgPool2d(2).stride
    2
    """

    rank = 2


class SparseAvgPool3d(_SparseAvgPool):
    """:func:`sparse_avg_pool` over three spatial modes.

    >>> cells = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [5.0]]), cells, (2, 2, 2), batch_size=1)
    >>> SparseAvgPool3d(2)(x).features
    tensor([[3.]])
    """

    rank = 3


class SparseAvgPool4d(_SparseAvgPool):
    """:func:`sparse_avg_pool` over four spatial modes.

    >>> SparseAvgPool4d(2).rank
    4
    """

    rank = 4


class SparseSumPool1d(_SparseSumPool):
    """:func:`sparse_sum_pool` over one spatial mode.

    >>> SparseSumPool1d(2).rank
    1
    """

    rank = 1


class SparseSumPool2d(_SparseSumPool):
    """:func:`sparse_sum_pool` over two spatial modes.

    >>> SparseSumPool2d(2).rank
    2
    """

    rank = 2


class SparseSumPool3d(_SparseSumPool):
    """:func:`sparse_sum_pool` over three spatial modes.

    >>> cells = torch.tensor([[0, 0, 0, 1], [0, 1, 1, 0]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [5.0]]), cells, (2, 2, 2), batch_size=1)
    >>> SparseSumPool3d(2)(x).features
    tensor([[6.]])
    """

    rank = 3


class SparseSumPool4d(_SparseSumPool):
    """:func:`sparse_sum_pool` over four spatial modes.

    >>> SparseSumPool4d(2).rank
    4
    """

    rank = 4


class SparseUnpool(torch.nn.Module):
    """Run :func:`sparse_unpool`, back to the cells that the cells of ``x`` were made from.

    >>> cells = torch.tensor([[0, 0], [0, 1], [0, 4]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [2.0], [6.0]]), cells, (6,), batch_size=1)
    >>> SparseUnpool()(SparseMaxPool1d(2)(x)).features.tolist()
    [[2.0], [2.0], [6.0]]
    """

    __prepare_scriptable__ = refuse_scripting

    def forward(self, x: SparseTensor, kernel_map: KernelMap | None = None) -> SparseTensor:
        return sparse_unpool(x, kernel_map)


class SparseGlobalMaxPool(torch.nn.Module):
    """:func:`sparse_global_pool` by the maximum: (N, C).

    >>> SparseGlobalMaxPool()
    SparseGlobalMaxPool()
    """

    __prepare_scriptable__ = refuse_scripting

    def forward(self, x: SparseTensor) -> Tensor:
        return sparse_global_pool(x, "max")


class SparseGlobalAvgPool(torch.nn.Module):
    """:func:`sparse_global_pool` by the mean: (N, C).

    >>> SparseGlobalAvgPool()
    SparseGlobalAvgPool()
    """

    __prepare_scriptable__ = refuse_scripting

    def forward(self, x: SparseTensor) -> Tensor:
        return sparse_global_pool(x, "mean")


class SparseGlobalSumPool(torch.nn.Module):
    """:func:`sparse_global_pool` by the sum: (N, C).

    >>> SparseGlobalSumPool()
    SparseGlobalSumPool()
    """

    __prepare_scriptable__ = refuse_scripting

    def forward(self, x: SparseTensor) -> Tensor:
        return sparse_global_pool(x, "sum")
