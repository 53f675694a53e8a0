"""Instructions with references in plain Python, one element at a time; types as NumPy codes.

Written from the PTX ISA's text, not from the simulator's code: integers are Python's, exact.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .snippets import uses


@dataclass(frozen=True)
class Case:
    """An instruction over %a, %b ... of types ``inputs``, and the value it has."""

    instruction: str
    inputs: str
    out: str
    reference: Callable[..., Any]
    # Small second operands, for shift amounts and lengths.
    small: bool = False

    def __str__(self) -> str:
        return self.instruction


def _case(
    instruction: str, inputs: str, out: str, reference: Callable[..., Any], **kw: Any
) -> Case:
    types = inputs.split()
    types = types * uses(instruction) if len(types) == 1 else types
    return Case(instruction, " ".join(types), out, reference, **kw)


def _word(instruction: str, reference: Callable[..., Any], **kw: Any) -> Case:
    """An instruction of 32 bits alone."""
    return _case(instruction, "u4", "u4", reference, **kw)


def wrap(value: int, dtype: str) -> int:
    """An integer modulo two to the width, in the range of the type."""
    bits = 8 * np.dtype(dtype).itemsize
    value %= 1 << bits
    return value - (1 << bits) if dtype[0] == "i" and value >> (bits - 1) else value


def clip(value: int, dtype: str) -> int:
    info = np.iinfo(dtype)
    return max(info.min, min(info.max, value))


def trunc_div(a: int, b: int) -> int:
    return abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)


def ptx_name(dtype: str) -> str:
    return {"i": "s", "u": "u", "f": "f"}[dtype[0]] + str(8 * np.dtype(dtype).itemsize)


INTEGER: list[Case] = []
for _t in ("i2", "u2", "i4", "u4", "i8", "u8"):
    _n, _bits = ptx_name(_t), 8 * np.dtype(_t).itemsize
    INTEGER += [
        _case(f"add.{_n} %d, %a, %b;", _t, _t, lambda a, b: a + b),
        _case(f"sub.{_n} %d, %a, %b;", _t, _t, lambda a, b: a - b),
        _case(f"mul.lo.{_n} %d, %a, %b;", _t, _t, lambda a, b: a * b),
        _case(f"mul.hi.{_n} %d, %a, %b;", _t, _t, lambda a, b, n=_bits: (a * b) >> n),
        _case(f"mad.lo.{_n} %d, %a, %b, %c;", _t, _t, lambda a, b, c: a * b + c),
        _case(f"min.{_n} %d, %a, %b;", _t, _t, min),
        _case(f"max.{_n} %d, %a, %b;", _t, _t, max),
        _case(f"sad.{_n} %d, %a, %b, %c;", _t, _t, lambda a, b, c: abs(a - b) + c),
        _case(f"div.{_n} %d, %a, %b;", _t, _t, trunc_div),
        _case(f"rem.{_n} %d, %a, %b;", _t, _t, lambda a, b: a - b * trunc_div(a, b)),
        _case(f"shr.{_n} %d, %a, %b;", f"{_t} u4", _t, lambda a, s: a >> min(s, 64), small=True),
        _case(
            f"shl.b{_bits} %d, %a, %b;", f"{_t} u4", _t, lambda a, s: a << min(s, 64), small=True
        ),
    ]
    if _t[0] == "i":
        INTEGER += [
            _case(f"neg.{_n} %d, %a;", _t, _t, lambda a: -a),
            _case(f"abs.{_n} %d, %a;", _t, _t, abs),
        ]
    if _bits < 64:
        _w = f"{_t[0]}{_bits // 4}"
        INTEGER += [
            _case(f"mul.wide.{_n} %d, %a, %b;", _t, _w, lambda a, b: a * b),
            _case(
                f"mad.wide.{_n} %d, %a, %b, %c;", f"{_t} {_t} {_w}", _w, lambda a, b, c: a * b + c
            ),
        ]
    if _bits > 16:
        INTEGER.append(
            _case(
                f"mad.hi.{_n} %d, %a, %b, %c;", _t, _t, lambda a, b, c, n=_bits: ((a * b) >> n) + c
            )
        )
INTEGER += [
    _case("add.sat.s32 %d, %a, %b;", "i4", "i4", lambda a, b: clip(a + b, "i4")),
    _case("sub.sat.s32 %d, %a, %b;", "i4", "i4", lambda a, b: clip(a - b, "i4")),
    _case("mul24.lo.s32 %d, %a, %b;", "i4", "i4", lambda a, b: _low24(a) * _low24(b)),
    _case("mad24.lo.u32 %d, %a, %b, %c;", "u4", "u4", lambda a, b, c: a % 2**24 * (b % 2**24) + c),
    _case("dp4a.s32.s32 %d, %a, %b, %c;", "u4", "i4", lambda a, b, c: _dot(a, b, "b", "b") + c),
    _case("dp4a.u32.s32 %d, %a, %b, %c;", "u4", "i4", lambda a, b, c: _dot(a, b, "B", "b") + c),
    _case("dp4a.u32.u32 %d, %a, %b, %c;", "u4", "u4", lambda a, b, c: _dot(a, b, "B", "B") + c),
    _case("dp2a.lo.u32.u32 %d, %a, %b, %c;", "u4", "u4", lambda a, b, c: _dot2(a, b, 0) + c),
    _case("dp2a.hi.s32.s32 %d, %a, %b, %c;", "i4", "i4", lambda a, b, c: _dot2(a, b, 2) + c),
]


def _dot2(a: int, b: int, first: int) -> int:
    """Signed where the case's numbers are: a negative one has come as a negative int."""
    signed = first == 2
    words = [
        int.from_bytes((a % 2**32).to_bytes(4, "little")[i : i + 2], "little", signed=signed)
        for i in (0, 2)
    ]
    four = [
        int.from_bytes([byte], "little", signed=signed)
        for byte in (b % 2**32).to_bytes(4, "little")
    ]
    return words[0] * four[first] + words[1] * four[first + 1]


