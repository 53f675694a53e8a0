"""Faults of kernels: typed exceptions with thread, instruction and address."""

from __future__ import annotations


class Fault(Exception):  # noqa: N818
    """A kernel broke a rule of the machine.

    It is raised with a message, the ``lane`` (index within the executing team) and the ``address``;
    the executing team adds ``kernel``, ``instruction`` (its text), ``cta`` and ``thread`` (linear
    index within the CTA).
    """

    def __init__(self, what: str, lane: int | None = None, address: int | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.lane = lane
        self.address = address
        self.kernel: str | None = None
        self.instruction: str | None = None
        self.line: int | None = None
        self.cta: tuple[int, int, int] | None = None
        self.thread: int | None = None

    def __str__(self) -> str:
        where = [self.what]
        if self.address is not None:
            where.append(f"address {self.address:#x}")
        if self.instruction is not None:
            where.append(f"at `{self.instruction}` (line {self.line})")
        if self.thread is not None:
            where.append(f"by thread {self.thread}")
        if self.cta is not None:
            where.append(f"of CTA {self.cta}")
        if self.kernel is not None:
            where.append(f"in {self.kernel}")
        return ", ".join(where)


class ParseError(ValueError):
    """The PTX text cannot be parsed."""


class UnsupportedInstruction(ParseError):  # noqa: N818
    """The PTX is valid, but an instruction (or one of its modifiers) is not implemented."""


class OutOfBounds(Fault):
    """An access outside every buffer, or across the end of one."""


class Misaligned(Fault):
    """An access whose address is not a multiple of its width."""


class Uninitialised(Fault):
    """A read of memory that nothing has written."""


class InFlight(Fault):
    """An access to shared memory that an asynchronous copy, not yet waited for, will write."""


class ReadOnly(Fault):
    """A write to a buffer that was added as read-only."""


class DataRace(Fault):
    """Two warps touch the same shared byte, one of them writes, and no barrier orders them."""


class Unfenced(Fault):
    """An asynchronous access to data that was written without the required fence in between."""


class UnsetRegister(Fault):
    """A read of a register that this thread never wrote."""


class Divergent(Fault):
    """A warp-collective instruction or a barrier that not all of its threads reach together."""


class Deadlock(Fault):
    """No warp can advance."""


class Runaway(Fault):
    """The CTA executed more instructions than its limit."""


class DivisionByZero(Fault):
    """An integer division by zero, whose result PTX leaves undefined."""


class Trap(Fault):
    """The kernel executed ``trap``."""
