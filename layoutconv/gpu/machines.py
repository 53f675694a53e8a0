"""GPUs that are present, as the cost model knows them."""

from __future__ import annotations

from typing import Any

import torch

from ..base.devices import check_driver
from ..kernels.compile.store import architecture
from ..planning.machine import MACHINES, Machine


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
        like.bandwidth,
        found.name,
    )
