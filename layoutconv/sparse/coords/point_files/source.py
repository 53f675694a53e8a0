"""``Source``: an open regular file, whose parts are read exactly or with an error."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, BinaryIO

from ....errors import PointFileError

if TYPE_CHECKING:
    import numpy as np

PIECE = 1 << 24  # bytes read at once, or one record if that is longer
_PADDING = 1 << 16  # bytes behind the data that may be zeros: a page at most
_GZIP = b"\x1f\x8b\x08"


class Source:
    """An open point file. Offsets and sizes are in bytes.

    Attributes:
        path: as it was given.
        size: of the whole file, when it was opened.
    """

    def __init__(self, path: str, file: BinaryIO, size: int) -> None:
        self.path = path
        self.size = size
        self._file = file

    def error(self, message: str) -> PointFileError:
        """Return an error to raise, with the path in front."""
        return PointFileError(f"{self.path}: {message}")

    def read(self, start: int, count: int, what: str) -> bytes:
        """Return exactly ``count`` bytes from ``start`` on; ``what`` names them in errors.

        Nothing is allocated for bytes that the file does not have.
        """
        self.check_room(start, count, what)
        self._file.seek(start)
        data = self._file.read(count)
        if len(data) != count:
            raise self.error(f"changed while it was read: {what} ended after {len(data)} bytes")
        return data

    def head(self, most: int) -> bytes:
        """Return the first bytes, at most ``most``."""
        return self.read(0, min(most, self.size), "the header")

    def records(
        self, dtype: np.dtype, count: int, start: int, what: str
    ) -> Iterator[tuple[slice, np.ndarray]]:
        """Yield ``count`` records from ``start`` on, in pieces: their range, and an array."""
        import numpy as np

        self.check_room(start, count * dtype.itemsize, what)
        step = max(1, PIECE // dtype.itemsize)
        for first in range(0, count, step):
            rows = min(step, count - first)
            data = self.read(start + first * dtype.itemsize, rows * dtype.itemsize, what)
            yield slice(first, first + rows), np.frombuffer(data, dtype, rows)

    def check_room(self, start: int, count: int, what: str) -> None:
        """Raise unless the file has ``count`` bytes from ``start`` on."""
        if not 0 <= start <= start + count <= self.size:
            raise self.error(
                f"{what} should take {count} bytes from byte {start} on, but the file has "
                f"{self.size} bytes; truncated, or a number in the header is wrong"
            )

    def check_end(self, end: int, what: str, limit: int | None = None) -> None:
        """Raise unless only a little padding lies between the ``end`` of data and ``limit``.

        Otherwise a count that is too small would silently leave data unread.
        """
        limit = self.size if limit is None else limit
        rest = self.read(end, min(limit - end, _PADDING + 1), "what follows the data")
        if len(rest) > _PADDING or rest.strip(b"\0 \t\r\n"):
            raise self.error(
                f"{what} end at byte {end}, but {limit - end} bytes follow that are no padding; "
                f"a number of the header is wrong"
            )


@contextmanager
def opened(path: str) -> Iterator[Source]:
    """Open a point file while it is read.

    Files that are not regular, which could block or never end, are refused unread.

    Raises :class:`~layoutconv.errors.PointFileError` for these, and for errors of the system.
    """
    # Without O_NONBLOCK, opening a FIFO waits for someone to write to it.
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    try:
        number = os.open(path, flags)
    except OSError as error:
        raise PointFileError(f"{path}: {error.strerror or error}") from error
    except ValueError as error:
        raise PointFileError(f"{path!a}: no file can have this name: {error}") from error
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise PointFileError(f"{path}: expected a regular file, got {_kind(status.st_mode)}")
        source = Source(path, os.fdopen(number, "rb", closefd=False), status.st_size)
        if not source.size:
            raise source.error("is empty")
        if source.head(len(_GZIP)) == _GZIP:
            raise source.error("is compressed with gzip; unpack it first")
        yield source
    except OSError as error:
        raise PointFileError(f"{path}: {error.strerror or error}") from error
    finally:
        os.close(number)


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFCHR: "a character device",
        stat.S_IFBLK: "a block device",
        stat.S_IFSOCK: "a socket",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")
