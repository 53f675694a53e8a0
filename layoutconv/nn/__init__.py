"""Convolutions for networks: torch's modules and functions, argument for argument.

The top floor: may import every room of the package.
"""

from . import functional
from .convert import convert
from .modules import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
)
from .sparse_pool import (
    SparseAvgPool1d,
    SparseAvgPool2d,
    SparseAvgPool3d,
    SparseAvgPool4d,
    SparseGlobalAvgPool,
    SparseGlobalMaxPool,
    SparseGlobalSumPool,
    SparseMaxPool1d,
    SparseMaxPool2d,
    SparseMaxPool3d,
    SparseMaxPool4d,
    SparseSumPool1d,
    SparseSumPool2d,
    SparseSumPool3d,
    SparseSumPool4d,
    SparseUnpool,
    sparse_avg_pool,
    sparse_depthwise,
    sparse_global_pool,
    sparse_max_pool,
    sparse_sum_pool,
    sparse_unpool,
)

__all__ = [
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "SparseAvgPool1d",
    "SparseAvgPool2d",
    "SparseAvgPool3d",
    "SparseAvgPool4d",
    "SparseGlobalAvgPool",
    "SparseGlobalMaxPool",
    "SparseGlobalSumPool",
    "SparseMaxPool1d",
    "SparseMaxPool2d",
    "SparseMaxPool3d",
    "SparseMaxPool4d",
    "SparseSumPool1d",
    "SparseSumPool2d",
    "SparseSumPool3d",
    "SparseSumPool4d",
    "SparseUnpool",
    "convert",
    "functional",
    "sparse_avg_pool",
    "sparse_depthwise",
    "sparse_global_pool",
    "sparse_max_pool",
    "sparse_sum_pool",
    "sparse_unpool",
]
