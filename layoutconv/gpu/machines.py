"""GPUs that are present, as the cost model knows them."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch

from ..base.devices import check_driver
from ..kernels.compile.store import architecture
from ..planning.machine import MACHINES, Machine

REACHED = 0.83  # of the peak bandwidth of memory, by kernels that do nothing else


def machine_of(device: int) -> Machine:
    """Return what decides between tiles on a GPU that is present; ``DeviceError`` if none run on
    it.
    """
    check_driver()
    found: Any = torch.cuda.get_device_properties(device)
    arch = architecture((found.major, found.minor))
    like = MACHINES.get(arch, MACHINES["sm_80"])
    return Machine(
        arch,
        found.multi_processor_count,
        found.shared_memory_per_block_optin,
        found.shared_memory_per_multiprocessor,
        like.products,
        _bandwidth(device, found.name) or like.bandwidth,
        found.name,
    )


@cache
def _bandwidth(device: int, name: str) -> float:
    """The bandwidth that kernels reach on a GPU; asked once, since its clock takes half a
    millisecond to be told."""
    return REACHED * _peak_bandwidth(torch.cuda.get_device_properties(device))


def _peak_bandwidth(properties: Any) -> float:
    """Bytes of memory in a microsecond by its clock and bus, two a cycle; 0 where torch has none.

    >>> class H100:
    ...     memory_clock_rate, memory_bus_width = 2_619_000, 5120  # kHz, bits
    >>> round(1e-6 * _peak_bandwidth(H100()), 2)  # TB/s
    3.35
    """
    clock = getattr(properties, "memory_clock_rate", 0)
    bus = getattr(properties, "memory_bus_width", 0)
    return 2e-3 * clock * bus / 8
