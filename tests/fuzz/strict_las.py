"""A strict parser of ``.las`` and ``.laz``, after ASPRS's specifications: see ``strict``.

Chunks of ``.laz`` are decompressed by LASzip itself, which shares nothing with what the package
uses.
"""

from __future__ import annotations

import math
import struct

from .laszip_child import Child
from .strict import CODES, finished, need, padding

HEADERS = {0: 227, 1: 227, 2: 227, 3: 235, 4: 375, 5: 393}
FORMATS = {0: (0, 1), 1: (0, 1), 2: (0, 3), 3: (0, 5), 4: (0, 10), 5: (6, 10)}
EXTRA = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


def parse_las(data):
    need(data[:4] == b"LASF" and len(data) >= 227, "signature")
    encoding = int.from_bytes(data[6:8], "little")
    major, minor = data[24], data[25]
    need(major == 1 and minor in HEADERS, "version")
    size, start, count = struct.unpack_from("<HII", data, 94)
    form, length, legacy = struct.unpack_from("<BHI", data, 104)
    scales, offsets = struct.unpack_from("<3d", data, 131), struct.unpack_from("<3d", data, 155)
    need(all(0 < scale < math.inf for scale in scales), "scales")
    need(all(map(math.isfinite, offsets)), "offsets")
    need(HEADERS[minor] <= size <= start <= len(data), "sizes")
    packed, form = form >= 128, form % 128
    low, high = FORMATS[minor]
    need(low <= form <= high, "point format")
    points, stop = legacy, len(data)
    if minor >= 3 and encoding & 2:
        stop = struct.unpack_from("<Q", data, 227)[0] or stop
    if minor >= 4:
        evlr, evlrs, points = struct.unpack_from("<QIQ", data, 235)
        need(legacy in (0, points), "two numbers of points")
        if evlrs:
            need(evlr + 60 * evlrs <= len(data), "extended records")
            at = evlr
            for _ in range(evlrs):
                need(at + 60 <= len(data), "extended records")
                at += 60 + struct.unpack_from("<Q", data, at + 20)[0]
                need(at <= len(data), "extended records")
            stop = min(stop, evlr)
    need(start <= stop <= len(data), "what follows the points")
    records = variable_records(data, size, start, count)
    columns, plain = layout(form)
    need(length >= plain, "point size")
    columns += extra_columns(records, length - plain)
    need(len(columns) <= 4096, "columns")
    if packed:
        raw = unpacked(data, records, start, form, length, plain, points)
    else:
        need(start + points * length <= stop, "truncated")
        padding(data[start + points * length : stop])
        raw = data[start : start + points * length]
    return finished(rows(raw, columns, length, scales, offsets))


def variable_records(data, at, stop, count):
    need(54 * count <= stop - at, "records")
    found = []
    for _ in range(count):
        need(at + 54 <= stop, "records")
        user, number, size = struct.unpack_from("<2x16sHH", data, at)
        need(at + 54 + size <= stop, "records")
        found.append((user.rstrip(b"\0"), number, data[at + 54 : at + 54 + size]))
        at += 54 + size
    return found


def layout(form):
    """Columns (offset, kind, lowest bit, bits, scale, offset) of a point format, and its size."""
    found = [(0, "i4"), (4, "i4"), (8, "i4"), (12, "u2")]
    if form < 6:
        found += [(14, "u1", 0, 3), (14, "u1", 3, 3), (14, "u1", 6, 1), (14, "u1", 7, 1)]
        found += [(15, "u1", 0, 5), (15, "u1", 5, 1), (15, "u1", 6, 1), (15, "u1", 7, 1)]
        found += [(16, "i1"), (17, "u1"), (18, "u2")]
        size = 20
        if form in (1, 3, 4, 5):
            found.append((size, "f8"))
            size += 8
        colours, wave = 3 * (form in (2, 3, 5)), form in (4, 5)
    else:
        found += [(14, "u1", 0, 4), (14, "u1", 4, 4)]
        found += [(15, "u1", bit, 1) for bit in range(4)]
        found += [(15, "u1", 4, 2), (15, "u1", 6, 1), (15, "u1", 7, 1)]
        found += [(16, "u1"), (17, "u1"), (18, "i2"), (20, "u2"), (22, "f8")]
        size = 30
        colours, wave = {6: 0, 7: 3, 8: 4, 9: 0, 10: 4}[form], form in (9, 10)
    for _ in range(colours):
        found.append((size, "u2"))
        size += 2
    if wave:
        for kind in ("u1", "u8", "u4", "f4", "f4", "f4", "f4"):
            found.append((size, kind))
            size += int(kind[1])
    return [(*column, *(0, 0)[len(column) - 2 :], None) for column in found], size


