"""The interface of MinkowskiEngine 0.5.4: the same names, arguments and rules, by layoutconv.

Replace ``import MinkowskiEngine as ME`` by ``import layoutconv.compat.MinkowskiEngine as ME``, or
call :func:`install` to leave the program's files unchanged; docs/coming_from_minkowski.md lists
what is the same and what is not.

>>> import torch
>>> import layoutconv.compat.MinkowskiEngine as ME
>>> x = ME.SparseTensor(torch.ones(2, 3), torch.tensor([[0, -4, 1], [0, -3, 1]]).int())
>>> ME.MinkowskiConvolution(3, 8, kernel_size=2, stride=2, dimension=2)(x).C.tolist()
[[0, -4, 0]]
"""

from __future__ import annotations

import sys

from ..installing import Installed, install_as
from . import MinkowskiFunctional, MinkowskiOps, modules, utils
from .functions import (
    MinkowskiBroadcastFunction,
    MinkowskiConvolutionFunction,
    MinkowskiConvolutionTransposeFunction,
    MinkowskiDirectMaxPoolingFunction,
    MinkowskiGlobalPoolingFunction,
    MinkowskiInstanceNormFunction,
    MinkowskiInterpolationFunction,
    MinkowskiLocalPoolingFunction,
    MinkowskiLocalPoolingTransposeFunction,
    MinkowskiPruningFunction,
    MinkowskiUnionFunction,
)
from .MinkowskiBroadcast import (
    BroadcastMode,
    MinkowskiBroadcast,
    MinkowskiBroadcastAddition,
    MinkowskiBroadcastConcatenation,
    MinkowskiBroadcastMultiplication,
)
from .MinkowskiCommon import (
    MinkowskiModuleBase,
    MinkowskiNetwork,
    convert_to_int_list,
    convert_to_int_tensor,
)
from .MinkowskiConvolution import (
    MinkowskiChannelwiseConvolution,
    MinkowskiConvolution,
    MinkowskiConvolutionBase,
    MinkowskiConvolutionTranspose,
    MinkowskiDepthwiseConvolution,
    MinkowskiGenerativeConvolutionTranspose,
)
from .MinkowskiCoordinateManager import CoordinateManager, CoordinateMapKey
from .MinkowskiCoordinateManager import CoordinateManager as CoordsManager
from .MinkowskiKernelGenerator import KernelGenerator, RegionType, get_kernel_volume
from .MinkowskiNonlinearity import (
    MinkowskiAlphaDropout,
    MinkowskiCELU,
    MinkowskiDropout,
    MinkowskiELU,
    MinkowskiGELU,
    MinkowskiHardshrink,
    MinkowskiHardsigmoid,
    MinkowskiHardswish,
    MinkowskiHardtanh,
    MinkowskiLeakyReLU,
    MinkowskiLogSigmoid,
    MinkowskiLogSoftmax,
    MinkowskiNonlinearityBase,
    MinkowskiPReLU,
    MinkowskiReLU,
    MinkowskiReLU6,
    MinkowskiRReLU,
    MinkowskiSELU,
    MinkowskiSigmoid,
    MinkowskiSiLU,
    MinkowskiSinusoidal,
    MinkowskiSoftmax,
    MinkowskiSoftmin,
    MinkowskiSoftplus,
    MinkowskiSoftshrink,
    MinkowskiSoftsign,
    MinkowskiTanh,
    MinkowskiTanhshrink,
    MinkowskiThreshold,
)
from .MinkowskiNormalization import (
    MinkowskiBatchNorm,
    MinkowskiInstanceNorm,
    MinkowskiStableInstanceNorm,
    MinkowskiSyncBatchNorm,
)
from .MinkowskiOps import (
    MinkowskiInterpolation,
    MinkowskiLinear,
    MinkowskiPruning,
    MinkowskiStackCat,
    MinkowskiStackMean,
    MinkowskiStackSum,
    MinkowskiStackVar,
    MinkowskiToDenseTensor,
    MinkowskiToFeature,
    MinkowskiToSparseTensor,
    MinkowskiUnion,
    cat,
    dense_coordinates,
    mean,
    to_sparse,
    to_sparse_all,
    var,
)
from .MinkowskiOps import _sum as sum
from .MinkowskiPooling import (
    MinkowskiAvgPooling,
    MinkowskiGlobalAvgPooling,
    MinkowskiGlobalMaxPooling,
    MinkowskiGlobalPooling,
    MinkowskiGlobalSumPooling,
    MinkowskiMaxPooling,
    MinkowskiPoolingBase,
    MinkowskiPoolingTranspose,
    MinkowskiSumPooling,
    PoolingMode,
)
from .MinkowskiSparseTensor import SparseTensor
from .MinkowskiTensor import (
    MinkowskiAlgorithm,
    SparseTensorOperationMode,
    SparseTensorQuantizationMode,
    Tensor,
    clear_global_coordinate_manager,
    global_coordinate_manager,
    set_global_coordinate_manager,
    set_sparse_tensor_operation_mode,
    sparse_tensor_operation_mode,
)
from .MinkowskiTensorField import TensorField
from .sparse_matrix_functions import (
    MinkowskiSPMMAverageFunction,
    MinkowskiSPMMFunction,
    spmm,
)
from .system import (
    CoordinateMapType,
    GPUMemoryAllocatorType,
    cuda_version,
    cudart_version,
    get_gpu_memory_info,
    is_cuda_available,
    print_diagnostics,
    set_gpu_allocator,
    set_memory_manager_backend,
)

__version__ = "0.5.4"  # of the interface


