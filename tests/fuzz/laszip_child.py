"""LASzip in a process of its own: it writes where it should not when it reads damaged files.

``Child`` is asked by the strict parser. Run as a program, this answers it: a file comes as its
length, how many bytes its points have, and its bytes; back go the points, or nothing.
"""

from __future__ import annotations

import io
import struct
import subprocess
import sys
from pathlib import Path

_ASK = struct.Struct("<QQ")


class EndedError(Exception):
    """LASzip has ended the process."""


class Child:
    """The process, started when it is asked, and again when it has ended."""

    process = None

    def points(self, data, size):
        """``size`` bytes of points of a file; None if LASzip finds it broken."""
        if self.process is None:
            command = [sys.executable, str(Path(__file__))]
            pipe = subprocess.PIPE
            self.process = subprocess.Popen(
                command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL
            )
        try:
            self.process.stdin.write(_ASK.pack(len(data), size) + data)
            self.process.stdin.flush()
            found = self.process.stdout.read(8)
            length = int.from_bytes(found, "little")
            table = self.process.stdout.read(length)
        except BrokenPipeError:
            found = b""
        if len(found) < 8 or len(table) < length:
            self.process.kill()
            self.process.communicate()
            self.process = None
            raise EndedError
        return table if length else None


def answer():
    import laszip

    while ask := sys.stdin.buffer.read(_ASK.size):
        length, size = _ASK.unpack(ask)
        data, table = sys.stdin.buffer.read(length), bytearray(size)
        try:
            laszip.LasUnZipper(io.BytesIO(data)).decompress_into(table)
        except Exception:
            table = b""
        sys.stdout.buffer.write(len(table).to_bytes(8, "little") + table)
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    answer()