def _low24(a: int) -> int:
    return (a + 2**23) % 2**24 - 2**23


def _dot(a: int, b: int, kind_a: str, kind_b: str) -> int:
    left = struct.unpack(f"4{kind_a}", a.to_bytes(4, "little"))
    right = struct.unpack(f"4{kind_b}", b.to_bytes(4, "little"))
    return sum(x * y for x, y in zip(left, right, strict=True))


def _field(a: int, start: int, length: int, bits: int, signed: bool) -> int:
    """bfe, bit by bit: result bit i is bit start + i of a, beyond its end the sign."""
    start, length = start & 255, length & 255
    sign = a >> min(start + length - 1, bits - 1) & 1 if signed and length else 0
    result = 0
    for i in range(bits):
        bit = a >> (start + i) & 1 if i < length and start + i < bits else sign
        result |= bit << i
    return result


def _insert(a: int, b: int, start: int, length: int, bits: int) -> int:
    start, length = start & 255, length & 255
    for i in range(length):
        if start + i < bits:
            b = b & ~(1 << (start + i)) | (a >> i & 1) << (start + i)
    return b


def _permute(a: int, b: int, selector: int) -> int:
    raw = (a | b << 32).to_bytes(8, "little")
    result = 0
    for i in range(4):
        pick = selector >> 4 * i & 15
        byte = raw[pick & 7]
        if pick & 8:
            byte = 255 if byte & 128 else 0
        result |= byte << 8 * i
    return result


def _lop3(a: int, b: int, c: int, table: int) -> int:
    return sum(
        (table >> ((a >> i & 1) << 2 | (b >> i & 1) << 1 | c >> i & 1) & 1) << i for i in range(32)
    )


def _leading(a: int, bits: int) -> int:
    """bfind of a signed value."""
    value = ~a if a < 0 else a
    return value.bit_length() - 1 if value else 2**32 - 1