def install() -> Installed:
    """Let ``import MinkowskiEngine``, and imports of its modules, find those of layoutconv.

    It works as :func:`layoutconv.compat.spconv.install`. Modules of MinkowskiEngine that are part
    of another file here are found under both names. MinkowskiEngine puts its folder on
    ``sys.path``; so ``import MinkowskiFunctional``, without the package's name, finds a module
    here, too. ``MinkowskiEngineBackend._C`` has the enumerations and keys, no compiled functions.

    >>> with install():
    ...     import MinkowskiFunctional
    ...     from MinkowskiEngine.MinkowskiNetwork import MinkowskiNetwork
    ...     from MinkowskiEngine.modules.resnet_block import BasicBlock
    >>> BasicBlock.__module__
    'layoutconv.compat.MinkowskiEngine.modules.resnet_block'
    """
    inside = {
        "MinkowskiChannelwiseConvolution": MinkowskiChannelwiseConvolution,
        "MinkowskiInterpolation": MinkowskiInterpolation,
        "MinkowskiNetwork": MinkowskiNetwork,
        "MinkowskiPruning": MinkowskiPruning,
        "MinkowskiUnion": MinkowskiUnion,
        "diagnostics": print_diagnostics,
    }
    elsewhere = {name: sys.modules[its.__module__] for name, its in inside.items()}
    return install_as("MinkowskiEngine", __name__, elsewhere=elsewhere, alone="Minkowski")


__all__ = [
    "BroadcastMode",
    "CoordinateManager",
    "CoordinateMapKey",
    "CoordinateMapType",
    "CoordsManager",
    "GPUMemoryAllocatorType",
    "KernelGenerator",
    "MinkowskiAlgorithm",
    "MinkowskiAlphaDropout",
    "MinkowskiAvgPooling",
    "MinkowskiBatchNorm",
    "MinkowskiBroadcast",
    "MinkowskiBroadcastAddition",
    "MinkowskiBroadcastConcatenation",
    "MinkowskiBroadcastFunction",
    "MinkowskiBroadcastMultiplication",
    "MinkowskiCELU",
    "MinkowskiChannelwiseConvolution",
    "MinkowskiConvolution",
    "MinkowskiConvolutionBase",
    "MinkowskiConvolutionFunction",
    "MinkowskiConvolutionTranspose",
    "MinkowskiConvolutionTransposeFunction",
    "MinkowskiDepthwiseConvolution",
    "MinkowskiDirectMaxPoolingFunction",
    "MinkowskiDropout",
    "MinkowskiELU",
    "MinkowskiFunctional",
    "MinkowskiGELU",
    "MinkowskiGenerativeConvolutionTranspose",
    "MinkowskiGlobalAvgPooling",
    "MinkowskiGlobalMaxPooling",
    "MinkowskiGlobalPooling",
    "MinkowskiGlobalPoolingFunction",
    "MinkowskiGlobalSumPooling",
    "MinkowskiHardshrink",
    "MinkowskiHardsigmoid",
    "MinkowskiHardswish",
    "MinkowskiHardtanh",
    "MinkowskiInstanceNorm",
    "MinkowskiInstanceNormFunction",
    "MinkowskiInterpolation",
    "MinkowskiInterpolationFunction",
    "MinkowskiLeakyReLU",
    "MinkowskiLinear",
    "MinkowskiLocalPoolingFunction",
    "MinkowskiLocalPoolingTransposeFunction",
    "MinkowskiLogSigmoid",
    "MinkowskiLogSoftmax",
    "MinkowskiMaxPooling",
    "MinkowskiModuleBase",
    "MinkowskiNetwork",
    "MinkowskiNonlinearityBase",
    "MinkowskiOps",
    "MinkowskiPReLU",
    "MinkowskiPoolingBase",
    "MinkowskiPoolingTranspose",
    "MinkowskiPruning",
    "MinkowskiPruningFunction",
    "MinkowskiRReLU",
    "MinkowskiReLU",
    "MinkowskiReLU6",
    "MinkowskiSELU",
    "MinkowskiSPMMAverageFunction",
    "MinkowskiSPMMFunction",
    "MinkowskiSiLU",
    "MinkowskiSigmoid",
    "MinkowskiSinusoidal",
    "MinkowskiSoftmax",
    "MinkowskiSoftmin",
    "MinkowskiSoftplus",
    "MinkowskiSoftshrink",
    "MinkowskiSoftsign",
    "MinkowskiStableInstanceNorm",
    "MinkowskiStackCat",
    "MinkowskiStackMean",
    "MinkowskiStackSum",
    "MinkowskiStackVar",
    "MinkowskiSumPooling",
    "MinkowskiSyncBatchNorm",
    "MinkowskiTanh",
    "MinkowskiTanhshrink",
    "MinkowskiThreshold",
    "MinkowskiToDenseTensor",
    "MinkowskiToFeature",
    "MinkowskiToSparseTensor",
    "MinkowskiUnion",
    "MinkowskiUnionFunction",
    "PoolingMode",
    "RegionType",
    "SparseTensor",
    "SparseTensorOperationMode",
    "SparseTensorQuantizationMode",
    "Tensor",
    "TensorField",
    "__version__",
    "cat",
    "clear_global_coordinate_manager",
    "convert_to_int_list",
    "convert_to_int_tensor",
    "cuda_version",
    "cudart_version",
    "dense_coordinates",
    "get_gpu_memory_info",
    "get_kernel_volume",
    "global_coordinate_manager",
    "install",
    "is_cuda_available",
    "mean",
    "modules",
    "print_diagnostics",
    "set_global_coordinate_manager",
    "set_gpu_allocator",
    "set_memory_manager_backend",
    "set_sparse_tensor_operation_mode",
    "sparse_tensor_operation_mode",
    "spmm",
    "sum",
    "to_sparse",
    "to_sparse_all",
    "utils",
    "var",
]
