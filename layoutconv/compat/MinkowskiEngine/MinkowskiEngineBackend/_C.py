"""Names that programs import from ``MinkowskiEngineBackend._C``, without its compiled functions."""

from __future__ import annotations

from ..MinkowskiBroadcast import BroadcastMode
from ..MinkowskiCoordinateManager import CoordinateMapKey
from ..MinkowskiKernelGenerator import RegionType
from ..MinkowskiPooling import PoolingMode
from ..MinkowskiTensor import MinkowskiAlgorithm
from ..system import (
    ConvolutionMode,
    CoordinateMapType,
    GPUMemoryAllocatorType,
    cuda_version,
    cudart_version,
    get_gpu_memory_info,
    is_cuda_available,
)

__all__ = [
    "BroadcastMode",
    "ConvolutionMode",
    "CoordinateMapKey",
    "CoordinateMapType",
    "GPUMemoryAllocatorType",
    "MinkowskiAlgorithm",
    "PoolingMode",
    "RegionType",
    "cuda_version",
    "cudart_version",
    "get_gpu_memory_info",
    "is_cuda_available",
]
