"""``.las`` and ``.laz`` files that are whole, of all versions, by three writers."""

from __future__ import annotations

import io
import struct

import numpy as np

from .whole_files import Whole

SIZES = (20, 28, 26, 34, 57, 63, 30, 36, 38, 59, 67)
HEADERS = (227, 227, 227, 235, 375, 393)
FORMATS = ((0, 1), (0, 1), (0, 3), (0, 5), (0, 10), (6, 10))
EXTRA = ("u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f4", "f8")


def las_file(rng):
    """A file of our own, with records before and behind the points, and bytes between."""
    minor = rng.choice([0, 1, 2, 2, 3, 4, 4, 4, 5])
    form = rng.randint(*FORMATS[minor])
    points = rng.randint(1, 12)
    described, extra = extra_bytes(rng) if rng.random() < 0.3 else (None, 0)
    extra += rng.choice([0, 0, 0, 2])
    records = [(b"LASF_Projection", 34735, bytes(rng.randint(0, 40)))] * rng.randint(0, 2)
    if described is not None:
        records.insert(rng.randint(0, len(records)), (b"LASF_Spec", 4, described))
    raw = raw_points(rng, form, points, extra)
    return Whole(".las", assemble(rng, minor, form, points, SIZES[form] + extra, records, raw))


def assemble(rng, minor, form, points, length, records, raw, packed=False):
    variable = b"".join(
        struct.pack("<H16sHH32s", 0, user, number, len(data), b"a record") + data
        for user, number, data in records
    )
    size = HEADERS[minor] + rng.choice([0, 0, 0, 7])
    start = size + len(variable) + rng.choice([0, 0, 2])
    old = minor < 4 or (form < 6 and rng.random() < 0.8)
    head = bytearray(size)
    struct.pack_into("<4s", head, 0, b"LASF")
    struct.pack_into("<BB", head, 24, 1, minor)
    struct.pack_into("<32s32sHH", head, 26, b"OTHER", b"fuzz", 1, 2026)
    struct.pack_into("<HII", head, 94, size, start, len(records))
    struct.pack_into("<BHI", head, 104, form | packed << 7, length, points if old else 0)
    struct.pack_into("<3d3d", head, 131, *[2.0**-8] * 3, *(rng.choice([0.0, 100.0]) for _ in "xyz"))
    behind = b""
    if minor > 3:
        evlrs = rng.choice([0, 0, 2])
        behind = b"".join(
            struct.pack("<H16sHQ32s", 0, b"fuzz", 7, 5, b"behind") + b"12345" for _ in range(evlrs)
        )
        struct.pack_into("<QIQ", head, 235, (start + len(raw)) if evlrs else 0, evlrs, points)
    return bytes(head) + variable + bytes(start - size - len(variable)) + raw + behind


def raw_points(rng, form, points, extra):
    """Random bytes, but for floating-point numbers, which are finite."""
    length = SIZES[form] + extra
    rows = []
    for _ in range(points):
        row = bytearray(rng.randbytes(length))
        for axis in range(3):
            struct.pack_into("<i", row, 4 * axis, rng.randint(-(2**20), 2**20))
        time = {1: 20, 3: 20, 4: 20, 5: 20}.get(form, 22 if form > 5 else None)
        if time is not None:
            struct.pack_into("<d", row, time, rng.uniform(0, 1e6))
        if form in (4, 5, 9, 10):
            struct.pack_into("<4f", row, SIZES[form] - 16, *(rng.gauss(0, 9) for _ in range(4)))
        if extra:
            row[SIZES[form] :] = bytes(rng.choice([0, 1, 63]) for _ in range(extra))
        rows.append(bytes(row))
    return b"".join(rows)


