"""GPUs as the cost model sees them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """A GPU as the cost model sees it: SMs, shared memory in bytes, and rough rates.

    ``products`` are fp16 multiply-adds per SM and microsecond with the best tile; ``bandwidth``,
    bytes of memory per microsecond. ``name`` is set for a GPU that is present, such as "NVIDIA
    H200".
    """

    arch: str
    sm_count: int
    smem_per_cta: int
    smem_per_sm: int
    products: float = 1.0e6
    bandwidth: float = 1.0e6
    name: str = ""


# Limits of the compute capability; SMs and rates of A100, RTX 3090, RTX 4090 and H200.
# For a GPU that is present, ``gpu/machines.py`` queries the actual limits.
MACHINES = {
    "sm_80": Machine("sm_80", 108, 163 << 10, 164 << 10, 1.1e6, 1.8e6),
    "sm_86": Machine("sm_86", 82, 99 << 10, 100 << 10, 0.4e6, 0.8e6),
    "sm_89": Machine("sm_89", 128, 99 << 10, 100 << 10, 0.6e6, 0.9e6),
    "sm_90a": Machine("sm_90a", 132, 227 << 10, 228 << 10, 1.7e6, 4.0e6),
}


def starts_early(arch: str) -> bool:
    """Return whether a GPU has programmatic dependent launch (PDL); without it, launches are plain.

    >>> starts_early("sm_90a"), starts_early("sm_120"), starts_early("sm_89")
    (True, True, False)
    """
    return int(arch.removeprefix("sm_").rstrip("a")) >= 90
