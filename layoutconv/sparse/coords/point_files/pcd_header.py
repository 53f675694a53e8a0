"""The header of a ``.pcd`` file: its fields, its number of points, and its data format."""

from __future__ import annotations

import re
from dataclasses import dataclass

from .columns import MOST_COLUMNS
from .source import Source
from .text_lines import is_row, quoted

_LONGEST = 1 << 18  # bytes of a header with comments
_SIZES = {"I": "1248", "U": "1248", "F": "48"}
_KEYS = (
    "VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA",
)  # fmt: skip
_VERSIONS = (".5", "0.5", ".6", "0.6", ".7", "0.7")
_DATA = ("ascii", "binary", "binary_compressed")
_PADDING = "_"  # the name of fields without meaning


@dataclass(frozen=True)
class PcdField:
    """One or several numbers per point."""

    name: str
    kind: str  # NumPy's: ``f4``, ``u1``, ...
    count: int

    @property
    def is_colour(self) -> bool:
        """Return whether these are red, green and blue, packed into four bytes."""
        return self.name in ("rgb", "rgba") and self.kind[1] == "4" and self.count == 1

    @property
    def is_padding(self) -> bool:
        return self.name == _PADDING

    @property
    def size(self) -> int:
        """Bytes per point in a binary file."""
        return int(self.kind[1]) * self.count


@dataclass(frozen=True)
class PcdHeader:
    """A whole header."""

    fields: list[PcdField]
    points: int
    data: str  # "ascii", "binary" or "binary_compressed"
    end: int  # where the data begin


def read_header(source: Source) -> PcdHeader:
    """Read the header. Its lines may be in any order; ``DATA`` is the last.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    entries, end = _entries(source)
    missing = [key for key in ("FIELDS", "SIZE", "TYPE") if key not in entries]
    if missing:
        raise source.error(f"the header has no line {missing[0]!r}")
    if entries.get("VERSION", [".7"]) not in [[version] for version in _VERSIONS]:
        raise source.error(f"expected VERSION 0.7, got {_words(entries['VERSION'])}")
    if entries["DATA"] not in [[data] for data in _DATA]:
        raise source.error(f"expected DATA {', '.join(_DATA)}, got {_words(entries['DATA'])}")
    viewpoint = " ".join(entries.get("VIEWPOINT", "0" * 7)).encode("latin-1")
    if not is_row(viewpoint, "f" * 7):
        raise source.error(f"expected VIEWPOINT of 7 numbers, got {quoted(viewpoint)}")
    return PcdHeader(_fields(source, entries), _points(source, entries), entries["DATA"][0], end)


def _entries(source: Source) -> tuple[dict[str, list[str]], int]:
    """Return the words after each key, and where the line ``DATA`` ends."""
    head = source.head(_LONGEST)
    entries: dict[str, list[str]] = {}
    at = 0
    while "DATA" not in entries:
        stop = head.find(b"\n", at)
        if stop < 0:
            raise source.error("not a whole .pcd file: its header has no line 'DATA'; truncated?")
        line, at = head[at:stop], stop + 1
        words = line.decode("latin-1").split()
        if not words or words[0].startswith("#"):
            continue
        if words[0] not in _KEYS or len(words) == 1:
            raise source.error(f"the header has a line that is not PCD: {quoted(line)}")
        if words[0] in entries:
            raise source.error(f"the header has two lines {words[0]!r}")
        entries[words[0]] = words[1:]
    return entries, at


def _fields(source: Source, entries: dict[str, list[str]]) -> list[PcdField]:
    names = entries["FIELDS"]
    counts = entries.get("COUNT", ["1"] * len(names))
    for key, words in (("SIZE", entries["SIZE"]), ("TYPE", entries["TYPE"]), ("COUNT", counts)):
        if len(words) != len(names):
            raise source.error(f"expected {key} of {len(names)} fields, got {_words(words)}")
    for size, kind in zip(entries["SIZE"], entries["TYPE"], strict=True):
        if kind not in _SIZES or size not in [*_SIZES[kind]]:
            raise source.error(
                f"expected fields of TYPE I, U or F and their SIZEs, got {kind!a} of {size!a} bytes"
            )
    if not all(re.fullmatch("[1-9][0-9]{0,5}", count) for count in counts):
        raise source.error(f"expected COUNTs of 1 or more numbers, got {_words(counts)}")
    if sum(map(int, counts)) > MOST_COLUMNS:
        raise source.error(
            f"expected fields of {MOST_COLUMNS} numbers at most, got {_words(counts)}"
        )
    named = [name for name in names if name != _PADDING]
    twice = [name for name in named if named.count(name) > 1]
    if twice:
        raise source.error(f"the header has two fields named {twice[0]!a}")
    kinds = zip(entries["TYPE"], entries["SIZE"], strict=True)
    return [
        PcdField(name, kind.lower() + size, int(count))
        for name, (kind, size), count in zip(names, kinds, counts, strict=True)
    ]


def _points(source: Source, entries: dict[str, list[str]]) -> int:
    found = {}
    for key in ("WIDTH", "HEIGHT", "POINTS"):
        words = entries.get(key)
        if words is not None:
            if len(words) != 1 or not re.fullmatch("[0-9]{1,18}", words[0]):
                raise source.error(f"expected {key} of a whole number, got {_words(words)}")
            found[key] = int(words[0])
    if "WIDTH" in found:
        product = found["WIDTH"] * found.get("HEIGHT", 1)
        if found.setdefault("POINTS", product) != product:
            raise source.error(f"WIDTH * HEIGHT is {product}, but POINTS is {found['POINTS']}")
    if "POINTS" not in found:
        raise source.error("the header has no line 'POINTS'")
    return found["POINTS"]


def _words(words: list[str]) -> str:
    return quoted(" ".join(words).encode("latin-1"))
