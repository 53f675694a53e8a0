"""write_png, against a decoder of the format written here."""

from __future__ import annotations

import errno
import struct
import zlib
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from layoutconv import Layout
from layoutconv.draw import draw
from layoutconv.draw.png import write_png


def read_png(path: Path) -> np.ndarray:
    """The pixels of an 8-bit RGB or RGBA file with unfiltered rows, checksums checked."""
    data = path.read_bytes()
    assert data[:8] == bytes([137, 80, 78, 71, 13, 10, 26, 10])
    chunks, at = [], 8
    while at < len(data):
        length, kind = struct.unpack_from(">I4s", data, at)
        body = data[at + 8 : at + 8 + length]
        (crc,) = struct.unpack_from(">I", data, at + 8 + length)
        assert crc == zlib.crc32(kind + body)
        chunks.append((kind, body))
        at += 12 + length
    assert [kind for kind, _ in chunks] == [b"IHDR", b"IDAT", b"IEND"]
    width, height, depth, colour, *rest = struct.unpack(">IIBBBBB", chunks[0][1])
    assert (depth, rest) == (8, [0, 0, 0])
    channels = {2: 3, 6: 4}[colour]
    rows = np.frombuffer(zlib.decompress(chunks[1][1]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, channels)


@pytest.mark.parametrize("shape", [(1, 1, 3), (5, 3, 4), (31, 17, 3)])
def test_pixels_come_back(tmp_path, shape):
    pixels = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    write_png(tmp_path / "a.png", pixels)
    np.testing.assert_array_equal(read_png(tmp_path / "a.png"), pixels)


@pytest.mark.parametrize(
    "pixels",
    [
        np.zeros((4, 4), np.uint8),
        np.zeros((4, 4, 2), np.uint8),
        np.zeros((4, 4, 3), np.float32),
        np.zeros((0, 4, 3), np.uint8),
    ],
)
def test_pixels_that_are_refused(tmp_path, pixels):
    with pytest.raises(ValueError, match="`pixels`: expected uint8"):
        write_png(tmp_path / "a.png", pixels)
    assert not (tmp_path / "a.png").exists()


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_what_a_full_disk_refuses_is_named(name, tmp_path, monkeypatch):
    def full(self: Path, *arguments: object, **options: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(Path, "write_text", full)
    pixels = np.zeros((2, 2, 3), dtype=np.uint8)
    save = partial(write_png, pixels=pixels) if name == "a.png" else draw(Layout(4, 2)).save
    with pytest.raises(OSError, match="No space left") as told:
        save(tmp_path / name)
    assert told.value.filename == str(tmp_path / name)
