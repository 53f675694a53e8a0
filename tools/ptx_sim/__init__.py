"""A PTX simulator for tests: it runs a kernel's PTX on NumPy arrays.

A typical test::

    memory = Memory()
    x = memory.add(array, name="x", writable=False)
    y = memory.add(result, name="y", output=True)
    stats = run(parse(compiled.__ptx__), memory, [x, y, 128], grid=(4,), shared_bytes=49152)

It finds errors that a GPU hides: reads out of bounds, reads of memory that nothing wrote or that an
asynchronous copy has yet to write, missing barriers, waits that are too lax, warps that diverge
where they must not. For Hopper it simulates mbarriers, wgmma, their fences, clusters, and copies by
the tensor memory accelerator through tensor maps: tiles both ways, and im2col columns. It rejects
other instructions by name. It shares no code with the library; it imports only NumPy and the
standard library.
"""

from .arguments import c_struct, pack
from .faults import (
    DataRace,
    Deadlock,
    Divergent,
    DivisionByZero,
    Fault,
    InFlight,
    Misaligned,
    OutOfBounds,
    ParseError,
    ReadOnly,
    Runaway,
    Trap,
    Unfenced,
    Uninitialised,
    UnsetRegister,
    UnsupportedInstruction,
)
from .host import DeviceTensor, HostLaunch, launch_of
from .launch import Stats, run
from .memory import Memory
from .parse import parse
from .ptx import Kernel, Parameter

__all__ = [
    "DataRace",
    "Deadlock",
    "DeviceTensor",
    "Divergent",
    "DivisionByZero",
    "Fault",
    "HostLaunch",
    "InFlight",
    "Kernel",
    "Memory",
    "Misaligned",
    "OutOfBounds",
    "Parameter",
    "ParseError",
    "ReadOnly",
    "Runaway",
    "Stats",
    "Trap",
    "Unfenced",
    "Uninitialised",
    "UnsetRegister",
    "UnsupportedInstruction",
    "c_struct",
    "launch_of",
    "pack",
    "parse",
    "run",
]
