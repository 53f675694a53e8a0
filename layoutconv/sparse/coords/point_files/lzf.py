"""LZF, the compression of ``.pcd`` files: bytes as they are, and copies of bytes before."""

from __future__ import annotations

MOST = 88  # bytes that a byte of compressed data can stand for: 264 in three


def decompress(data: bytes, size: int) -> bytes | None:
    """Return ``size`` bytes; None if the data are no whole stream of so many.

    A control byte below 32 has so many bytes less one behind it. Others hold a length less two in
    three bits, 7 meaning that more of it is in the next byte, and, with one byte more, how far
    before the end of what there is the copy begins, less one. A copy may run into itself.

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
