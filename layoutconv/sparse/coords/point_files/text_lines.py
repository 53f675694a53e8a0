"""Lines of numbers: one per column of a table, and nothing that is not a number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any

from ....base.caches import remembered
from .source import Source

if TYPE_CHECKING:
    import numpy as np

_PIECE = 1 << 20  # bytes of text parsed at once
_LONGEST = 1 << 17  # bytes of a line: 4,096 numbers with room to spare
# A run of digits matches in one way only, so that a long one that fails is not retried repeatedly.
_INTEGER = rb"[+-]?\d+(?:\.0*)?"  # some write 255.0 for a colour
_FLOAT = rb"[+-]?(?:(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?|(?i:nan|inf|infinity))"
_DIGITS = b"0123456789+-"
_PLAIN = _DIGITS + b".eE \t\n"


class Lines:
    """The lines of a file from an offset on. A line ends in ``\\n`` or ``\\r\\n``."""

    def __init__(self, source: Source, start: int) -> None:
        self.source = source
        self._at = start
        self._begun = b""  # start of a line whose end is not read yet
        self._lines: list[bytes] = []

    def take(self, count: int, what: str) -> Iterator[tuple[slice, list[bytes]]]:
        """Yield ``count`` lines in pieces: their range, and the lines without line ends."""
        done = 0
        while done < count:
            if not self._lines and not self._more():
                raise self.source.error(
                    f"{what}: expected {count} lines, but the file has {done}; truncated?"
                )
            part = self._lines[: count - done]
            del self._lines[: count - done]
            yield slice(done, done + len(part)), part
            done += len(part)

    def check_end(self, what: str) -> None:
        """Raise if a line that is not blank follows the lines taken."""
        while self._lines or self._more():
            for line in self._lines:
                if line.strip():
                    raise self.source.error(f"{what} are followed by another line: {quoted(line)}")
            self._lines.clear()

    def _more(self) -> bool:
        count = min(_PIECE, self.source.size - self._at)
        if count:
            data = self._begun + self.source.read(self._at, count, "a line")
            self._at += count
            *self._lines, self._begun = data.split(b"\n")
            if b"\r" in data:
                self._lines = [line.removesuffix(b"\r") for line in self._lines]
        elif self._begun:
            self._lines, self._begun = [self._begun.removesuffix(b"\r")], b""
        if max(map(len, (*self._lines, self._begun))) > _LONGEST:
            raise self.source.error(f"a line is longer than {_LONGEST} bytes")
        return bool(self._lines) or (bool(count) and self._more())


def numbers(source: Source, lines: list[bytes], kinds: Sequence[str], what: str) -> np.ndarray:
    """Return float64 (lines, columns), for columns of these kinds: NumPy's ``f4``, ``u1``, ....

    Raises :class:`~layoutconv.errors.PointFileError` for a line with another number of numbers, for
    a word that is not a number, and for an integer out of the range of its type.
    """
    import numpy as np

    integers = [at for at, kind in enumerate(kinds) if kind[0] in "iu"]
    letters = "".join("f" if kind[0] == "f" else "i" for kind in kinds)
    text = b"\n".join(lines)
    if not _is_plain(text, lines, integers, len(kinds)):
        for line in lines:
            if not is_row(line, letters):
                raise _no_row(source, line, kinds, what)
    try:
        table = np.loadtxt(text.decode("latin-1").split("\n"), comments=None, ndmin=2)
    except ValueError as error:
        line = next((line for line in lines if not is_row(line, letters)), lines[0])
        raise _no_row(source, line, kinds, what) from error
    if table.shape[1] != len(kinds):
        raise _no_row(source, lines[0], kinds, what)
    for at in integers:
        limits = np.iinfo(np.dtype(kinds[at]))
        wrong = (table[:, at] < float(limits.min)) | (table[:, at] > float(limits.max))
        if wrong.any():
            got = table[int(wrong.argmax()), at]
            expected = f"{limits.min} to {limits.max}"
            raise source.error(f"{what}: column {at} can hold {expected}, got {got:.0f}")
    return table


def _is_plain(text: bytes, lines: list[bytes], integers: list[int], columns: int) -> bool:
    """Return whether NumPy's parser, three times as fast as a pattern, is strict enough for lines.

    It checks floating-point numbers, and that all lines have equally many. It accepts blank lines
    and words, and takes 1e2 and 1.0000000000000000001 for integers.
    """
    if text.translate(None, _PLAIN) or not all(map(bytes.strip, lines)):
        return False
    if not integers:
        return True
    words = text.split()
    if len(words) != len(lines) * columns:
        return False
    return not any(b"".join(words[at::columns]).translate(None, _DIGITS) for at in integers)


def is_row(line: bytes, letters: str) -> bool:
    """Return whether a line has floating-point numbers, ``f``, and integers, ``i``, in this order.

    >>> is_row(b"0.5 -1e3 nan 7", "fffi"), is_row(b"0.5 1_0", "ff"), is_row(b"1.5", "i")
    (True, False, False)
    """
    return _row(letters)(line + b" ") is not None


def fits(word: bytes, kind: str) -> bool:
    """Return whether a type can hold a number that :func:`is_row` found.

    >>> fits(b"255.0", "u1"), fits(b"-1", "u1"), fits(b"-128", "i1"), fits(b"1e9", "f4")
    (True, False, True, True)
    """
    if kind[0] == "f":
        return True
    bits = 8 * int(kind[1]) - (kind[0] == "i")
    head = word.partition(b".")[0]
    return len(head) < 40 and -(2**bits) * (kind[0] == "i") <= int(head) < 2**bits


def check_text(source: Source, start: int, rows: int, columns: int, what: str) -> None:
    """Raise unless a file has room for rows of numbers: a byte for each, and one between them."""
    source.check_room(start, max(0, 2 * rows * columns - 1), f"{rows} {what}")


def quoted(line: bytes) -> str:
    """Return a line of a file as messages show it."""
    text = line.decode("latin-1")
    return repr(text if len(text) <= 60 else text[:57] + "...")


def _no_row(source: Source, line: bytes, kinds: Sequence[str], what: str) -> Exception:
    integers = sum(kind[0] in "iu" for kind in kinds)
    some = f", {integers} of them integers," if integers else ""
    return source.error(
        f"{what}: expected a line of {len(kinds)} numbers{some}, got {quoted(line)}"
    )


@remembered(64)
def _row(letters: str) -> Callable[[bytes], Any]:
    runs = (
        (_FLOAT if letter == "f" else _INTEGER, len([*run])) for letter, run in groupby(letters)
    )
    row = b"".join(rb"(?:%b[ \t]+){%d}" % run for run in runs)
    return re.compile(rb"[ \t]*" + row).fullmatch
