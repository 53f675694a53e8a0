"""The header of a ``.ply`` file: its elements, and the properties that each of them has."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .columns import MOST_COLUMNS
from .source import Source
from .text_lines import quoted

_LONGEST = 1 << 20  # bytes of a header with comments
_ORDERS = {"ascii": "=", "binary_little_endian": "<", "binary_big_endian": ">"}
_KINDS = {
    "char": "i1", "int8": "i1", "uchar": "u1", "uint8": "u1",
    "short": "i2", "int16": "i2", "ushort": "u2", "uint16": "u2",
    "int": "i4", "int32": "i4", "uint": "u4", "uint32": "u4",
    "float": "f4", "float32": "f4", "double": "f8", "float64": "f8",
}  # fmt: skip


@dataclass(frozen=True)
class Property:
    """A number of an element, or a list of numbers."""

    kind: str  # NumPy's, without the byte order; for a list, that of its entries
    counted: str | None = None  # the kind of a list's length; None: a single number


@dataclass
class Element:
    """Items of one kind, one after the other, with the same properties."""

    name: str
    count: int
    properties: dict[str, Property] = field(default_factory=dict)

    @property
    def has_lists(self) -> bool:
        return any(found.counted for found in self.properties.values())


@dataclass(frozen=True)
class PlyHeader:
    """A whole header."""

    order: str  # of bytes, NumPy's; "=": the file is ascii
    elements: list[Element]
    end: int  # where the data begin


def read_header(source: Source) -> PlyHeader:
    """Read the header; every line must be known to the format.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    head = source.head(_LONGEST)
    if not re.match(rb"ply\r?\n", head):
        raise source.error("not a PLY file, which starts with the line 'ply'")
    found = re.search(rb"\nend_header[ \t]*\r?\n", head)
    if found is None:
        raise source.error("the header has no line 'end_header'; truncated?")
    order = ""
    elements: list[Element] = []
    for line in head[: found.start()].split(b"\n")[1:]:
        match line.decode("latin-1").split():
            case ["format", name, "1.0"] if name in _ORDERS and not order:
                order = _ORDERS[name]
            case ["element", name, count] if re.fullmatch("[0-9]{1,18}", count):
                if any(element.name == name for element in elements):
                    raise source.error(f"the header has two elements named {name!a}")
                elements.append(Element(name, int(count)))
            case ["property", "list", counted, kind, name] if elements:
                counts = _kind(source, line, counted)
                if counts[0] == "f":
                    raise source.error(f"a list is counted by an integer, got {quoted(line)}")
                _add(source, elements[-1], name, Property(_kind(source, line, kind), counts))
            case ["property", kind, name] if elements:
                _add(source, elements[-1], name, Property(_kind(source, line, kind)))
            case [] | ["comment" | "obj_info", *_]:
                pass
            case _:
                raise _no_line(source, line)
    if not order:
        raise source.error("the header has no line 'format'")
    return PlyHeader(order, elements, found.end())


def _kind(source: Source, line: bytes, name: str) -> str:
    kind = _KINDS.get(name)
    if kind is None:
        raise _no_line(source, line)
    return kind


def _add(source: Source, element: Element, name: str, found: Property) -> None:
    if name in element.properties:
        raise source.error(f"element {element.name!a} has two properties named {name!a}")
    if len(element.properties) == MOST_COLUMNS:
        raise source.error(f"element {element.name!a} has more than {MOST_COLUMNS} properties")
    element.properties[name] = found


def _no_line(source: Source, line: bytes) -> Exception:
    return source.error(f"the header has a line that is not PLY: {quoted(line)}")