def extra_bytes(rng):
    """Descriptions of extra bytes, and how many these are."""
    data, size = b"", 0
    for at in range(rng.randint(1, 3)):
        kind = rng.choice([0, *range(1, 31)])
        options = rng.choice([1, 4]) if kind == 0 else rng.choice([0, 7, 8, 24])
        numbers = (0.5, 2.0, 0.25, 1.0, -3.0, 0.0)
        data += struct.pack("<2xBB32s4x72x6d32s", kind, options, b"extra %d" % at, *numbers, b"")
        size += options if kind == 0 else ((kind - 1) // 10 + 1) * int(EXTRA[(kind - 1) % 10][1])
    return data, size


def laspy_file(rng):
    """A file as laspy writes it, compressed or not, by lazrs or by LASzip."""
    import laspy

    form = rng.choice([0, 1, 2, 3, 6, 7, 8, 10])
    header = laspy.LasHeader(
        point_format=form, version="1.4" if form > 5 else rng.choice(["1.2", "1.4"])
    )
    header.scales, header.offsets = [2.0**-8] * 3, [1.0, -2.0, 3.0]
    if rng.random() < 0.4:
        kind = rng.choice(["u1", "3f4", "i2", "f8"])
        header.add_extra_dim(laspy.ExtraBytesParams("more", kind))
    cloud = laspy.LasData(header)
    points = rng.randint(1, 30)
    noise = np.random.default_rng(rng.getrandbits(32))
    cloud.x, cloud.y, cloud.z = noise.normal(0, 20, (3, points))
    cloud.intensity = noise.integers(0, 2**16, points)
    cloud.return_number = noise.integers(0, 7, points)
    cloud.classification = noise.integers(0, 31, points)
    if form in (2, 3, 7, 8, 10):
        cloud.red, cloud.blue = noise.integers(0, 2**16, (2, points))
    file = io.BytesIO()
    packed = rng.random() < 0.8
    backend = rng.choice([laspy.LazBackend.Lazrs, laspy.LazBackend.Laszip])
    cloud.write(file, do_compress=packed, laz_backend=backend if packed else None)
    return Whole(".laz" if packed else ".las", file.getvalue())


def laz_file(rng):
    """Compressed points of any format in chunks of a few, all alike or each of its own size."""
    import lazrs

    minor = rng.choice([2, 3, 4, 4])
    form = rng.randint(*FORMATS[minor])
    extra = rng.choice([0, 0, 3])
    sizes = [rng.randint(1, 9) for _ in range(rng.randint(1, 4))]
    variable = rng.random() < 0.5
    if not variable:
        sizes = [sizes[0]] * (len(sizes) - 1) + [rng.randint(1, sizes[0])]
    points, length = sum(sizes), SIZES[form] + extra
    raw = raw_points(rng, form, points, extra)
    record = lazrs.LazVlr.new_for_compression(form, extra, variable).record_data()
    if not variable:
        record = record[:12] + struct.pack("<I", sizes[0]) + record[16:]
    # LASzip knows one version of waveforms, which is what lazrs writes and calls the second.
    record = record.replace(struct.pack("<HHH", 9, 29, 2), struct.pack("<HHH", 9, 29, 1))
    vlr, file = lazrs.LazVlr(record), io.BytesIO()
    records = [(b"laszip encoded", 22204, bytes(record))]
    head = assemble(rng, minor, form, points, length, records, b"", packed=True)
    (start,) = struct.unpack_from("<I", head, 96)
    # Without records behind the points: they would lie where the points go.
    if minor > 3:
        head = head[:235] + bytes(12) + head[247:]
    file.write(head[:start])
    compressor, at = lazrs.LasZipCompressor(file, vlr), 0
    for size in sizes:
        part = np.frombuffer(raw, np.uint8, size * length, at)
        if variable:
            compressor.compress_chunks([part])
        else:
            compressor.compress_many(part)
        at += size * length
    compressor.done()
    if variable and form > 5:
        drop_empty_chunk(lazrs, file, vlr, start)
    return Whole(".laz", file.getvalue())


def drop_empty_chunk(lazrs, file, vlr, start):
    """lazrs ends such files with a chunk of no points and no bytes, which LASzip does not read."""
    file.seek(start)
    chunks = lazrs.read_chunk_table(file, vlr)
    (table,) = struct.unpack_from("<q", file.getvalue(), start)
    file.seek(table)
    file.truncate()
    lazrs.write_chunk_table(file, [chunk for chunk in chunks if chunk[0]], vlr)
