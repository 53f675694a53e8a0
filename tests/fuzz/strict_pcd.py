"""A strict parser of ``.pcd``, after the Point Cloud Library's page on it: see ``strict``."""

from __future__ import annotations

import math
import struct

from .strict import CODES, RefusedError, finished, natural, need, padding, real, typed, xyz_first

KEYS = (
    "VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA",
)  # fmt: skip
TYPES = ("I1", "I2", "I4", "I8", "U1", "U2", "U4", "U8", "F4", "F8")


def parse_pcd(data):
    found, body = header(data)
    names, counts = found["FIELDS"], found["COUNT"]
    kinds = [kind.lower() + size for kind, size in zip(found["TYPE"], found["SIZE"], strict=True)]
    # Colours are bits, which a float that is no number does not keep.
    codes = [
        f"{count}{'I' if is_colour(*field) and found['DATA'] != 'ascii' else CODES[field[1]]}"
        for count, field in zip(counts, zip(names, kinds, counts, strict=True), strict=True)
    ]
    points = found["POINTS"]
    size = points * sum(int(kind[1]) * count for kind, count in zip(kinds, counts, strict=True))
    if found["DATA"] == "ascii":
        table = ascii_table(body, points, kinds, counts)
    elif found["DATA"] == "binary":
        need(len(body) >= size, "truncated")
        padding(body[size:])
        table = [[*row] for row in struct.iter_unpack("<" + "".join(codes), body[:size])]
    else:
        need(len(body) >= 8, "truncated")
        packed, unpacked = struct.unpack("<II", body[:8])
        need(unpacked == size and len(body) >= 8 + packed, "sizes")
        padding(body[8 + packed :])
        raw, table = lzf(body[8 : 8 + packed], size), [[] for _ in range(points)]
        at = 0
        for code in (struct.Struct("<" + code) for code in codes):
            for row in table:
                row += code.unpack_from(raw, at)
                at += code.size
    return finished(columns(names, kinds, counts, table))


def is_colour(name, kind, count):
    return name in ("rgb", "rgba") and kind[1] == "4" and count == 1


def columns(names, kinds, counts, table):
    """Rows without padding, colours taken apart, points that were not seen left out."""
    heads, rows, at = [], [[] for _ in table], 0
    for name, kind, count in zip(names, kinds, counts, strict=True):
        part = [row[at : at + count] for row in table]
        at += count
        if name == "_":
            continue
        if is_colour(name, kind, count):
            heads += ["red", "green", "blue"]
            for row, (value,) in zip(rows, part, strict=True):
                code = "<f" if isinstance(value, float) else "<I" if value >= 0 else "<i"
                blue, green, red, _ = struct.pack(code, value)
                row += [red, green, blue]
        else:
            heads += [name] if count == 1 else [f"{name}.{n}" for n in range(count)]
            for row, values in zip(rows, part, strict=True):
                row += values
    rows = xyz_first(heads, rows)
    return [row for row in rows if not all(math.isnan(value) for value in row[:3])]


def header(data):
    entries, at = {}, 0
    while "DATA" not in entries:
        end = data.find(b"\n", at)
        need(end >= 0, "no line DATA")
        words, at = data[at:end].decode("latin-1").split(), end + 1
        if not words or words[0][0] == "#":
            continue
        need(words[0] in KEYS and words[0] not in entries and len(words) > 1, "line")
        entries[words[0]] = words[1:]
    need({"FIELDS", "SIZE", "TYPE"} <= set(entries), "a line is missing")
    names = entries["FIELDS"]
    entries.setdefault("COUNT", ["1"] * len(names))
    need(all(len(entries[key]) == len(names) for key in ("SIZE", "TYPE", "COUNT")), "fields")
    entries["COUNT"] = [natural(count) for count in entries["COUNT"]]
    need(min(entries["COUNT"]) > 0 and sum(entries["COUNT"]) <= 4096, "COUNT")
    for kind, size in zip(entries["TYPE"], entries["SIZE"], strict=True):
        need(kind + size in TYPES, "TYPE and SIZE")
    named = [name for name in names if name != "_"]
    need(len(named) == len(set(named)), "a field twice")
    version = entries.get("VERSION", ["0.7"])
    need(len(version) == 1 and version[0].removeprefix("0") in (".5", ".6", ".7"), "VERSION")
    viewpoint = entries.get("VIEWPOINT", ["0"] * 7)
    need(len(viewpoint) == 7, "VIEWPOINT")
    for word in viewpoint:
        real(word)
    for key in ("WIDTH", "HEIGHT", "POINTS", "DATA"):
        need(len(entries.get(key, ["1"])) == 1, key)
    if "HEIGHT" in entries:
        natural(entries["HEIGHT"][0])
    if "WIDTH" in entries:
        grid = natural(entries["WIDTH"][0]) * natural(entries.get("HEIGHT", ["1"])[0])
        need(natural(entries.get("POINTS", [str(grid)])[0], 10**40) == grid, "POINTS")
        entries["POINTS"] = grid
    else:
        need("POINTS" in entries, "POINTS")
        entries["POINTS"] = natural(entries["POINTS"][0])
    entries["DATA"] = entries["DATA"][0]
    need(entries["DATA"] in ("ascii", "binary", "binary_compressed"), "DATA")
    return entries, data[at:]


def ascii_table(body, points, kinds, counts):
    lines = body.decode("latin-1").split("\n")
    need(points <= len(lines), "too few lines")
    need(not any(line.strip() for line in lines[points:]), "more lines than POINTS says")
    flat = [kind for kind, count in zip(kinds, counts, strict=True) for _ in range(count)]
    table = []
    for line in lines[:points]:
        words = line.removesuffix("\r").replace("\t", " ").split(" ")
        words = [word for word in words if word]
        need(len(words) == len(flat), "numbers of a point")
        table.append([rounded(word, kind) for word, kind in zip(words, flat, strict=True)])
    return table


def rounded(word, kind):
    value = typed(word, kind)
    if kind != "f4":
        return value
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0]
    except OverflowError:
        return math.copysign(math.inf, value)


def lzf(data, size):
    """Marc Lehmann's LZF, one byte after the other."""
    out, source = [], iter(data)
    try:
        for control in source:
            need(len(out) <= size, "too much")
            if control < 32:
                out += [next(source) for _ in range(control + 1)]
            else:
                length = control >> 5
                if length == 7:
                    length += next(source)
                place = len(out) - 1 - ((control & 31) * 256 + next(source))
                need(place >= 0, "a copy from before the start")
                for step in range(length + 2):
                    out.append(out[place + step])
    except (StopIteration, RuntimeError):
        raise RefusedError("truncated") from None
    need(len(out) == size, "size")
    return bytes(out)
