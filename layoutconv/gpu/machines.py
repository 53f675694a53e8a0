"""Machines of the cost model: GPUs that are present, or the GPU that a pack was planned for."""

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
from ..planning import machine
from ..planning.machine import MACHINES, Machine
from ..planning.tile import TileConfig

REACHED = 0.83  # of peak memory bandwidth, by kernels that only move data


@dataclass(frozen=True)
class PackMachine:
    """The GPU that a pack's kernels were chosen for, and the choices measured there.

    ``choices`` are tiles and numbers of split-K slices by the key of a measured choice.
    """

    machine: Machine
    choices: Mapping[str, tuple[TileConfig, int]]


_planned: ContextVar[PackMachine | None] = ContextVar("planned", default=None)
_stand_in: Machine | None = None


def planned_as(plan: PackMachine) -> AbstractContextManager[None]:
    """Let calls in this context, of this thread, choose the kernels that were chosen for a pack."""
    return setting(_planned, plan)


def planned() -> PackMachine | None:
    """Return the plan of the running pack; None if calls choose for themselves."""
    return _planned.get()


def machine_of(device: int) -> Machine:
    """Return the machine that tiles are chosen for on a GPU that is present.

    Within a pack, on a GPU of its architecture, that is the machine the pack was planned for.
    Raises ``DeviceError`` if no kernel runs on the GPU.
    """
    found, plan = present(device), _planned.get()
    return plan.machine if plan and plan.machine.arch == found.arch else found


@remembered(64)
def starts_early(device: int) -> bool:
    """Return whether kernels on a GPU start while the previous ones end (PDL)."""
    return machine.starts_early(machine_of(device).arch)


def stand_in(machine: Machine | None) -> None:
    """Treat every GPU as ``machine`` from now on; None restores the actual GPUs."""
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
    """Return the machine of a GPU, cached: every map of a training step asks for it. A query takes
    the host 10 us, and the memory clock half a millisecond."""
    try:
        found = properties(device)
    except (AssertionError, RuntimeError, ValueError) as error:  # torch's errors
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
    """Return bytes of memory per microsecond from clock and bus width, at double data rate.

    0 if torch does not report them.

    >>> class H100:
    ...     memory_clock_rate, memory_bus_width = 2_619_000, 5120  # kHz, bits
    >>> round(1e-6 * _peak_bandwidth(H100()), 2)  # TB/s
    3.35
    """
    clock = getattr(properties, "memory_clock_rate", 0)
    bus = getattr(properties, "memory_bus_width", 0)
    return 2e-3 * clock * bus / 8
