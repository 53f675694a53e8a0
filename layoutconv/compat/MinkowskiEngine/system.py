"""MinkowskiEngine's questions about its build and memory: torch's CUDA, and torch's allocator."""

from __future__ import annotations

from enum import Enum

import torch


class CoordinateMapType(Enum):
    """Kept for those who pass it; coordinates are on the device of their tensor."""

    CPU = 0
    CUDA = 1


class GPUMemoryAllocatorType(Enum):
    """Kept for those who pass it; memory is torch's."""

    PYTORCH = 0
    CUDA = 1


def is_cuda_available() -> bool:
    """Return what ``torch.cuda.is_available()`` does."""
    return torch.cuda.is_available()


def cuda_version() -> int:
    """CUDA's version in torch as 12040 for 12.4, -1 without CUDA."""
    version = torch.version.cuda
    if version is None:
        return -1
    major, minor = map(int, version.split(".")[:2])
    return 1000 * major + 10 * minor


cudart_version = cuda_version


def get_gpu_memory_info() -> tuple[int, int]:
    """The free and the total bytes of the current GPU."""
    return torch.cuda.mem_get_info()


def set_gpu_allocator(backend: GPUMemoryAllocatorType) -> None:
    """Accepted, without effect."""


set_memory_manager_backend = set_gpu_allocator