BITS: list[Case] = [
    _case("and.b16 %d, %a, %b;", "u2", "u2", lambda a, b: a & b),
    _word("or.b32 %d, %a, %b;", lambda a, b: a | b),
    _case("xor.b64 %d, %a, %b;", "u8", "u8", lambda a, b: a ^ b),
    _word("not.b32 %d, %a;", lambda a: ~a),
    _word("cnot.b32 %d, %a;", lambda a: int(a == 0)),
    _word("popc.b32 %d, %a;", int.bit_count),
    _case("popc.b64 %d, %a;", "u8", "u4", int.bit_count),
    _word("clz.b32 %d, %a;", lambda a: 32 - a.bit_length()),
    _case("clz.b64 %d, %a;", "u8", "u4", lambda a: 64 - a.bit_length()),
    _word("brev.b32 %d, %a;", lambda a: int(f"{a:032b}"[::-1], 2)),
    _case("brev.b64 %d, %a;", "u8", "u8", lambda a: int(f"{a:064b}"[::-1], 2)),
    _word("bfind.u32 %d, %a;", lambda a: a.bit_length() - 1 if a else 2**32 - 1),
    _case("bfind.s64 %d, %a;", "i8", "u4", lambda a: _leading(a, 64)),
    _word("bfind.shiftamt.u32 %d, %a;", lambda a: 32 - a.bit_length() if a else 2**32 - 1),
    _word("lop3.b32 %d, %a, %b, %c, 0x96;", lambda a, b, c: _lop3(a, b, c, 0x96)),
    _word("lop3.b32 %d, %a, %b, %c, 0xEA;", lambda a, b, c: _lop3(a, b, c, 0xEA)),
    _word("lop3.b32 %d, %a, %b, %c, 0x1B;", lambda a, b, c: _lop3(a, b, c, 0x1B)),
    _word("prmt.b32 %d, %a, %b, %c;", _permute),
    _word("prmt.b32 %d, %a, %b, 0x5410;", lambda a, b: a & 0xFFFF | b << 16),
    _word("prmt.b32.f4e %d, %a, %b, %c;", lambda a, b, c: (a | b << 32) >> 8 * (c & 3)),
    _word(
        "prmt.b32.b4e %d, %a, %b, %c;",
        lambda a, b, c: _permute(a, b, sum(((c % 4 - i) & 7) << 4 * i for i in range(4))),
    ),
    _word("prmt.b32.rc8 %d, %a, %b, %c;", lambda a, b, c: (a >> 8 * (c & 3) & 255) * 0x1010101),
    _word("prmt.b32.rc16 %d, %a, %b, %c;", lambda a, b, c: (a >> 16 * (c & 1) & 0xFFFF) * 0x10001),
    _word(
        "prmt.b32.ecl %d, %a, %b, %c;",
        lambda a, b, c: _permute(a, b, sum(max(i, c & 3) << 4 * i for i in range(4))),
    ),
    _word(
        "prmt.b32.ecr %d, %a, %b, %c;",
        lambda a, b, c: _permute(a, b, sum(min(i, c & 3) << 4 * i for i in range(4))),
    ),
    *(
        _case(
            f"bfe.{ptx_name(t)} %d, %a, %b, %c;",
            f"{t} u4 u4",
            t,
            lambda a, s, n, t=t: _field(a, s, n, 8 * int(t[1]), t[0] == "i"),
            small=True,
        )
        for t in ("u4", "i4", "u8", "i8")
    ),
    _word("bfi.b32 %d, %a, %c, %b, %e;", lambda a, s, c, n: _insert(a, c, s, n, 32), small=True),
    _word("shf.l.wrap.b32 %d, %a, %b, %c;", lambda a, b, c: ((b << 32 | a) << (c & 31)) >> 32),
    _word("shf.r.wrap.b32 %d, %a, %b, %c;", lambda a, b, c: (b << 32 | a) >> (c & 31)),
    _word(
        "shf.l.clamp.b32 %d, %a, %c, %b;",
        lambda a, s, c: ((c << 32 | a) << min(s, 32)) >> 32,
        small=True,
    ),
    _word(
        "shf.r.clamp.b32 %d, %a, %c, %b;", lambda a, s, c: (c << 32 | a) >> min(s, 32), small=True
    ),
]

MOVES: list[Case] = [
    _case("mov.b32 %d, {%a, %b};", "u2", "u4", lambda a, b: a | b << 16),
    _case("mov.b64 %d, {%a, %b};", "u4", "u8", lambda a, b: a | b << 32),
    _case("mov.b64 {_, %d}, %a;", "u8", "u4", lambda a: a >> 32),
    _case("mov.b32 {%d, _}, %a;", "u4", "u2", lambda a: a),
    _case("setp.lt.s32 %p, %a, %b; selp.b32 %d, %a, %b, %p;", "i4", "i4", min),
    _case("setp.lt.u32 %p, %a, %b; selp.b32 %d, %a, %b, %p;", "u4", "u4", min),
    _case("setp.hs.u64 %p, %a, %b; selp.b64 %d, %a, %b, %p;", "u8", "u8", max),
    _case("slct.s32.s32 %d, %a, %b, %c;", "i4", "i4", lambda a, b, c: a if c >= 0 else b),
    _case("set.ge.u32.s32 %d, %a, %b;", "i4", "u4", lambda a, b: -1 if a >= b else 0),
    _case("{.reg .b32 %x; not.b32 %x, %a; mov.u32 %d, %x;} ", "u4", "u4", lambda a: ~a),
]
for _op, _f in (
    ("and", lambda x, y: x and y),
    ("or", lambda x, y: x or y),
    ("xor", lambda x, y: x != y),
):
    MOVES.append(
        _case(
            f"setp.ge.s32 %q, %c, 0; setp.eq.{_op}.s32 %p|%q, %a, %b, %q;"
            " selp.b32 %x, 1, 0, %p; selp.b32 %y, 2, 0, %q; or.b32 %d, %x, %y;",
            "i4",
            "i4",
            lambda a, b, c, f=_f: int(f(a == b, c >= 0)) + 2 * int(f(a != b, c >= 0)),
        )
    )

