"""A strict parser of ``.ply``, after Turk's description of the format: see ``strict``."""

from __future__ import annotations

import struct

from .strict import CODES, RefusedError, finished, natural, need, padding, typed, xyz_first

NAMES = {}
for _kind, _words in {
    "i1": "char int8", "u1": "uchar uint8", "i2": "short int16", "u2": "ushort uint16",
    "i4": "int int32", "u4": "uint uint32", "f4": "float float32", "f8": "double float64",
}.items():  # fmt: skip
    for _word in _words.split():
        NAMES[_word] = _kind


def parse_ply(data):
    encoding, elements, body = header(data)
    need("vertex" in elements, "no vertices")
    if encoding == "ascii":
        found = ascii_elements(body, elements)
    else:
        found = binary_elements(body, elements, "<" if "little" in encoding else ">")
    properties = elements["vertex"][1]
    need(all(len(kinds) == 1 for kinds in properties.values()), "lists in vertices")
    return finished(xyz_first(list(properties), found["vertex"]))


def header(data):
    """The encoding, elements {name: (count, {name: kinds})}, and the bytes behind."""
    lines, at = [], 0
    while True:
        end = data.find(b"\n", at)
        need(end >= 0, "no end of the header")
        line = data[at:end].decode("latin-1")
        at = end + 1
        if line.removesuffix("\r").rstrip(" \t") == "end_header":
            break
        lines.append(line)
    need(lines and lines[0] in ("ply", "ply\r"), "magic")
    encoding, elements, last = None, {}, None
    for line in lines[1:]:
        words = line.split()
        if not words or words[0] in ("comment", "obj_info"):
            continue
        if words[0] == "format":
            need(len(words) == 3 and words[2] == "1.0" and encoding is None, "format")
            encoding = words[1]
            need(encoding in ("ascii", "binary_little_endian", "binary_big_endian"), "format")
        elif words[0] == "element":
            need(len(words) == 3 and words[1] not in elements, "element")
            last = elements[words[1]] = (natural(words[2]), {})
        elif words[0] == "property":
            need(last is not None and len(words) in (3, 5), "property")
            need(words[-1] not in last[1], "a property twice")
            if words[1] == "list" and len(words) == 5:
                need(words[2] in NAMES and words[3] in NAMES, "type")
                need(NAMES[words[2]][0] != "f", "a length that is no integer")
                last[1][words[-1]] = (NAMES[words[2]], NAMES[words[3]])
            else:
                need(len(words) == 3 and words[1] in NAMES, "type")
                last[1][words[-1]] = (NAMES[words[1]],)
        else:
            raise RefusedError("an unknown line")
    need(encoding, "no format")
    return encoding, elements, data[at:]


def ascii_elements(body, elements):
    lines = body.decode("latin-1").split("\n")
    at, found = 0, {}
    for name, (count, properties) in elements.items():
        if not properties:
            continue
        need(count <= len(lines) - at, "too few lines")
        rows = found[name] = []
        for line in lines[at : at + count]:
            words = line.removesuffix("\r").replace("\t", " ").split(" ")
            words = [word for word in words if word]
            rows.append(ascii_row(words, properties))
        at += count
    need(not any(line.strip() for line in lines[at:]), "more lines than the header says")
    return found


def ascii_row(words, properties):
    row, at = [], 0
    for kinds in properties.values():
        need(at < len(words), "too few numbers")
        if len(kinds) == 1:
            row.append(typed(words[at], kinds[0]))
            at += 1
        else:
            count = natural(words[at])
            typed(words[at], kinds[0])
            need(at + 1 + count <= len(words), "list")
            for word in words[at + 1 : at + 1 + count]:
                typed(word, kinds[1])
            at += 1 + count
    need(at == len(words), "too many numbers")
    return row


def binary_elements(body, elements, order):
    at, found = 0, {}
    for name, (count, properties) in elements.items():
        rows = found[name] = []
        least = sum(struct.calcsize(CODES[kinds[0]]) for kinds in properties.values())
        need(count * least <= len(body) - at, "truncated")
        for _ in range(count if properties else 0):
            row = []
            for kinds in properties.values():
                code = struct.Struct(order + CODES[kinds[0]])
                need(at + code.size <= len(body), "truncated")
                (value,) = code.unpack_from(body, at)
                at += code.size
                row.append(value)
                if len(kinds) == 2:
                    need(value >= 0, "a length below zero")
                    at += value * struct.calcsize(CODES[kinds[1]])
                    need(at <= len(body), "truncated")
            rows.append(row)
    padding(body[at:])
    return found
