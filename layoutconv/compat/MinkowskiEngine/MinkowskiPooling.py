"""MinkowskiEngine's poolings, by layoutconv."""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar

from torch import Tensor

from ...errors import ArgumentError
from ...nn import (
    sparse_avg_pool,
    sparse_global_pool,
    sparse_max_pool,
    sparse_sum_pool,
    sparse_unpool,
)
from .MinkowskiCommon import MinkowskiModuleBase, check_input, region_text
from .MinkowskiCoordinateManager import CoordinateMapKey
from .MinkowskiKernelGenerator import Ints, KernelGenerator, region_of
from .MinkowskiSparseTensor import SparseTensor, key_of
from .MinkowskiTensorField import TensorField


class PoolingMode(Enum):
    """Modes of pooling; MinkowskiEngine's choice of algorithm has no effect here."""

    LOCAL_SUM_POOLING = 0
    LOCAL_AVG_POOLING = 1
    LOCAL_MAX_POOLING = 2
    GLOBAL_SUM_POOLING_DEFAULT = 3
    GLOBAL_AVG_POOLING_DEFAULT = 4
    GLOBAL_MAX_POOLING_DEFAULT = 5
    GLOBAL_SUM_POOLING_KERNEL = 6
    GLOBAL_AVG_POOLING_KERNEL = 7
    GLOBAL_MAX_POOLING_KERNEL = 8
    GLOBAL_SUM_POOLING_PYTORCH_INDEX = 9
    GLOBAL_AVG_POOLING_PYTORCH_INDEX = 10
    GLOBAL_MAX_POOLING_PYTORCH_INDEX = 11


_POOLS = {
    PoolingMode.LOCAL_SUM_POOLING: sparse_sum_pool,
    PoolingMode.LOCAL_AVG_POOLING: sparse_avg_pool,
    PoolingMode.LOCAL_MAX_POOLING: sparse_max_pool,
}


def pooled(
    input: SparseTensor,
    region: KernelGenerator,
    key: CoordinateMapKey,
    mode: PoolingMode,
    is_transpose: bool,
) -> Tensor:
    """Pool at the coordinates of a key; a transposed pooling always sums, for any mode."""
    if mode not in _POOLS:
        raise ArgumentError("pooling_mode", f"one of {[m.name for m in _POOLS]}", mode)
    manager, x = input.coordinate_manager, input.to_layoutconv()
    ends = input.coordinate_map_key, key
    found = manager.map_of(*ends, region, is_transpose=is_transpose, is_pool=True)
    if is_transpose:
        return sparse_unpool(x, found.inverse).features
    y: Tensor = _POOLS[mode](x, kernel_map=found).features
    return y


class MinkowskiPoolingBase(MinkowskiModuleBase):
    """The base of local poolings. If windows are as large as the stride, a cell belongs to
    ``floor(x / stride)``; other windows are those of a convolution."""

    pooling_mode: ClassVar[PoolingMode]
    is_transpose = False

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints = 1,
        dilation: Ints = 1,
        kernel_generator: KernelGenerator | None = None,
        dimension: int | None = None,
    ) -> None:
        super().__init__()
        kernel_generator = region_of(kernel_generator, kernel_size, stride, dilation, dimension)
        self.kernel_generator, self.dimension = kernel_generator, kernel_generator.dimension

    def forward(self, input: SparseTensor, coordinates: Any = None) -> SparseTensor:
        """Pool; ``coordinates`` are the outputs to compute."""
        check_input(input, self.dimension)
        region = self.kernel_generator
        key = key_of(input, coordinates, region, self.is_transpose)
        return input.at(pooled(input, region, key, self.pooling_mode, self.is_transpose), key)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({region_text(self.kernel_generator)})"


class MinkowskiAvgPooling(MinkowskiPoolingBase):
    """The mean of the existing cells in a window."""

    pooling_mode = PoolingMode.LOCAL_AVG_POOLING


class MinkowskiSumPooling(MinkowskiPoolingBase):
    """The sum of the cells in a window."""

    pooling_mode = PoolingMode.LOCAL_SUM_POOLING


class MinkowskiMaxPooling(MinkowskiPoolingBase):
    """The maximum of the cells in a window."""

    pooling_mode = PoolingMode.LOCAL_MAX_POOLING


class MinkowskiPoolingTranspose(MinkowskiPoolingBase):
    """The sum, at each finer cell, of the cells whose windows contain it."""

    pooling_mode = PoolingMode.LOCAL_SUM_POOLING
    is_transpose = True

    def __init__(
        self,
        kernel_size: Ints,
        stride: Ints,
        dilation: Ints = 1,
        kernel_generator: KernelGenerator | None = None,
        expand_coordinates: bool = False,
        dimension: int | None = None,
    ) -> None:
        super().__init__(kernel_size, stride, dilation, kernel_generator, dimension)
        if kernel_generator is None:
            self.kernel_generator.expand_coordinates = expand_coordinates


class MinkowskiGlobalPooling(MinkowskiModuleBase):
    """One row for each image, at its origin, with a tensor stride of 0."""

    def __init__(self, mode: PoolingMode = PoolingMode.GLOBAL_AVG_POOLING_PYTORCH_INDEX) -> None:
        super().__init__()
        self.pooling_mode = mode

    def forward(self, input: Any, coordinates: Any = None) -> SparseTensor:
        """Pool each image; for a field, over its points."""
        kind = self.pooling_mode.name.split("_")[1].lower()  # sum, avg or max
        if isinstance(input, TensorField):
            return input.pooled(kind)
        values = sparse_global_pool(check_input(input).to_layoutconv(), kind)
        return input.at(values, input.coordinate_manager.origin())

    def __repr__(self) -> str:
        return f"{type(self).__name__}(mode={self.pooling_mode})"


class MinkowskiGlobalSumPooling(MinkowskiGlobalPooling):
    """The sum of the cells of each image."""

    def __init__(self, mode: PoolingMode = PoolingMode.GLOBAL_SUM_POOLING_PYTORCH_INDEX) -> None:
        super().__init__(mode)


class MinkowskiGlobalAvgPooling(MinkowskiGlobalPooling):
    """The mean of the cells of each image."""


class MinkowskiGlobalMaxPooling(MinkowskiGlobalPooling):
    """The maximum of the cells of each image."""

    def __init__(self, mode: PoolingMode = PoolingMode.GLOBAL_MAX_POOLING_PYTORCH_INDEX) -> None:
        super().__init__(mode)
