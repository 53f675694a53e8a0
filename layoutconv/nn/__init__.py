"""Convolutions for networks: torch's modules and functions, argument for argument.

The top layer: it may import every other package of layoutconv.
"""

from . import functional
from .causal import CausalConv3d, FrameCache
from .containers import Features, Prune, Sequential
from .convert import ConversionReport, convert, revert
from .counted_rows import reduce_cells
from .dense_batch_norm import BatchNorm1d, BatchNorm2d, BatchNorm3d
from .dense_norm import GroupNorm, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from .fold import fold_batch_norms
from .fuse_batch_norms import FusionReport, fuse_batch_norms
from .fused_norm import unfused
from .graphed_network import Graphed, graphed
from .graphed_training import GraphedStep, graphed_step
from .lazy import (
    LazyConv1d,
    LazyConv2d,
    LazyConv3d,
    LazyConvTranspose1d,
    LazyConvTranspose2d,
    LazyConvTranspose3d,
)
from .modules import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .onnx_export import onnx_translations
from .quantization import QuantizationReport, quantize
from .residual import Residual
from .sparse_depthwise import sparse_depthwise
from .sparse_modules import (
    SparseConv1d,
    SparseConv2d,
    SparseConv3d,
    SparseConv4d,
    SparseConvTranspose1d,
    SparseConvTranspose2d,
    SparseConvTranspose3d,
    SparseConvTranspose4d,
    SparseInverseConv1d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseInverseConv4d,
    SubmConv1d,
    SubmConv2d,
    SubmConv3d,
    SubmConv4d,
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
    sparse_global_pool,
    sparse_max_pool,
    sparse_sum_pool,
    sparse_unpool,
)
from .streaming import stream

__all__ = [
    "BatchNorm1d",
    "BatchNorm2d",
    "BatchNorm3d",
    "CausalConv3d",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
    "ConversionReport",
    "Features",
    "FrameCache",
    "FusionReport",
    "Graphed",
    "GraphedStep",
    "GroupNorm",
    "InstanceNorm1d",
    "InstanceNorm2d",
    "InstanceNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "Prune",
    "QuantizationReport",
    "Residual",
    "Sequential",
    "SparseAvgPool1d",
    "SparseAvgPool2d",
    "SparseAvgPool3d",
    "SparseAvgPool4d",
    "SparseConv1d",
    "SparseConv2d",
    "SparseConv3d",
    "SparseConv4d",
    "SparseConvTranspose1d",
    "SparseConvTranspose2d",
    "SparseConvTranspose3d",
    "SparseConvTranspose4d",
    "SparseGlobalAvgPool",
    "SparseGlobalMaxPool",
    "SparseGlobalSumPool",
    "SparseInverseConv1d",
    "SparseInverseConv2d",
    "SparseInverseConv3d",
    "SparseInverseConv4d",
    "SparseMaxPool1d",
    "SparseMaxPool2d",
    "SparseMaxPool3d",
    "SparseMaxPool4d",
    "SparseSumPool1d",
    "SparseSumPool2d",
    "SparseSumPool3d",
    "SparseSumPool4d",
    "SparseUnpool",
    "SubmConv1d",
    "SubmConv2d",
    "SubmConv3d",
    "SubmConv4d",
    "convert",
    "fold_batch_norms",
    "functional",
    "fuse_batch_norms",
    "graphed",
    "graphed_step",
    "onnx_translations",
    "quantize",
    "reduce_cells",
    "revert",
    "sparse_avg_pool",
    "sparse_depthwise",
    "sparse_global_pool",
    "sparse_max_pool",
    "sparse_sum_pool",
    "sparse_unpool",
    "stream",
    "unfused",
]
