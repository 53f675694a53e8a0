"""LZF, the compression of ``.pcd`` files: literal bytes, and copies of earlier ones."""

from __future__ import annotations

MOST = 88  # bytes per byte of compressed data: 264 for three


def decompress(data: bytes, size: int) -> bytes | None:
    """Return ``size`` bytes; None if the data are not a complete stream of that size.

    A control byte below 32 is followed by that many literal bytes plus one. Others hold a length
    less two in three bits, where 7 means that the next byte adds to it, and, with one byte more,
    the distance of the copy's start from the end of the output, less one. A copy may overlap its
    own output.

    >>> decompress(b"\\x02abc" + b"\\x60\\x02" + b"\\x00!", 9)
    b'abcabcab!'
    """
    out = bytearray()
    at, end = 0, len(data)
    try:
        while at < end:
            control = data[at]
            at += 1
            if control < 32:
                out += data[at : at + control + 1]
                at += control + 1
                continue
            length = (control >> 5) + 2
            if length == 9:
                length += data[at]
                at += 1
            back = ((control & 31) << 8) + data[at] + 1
            at += 1
            begin = len(out) - back
            if begin < 0 or len(out) + length > size:
                return None
            if length <= back:
                out += out[begin : begin + length]
            else:
                out += (out[begin:] * (length // back + 1))[:length]
    except IndexError:
        return None
    return bytes(out) if len(out) == size and at == end else None
