"""Memory layout: the address windows of the state spaces, and a kernel's variables in them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .memory import Memory
from .parse import ParseError
from .ptx import Kernel

# Shared memory starts above zero, as on sm_90 where the first KiB belongs to the system, so that an
# address that was never set up does not happen to be right. Local memory likewise.
SHARED_BASE = 0x400
LOCAL_BASE = 0x100
PARAM_BASE = 0

# Addresses of shared memory in another CTA of the cluster have its rank + 1 above these bits.
CLUSTER_BITS = 24

# Added to an address of the space, this gives its generic address. Global addresses are generic.
GENERIC_WINDOW = {"shared": 0x7D << 56, "local": 0x7E << 56, "param": 0x7C << 56}


@dataclass(frozen=True)
class Placement:
    """The addresses of all names, and the bytes of each space that they take."""

    addresses: dict[str, int]
    shared_size: int
    dynamic_size: int
    local_size: int


def place(kernel: Kernel, memory: Memory, dynamic_shared: int) -> Placement:
    """Lay out parameters and variables; module-scope global and const ones go to ``memory``."""
    addresses = {p.name: PARAM_BASE + p.offset for p in kernel.params}
    ends = {"shared": SHARED_BASE, "local": LOCAL_BASE}
    dynamic = []
    for variable in kernel.variables.values():
        if variable.space in ("global", "const"):
            size = variable.size or 0
            initial = (variable.initial or b"").ljust(size, b"\0")
            array = np.frombuffer(initial, np.uint8).copy()
            addresses[variable.name] = memory.add(
                array, variable.name, writable=variable.space == "global"
            )
        elif variable.size is None:
            dynamic.append(variable)
        else:
            start = ends[variable.space]
            start += -start % variable.align
            addresses[variable.name] = start
            ends[variable.space] = start + variable.size
    # The dynamic variables all start at one place, after the static ones.
    start = ends["shared"]
    for variable in dynamic:
        start += -start % variable.align
    for variable in dynamic:
        addresses[variable.name] = start
    if dynamic_shared and not dynamic:
        raise ParseError(
            f"{kernel.name} has no dynamic shared memory, {dynamic_shared} bytes given"
        )
    shared_size = start + dynamic_shared - SHARED_BASE
    return Placement(addresses, shared_size, dynamic_shared, ends["local"] - LOCAL_BASE)
