"""PNG files with the standard library alone."""

from __future__ import annotations

import os
import struct
import zlib
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from .files import write

if TYPE_CHECKING:
    from numpy import ndarray
    from typing_extensions import Buffer

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_COLOUR_TYPES = {3: 2, 4: 6}  # channels: what the header calls RGB and RGBA


def write_png(path: str | os.PathLike[str], pixels: Buffer | ndarray) -> None:
    """Write a picture.

    Args:
        path: the file; one that is there is replaced.
        pixels: uint8 (H, W, 3) for red, green, blue, or (H, W, 4) with opacity: a contiguous
            NumPy array, or whatever else exports such a buffer.

    Raises ``ArgumentError`` for pixels of another type or shape. The format is ISO/IEC 15948.

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "dot.png")
    >>> write_png(path, memoryview(bytes([255, 128, 0])).cast("B", (1, 1, 3)))
    >>> path.read_bytes()[1:4]
    b'PNG'
    """
    view = memoryview(pixels)  # type: ignore[arg-type]  # an array is a buffer
    shape = tuple(view.shape or ())
    if view.format != "B" or len(shape) != 3 or shape[2] not in _COLOUR_TYPES or 0 in shape:
        raise ArgumentError(
            "pixels", "uint8 (H, W, 3) or (H, W, 4), not empty", f"{view.format!r} {shape}"
        )
    height, width, channels = shape
    data, stride = view.tobytes(), width * channels
    # A row starts with the number of its filter: 0, the bytes as they are.
    rows = b"".join(b"\0" + data[row * stride : (row + 1) * stride] for row in range(height))
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOUR_TYPES[channels], 0, 0, 0)
    chunks = (b"IHDR", header), (b"IDAT", zlib.compress(rows, 6)), (b"IEND", b"")
    picture = _SIGNATURE + b"".join(_chunk(kind, body) for kind, body in chunks)
    write(path, picture)


def _chunk(kind: bytes, body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
