"""Facts of a cubin, in pure Python: registers, stack, static shared memory, opcode counts.

A cubin is a 64-bit little-endian ELF file. Instructions for sm_70 and later are 128-bit words whose
low 9 bits are the opcode (the 3 bits above encode where operands come from). ``.nv.info`` has
register counts and stack sizes as attributes. The vendor documents none of this; the numbers come
from what ptxas (CUDA 13.0, sm_80 and sm_90) makes of single PTX instructions.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_OPCODES = {
    # tensor cores: 16-bit and tf32, integers, 8-bit floats; fragments
    0x03C: "HMMA",
    0x037: "IMMA",
    0x07A: "QMMA",
    0x03B: "LDSM",
    0x044: "STSM",
    # asynchronous copies, their groups and waits
    0x1AE: "LDGSTS",
    0x1AF: "LDGDEPBAR",
    0x11A: "DEPBAR",
    # global, shared, local (spills) and generic memory
    0x181: "LDG",
    0x186: "STG",
    0x184: "LDS",
    0x188: "STS",
    0x183: "LDL",
    0x187: "STL",
    0x180: "LD",
    0x185: "ST",
    0x1A8: "ATOMG",
    0x1A9: "ATOMG.CAS",
    0x18C: "ATOMS",
    0x18E: "RED",
    0x1A6: "REDG",
    0x11D: "BAR",
    0x189: "SHFL",
    0x108: "MUFU",
    0x118: "NOP",
    0x024: "IMAD",
    0x025: "IMAD.WIDE",
    0x027: "IMAD.HI",
    0x010: "IADD3",
    0x012: "LOP3",
    0x019: "SHF",
    0x00C: "ISETP",
    0x03E: "F2FP",
    # Hopper: warpgroup products, tensor copies, mbarriers
    0x1F0: "HGMMA",
    0x1C5: "WARPGROUP",
    0x1B4: "UTMALDG",
    0x1A7: "SYNCS",
    0x1B2: "SYNCS",
}

# Attributes of .nv.info that hold (symbol, value).
_REGISTERS, _FRAME = 0x2F, 0x11
_ATTRIBUTE_WITH_DATA = 4
_NO_DATA_IN_FILE = 8


@dataclass
class CubinKernel:
    """One kernel of a cubin.

    ``registers`` per thread; ``stack`` bytes of local memory per thread (spills, and arrays indexed
    at run time); ``static_shared`` bytes per CTA; the number of machine ``instructions``; and
    ``opcodes``, counts of the recognised ones by mnemonic.
    """

    name: str
    registers: int = 0
    stack: int = 0
    static_shared: int = 0
    instructions: int = 0
    opcodes: Counter[str] = field(default_factory=Counter)


class _Section(NamedTuple):
    name: str
    kind: int
    size: int
    data: bytes


def read_cubin(cubin: bytes) -> dict[str, CubinKernel]:
    """Return the kernels of a cubin by name; raise ValueError if it is not a cubin."""
    sections = {s.name: s for s in _sections(cubin)}
    prefix = ".text."
    kernels = {
        name.removeprefix(prefix): CubinKernel(name.removeprefix(prefix))
        for name in sections
        if name.startswith(prefix)
    }
    for name, kernel in kernels.items():
        code = sections[prefix + name].data
        kernel.instructions = len(code) // 16
        for at in range(0, len(code) - 15, 16):
            mnemonic = _OPCODES.get(int.from_bytes(code[at : at + 2], "little") & 0x1FF)
            if mnemonic is not None:
                kernel.opcodes[mnemonic] += 1
        if (shared := sections.get(".nv.shared." + name)) is not None:
            kernel.static_shared = shared.size
    symbols = _symbols(sections[".symtab"].data, sections[".strtab"].data)
    for attribute, symbol, value in _attributes(sections[".nv.info"].data):
        target = kernels.get(symbols[symbol]) if symbol < len(symbols) else None
        if target is not None and attribute == _REGISTERS:
            target.registers = value
        elif target is not None and attribute == _FRAME:
            target.stack = value
    return kernels


def _sections(elf: bytes) -> Iterator[_Section]:
    if elf[:4] != b"\x7fELF" or len(elf) < 64:
        raise ValueError("not an ELF file, so not a cubin")
    (table,) = struct.unpack_from("<Q", elf, 0x28)
    entry, count, names = struct.unpack_from("<HHH", elf, 0x3A)
    headers = [struct.unpack_from("<IIQQQQ", elf, table + i * entry) for i in range(count)]
    strings = headers[names][4]
    for name, kind, _, _, offset, size in headers:
        data = b"" if kind == _NO_DATA_IN_FILE else elf[offset : offset + size]
        yield _Section(_string(elf, strings + name), kind, size, data)


def _string(data: bytes, at: int) -> str:
    return data[at : data.index(b"\0", at)].decode()


def _symbols(table: bytes, strings: bytes) -> list[str]:
    return [
        _string(strings, struct.unpack_from("<I", table, at)[0]) for at in range(0, len(table), 24)
    ]


def _attributes(info: bytes) -> Iterator[tuple[int, int, int]]:
    """The (attribute, symbol, value) triples of a ``.nv.info`` section."""
    at = 0
    while at + 4 <= len(info):
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        at += 4
        if form == _ATTRIBUTE_WITH_DATA:
            if size == 8:
                yield (attribute, *struct.unpack_from("<II", info, at))
            at += size
