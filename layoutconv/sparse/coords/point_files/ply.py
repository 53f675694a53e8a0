"""``.ply``: the vertices of a file in the Stanford polygon format, ascii or binary.

G. Turk, "The PLY Polygon File Format", 1994. The reader walks through all elements, also those
behind the vertices: if a header's numbers fit the whole file, they are the right ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .columns import PointColumns, WantedColumns
from .ply_header import Element, read_header
from .source import PIECE, Source
from .text_lines import Lines, check_text, fits, is_row, numbers, quoted

if TYPE_CHECKING:
    import numpy as np


def read_ply(source: Source, wanted: WantedColumns) -> np.ndarray:
    """Return the rows of a ``.ply`` file: its vertices.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    header = read_header(source)
    names = [element.name for element in header.elements]
    if "vertex" not in names:
        raise source.error(f"expected an element named vertex, got {', '.join(map(ascii, names))}")
    vertex = header.elements[names.index("vertex")]
    if vertex.has_lists:
        lists = [name for name, found in vertex.properties.items() if found.counted]
        raise source.error(f"expected vertices of numbers alone, got lists: {', '.join(lists)}")
    walk: Any = _Ascii(source, header.end) if header.order == "=" else _Binary(source, header)
    rows = None
    for element in header.elements:
        if element is vertex:
            rows = walk.rows(element, wanted)
        elif element.properties:
            walk.skip(element)
    walk.check_end()
    assert rows is not None
    return rows


class _Ascii:
    """The data of an ascii file, with one line per item of an element."""

    def __init__(self, source: Source, start: int) -> None:
        self.source, self.start = source, start
        self.lines = Lines(source, start)

    def rows(self, element: Element, wanted: WantedColumns) -> np.ndarray:
        check_text(self.source, self.start, element.count, len(element.properties), "vertices")
        columns = PointColumns(self.source, [*element.properties], element.count, wanted)
        kinds = [found.kind for found in element.properties.values()]
        lines = self.lines.take(element.count, "vertices")
        tables = ((at, numbers(self.source, part, kinds, "vertices")) for at, part in lines)
        return columns.fill(tables, lambda table, place: table[:, place])

    def skip(self, element: Element) -> None:
        what = f"element {element.name!a}"
        kinds = [found.kind for found in element.properties.values()]
        for _, part in self.lines.take(element.count, what):
            if element.has_lists:
                for line in part:
                    self._check_lists(element, line)
            else:
                numbers(self.source, part, kinds, what)

    def _check_lists(self, element: Element, line: bytes) -> None:
        """Raise unless a line has exactly the numbers of an element with lists."""
        words = line.split()
        kinds: list[str] = []
        for found in element.properties.values():
            count = 1
            if found.counted:
                word = words[len(kinds)] if len(kinds) < len(words) else b""
                # Too large a count is an error below.
                count = int(word) if word.isdigit() and len(word) < 10 else len(words)
                kinds.append(found.counted)
            kinds += [found.kind] * min(count, len(words))
        letters = "".join("f" if kind[0] == "f" else "i" for kind in kinds)
        if not is_row(line, letters) or not all(map(fits, words, kinds)):
            raise self.source.error(
                f"element {element.name!a}: a line of {len(element.properties)} numbers and lists "
                f"expected, got {quoted(line)}"
            )

    def check_end(self) -> None:
        self.lines.check_end("all elements")


class _Binary:
    """The data of a binary file."""

    def __init__(self, source: Source, header: Any) -> None:
        self.source, self.order, self.at = source, header.order, header.end

    def rows(self, element: Element, wanted: WantedColumns) -> np.ndarray:
        import numpy as np

        self.source.check_room(self.at, element.count * _least(element), "vertices")
        names = [*element.properties]
        columns = PointColumns(self.source, names, element.count, wanted)
        kinds = [self.order + found.kind for found in element.properties.values()]
        dtype = np.dtype([(f"f{at}", kind) for at, kind in enumerate(kinds)])
        records = self.source.records(dtype, element.count, self.at, f"{element.count} vertices")
        self.at += element.count * dtype.itemsize
        return columns.fill(records, lambda piece, place: piece[f"f{place}"])

    def skip(self, element: Element) -> None:
        what = f"element {element.name!a}"
        least = element.count * _least(element)
        self.source.check_room(self.at, least, what)
        if not element.has_lists:
            self.at += least
            return
        self.at = _after_lists(self.source, self.at, element, self.order)

    def check_end(self) -> None:
        self.source.check_end(self.at, "all elements")


def _least(element: Element) -> int:
    """Return the fewest bytes of an item of an element in a binary file, with empty lists."""
    return sum(int((found.counted or found.kind)[1]) for found in element.properties.values())


def _after_lists(source: Source, at: int, element: Element, order: str) -> int:
    """Return where an element with lists, which begins at byte ``at``, ends."""
    what, byte_order = f"element {element.name!a}", "little" if order == "<" else "big"
    # For each list: bytes before its length, bytes and sign of the length, bytes per entry.
    steps, before = [], 0
    for found in element.properties.values():
        size = int(found.kind[1])
        if found.counted:
            steps.append((before, int(found.counted[1]), found.counted[0] == "i", size))
            before = 0
        else:
            before += size
    data, begin = b"", at  # a piece of the file, and where it begins
    for _ in range(element.count):
        for skipped, width, signed, size in steps:
            at += skipped
            if at + width > begin + len(data):
                rest = source.size - at
                data, begin = source.read(at, max(width, min(PIECE, rest)), what), at
            place = at - begin
            count = int.from_bytes(data[place : place + width], byte_order, signed=signed)  # type: ignore[arg-type]
            if count < 0:
                raise source.error(f"{what}: a list of {count} numbers")
            at += width + count * size
        at += before
    source.check_room(at, 0, what)
    return at
