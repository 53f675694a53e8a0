"""Reasons why no GPU can run kernels, as sentences that say what to do."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError, DeviceError, check_choice

if TYPE_CHECKING:
    import torch

ON_THE_CPU = "tensors on the CPU run there"
# Kernels are machine code for CUDA 12, which every driver for CUDA 12 or newer can load.
DRIVER = 12000
LEAST_RELEASE = "525"  # of NVIDIA's drivers, the first for CUDA 12


@cache
def cuda_driver() -> int | None:
    """Return the CUDA version of NVIDIA's driver, 12090 for 12.9; None without a driver."""
    return driver_version(ctypes.CDLL)


def driver_version(load: Callable[[str], Any]) -> int | None:
    """Return the version from the library that ``load`` opens; ``load`` raises if there is none."""
    number = ctypes.c_int()
    try:
        if load("libcuda.so.1").cuDriverGetVersion(ctypes.byref(number)) == 0:
            return number.value
    except (OSError, AttributeError):
        pass
    return None


def version_text(number: int) -> str:
    """Return a version of CUDA as people write it.

    >>> version_text(12090)
    '12.9'
    """
    return f"{number // 1000}.{number % 1000 // 10}"


def why_no_gpu() -> str:
    """Explain why torch sees no GPU, and what to do: half a sentence, about the first obstacle."""
    import torch

    if torch.version.cuda is None:
        return "this torch was built without CUDA; for a GPU, install one that has it"
    driver, built_for = cuda_driver(), _number(torch.version.cuda)
    if driver is None:
        return (
            "there is no NVIDIA driver; install one, or start the container with access to the GPU"
        )
    if driver // 1000 < built_for // 1000:
        return (
            f"the NVIDIA driver supports CUDA {version_text(driver)}, but this torch needs "
            f"{torch.version.cuda}; update the driver, or install an older build of torch"
        )
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
    if hidden is not None:
        return f"CUDA_VISIBLE_DEVICES is {hidden!r}; unset it, or name a GPU that exists"
    return "the driver finds none; nvidia-smi lists the GPUs"


def driver_is_too_old() -> bool:
    """Return whether there is a driver that is too old to load kernels."""
    driver = cuda_driver()
    return driver is not None and driver < DRIVER


def check_driver() -> None:
    """Raise ``DeviceError`` for a driver that cannot load kernels; without one, do nothing."""
    if driver_is_too_old():
        raise DeviceError(
            f"the NVIDIA driver supports CUDA {version_text(cuda_driver() or 0)}, but kernels need "
            f"CUDA {version_text(DRIVER)}: update the driver to {LEAST_RELEASE} or newer; "
            f"{ON_THE_CPU}"
        )


def runs_kernels(tensor: torch.Tensor) -> bool:
    """Return whether kernels compute with a tensor; otherwise torch does, on a CPU."""
    return tensor.is_cuda


def choose_device(name: str) -> tuple[torch.device, str]:
    """Return the device for ``auto``, ``cpu`` or ``cuda``, and the name of its executor."""
    import torch

    usable = torch.cuda.is_available() and torch.cuda.get_device_capability() >= (8, 0)
    usable = usable and not driver_is_too_old()
    check_choice("device", name, ("auto", "cpu", "cuda"), "auto, cpu or cuda")
    if name == "cuda" and not usable:
        found = f"none: {why_no_gpu()}; or use cpu"
        if torch.cuda.is_available():
            old = "whose driver" if driver_is_too_old() else "which"
            found = f"{torch.cuda.get_device_name()}, {old} is too old; use cpu"
        raise ArgumentError("device", "a GPU of compute capability 8.0 or more for cuda", found)
    if name != "cpu" and usable:
        major, minor = torch.cuda.get_device_capability()
        return torch.device("cuda"), f"{torch.cuda.get_device_name()} (sm_{major}{minor})"
    threads = torch.get_num_threads()
    return torch.device("cpu"), f"CPU ({threads} thread{'s' * (threads != 1)})"


def _number(version: str) -> int:
    """Return ``12090`` for "12.9"."""
    major, minor = version.split(".")[:2]
    return 1000 * int(major) + 10 * int(minor)
