"""A strict parser of point files, from the formats' descriptions: slow, plain, and nobody else's.

It shares no line with the package. Rows come as lists of Python numbers, x, y, z first.
"""

from __future__ import annotations

import math
import struct


class RefusedError(Exception):
    """The bytes are no file of the format."""


def need(condition, why):
    if not condition:
        raise RefusedError(why)


def natural(word, most=10**18):
    """A number of decimal digits alone."""
    need(word.isascii() and word.isdigit() and int(word) < most, f"no whole number: {word[:30]!r}")
    return int(word)


def real(word):
    """A number as C's ``strtod`` takes it, of decimal digits, or nan, or inf."""
    body = word.lstrip("+-") if word[:1] in "+-" and word[1:2] not in ("+", "-") else word
    if body.lower() in ("nan", "inf", "infinity"):
        return float(body) * (-1 if word[0] == "-" else 1)
    need(word.isascii() and set(word) <= set("0123456789+-.eE"), f"no number: {word[:30]!r}")
    try:
        return float(word)
    except ValueError:
        raise RefusedError(f"no number: {word[:30]!r}") from None


def typed(word, kind):
    """A number of a type, ``f4``, ``u1``, ...: an integer may be written 255.0."""
    if kind[0] == "f":
        return real(word)
    head, _, tail = word.partition(".")
    need(set(tail) <= {"0"}, "no integer")
    digits = head[1:] if head[:1] in ("+", "-") else head
    natural(digits, 10 ** (len(digits) + 1))
    value, bits = int(head), 8 * int(kind[1])
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1)) if kind[0] == "i" else (0, 2**bits)
    # 64 bits are compared as float64, in which the greatest is that and one.
    need(low <= value < high or (bits == 64 and value == high), "beyond its type")
    return value


CODES = {
    "i1": "b", "u1": "B", "i2": "h", "u2": "H", "i4": "i", "u4": "I", "i8": "q", "u8": "Q",
    "f2": "e", "f4": "f", "f8": "d",
}  # fmt: skip


def padding(rest):
    """Check that binary data is followed by nothing, or by a page of zeros or blanks at most."""
    need(len(rest) <= 65536 and not rest.strip(b"\0 \t\r\n"), "more data than the header says")


def xyz_first(names, rows):
    need(all(names.count(axis) == 1 for axis in "xyz"), "no x, y, z")
    order = [names.index(axis) for axis in "xyz"]
    order += [at for at in range(len(names)) if at not in order]
    return [[row[at] for at in order] for row in rows]


def finished(rows):
    """Rows, of which there are some, all of finite numbers."""
    need(rows, "no points")
    try:
        rows = [[float(value) for value in row] for row in rows]
    except OverflowError:
        raise RefusedError("too large") from None
    need(all(math.isfinite(value) for row in rows for value in row), "not finite")
    return rows


def parse_bin(data, columns=None):
    need(data and data[:3] != b"\x1f\x8b\x08", "empty or compressed")
    columns = columns or 4
    need(len(data) % (4 * columns) == 0, "no whole rows")
    return finished([[*row] for row in struct.iter_unpack(f"<{columns}f", data)])


def parse_npy(data):
    import ast

    need(data[:6] == b"\x93NUMPY" and data[6:8] in (b"\1\0", b"\2\0", b"\3\0"), "magic")
    width = 2 if data[6] == 1 else 4
    start = 8 + width + int.from_bytes(data[8 : 8 + width], "little")
    need(start <= len(data), "header")
    try:
        header = ast.literal_eval(data[8 + width : start].decode("latin-1").strip())
    except Exception:
        raise RefusedError("header") from None
    need(isinstance(header, dict) and set(header) == {"descr", "fortran_order", "shape"}, "keys")
    descr, turned, shape = header["descr"], header["fortran_order"], header["shape"]
    need(isinstance(descr, str) and isinstance(turned, bool) and isinstance(shape, tuple), "types")
    need(len(shape) == 2 and all(type(n) is int and n >= 0 for n in shape), "shape")
    need(descr[:1] in ("<", ">", "|") and descr[1:] in CODES, "descr")
    need(descr[0] != "|" or descr[2] == "1", "descr")
    points, columns = shape
    need(columns >= 3, "columns")
    code = struct.Struct(("<" if descr[0] == "|" else descr[0]) + CODES[descr[1:]])
    need(len(data) - start == points * columns * code.size, "size")
    values = [value for (value,) in code.iter_unpack(data[start:])]
    if turned:
        return finished([values[at::points] for at in range(points)])
    return finished([values[at * columns : (at + 1) * columns] for at in range(points)])
