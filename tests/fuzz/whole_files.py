"""Point files that are whole, of every format and variant, by a random generator."""

from __future__ import annotations

import io
import struct
from typing import NamedTuple

import numpy as np

from .strict import CODES


class Whole(NamedTuple):
    """A file that nothing is wrong with."""

    suffix: str
    data: bytes
    columns: int | None = None  # the argument that it is read with


def bin_file(rng):
    columns, rows = rng.randint(3, 6), rng.randint(1, 40)
    return Whole(".bin", floats(rng, rows * columns).tobytes(), columns)


NPY_KINDS = (
    "<f2", "<f4", ">f4", "<f8", ">f8", "|i1", "|u1", "<i2", ">u2", "<i4", "<u4", "<i8", ">u8",
)  # fmt: skip


def npy_file(rng):
    rows, columns = rng.randint(1, 20), rng.randint(3, 7)
    kind = rng.choice(NPY_KINDS)
    array = floats(rng, rows * columns).reshape(rows, columns)
    array = (array if kind[1] == "f" else np.abs(array).clip(0, 100)).astype(kind)
    if rng.random() < 0.3:
        array = np.asfortranarray(array)
    file = io.BytesIO()
    version = rng.choice([(1, 0), (1, 0), (2, 0), (3, 0)])
    np.lib.format.write_array(file, array, version)
    return Whole(".npy", file.getvalue())


PLY_WORDS = {
    "char": "i1", "uint8": "u1", "uchar": "u1", "short": "i2", "ushort": "u2", "int": "i4",
    "uint32": "u4", "float": "f4", "float32": "f4", "double": "f8",
}  # fmt: skip


def ply_file(rng):
    """Vertices in any order of properties, with elements before and behind, lists among them."""
    encoding = rng.choice(["ascii", "binary_little_endian", "binary_big_endian"])
    names = [
        "x",
        "y",
        "z",
        *rng.sample(["red", "green", "alpha", "nx", "quality"], rng.randint(0, 4)),
    ]
    rng.shuffle(names)
    reals = [word for word, kind in PLY_WORDS.items() if kind[0] == "f"]
    vertex = [(name, rng.choice(reals if name in "xyz" else [*PLY_WORDS]), None) for name in names]
    camera = [("width", "short", None), ("focus", "double", None)]
    face = [("vertex_indices", rng.choice(["int", "uint32"]), rng.choice(["uchar", "uint8"]))]
    if rng.random() < 0.3:
        face.append(("flags", "uchar", None))
    elements = [("vertex", vertex, rng.randint(1, 12))]
    if rng.random() < 0.3:
        elements.insert(0, ("camera", camera, rng.randint(0, 2)))
    if rng.random() < 0.4:
        elements.insert(rng.choice([0, len(elements)]), ("face", face, rng.randint(0, 5)))
    line = rng.choice(["\n", "\n", "\r\n"])
    header = ["ply", f"format {encoding} 1.0"]
    if rng.random() < 0.5:
        header.append(rng.choice(["comment element vertex 3", "obj_info end_header", "comment"]))
    body = []
    for name, properties, count in elements:
        header.append(f"element {name} {count}")
        for what, word, counted in properties:
            header.append(f"property {f'list {counted} ' if counted else ''}{word} {what}")
        for _ in range(count):
            body.append(ply_row(rng, properties, encoding, line))
    text = line.join([*header, "end_header", ""]).encode()
    data = text + b"".join(body)
    if encoding == "ascii" and rng.random() < 0.2:
        data = data.rstrip(b"\r\n")
    return Whole(".ply", data)


def ply_row(rng, properties, encoding, line):
    words, raw = [], b""
    order = ">" if "big" in encoding else "<"
    for _, word, counted in properties:
        kind = PLY_WORDS[word]
        values = [number(rng, kind) for _ in range(rng.randint(0, 4) if counted else 1)]
        if counted:
            words.append(str(len(values)))
            raw += struct.pack("B", len(values))
        words += [written(rng, value) for value in values]
        raw += struct.pack(f"{order}{len(values)}{CODES[kind]}", *values)
    return (" ".join(words) + line).encode() if encoding == "ascii" else raw


def number(rng, kind):
    """A number that the type holds."""
    if kind[0] == "f":
        value = rng.choice([rng.gauss(0, 30), rng.gauss(0, 1), float(rng.randint(-9, 9))])
        return struct.unpack("<f", struct.pack("<f", value))[0] if kind == "f4" else value
    bits = 8 * int(kind[1])
    return (
        rng.randint(-(1 << bits - 1), (1 << bits - 1) - 1)
        if kind[0] == "i"
        else rng.getrandbits(bits)
    )


def written(rng, value):
    if isinstance(value, int):
        return rng.choice(["{}", "{}", "{}.0"]).format(value)
    return rng.choice([repr, "{:.3f}".format, "{:+.4e}".format])(value)