def extra_columns(records, left):
    records = [data for user, number, data in records if (user, number) == (b"LASF_Spec", 4)]
    need(len(records) <= 1, "extra bytes twice")
    # The offset of the first is the size of the format: it is added where rows are made.
    found, at = [], 0
    data = records[0] if records and left else b""
    need(len(data) % 192 == 0, "extra bytes")
    for begin in range(0, len(data), 192):
        kind, options = data[begin + 2], data[begin + 3]
        scales = struct.unpack_from("<3d", data, begin + 112)
        offsets = struct.unpack_from("<3d", data, begin + 136)
        if kind == 0:
            several, name, options = options, "u1", 0
        else:
            need(kind <= 30, "type of extra bytes")
            several, name = (kind - 1) // 10 + 1, EXTRA[(kind - 1) % 10]
        scales = scales if options & 8 else (1.0,) * 3
        offsets = offsets if options & 16 else (0.0,) * 3
        need(all(map(math.isfinite, scales + offsets)), "scales of extra bytes")
        for which in range(several):
            scaled = (scales[which], offsets[which]) if kind else None
            found.append((-1 - at, name, 0, 0, scaled))
            at += int(name[1])
    need(at <= left, "extra bytes")
    return found + [(-1 - byte, "u1", 0, 0, None) for byte in range(at, left)]


def rows(raw, columns, length, scales, offsets):
    base = max(at + int(kind[1]) for at, kind, *_ in columns if at >= 0)
    found = []
    for begin in range(0, len(raw), length):
        row = []
        for axis, (at, kind, shift, bits, scaled) in enumerate(columns):
            at = at if at >= 0 else base - 1 - at
            (value,) = struct.unpack_from("<" + CODES[kind], raw, begin + at)
            if bits:
                value = (value >> shift) % (1 << bits)
            if axis < 3:
                value = value * scales[axis] + offsets[axis]
            elif scaled and scaled != (1.0, 0.0):
                value = float(value) * scaled[0] + scaled[1]
            row.append(value)
        found.append(row)
    return found


def unpacked(data, records, start, form, length, plain, points):
    """The points of a compressed file, after checks of all that LASzip would take at its word."""
    records = [
        data for user, number, data in records if (user, number) == (b"laszip encoded", 22204)
    ]
    need(len(records) == 1 and len(records[0]) >= 34, "no description of the compression")
    (record,) = records
    compressor, coder, size, items = struct.unpack_from("<HH8xI16xH", record)
    need(len(record) == 34 + 6 * items, "items")
    need(compressor == (3 if form > 5 else 2) and coder == 0 and size > 0, "compressor")
    kinds = [struct.unpack_from("<HHH", record, 34 + 6 * at) for at in range(items)]
    if form > 5:
        expected = [(10, 30), *{7: [(11, 6)], 8: [(12, 8)], 10: [(12, 8)]}.get(form, [])]
        expected += [(13, 29)] * (form > 8) + [(14, length - plain)] * (length > plain)
    else:
        expected = [(6, 20)] + [(7, 8)] * (form in (1, 3, 4, 5)) + [(8, 6)] * (form in (2, 3, 5))
        expected += [(9, 29)] * (form > 3) + [(0, length - plain)] * (length > plain)
    need([kind[:2] for kind in kinds] == expected, "items")
    need(all(kind[2] in ((3, 4) if form > 5 else (1, 2)) for kind in kinds), "versions")
    need(start + 8 <= len(data), "no chunk table")
    (table,) = struct.unpack_from("<q", data, start)
    if table == -1:
        (table,) = struct.unpack_from("<q", data, len(data) - 8)
    need(start + 8 <= table <= len(data) - 8, "chunk table")
    version, chunks = struct.unpack_from("<II", data, table)
    room = table - start - 8
    need(version == 0 and 0 < points <= 1024 * room, "chunk table")
    need(chunks <= room // length + 1, "chunk table")
    if size != 2**32 - 1:
        need(chunks == -(-points // size), "chunk table")
    return by_laszip(data, points, length)


LASZIP = Child()


def by_laszip(data, points, length):
    table = LASZIP.points(data, points * length)
    need(table is not None, "LASzip finds the points broken")
    return table
