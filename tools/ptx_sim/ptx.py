"""Parts of a PTX kernel: operands, instructions, parameters, variables."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

# Bits of each fundamental type; a predicate counts as one bit.
TYPE_BITS = {f"{kind}{bits}": bits for kind in "bsu" for bits in (8, 16, 32, 64)}
TYPE_BITS |= {"f16": 16, "bf16": 16, "f32": 32, "f64": 64, "f16x2": 32, "bf16x2": 32, "b128": 128}
TYPE_BITS |= {"pred": 1}


@dataclass(frozen=True)
class Register:
    """A virtual register: its index in the register file, its width in bits, its name."""

    index: int
    bits: int
    name: str


@dataclass(frozen=True)
class Special:
    """A read-only register of the machine, such as ``%tid.x``."""

    name: str


@dataclass(frozen=True)
class Immediate:
    """A constant: the bits written in the text, and whether they are an f32, an f64 or an int."""

    value: int
    kind: str = "int"


@dataclass(frozen=True)
class Name:
    """A label, a variable or a parameter."""

    name: str


@dataclass(frozen=True)
class Negated:
    """``!%p`` as a source operand."""

    register: Register


@dataclass(frozen=True)
class Sink:
    """``_``: a discarded result."""


@dataclass(frozen=True)
class Vector:
    """``{a, b, c, d}``."""

    items: tuple[Operand, ...]


@dataclass(frozen=True)
class Pair:
    """``a|b``: two destinations."""

    first: Operand
    second: Operand


@dataclass(frozen=True)
class Address:
    """``[base + offset]``; ``[base, {c0, c1}]`` names an element of a tensor."""

    base: Operand
    offset: int
    coordinates: tuple[Operand, ...] = ()


Operand = Register | Special | Immediate | Name | Negated | Sink | Vector | Pair | Address


@dataclass(frozen=True)
class Guard:
    """``@%p`` or ``@!%p`` in front of an instruction."""

    register: Register
    negated: bool


@dataclass(frozen=True)
class Instruction:
    """One statement: dotted opcode, operands, guard; its text and line number are for messages."""

    opcode: str
    operands: tuple[Operand, ...]
    guard: Guard | None
    text: str
    line: int


@dataclass(frozen=True)
class Parameter:
    """A kernel parameter: name, type, size and alignment in bytes, offset in the argument block."""

    name: str
    type: str
    size: int
    align: int
    offset: int

    @property
    def is_struct(self) -> bool:
        """True for an array of bytes (a struct passed by value), False for a scalar."""
        return self.type == "b8" and self.size > 1


@dataclass(frozen=True)
class Variable:
    """A variable in some state space; ``size`` None is the launch's dynamic shared memory."""

    name: str
    space: str
    align: int
    size: int | None
    initial: bytes | None


@dataclass
class Kernel:
    """A parsed ``.entry``: everything needed to run it.

    ``threads`` is the block shape of ``.reqntid`` (x, y, z), ``cluster`` the cluster shape of
    ``.reqnctapercluster``; both are None without the directive.
    """

    name: str
    params: tuple[Parameter, ...]
    threads: tuple[int, int, int] | None
    cluster: tuple[int, int, int] | None
    instructions: list[Instruction]
    labels: dict[str, int]
    registers: list[Register]
    variables: dict[str, Variable] = field(default_factory=dict)
    # The addresses of its names at the last launch, and the program assembled for them.
    assembled: tuple[dict[str, int], Any] | None = field(
        default=None, init=False, compare=False, repr=False
    )
