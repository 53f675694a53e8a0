"""Pooling layers. Missing cells are no zeros: they take no part in a maximum or a mean."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from ....nn.sparse_pool import sparse_avg_pool, sparse_global_pool, sparse_max_pool
from ....sparse import SparseTensor
from ...whole_numbers import whole_per_mode
from ..absent import explain
from ..core import ConvAlgo
from .core import SparseConvTensor, check_input
from .indice_data import Geometry
from .layer_maps import map_for
from .layers import GeometricLayer
from .modules import SparseModule

__getattr__ = explain(__name__)


class _SparsePool(GeometricLayer):
    """Pooling over the windows of a convolution; with ``subm``, around the cells of the input."""

    _function: Any

    def __init__(
        self,
        ndim: int,
        kernel_size: Any = 3,
        stride: Any = 1,
        padding: Any = 0,
        dilation: Any = 1,
        indice_key: Any = None,
        subm: bool = False,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        ksize = whole_per_mode("kernel_size", kernel_size, ndim)
        geometry = Geometry(
            ksize,
            list(ksize) if stride is None else whole_per_mode("stride", stride, ndim),
            whole_per_mode("padding", padding, ndim),
            whole_per_mode("dilation", dilation, ndim),
            [0] * ndim,
            subm,
        )
        count = record_voxel_count, not subm
        super().__init__(ndim, geometry, indice_key, algo, 128, *count, name)

    def forward(self, input: SparseConvTensor) -> SparseConvTensor:
        check_input(input, self.ndim)
        data, known = map_for(input, self.geometry, self.indice_key, self.algo)
        x = SparseTensor(input.features, data.map.inputs)
        y = type(self)._function(x, kernel_map=data.map)
        self._count(y.coordinates.rows)
        return input.on(y.features, y.coordinates, known, data.out_version)


class SparseMaxPool(_SparsePool):
    """The maximum of the cells in every window, for ``ndim`` spatial modes.

    Arguments as for :class:`SparseMaxPool3d`, but the default ``stride`` is 1, not the kernel size.
    """

    _function = staticmethod(sparse_max_pool)


class SparseAvgPool(_SparsePool):
    """The mean of the cells in every window, for ``ndim`` spatial modes."""

    _function = staticmethod(sparse_avg_pool)


class _OfRank(_SparsePool):
    """The same with the class's number of modes, and non-overlapping windows by default."""

    _rank: int

    def __init__(
        self,
        kernel_size: Any,
        stride: Any = None,
        padding: Any = 0,
        dilation: Any = 1,
        indice_key: Any = None,
        algo: ConvAlgo | None = None,
        record_voxel_count: bool = False,
        name: str | None = None,
    ) -> None:
        sizes = self._rank, kernel_size, stride, padding, dilation, indice_key, False
        super().__init__(*sizes, algo, record_voxel_count, name)


class _MaxPoolNd(_OfRank, SparseMaxPool):
    pass


class _AvgPoolNd(_OfRank, SparseAvgPool):
    pass


class SparseMaxPool1d(_MaxPoolNd):
    """:class:`SparseMaxPool3d` over one spatial mode."""

    _rank = 1


class SparseMaxPool2d(_MaxPoolNd):
    """:class:`SparseMaxPool3d` over two spatial modes."""

    _rank = 2


class SparseMaxPool3d(_MaxPoolNd):
    """The maximum of the cells in every window.

    Args:
        kernel_size, stride, padding, dilation: a number, or one per spatial mode; the stride is the
            kernel size by default.
        indice_key: under which an inverse convolution finds the kernel map.
        algo, name: accepted, without effect.
        record_voxel_count: keep the largest number of rows of a result in a buffer.

    >>> import torch
    >>> x = SparseConvTensor.from_dense(-torch.eye(4).view(1, 1, 4, 4, 1))
    >>> SparseMaxPool3d((1, 2, 2))(x).features.T
    tensor([[-1., -1.]])
    """

    _rank = 3


class SparseMaxPool4d(_MaxPoolNd):
    """:class:`SparseMaxPool3d` over four spatial modes."""

    _rank = 4


class SparseAvgPool1d(_AvgPoolNd):
    """:class:`SparseAvgPool3d` over one spatial mode."""

    _rank = 1


class SparseAvgPool2d(_AvgPoolNd):
    """:class:`SparseAvgPool3d` over two spatial modes."""

    _rank = 2


class SparseAvgPool3d(_AvgPoolNd):
    """The mean of the cells in every window; arguments as for :class:`SparseMaxPool3d`.

    >>> import torch
    >>> x = SparseConvTensor.from_dense(torch.tensor([1.0, 3.0, 0.0, 4.0]).view(1, 1, 1, 4, 1))
    >>> SparseAvgPool3d((1, 1, 2))(x).features.T
    tensor([[2., 4.]])
    """

    _rank = 3


class SparseGlobalMaxOrAvgPool(SparseModule):
    """The mean, or the maximum, of all cells of each image, (N, C)."""

    def __init__(self, is_mean: bool, name: str | None = None) -> None:
        super().__init__(name=name)
        self.is_mean = is_mean

    def forward(self, input: SparseConvTensor) -> Tensor:
        check_input(input)
        return sparse_global_pool(input.to_layoutconv(), "mean" if self.is_mean else "max")


class SparseGlobalMaxPool(SparseGlobalMaxOrAvgPool):
    """The maximum of all cells of each image, (N, C); zeros for an image without cells.

    >>> import torch
    >>> x = SparseConvTensor.from_dense(torch.tensor([[1.0, 3.0], [0.0, 0.0]])[:, :, None])
    >>> SparseGlobalMaxPool()(x).T
    tensor([[3., 0.]])
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(is_mean=False, name=name)


class SparseGlobalAvgPool(SparseGlobalMaxOrAvgPool):
    """The mean of all cells of each image, (N, C); zeros for an image without cells.

    >>> import torch
    >>> x = SparseConvTensor.from_dense(torch.tensor([[1.0, 3.0], [0.0, 0.0]])[:, :, None])
    >>> SparseGlobalAvgPool()(x).T
    tensor([[2., 0.]])
    """

    def __init__(self, name: str | None = None) -> None:
        super().__init__(is_mean=True, name=name)
