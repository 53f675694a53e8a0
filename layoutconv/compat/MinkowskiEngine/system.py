"""MinkowskiEngine's queries of its build and memory, answered for torch's CUDA and allocator."""

from __future__ import annotations

import platform
from enum import Enum

import torch


class CoordinateMapType(Enum):
    """Accepted for compatibility; coordinates are on the device of their tensor."""

    CPU = 0
    CUDA = 1


class ConvolutionMode(Enum):
    """Accepted for compatibility; a cost model chooses the kernel."""

    DEFAULT = 0
    DIRECT_GEMM = 1
    COPY_GEMM = 2


class GPUMemoryAllocatorType(Enum):
    """Accepted for compatibility; torch allocates memory."""

    PYTORCH = 0
    CUDA = 1


def is_cuda_available() -> bool:
    """Return ``torch.cuda.is_available()``."""
    return torch.cuda.is_available()


def cuda_version() -> int:
    """Return torch's CUDA version as a number, 12040 for 12.4, -1 without CUDA."""
    version = torch.version.cuda
    if version is None:
        return -1
    major, minor = map(int, version.split(".")[:2])
    return 1000 * major + 10 * minor


cudart_version = cuda_version


def get_gpu_memory_info() -> tuple[int, int]:
    """Return the free and the total bytes of the current GPU."""
    return torch.cuda.mem_get_info()


def set_gpu_allocator(backend: GPUMemoryAllocatorType) -> None:
    """Accepted, without effect."""


set_memory_manager_backend = set_gpu_allocator


def print_diagnostics() -> None:
    """Print what a report of a problem should name: versions, and the GPU.

    >>> print_diagnostics()  # doctest: +ELLIPSIS
    system: ...
    GPU: ...
    """
    gpu = torch.cuda.get_device_name() if torch.cuda.is_available() else "none"
    rows: dict[str, object] = {"system": platform.platform(), "Python": platform.python_version()}
    rows |= {"torch": torch.__version__, "CUDA of torch": torch.version.cuda, "GPU": gpu}
    for name, value in rows.items():
        print(f"{name}: {value}")
