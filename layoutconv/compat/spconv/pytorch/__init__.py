"""``spconv.pytorch``: tensors, layers and containers of sparse convolution.

>>> import layoutconv.compat.spconv.pytorch as spconv
>>> spconv.SubMConv3d(16, 32, 3, indice_key="subm1").weight.shape  # KRSC
torch.Size([32, 3, 3, 3, 16])
"""

from __future__ import annotations

from .. import __version__, constants
from ..absent import explain
from ..core import ConvAlgo
from . import (
    conv,
    cppcore,
    functional,
    hash,
    layer_kind,  # noqa: F401, which makes layers known to lc.nn.quantize
    modules,
    ops,
    pool,
    quantization,
    spatial,
    tables,
    utils,
)
from .conv import (
    SparseConv1d,
    SparseConv2d,
    SparseConv3d,
    SparseConv4d,
    SparseConvolution,
    SparseConvTranspose1d,
    SparseConvTranspose2d,
    SparseConvTranspose3d,
    SparseConvTranspose4d,
    SparseInverseConv1d,
    SparseInverseConv2d,
    SparseInverseConv3d,
    SparseInverseConv4d,
    SubMConv1d,
    SubMConv2d,
    SubMConv3d,
    SubMConv4d,
)
from .core import SparseConvTensor
from .identity import Identity
from .modules import (
    RemoveGrid,
    SparseBatchNorm,
    SparseIdentity,
    SparseModule,
    SparseReLU,
    SparseSequential,
    SparseSyncBatchNorm,
    ToDense,
    assign_name_for_sparse_modules,
)
from .pool import (
    SparseAvgPool1d,
    SparseAvgPool2d,
    SparseAvgPool3d,
    SparseGlobalAvgPool,
    SparseGlobalMaxPool,
    SparseMaxPool1d,
    SparseMaxPool2d,
    SparseMaxPool3d,
    SparseMaxPool4d,
)
from .tables import AddTable, ConcatTable, JoinTable

__all__ = [
    "AddTable",
    "ConcatTable",
    "ConvAlgo",
    "Identity",
    "JoinTable",
    "RemoveGrid",
    "SparseAvgPool1d",
    "SparseAvgPool2d",
    "SparseAvgPool3d",
    "SparseBatchNorm",
    "SparseConv1d",
    "SparseConv2d",
    "SparseConv3d",
    "SparseConv4d",
    "SparseConvTensor",
    "SparseConvTranspose1d",
    "SparseConvTranspose2d",
    "SparseConvTranspose3d",
    "SparseConvTranspose4d",
    "SparseConvolution",
    "SparseGlobalAvgPool",
    "SparseGlobalMaxPool",
    "SparseIdentity",
    "SparseInverseConv1d",
    "SparseInverseConv2d",
    "SparseInverseConv3d",
    "SparseInverseConv4d",
    "SparseMaxPool1d",
    "SparseMaxPool2d",
    "SparseMaxPool3d",
    "SparseMaxPool4d",
    "SparseModule",
    "SparseReLU",
    "SparseSequential",
    "SparseSyncBatchNorm",
    "SubMConv1d",
    "SubMConv2d",
    "SubMConv3d",
    "SubMConv4d",
    "ToDense",
    "__version__",
    "assign_name_for_sparse_modules",
    "constants",
    "conv",
    "cppcore",
    "functional",
    "hash",
    "modules",
    "ops",
    "pool",
    "quantization",
    "spatial",
    "tables",
    "utils",
]

__getattr__ = explain(__name__)
