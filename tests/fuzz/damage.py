"""Damage to the bytes of a file: what disks, networks, editors and enemies do to it."""

from __future__ import annotations

import re
import struct

# Numbers that a header is not expected to have, as text and as bits.
WORDS = (
    "", "0", "1", "-1", "2", "3", "4", "5", "8", "10", "255", "256", "65536", "2147483647",
    "2147483648", "4294967295", "4294967296", "9223372036854775807", "18446744073709551616",
    "1" * 40, "1e3", "1e9", "1e999", "-0", "+7", "1.5", "7.", ".5", ".0", "1_0", "0x10", "nan",
    "-inf", "NaN", "1,5", "x", "\u00b2", "1 2", "1\t2", "1\r2", "1\x0b2", "1\x002", "--1", "1e",
    "1e2", "255.0000000000000000001", "ascii", "binary", "list", "double", "uchar", "vertex",
)  # fmt: skip
EXTREMES = (
    0, 1, 2, 3, 7, 127, 128, 255, 256, 32767, 65535, 65536, 2**24, 2**31 - 1, 2**31, 2**32 - 1,
    2**32, 2**48, 2**63 - 1, 2**63, 2**64 - 1,
)  # fmt: skip
# Where numbers of the header of .las files are, and of records behind it.
LAS_PLACES = (
    0, 6, 24, 25, 94, 96, 100, 104, 105, 107, 111, 131, 139, 155, 227, 235, 243, 247, 375, 393,
    245, 247, 295, 335, 382, 429, 441, 443, 447, 449, 463,
)  # fmt: skip


def damaged(rng, data, suffix, other):
    """The bytes after one to three mishaps; ``other`` are those of another file."""
    for _ in range(rng.choice([1, 1, 1, 2, 3])):
        data = rng.choice(mishaps(suffix, data))(rng, data, other)
    return data


def mishaps(suffix, data):
    found = [flip, flip, overwrite, cut, cut, longer, repeat, drop, insert, splice, nothing]
    if suffix in (".ply", ".pcd"):
        found += [word, word, word, word, lines, lines, lines, count_off]
    if suffix == ".npy":
        found += [word, word, extreme]
    if suffix in (".las", ".laz"):
        found += [las_number] * 6 + [extreme] * 2
    if suffix == ".laz":
        found += [chunk_table] * 4
    return found


def flip(rng, data, other):
    data = bytearray(data)
    for _ in range(rng.choice([1, 1, 2, 8]) if data else 0):
        data[place(rng, data)] ^= 1 << rng.randrange(8)
    return bytes(data)


def place(rng, data):
    """Anywhere, in the header more often than not."""
    end = len(data) if rng.random() < 0.4 else min(len(data), rng.choice([64, 400]))
    return rng.randrange(end)


def overwrite(rng, data, other):
    at = place(rng, data) if data else 0
    return data[:at] + rng.randbytes(rng.choice([1, 1, 2, 4, 30])) + data[at + 1 :]


def cut(rng, data, other):
    return (
        data[: rng.randrange(len(data) + 1)] if rng.random() < 0.7 else data[: -rng.randint(1, 9)]
    )


def longer(rng, data, other):
    more = rng.randint(1, 40)
    return data + rng.choice(
        [rng.randbytes(more), bytes(more), b"\n" * more, data[-more:], b"0 0 0\n"]
    )


def repeat(rng, data, other):
    begin, end = part(rng, data)
    return data[:end] + data[begin:end] * rng.choice([1, 1, 50]) + data[end:]


def drop(rng, data, other):
    begin, end = part(rng, data)
    return data[:begin] + data[end:]


def insert(rng, data, other):
    at = rng.randint(0, len(data))
    return data[:at] + rng.choice([b"\n", b" ", b"\0", b"\r", b"\xff" * 8, b"1"]) + data[at:]


def splice(rng, data, other):
    return data[: part(rng, data)[0]] + other[part(rng, other)[0] :]


def nothing(rng, data, other):
    begin, end = part(rng, data)
    return data[:begin] + bytes(end - begin) + data[end:]


def part(rng, data):
    begin = rng.randint(0, len(data))
    return begin, min(len(data), begin + rng.choice([1, 2, 8, 20, 200]))


def word(rng, data, other):
    """Another word in place of one of the text."""
    end = text_end(data) if rng.random() < 0.7 else min(len(data), 4000)
    words = [*re.finditer(rb"[^\s]+", data[:end])]
    if not words:
        return data
    found = rng.choice(words)
    new = rng.choice(WORDS).encode("utf-8", "ignore")
    if rng.random() < 0.3:
        new = rng.choice(words)[0]
    return data[: found.start()] + new + data[found.end() :]


def lines(rng, data, other):
    """A line twice, gone, in another place, joined with the next, or broken in two."""
    end = text_end(data) if rng.random() < 0.6 else len(data)
    found = data[:end].split(b"\n")
    at, to = rng.randrange(len(found)), rng.randrange(len(found))
    what = rng.randrange(5)
    if what == 0:
        found.insert(to, found[at])
    elif what == 1:
        del found[at]
    elif what == 2:
        found[at], found[to] = found[to], found[at]
    elif what == 3:
        found[at : at + 2] = [b" ".join(found[at : at + 2])]
    else:
        words = found[at].split(b" ")
        split = rng.randint(0, len(words))
        found[at : at + 1] = [b" ".join(words[:split]), b" ".join(words[split:])]
    return b"\n".join(found) + data[end:]


def count_off(rng, data, other):
    """A number of the header that is one more, one less, or far off."""
    numbers = [*re.finditer(rb"\b[0-9]+\b", data[: text_end(data)])]
    if not numbers:
        return data
    found = rng.choice(numbers)
    value = int(found[0]) + rng.choice([-1, 1, 1, 10**6, 10**12, 2**31])
    return data[: found.start()] + str(value).encode() + data[found.end() :]


def text_end(data):
    for mark in (b"end_header", b"\nDATA", b"}"):
        at = data.find(mark)
        if at >= 0:
            return at + len(mark)
    return min(len(data), 400)


def extreme(rng, data, other):
    """An extreme number anywhere."""
    return put(rng, data, place(rng, data) if data else 0)


def las_number(rng, data, other):
    return put(rng, data, rng.choice(LAS_PLACES))


def put(rng, data, at):
    width = rng.choice([1, 2, 4, 4, 8])
    new = (rng.choice(EXTREMES) & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    if width == 8 and rng.random() < 0.3:
        new = struct.pack("<d", rng.choice([0.0, -1.0, float("nan"), float("inf"), 1e300, 5e-324]))
    if rng.random() < 0.3 and at + width <= len(data):  # near what it was
        value = int.from_bytes(data[at : at + width], "little") + rng.choice([-1, 1, 2, 256])
        new = (value % (1 << 8 * width)).to_bytes(width, "little")
    return data[:at] + new + data[at + width :]


def chunk_table(rng, data, other):
    """Numbers around the table of chunks, or in front of the first of them."""
    if len(data) < 300:
        return data
    (start,) = struct.unpack_from("<I", data, 96)
    if start + 8 > len(data):
        return data
    (table,) = struct.unpack_from("<Q", data, start)
    at = rng.choice(
        [start, start, table, table + 4, table + 4, table + 8 + rng.randrange(8), start + 38]
    )
    return put(rng, data, at) if at < len(data) else data
