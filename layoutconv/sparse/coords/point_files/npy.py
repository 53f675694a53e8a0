"""``.npy``: an array (points, columns) of numbers, as ``numpy.save`` writes it.

NumPy Enhancement Proposal 1 describes the format. Only headers of arrays of plain numbers are read;
nothing is evaluated or unpickled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .columns import WantedColumns, allocated, check_columns, doubles
from .source import Source
from .text_lines import quoted

if TYPE_CHECKING:
    import numpy as np

_MAGIC = b"\x93NUMPY"
_LONGEST = 1 << 16  # bytes of a header
_KINDS = re.compile(r"[<>](?:f[248]|[iu][1248])|\|[iu]1")
_VALUE = rb"""[A-Z][a-z]+|'[^'"]*'|"[^'"]*"|\([^()]*\)"""
_NAME = rb"(?:descr|fortran_order|shape)"
_ENTRY = rb"""[ \t\n]*('%b'|"%b")[ \t]*:[ \t]*(%b)[ \t]*""" % (_NAME, _NAME, _VALUE)
_HEADER = re.compile(rb"\{%b,%b,%b(?:,[ \t\n]*)?\}[ \t\n]*" % (_ENTRY, _ENTRY, _ENTRY))
_NUMBER = rb"(?:0|[1-9]\d{0,17})L?"
_SHAPE = re.compile(rb"\( *(?:%b *, *)*(?:%b *)?\)" % (_NUMBER, _NUMBER))


def read_npy(source: Source, wanted: WantedColumns) -> np.ndarray:
    """Return the rows of a ``.npy`` file.

    Raises :class:`~layoutconv.errors.PointFileError`.
    """
    import numpy as np

    dtype, shape, turned, start = _header(source)
    if len(shape) != 2:
        raise source.error(f"expected an array (points, columns), got shape {shape}")
    points, columns = shape
    check_columns(source, columns, wanted)
    source.check_room(start, points * columns * dtype.itemsize, f"an array of {dtype} {shape}")
    kept = columns if wanted.columns is None else wanted.columns
    rows = allocated(source, points, kept, wanted)
    end = start + points * columns * dtype.itemsize
    if end != source.size:
        raise source.error(f"{source.size - end} bytes follow the array of {dtype} {shape}")
    if turned:
        for to in range(kept):
            begin = start + to * points * dtype.itemsize
            for at, piece in source.records(dtype, points, begin, f"column {to}"):
                rows[at, to] = doubles(piece)
    else:
        for at, piece in source.records(np.dtype((dtype, (columns,))), points, start, "the array"):
            rows[at] = doubles(piece[:, :kept])
    return rows


def _header(source: Source) -> tuple[np.dtype, tuple[int, ...], bool, int]:
    """Return the type, the shape, whether it is in Fortran order, and where the numbers begin."""
    import numpy as np

    head = source.head(_LONGEST)
    if head[:6] != _MAGIC:
        raise source.error("not a .npy file, which starts with '\\x93NUMPY'")
    width = {b"\1\0": 2, b"\2\0": 4, b"\3\0": 4}.get(head[6:8])
    if width is None or len(head) < 8 + width:
        raise source.error(f"expected a .npy file of version 1.0 to 3.0, got {head[6:8]!r}")
    start = 8 + width + int.from_bytes(head[8 : 8 + width], "little")
    text = head[8 + width : start]
    if start > len(head):
        raise source.error(f"expected a header of {start} bytes, but there are {len(head)}")
    found = _HEADER.fullmatch(text)
    both = found.groups() if found else ()
    entries = {name[1:-1]: value for name, value in zip(both[::2], both[1::2], strict=True)}
    turned, shape = entries.get(b"fortran_order"), entries.get(b"shape", b"")
    if len(entries) != 3 or turned not in (b"True", b"False") or not _SHAPE.fullmatch(shape):
        raise source.error(f"expected a header of an array of numbers, got {quoted(text.rstrip())}")
    descr = entries[b"descr"].decode("latin-1")[1:-1]
    if not _KINDS.fullmatch(descr):
        raise source.error(f"expected an array of numbers, got {quoted(entries[b'descr'])}")
    extents = tuple(int(extent) for extent in re.findall(rb"\d+", shape))
    return np.dtype(descr), extents, turned == b"True", start