# ---- floating point: references work on exact fractions, special values are tested apart


def nearest(value: Fraction, dtype: str) -> float:
    """A fraction rounded once, to nearest even, to f2, f4 or f8."""
    if dtype == "f8":
        return float(value)
    info = {"f2": (10, -14, 65504.0), "f4": (23, -126, float(np.finfo(np.float32).max))}[dtype]
    mantissa, smallest, largest = info
    if value == 0:
        return 0.0
    exponent = max((abs(value.numerator).bit_length() - value.denominator.bit_length()), -2000)
    if abs(value) < Fraction(2) ** exponent:
        exponent -= 1
    exponent = max(exponent, smallest)
    unit = Fraction(2) ** (exponent - mantissa)
    rounded = round(value / unit) * unit  # Python rounds halves to even
    if abs(rounded) > Fraction(largest):
        return float("inf") if value > 0 else float("-inf")
    return float(rounded)


FLOAT: list[Case] = []
for _t in ("f4", "f8", "f2"):
    _n = ptx_name(_t)
    _rn = ".rn" if _t == "f8" else ""
    FLOAT += [
        _case(f"add{_rn}.{_n} %d, %a, %b;", _t, _t, lambda a, b: a + b),
        _case(f"sub{_rn}.{_n} %d, %a, %b;", _t, _t, lambda a, b: a - b),
        _case(f"mul{_rn}.{_n} %d, %a, %b;", _t, _t, lambda a, b: a * b),
        _case(f"min.{_n} %d, %a, %b;", _t, _t, min),
        _case(f"max.{_n} %d, %a, %b;", _t, _t, max),
        _case(f"neg.{_n} %d, %a;", _t, _t, lambda a: -a),
        _case(f"abs.{_n} %d, %a;", _t, _t, abs),
    ]
    if _t != "f8":
        FLOAT.append(_case(f"fma.rn.{_n} %d, %a, %b, %c;", _t, _t, lambda a, b, c: a * b + c))
FLOAT += [
    _case("div.rn.f32 %d, %a, %b;", "f4", "f4", lambda a, b: a / b),
    _case(
        "add.sat.f32 %d, %a, %b;",
        "f4",
        "f4",
        lambda a, b: max(Fraction(0), min(Fraction(1), a + b)),
    ),
    _case("cvt.rn.f16.f32 %d, %a;", "f4", "f2", lambda a: a),
    _case("cvt.f32.f16 %d, %a;", "f2", "f4", lambda a: a),
    _case("cvt.f64.f32 %d, %a;", "f4", "f8", lambda a: a),
    _case("cvt.rn.f32.f64 %d, %a;", "f8", "f4", lambda a: a),
    _case("cvt.rni.f32.f32 %d, %a;", "f4", "f4", round),
    _case("cvt.rzi.f32.f32 %d, %a;", "f4", "f4", int),
    _case("cvt.rn.f32.s32 %d, %a;", "i4", "f4", Fraction),
    _case("cvt.rn.f32.u32 %d, %a;", "u4", "f4", Fraction),
    _case("cvt.rn.f32.s64 %d, %a;", "i8", "f4", Fraction),
    _case("cvt.rn.f32.u64 %d, %a;", "u8", "f4", Fraction),
    _case("cvt.rn.f64.s64 %d, %a;", "i8", "f8", Fraction),
    _case("cvt.rn.f16.s32 %d, %a;", "i4", "f2", Fraction),
    _case("cvt.rni.s32.f32 %d, %a;", "f4", "i4", lambda a: clip(round(a), "i4")),
    _case("cvt.rzi.s32.f32 %d, %a;", "f4", "i4", lambda a: clip(int(a), "i4")),
    _case("cvt.rmi.s32.f32 %d, %a;", "f4", "i4", lambda a: clip(a.__floor__(), "i4")),
    _case("cvt.rpi.s32.f32 %d, %a;", "f4", "i4", lambda a: clip(a.__ceil__(), "i4")),
    _case("cvt.rzi.u32.f32 %d, %a;", "f4", "u4", lambda a: clip(int(a), "u4")),
    _case("cvt.rzi.s64.f32 %d, %a;", "f4", "i8", lambda a: clip(int(a), "i8")),
    _case("cvt.rzi.u64.f64 %d, %a;", "f8", "u8", lambda a: clip(int(a), "u8")),
    _case("cvt.rni.s8.f32 %x, %a; cvt.s32.s8 %d, %x;", "f4", "i4", lambda a: clip(round(a), "i1")),
    _case("setp.lt.f32 %p, %a, %b; selp.f32 %d, %a, %b, %p;", "f4", "f4", min),
    _case("setp.gtu.f16 %p, %a, %b; selp.b16 %d, %a, %b, %p;", "f2", "f2", max),
]

