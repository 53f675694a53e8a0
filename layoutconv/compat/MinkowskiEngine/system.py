"""MinkowskiEngine's queries of its build and memory, answered for torch's CUDA and allocator."""

from __future__ import annotations

from enum import Enum

import torch


class CoordinateMapType(Enum):
    """Accepted for compatibility; coordinates are on the device of their tensor."""

    CPU = 0
    CUDA = 1


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
