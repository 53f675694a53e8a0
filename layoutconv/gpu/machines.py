"""GPUs that are present, as the cost model knows them; or the one that a pack was planned for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch

from ..base.caches import remembered
from ..base.contexts import setting
from ..base.devices import check_driver
from ..errors import DeviceError
from ..kernels.compile.store import architecture
from ..planning.machine import MACHINES, Machine
from ..planning.tile import TileConfig

REACHED = 0.83  # of the peak bandwidth of memory, by kernels that do nothing else


@dataclass(frozen=True)
class Planned:
    """The GPU that kernels of a pack were chosen for, and the choices that were measured there.

    ``choices`` are tiles and parts of sums by the key of a measured choice.
    """

    machine: Machine
    choices: Mapping[str, tuple[TileConfig, int]]


_planned: ContextVar[Planned | None] = ContextVar("planned", default=None)
_stand_in: Machine | None = None


def planned_as(plan: Planned) -> AbstractContextManager[None]:
    """Calls in this context, of this thread, choose the kernels that were chosen for a pack."""
    return setting(_planned, plan)


def planned() -> Planned | None:
    """The plan of the pack that is running; None of calls that choose by themselves."""
    return _planned.get()


def machine_of(device: int) -> Machine:
    """Return the machine that tiles are chosen for on a present GPU; ``DeviceError`` if no kernel
    runs on it.

    Of a call of a pack, on a GPU of its architecture, it is what the pack was planned for.
    """
    found, plan = present(device), _planned.get()
    return plan.machine if plan and plan.machine.arch == found.arch else found


@remembered(64)
def starts_early(device: int) -> bool:
    """Return whether kernels on a present GPU start while those before them end (PDL)."""
    from ..kernels.common import pdl

    return pdl.starts_early(machine_of(device).arch)


def stand_in(machine: Machine | None) -> None:
    """Let every GPU be like ``machine`` from now on, whatever is there; None: be itself again."""
    global _stand_in
    _stand_in = machine


def present(device: int) -> Machine:
    """Describe a GPU that is present; ``DeviceError`` if kernels do not run on it."""
    if _stand_in is not None:
        return _stand_in
    check_driver()
    return _described(device, torch.cuda.get_device_properties)


@remembered(64)
def _described(device: int, properties: Callable[[int], Any]) -> Machine:
    """The machine of a GPU; asked once: every map of a training step wants it, which takes the host
    10 us, and the clock of memory takes half a millisecond to be told."""
    try:
        found = properties(device)
    except (AssertionError, RuntimeError, ValueError) as error:  # as torch says it
        raise DeviceError(f"there is no GPU {device!r} here: {error}") from error
    arch = architecture((found.major, found.minor))
    like = MACHINES.get(arch, MACHINES["sm_80"])
    return Machine(
        arch,
        found.multi_processor_count,
        found.shared_memory_per_block_optin,
        found.shared_memory_per_multiprocessor,
        like.products,
        REACHED * _peak_bandwidth(found) or like.bandwidth,
        found.name,
    )


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
