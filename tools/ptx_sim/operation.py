"""The interface of instruction implementations, and the table that registers them.

An implementation takes an :class:`Operation`, asks it for modifiers, readers and writers, and
returns the function that runs the instruction on a team. So the text is decoded once, before
anything runs, and a modifier that no implementation asks for is an error::

    @instruction("neg")
    def negate(op: Operation) -> Run:
        dtype = op.dtype()
        read, write = op.read(1, dtype), op.write(0, dtype)
        return lambda team: write(team, -read(team))
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import DTypeLike, NDArray

from .faults import UnsupportedInstruction
from .ptx import (
    TYPE_BITS,
    Address,
    Immediate,
    Instruction,
    Name,
    Negated,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Vector,
)
from .special import SPECIAL
from .team import Lanes, Step, Team

Run = Callable[[Team], int | None]
Read = Callable[[Team], NDArray]
Write = Callable[[Team, NDArray], None]

_TABLE: dict[str, Callable[[Operation], Run | None]] = {}


def instruction(*stems: str) -> Callable[[Callable[[Operation], Run]], Callable[[Operation], Run]]:
    """Register an implementation for every opcode that starts with one of the dotted stems.

    The longest registered stem of an opcode wins: "cp.async.wait_group" goes before "cp.async".
    """

    def register(build: Callable[[Operation], Run]) -> Callable[[Operation], Run]:
        for stem in stems:
            assert stem not in _TABLE, f"two implementations of {stem}"
            _TABLE[stem] = build
        return build

    return register


@cache
def bits_dtype(bits: int) -> np.dtype:
    """Return the dtype that holds a register of that width."""
    return np.dtype(np.bool_) if bits == 1 else np.dtype("V16" if bits == 128 else f"u{bits // 8}")


@cache
def numpy_dtype(name: str) -> np.dtype:
    """Return the dtype of a PTX type; bit types, bf16 and packed types are unsigned integers."""
    if name == "pred":
        return np.dtype(np.bool_)
    if name in ("f16", "f32", "f64"):
        return np.dtype(f"f{TYPE_BITS[name] // 8}")
    if name[0] == "s":
        return np.dtype(f"i{TYPE_BITS[name] // 8}")
    return bits_dtype(TYPE_BITS[name])


@dataclass(frozen=True)
class Symbols:
    """Names of one launch: labels (program counters) and addresses of variables."""

    labels: Mapping[str, int]
    addresses: Mapping[str, int]


class Operation:
    """An instruction while it is assembled."""

    def __init__(self, source: Instruction, stem: str, symbols: Symbols) -> None:
        self.source = source
        self.stem = stem
        self.symbols = symbols
        self.control = False
        self.members: Callable[[Team], Lanes] | None = None
        self.modifiers = source.opcode[len(stem) :].split(".")[1:]

    def unsupported(self, why: str) -> UnsupportedInstruction:
        """Return the error to raise for a missing implementation."""
        return UnsupportedInstruction(f"{why}: `{self.source.text}` (line {self.source.line})")

    # ---- modifiers

    def flag(self, name: str) -> bool:
        """Return whether the modifier is there; consume it."""
        if name in self.modifiers:
            self.modifiers.remove(name)
            return True
        return False

    def one_of(self, *names: str, default: str | None = None) -> str:
        """Return the first modifier that is one of ``names``; consume it."""
        for modifier in self.modifiers:
            if modifier in names:
                self.modifiers.remove(modifier)
                return modifier
        if default is None:
            raise self.unsupported(f"expected one of {', '.join(names)}")
        return default

    def type(self) -> str:
        """Return the last modifier, a fundamental type; consume it."""
        if not self.modifiers or self.modifiers[-1] not in TYPE_BITS:
            raise self.unsupported("expected a type as the last modifier")
        return self.modifiers.pop()

    def dtype(self, allowed: str = "bsu") -> np.dtype:
        """Return the dtype of the last modifier, whose first letter must be one of ``allowed``."""
        name = self.type()
        if name[0] not in allowed or name.endswith("x2"):
            raise self.unsupported(f"type {name} is not implemented here")
        return numpy_dtype(name)

    # ---- operands

    @property
    def operands(self) -> tuple[Operand, ...]:
        return self.source.operands

    def has(self, position: int) -> bool:
        """Return whether there is an operand at that position."""
        return position < len(self.operands)

    def operand(self, position: int) -> Operand:
        """Return the operand at a position; a missing one is an error."""
        if not self.has(position):
            raise self.unsupported(f"operand {position} is missing")
        return self.operands[position]

    def items(self, position: int) -> tuple[Operand, ...]:
        """Return the elements of a vector operand; any other operand is its only element."""
        operand = self.operand(position)
        return operand.items if isinstance(operand, Vector) else (operand,)

    def constant(self, position: int) -> int:
        """Return the value of an operand that must be an immediate."""
        operand = self.operand(position)
        if not isinstance(operand, Immediate):
            raise self.unsupported(f"operand {position} must be a constant")
        return operand.value

    def read(self, position: int, dtype: DTypeLike, *, or_noise: bool = False) -> Read:
        """Return a function that reads a source operand as ``dtype``: shape (lanes,), or (1,).

        A register that was never written is a fault; with ``or_noise`` it reads as noise.
        """
        operand, dtype = self.operand(position), np.dtype(dtype)
        if or_noise and isinstance(operand, Register) and operand.bits == 8 * dtype.itemsize:
            return lambda team: team.get_or_noise(operand.index).view(dtype)
        return self.reader(operand, dtype)

    def reader(self, operand: Operand, dtype: np.dtype) -> Read:
        """:meth:`read`, given the operand itself."""
        match operand:
            case Register(index, bits):
                return self._register_reader(index, bits, dtype)
            case Negated(register):
                index = register.index
                return lambda team: ~team.get(index)
            case Immediate():
                return _of_all_lanes(self._constant(operand, dtype))
            case Name(name):
                if name not in self.symbols.addresses:
                    raise self.unsupported(f"no variable {name!r}")
                address = np.array([self.symbols.addresses[name]], f"u{dtype.itemsize}").view(dtype)
                return lambda team: address
            case Special(name):
                if name not in SPECIAL:
                    raise self.unsupported(f"register {name} is not implemented")
                value = SPECIAL[name]
                unsigned = bits_dtype(8 * dtype.itemsize)
                return lambda team: np.atleast_1d(value(team)).astype(unsigned).view(dtype)
        raise self.unsupported(f"operand {operand} cannot be read")

    def _register_reader(self, index: int, bits: int, dtype: np.dtype) -> Read:
        have = bits_dtype(bits)
        if have == dtype:
            return lambda team: team.get(index)
        if (bits == 1) != (dtype == np.bool_):
            raise self.unsupported("a predicate and a value are mixed up")
        if have.itemsize == dtype.itemsize:
            return lambda team: team.get(index).view(dtype)
        if have.itemsize > dtype.itemsize:
            narrow = bits_dtype(8 * dtype.itemsize)
            return lambda team: team.get(index).astype(narrow).view(dtype)
        raise self.unsupported(f"a register of {bits} bits is read as {dtype}")

    def _constant(self, operand: Immediate, dtype: np.dtype) -> NDArray:
        if dtype == np.bool_:
            return np.array([operand.value != 0])
        bits = bits_dtype(8 * dtype.itemsize)
        value = operand.value
        if operand.kind == "f64" and dtype.itemsize == 4:
            value = int(
                np.array([value], np.uint64).view(np.float64).astype(np.float32).view("u4")[0]
            )
        return np.array([value % (1 << 8 * bits.itemsize)], bits).view(dtype)

    def write(self, position: int, dtype: DTypeLike) -> Write:
        """Return a function that writes an array of ``dtype`` to a destination operand."""
        return self.writer(self.operand(position), np.dtype(dtype))

    def writer(self, operand: Operand, dtype: np.dtype) -> Write:
        """:meth:`write`, given the operand itself; into a wider register it extends."""
        if isinstance(operand, Sink):
            return lambda team, value: None
        if not isinstance(operand, Register):
            raise self.unsupported(f"operand {operand} cannot be written")
        index, have = operand.index, bits_dtype(operand.bits)
        if (operand.bits == 1) != (dtype == np.bool_):
            raise self.unsupported("a predicate and a value are mixed up")
        if have == dtype:
            return lambda team, value: team.set(index, value)
        if have.itemsize == dtype.itemsize:
            return lambda team, value: team.set(index, value.view(have))
        if have.itemsize > dtype.itemsize and dtype.kind in "iu":
            wide = np.dtype(f"{dtype.kind}{have.itemsize}")
            return lambda team, value: team.set(index, value.astype(wide).view(have))
        if have.itemsize > dtype.itemsize and dtype.kind == "f":
            narrow = bits_dtype(8 * dtype.itemsize)
            return lambda team, value: team.set(index, value.view(narrow).astype(have))
        raise self.unsupported(f"a register of {operand.bits} bits is written as {dtype}")

    def pair(self, position: int) -> tuple[Operand, Operand]:
        """Return the two destinations of ``a|b``; for a plain operand, itself and a sink."""
        operand = self.operand(position)
        return (operand.first, operand.second) if isinstance(operand, Pair) else (operand, Sink())

    def address(self, position: int, dtype: np.dtype | None = None) -> Read:
        """Return a function that returns the addresses of ``[base + offset]`` as int64."""
        operand = self.operand(position)
        if not isinstance(operand, Address):
            raise self.unsupported(f"operand {position} must be an address")
        base, offset = operand.base, np.int64(operand.offset)
        wide = not (isinstance(base, Register) and base.bits == 32)
        read = self.reader(base, np.dtype(np.uint64 if wide else np.uint32))
        if wide and not offset:
            return lambda team: read(team).view(np.int64)
        if wide:
            return lambda team: read(team).view(np.int64) + offset
        return lambda team: read(team).astype(np.int64) + offset

    # ---- how it runs

    def steer(self) -> None:
        """Declare a control instruction: it returns where its lanes go next."""
        self.control = True

    def collective(self, members: Callable[[Team], Lanes] | None = None) -> None:
        """Declare that ``members`` (by default all threads of a warp) run this together."""
        self.members = members or (lambda team: team.started)


def _of_all_lanes(constant: NDArray) -> Read:
    """Return a function that repeats one value for every lane of a team.

    NumPy adds two arrays of a warp's size in half the time of broadcasting a single value.
    """
    kept: dict[int, NDArray] = {}

    def read(team: Team) -> NDArray:
        lanes = len(team.numbers)
        found = kept.get(lanes)
        if found is None:
            found = kept[lanes] = constant.repeat(lanes)
        return found

    return read


def assemble(program: list[Instruction], symbols: Symbols) -> list[Step]:
    """Make every instruction ready to run.

    Raises UnsupportedInstruction for an opcode, a modifier or an operand that is not implemented,
    even if control never reaches it.
    """
    steps = [_assemble(source, symbols) for source in program]
    straight = together = len(steps)
    for pc, step in reversed(list(enumerate(steps))):
        if step.control or step.instruction.guard is not None:
            straight = together = pc
        elif step.members is not None:
            straight = pc
        step.straight, step.together = straight, together
    return steps


def _assemble(source: Instruction, symbols: Symbols) -> Step:
    parts = source.opcode.split(".")
    for length in range(len(parts), 0, -1):
        stem = ".".join(parts[:length])
        if stem in _TABLE:
            op = Operation(source, stem, symbols)
            run = _TABLE[stem](op)
            if op.modifiers:
                raise op.unsupported(f"modifier {', '.join(op.modifiers)} is not implemented")
            assert run is not None
            return Step(source, run, op.control, op.members)
    raise UnsupportedInstruction(
        f"instruction {source.opcode} is not implemented: `{source.text}` (line {source.line})"
    )