CONVERT: list[Case] = []
for _s in ("i1", "u1", "i2", "u2", "i4", "u4", "i8", "u8"):
    for _d in ("i2", "u2", "i4", "u4", "i8", "u8"):
        CONVERT.append(_case(f"cvt.{ptx_name(_d)}.{ptx_name(_s)} %d, %a;", _s, _d, lambda a: a))
CONVERT += [
    _case("cvt.s8.s32 %x, %a; mov.b32 %d, %x;", "i4", "i4", lambda a: wrap(a, "i1")),
    _case("cvt.u8.u32 %x, %a; mov.b32 %d, %x;", "u4", "u4", lambda a: a % 256),
    _case("cvt.sat.u8.s32 %x, %a; mov.b32 %d, %x;", "i4", "i4", lambda a: clip(a, "u1")),
    _case("cvt.sat.s16.s32 %d, %a;", "i4", "i2", lambda a: clip(a, "i2")),
    _case("cvt.sat.s32.u32 %d, %a;", "u4", "i4", lambda a: clip(a, "i4")),
    _case("cvt.sat.u32.s64 %d, %a;", "i8", "u4", lambda a: clip(a, "u4")),
    _case(
        "cvt.pack.sat.s8.s32.b32 %d, %a, %b, %c;",
        "i4",
        "u4",
        lambda a, b, c: (clip(b, "i1") % 256) | (clip(a, "i1") % 256) << 8 | (c % 2**32) << 16,
    ),
    _case(
        "cvt.pack.sat.u16.s32 %d, %a, %b;",
        "i4",
        "u4",
        lambda a, b: clip(b, "u2") | clip(a, "u2") << 16,
    ),
]

ALL = [*INTEGER, *BITS, *MOVES, *FLOAT, *CONVERT]


def values(case: Case, count: int = 96, seed: int = 0) -> list[NDArray]:
    """Operands for a case: the edges of the types and random values of all magnitudes."""
    rng = np.random.default_rng(seed)
    arrays = []
    for position, name in enumerate(case.inputs.split()):
        dtype = np.dtype(name)
        if dtype.kind == "f":
            scale = {2: 3.0, 4: 12.0, 8: 24.0}[dtype.itemsize]
            array = (
                rng.standard_normal(count) * np.exp2(rng.uniform(-scale, scale, count))
            ).astype(dtype)
            array[:7] = rng.permutation([0.5, 1.5, -2.5, 1.0, 3.0, -1.0, 0.0])
        elif case.small and position > 0:
            array = rng.integers(0, 72, count).astype(dtype)
            array[:5] = rng.permutation([0, 1, 31, 32, 64])
        else:
            bits = 8 * dtype.itemsize
            raw = rng.integers(0, 2**63, count, dtype=np.uint64) * np.uint64(2) + np.uint64(1)
            array = (raw >> rng.integers(64 - bits, 64, count).astype(np.uint64)).astype(dtype)
            array = np.where(rng.random(count) < 0.5, array, ~array)
            info = np.iinfo(dtype)
            edges = [info.min, info.max, 1, info.max - 1, info.min + 1, info.max // 2]
            array[:6] = rng.permutation(np.array(edges, dtype))
        arrays.append(array)
    if case.instruction.startswith(("div", "rem")):
        arrays[1][arrays[1] == 0] = 3
    return arrays


def expected(case: Case, arrays: list[NDArray]) -> NDArray:
    """The reference applied to every element."""
    out = []
    for row in zip(*arrays, strict=True):
        exact = [Fraction(float(x)) if x.dtype.kind == "f" else int(x) for x in row]
        value = case.reference(*exact)
        if np.dtype(case.out).kind == "f":
            out.append(nearest(Fraction(value), case.out))
        else:
            out.append(wrap(int(value), case.out))
    return np.array(out).astype(case.out) if case.out[0] == "f" else np.array(out, dtype=case.out)