def floats(rng, count):
    return np.array([rng.gauss(0, 20) for _ in range(count)], "<f4")


def pcd_file(rng):
    """Fields in any order, several numbers of one among them, padding, colours, points unseen."""
    data = rng.choice(["ascii", "binary", "binary_compressed"])
    fields = [(name, rng.choice(["F4", "F4", "F8"]), 1) for name in "xyz"]
    if rng.random() < 0.4:
        fields.append((rng.choice(["rgb", "rgba"]), rng.choice(["F4", "U4"]), 1))
    more = [
        ("intensity", "F4", 1),
        ("ring", "U2", 1),
        ("t", "U8", 1),
        ("normal", "F4", 3),
        ("id", "I4", 1),
    ]
    fields += rng.sample(more, rng.randint(0, 3))
    if rng.random() < 0.3:
        fields += [("_", "U1", rng.randint(1, 4))] * rng.randint(1, 2)
    rng.shuffle(fields)
    height = rng.choice([1, 1, 2])
    width = rng.randint(1, 12)
    points = width * height
    columns = [
        [pcd_numbers(rng, name, kind.lower(), count) for _ in range(points)]
        for name, kind, count in fields
    ]
    for row in range(points):
        if rng.random() < 0.1:
            for (name, _, _), column in zip(fields, columns, strict=True):
                if name in "xyz":
                    column[row] = [float("nan")]
    if all(
        v != v
        for (name, *_), column in zip(fields, columns, strict=True)
        if name == "x"
        for (v,) in column
    ):
        return pcd_file(rng)
    header = {
        "VERSION": rng.choice(["0.7", ".7"]),
        "FIELDS": " ".join(name for name, _, _ in fields),
        "SIZE": " ".join(kind[1] for _, kind, _ in fields),
        "TYPE": " ".join(kind[0] for _, kind, _ in fields),
        "COUNT": " ".join(str(count) for _, _, count in fields),
        "WIDTH": width, "HEIGHT": height, "VIEWPOINT": "0 0 0 1 0 0 0",
        "POINTS": points, "DATA": data,
    }  # fmt: skip
    if all(count == 1 for _, _, count in fields) and rng.random() < 0.2:
        del header["COUNT"]
    if rng.random() < 0.2:
        del header["VIEWPOINT"]
    lines = [f"{key} {value}" for key, value in header.items()]
    if rng.random() < 0.7:
        lines.insert(0, "# .PCD v0.7 - Point Cloud Data file format")
    text = rng.choice(["\n", "\n", "\r\n"]).join([*lines, ""]).encode()
    return Whole(".pcd", text + pcd_body(rng, data, fields, columns, points))


def pcd_numbers(rng, name, kind, count):
    if name in ("rgb", "rgba"):
        colour = rng.getrandbits(23)  # of a float that is finite
        return [struct.unpack("<f", struct.pack("<I", colour))[0] if kind == "f4" else colour]
    return [number(rng, kind) for _ in range(count)]


def pcd_body(rng, data, fields, columns, points):
    codes = [f"<{count}{CODES[kind.lower()]}" for _, kind, count in fields]
    if data == "ascii":
        rows = ([repr(v) for column in columns for v in column[row]] for row in range(points))
        return "".join(" ".join(row) + "\n" for row in rows).encode()
    if data == "binary":
        rows = (
            struct.pack(code, *column[row])
            for row in range(points)
            for code, column in zip(codes, columns, strict=True)
        )
        return b"".join(rows) + bytes(rng.choice([0, 0, 0, 100]))
    raw = b"".join(
        struct.pack(code, *column[row])
        for code, column in zip(codes, columns, strict=True)
        for row in range(points)
    )
    packed = lzf(rng, raw)
    return struct.pack("<II", len(packed), len(raw)) + packed


def lzf(rng, raw):
    """LZF with copies, some that run into themselves, and bytes as they are."""
    out, literal, at = b"", b"", 0
    while at < len(raw):
        length, place = 0, 0
        if rng.random() < 0.8:
            for back in range(1, min(at, 64) + 1):
                run = 0
                while run < 264 and at + run < len(raw) and raw[at + run] == raw[at - back + run]:
                    run += 1
                if run > length:
                    length, place = run, back
        if length < 3:
            literal += raw[at : at + 1]
            at += 1
        if (length >= 3 or at == len(raw) or len(literal) == 32) and literal:
            out += bytes([len(literal) - 1]) + literal
            literal = b""
        if length >= 3:
            head = min(length - 2, 7)
            more = bytes([length - 9]) if head == 7 else b""
            out += bytes([head << 5 | (place - 1) >> 8]) + more + bytes([(place - 1) & 255])
            at += length
    return out
