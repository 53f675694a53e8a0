"""read_points on files that lie about themselves: a sentence, soon, and without memory for it."""

from __future__ import annotations

import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from layoutconv.errors import PointFileError
from layoutconv.sparse.coords.points import read_points

from .test_points import KINDS, LAS, POINTS, las, npy, pcd, ply, write

__all__ = ["write"]  # a fixture
BILLION = 10**12


def refused(path, message, **options):
    with pytest.raises(PointFileError, match=message) as error:
        read_points(path, **options)
    assert str(error.value).startswith(f"{path}: ")


def patched(data, at, code, value):
    data = bytearray(data)
    struct.pack_into(code, data, at, value)
    return bytes(data)


@pytest.mark.parametrize("count", [2, 255, 2**31, 2**32 - 1])
def test_a_laz_file_with_another_number_of_chunks(write, count):
    """The package that decompresses would allocate what it says, and end the process."""
    whole = las(".laz", LAS)
    (start,) = struct.unpack_from("<I", whole, 96)
    (table,) = struct.unpack_from("<q", whole, start)
    path = write("a.laz", patched(whole, table + 4, "<I", count))
    refused(path, rf"expected a chunk table for 2 points in \d+ bytes, got {count} chunks")
    for place in (0, -2, 7, start, len(whole), 2**62):
        path = write("a.laz", patched(whole, start, "<q", place))
        refused(path, "chunk table")


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_a_las_file_with_another_number_of_records(write, suffix):
    for count in (5, 2**31, 2**32 - 1):
        path = write("a" + suffix, patched(las(suffix, LAS), 100, "<I", count))
        refused(path, f"expected {count} records of 54 bytes or more")


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_las_headers_are_checked_number_by_number(write, suffix):
    whole = las(suffix, LAS)
    for at, code, value, message in [
        (24, "B", 2, "expected LAS of version 1.0 to 1.5, got 2.2"),
        (25, "B", 6, "expected LAS of version 1.0 to 1.5, got 1.6"),
        (25, "B", 4, "expected a header of 375 bytes, got 227"),
        (94, "<H", 65535, "the header should take 65535 bytes"),
        (96, "<I", 100, "expected points after the header's 227 bytes, got byte 100"),
        (96, "<I", 2**32 - 1, "expected points after the header's 227 bytes"),
        (104, "B", 9, "expected a point format of 0 to 3 for LAS 1.2, got 9"),
        (105, "<H", 12, "expected points of 26 bytes or more for point format 2, got 12"),
        (107, "<I", 2**32 - 1, "4294967295 points"),
        (131, "<d", 0.0, "positive scales"),
        (131, "<d", float("nan"), "positive scales"),
        (155, "<d", float("inf"), "finite offsets"),
    ]:
        data = patched(whole, at, code, value)
        if at == 104 and suffix == ".laz":
            data = patched(whole, at, code, value | 128)
        refused(write("a" + suffix, data), message)


def test_a_las_file_does_not_hide_points(write):
    """A header with too few of them would leave the others unread, without a word."""
    path = write("a.las", patched(las(".las", LAS), 107, "<I", 1))
    refused(path, r"1 points of 26 bytes end at byte \d+, but 26 bytes follow")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "count", ["0", "2", "-1", "4294967296", "999999999999999999999", "x", "1_0"]
)
def test_a_pcd_file_with_another_count(write, kind, count):
    header, _, body = pcd(kind).partition(b"\nWIDTH")
    head, _, counts = header.rpartition(b"COUNT ")
    counts = counts.split(b" ")
    counts[-1] = count.encode()
    path = write("a.pcd", head + b"COUNT " + b" ".join(counts) + b"\nWIDTH" + body)
    refused(path, "COUNT|points|9 points")


@pytest.mark.parametrize("kind", KINDS)
def test_pcd_headers_are_checked_line_by_line(write, kind):
    whole = pcd(kind)
    for old, new, message in [
        (
            b"SIZE 4",
            b"SIZE 3",
            "expected fields of TYPE I, U or F and their SIZEs, got 'F' of '3' bytes",
        ),
        (b"TYPE F", b"TYPE D", "TYPE I, U or F"),
        (b"FIELDS x", b"FIELDS y", "two fields named 'y'"),
        (b"WIDTH 9", b"WIDTH 10", "WIDTH . HEIGHT is 10, but POINTS is 9"),
        (b"POINTS 9", b"POINTS nine", "expected POINTS of a whole number, got 'nine'"),
        (b"WIDTH 9\nHEIGHT 1", b"HEIGHT 1\nHEIGHT 1", "two lines 'HEIGHT'"),
        (b"VIEWPOINT 0", b"VIEWPOINT", "expected VIEWPOINT of 7 numbers, got '0 0 1 0 0 0'"),
        (b"DATA " + kind.encode(), b"DATA zip", "expected DATA ascii, binary, binary_compressed"),
        (b"VERSION 0.7", b"VERSION 8", "expected VERSION 0.7, got '8'"),
        (b"SIZE", b"SIZES", "not PCD: 'SIZES"),
    ]:
        assert old in whole
        refused(write("a.pcd", whole.replace(old, new, 1)), message)
    many = whole.replace(b"WIDTH 9", b"WIDTH %d" % BILLION)
    refused(write("a.pcd", many.replace(b"POINTS 9", b"POINTS %d" % BILLION)), f"{BILLION} points")


def test_compressed_pcd_sizes_are_checked(write):
    whole = pcd("binary_compressed")
    at = whole.index(b"compressed\n") + len(b"compressed\n")
    packed, size = struct.unpack_from("<II", whole, at)
    refused(write("a.pcd", patched(whole, at, "<I", 2**32 - 1)), "the compressed data should take")
    refused(write("a.pcd", patched(whole, at, "<I", packed - 1)), "but 1 bytes follow that are no")
    refused(
        write("a.pcd", patched(whole, at + 4, "<I", size + 1)), f"got {size + 1} bytes, compressed"
    )
    refused(write("a.pcd", patched(whole, at + 8, "B", 255)), "the compressed data are not LZF")


PLY_KINDS = ["ascii", "binary_little_endian", "binary_big_endian"]


@pytest.mark.parametrize("kind", PLY_KINDS)
def test_a_ply_property_twice(write, kind):
    whole = ply(kind).replace(b"property float red", b"property float x")
    refused(write("a.ply", whole), "element 'vertex' has two properties named 'x'")


TABLE = "ply\nformat ascii 1.0\nelement vertex 2\nproperty {} x\nproperty float y\n"
TABLE += "property float z\nend_header\n"


@pytest.mark.parametrize(
    ("kind", "text", "got"),
    [
        ("float", "1 2\n3 4 5 6\n", "'1 2'"),
        ("float", "1 2 3 4\n5 6\n", "'1 2 3 4'"),
        ("float", "1 2 3\n\n4 5 6\n", "''"),
        ("float", "\n1 2 3\n4 5 6\n", "''"),
        ("float", "1_0 2 3\n4 5 6\n", "'1_0 2 3'"),
        ("float", "1 2 3\n4 0x10 6\n", "'4 0x10 6'"),
        ("float", "1 2 3\n4 5,5 6\n", "'4 5,5 6'"),
        ("float", "1 2 3\n4 \xb2 6\n", "'4 \xb2 6'"),
        ("float", "1\x0b2 3 4\n4 5 6\n", r"'1\\x0b2 3 4'"),
        ("float", "1 2 3\n4 5 6e\n", "'4 5 6e'"),
        ("uchar", "1.5 2 3\n4 5 6\n", "'1.5 2 3'"),
        ("uchar", "1e2 2 3\n4 5 6\n", "'1e2 2 3'"),
        ("uchar", "1.00000000000000000000001 2 3\n4 5 6\n", "'1.00"),
        ("uchar", "nan 2 3\n4 5 6\n", "'nan 2 3'"),
        ("uchar", "1 2 3\n256 5 6\n", "column 0 can hold 0 to 255, got 256"),
        ("uchar", "1 2 3\n-1 5 6\n", "column 0 can hold 0 to 255, got -1"),
    ],
)
def test_lines_that_are_no_rows(write, kind, text, got):
    path = write("a.ply", (TABLE.format(kind) + text).encode("latin-1"))
    refused(path, f"vertices: .*{got}")


def test_lines_that_are_rows(write):
    text = "+1. .5e0\t3\r\n  255.0   -5E-1 6 "
    path = write("a.ply", (TABLE.format("uchar") + text).encode())
    np.testing.assert_array_equal(read_points(path), [[1, 0.5, 3], [255, -0.5, 6]])


@pytest.mark.parametrize("entry", ["'descr\"", "\"descr'", "'descr': '<f4\"", '"descr": "<f4\''])
def test_an_array_whose_quotes_do_not_match(write, entry):
    """A bit that was flipped makes one quote the other, and NumPy reads no such file either."""
    entry = entry if ":" in entry else f"{entry}: '<f4'"
    text = f"{{{entry}, 'fortran_order': False, 'shape': (1, 3), }}\n".encode()
    path = write("a.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + bytes(12))
    refused(path, "expected a header of an array of numbers")
    good = path.read_bytes().replace(b'"', b"'")
    np.testing.assert_array_equal(read_points(write("b.npy", good)), np.zeros((1, 3)))


def test_long_words_are_no_hours(write):
    """Patterns that may match in two ways try all of them."""
    for word in ("1" * 100_000 + "x", "1." + "1" * 100_000 + "x", "nan" * 10_000, "1e" * 30_000):
        refused(write("a.ply", (TABLE.format("uchar") + f"{word} 2 3\n4 5 6\n").encode()), "'")
    refused(write("a.ply", (TABLE.format("float") + "1" * 200_000).encode()), "a line is longer")
    header = b"\x93NUMPY\1\0" + struct.pack("<H", 60_000) + b"{'descr':" + b" " * 59_991
    refused(write("a.npy", header), "expected a header of an array of numbers")


@pytest.mark.parametrize(
    "header",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9, 5), 'shape': (9, 5)}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (9, 5), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9, -5), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (9, 5 + 0), }",
        "{'descr': [('x', '<f4')], 'fortran_order': False, 'shape': (9, 5), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': __import__('os'), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (9, 5), }",
        "(" * 5000,
    ],
)
def test_npy_headers_are_not_evaluated(write, header):
    text = header.encode() + b"\n"
    path = write("a.npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + POINTS.tobytes())
    refused(path, "expected a(n array| header of an array) of numbers, got")


def test_an_npy_header_of_another_writer(write):
    text = b'{"fortran_order":True, "shape" : (9,5),\'descr\': "<f4"}'
    data = b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text + POINTS.tobytes(order="F")
    np.testing.assert_array_equal(read_points(write("a.npy", data)), POINTS)


def claims():
    """Files that are as large as they say, and are nothing but holes."""
    size = BILLION * 12
    text = f"{{'descr': '<f4', 'fortran_order': False, 'shape': ({BILLION}, 3), }}\n".encode()
    yield ".npy", b"\x93NUMPY\1\0" + struct.pack("<H", len(text)) + text, size
    yield ".bin", bytes(12), size
    whole = ply("binary_little_endian", "xyz", rows=POINTS[:, :3])
    yield ".ply", whole.replace(b"vertex 9", b"vertex %d" % BILLION), size + 100
    whole = pcd("binary", POINTS[:, :3], [*"xyz"]).replace(b"POINTS 9", b"POINTS %d" % BILLION)
    yield ".pcd", whole.replace(b"WIDTH 9", b"WIDTH %d" % BILLION), 15 * BILLION
    yield ".las", patched(las(".las", LAS), 107, "<I", 2**32 - 1), 26 * 2**32


@pytest.mark.parametrize(("suffix", "head", "size"), list(claims()))
def test_files_of_holes(write, suffix, head, size):
    path = write("a" + suffix, head)
    os.truncate(path, len(head) + size)
    refused(path, "GiB, which is more than the memory|no padding", dtype="float64", columns=3)


def test_memory_is_bounded_by_the_file(write):
    """Not by what it says: a process with 300 MB of addresses to spare reads, and refuses, them."""
    names = []
    rows = np.random.default_rng(0).normal(size=(100_000, 5)).astype("<f4")
    for name, data in [
        ("a.npy", npy(rows)),
        ("a.ply", ply("ascii", rows=rows)),
        ("b.ply", ply("binary_big_endian", rows=rows)),
        ("a.pcd", pcd("ascii", rows)),
        ("b.pcd", pcd("binary_compressed", rows)),
        ("a.las", las(".las", rows)),
        ("a.laz", las(".laz", rows)),
    ]:
        names.append(str(write(name, data)))
    code = """if True:
        import resource, sys
        from layoutconv.sparse.coords.points import read_points
        pages = int(open("/proc/self/statm").read().split()[0])
        most = pages * resource.getpagesize() + 300 * 2**20
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        print([len(read_points(path)) for path in sys.argv[1:]])
    """
    done = subprocess.run([sys.executable, "-c", code, *names], capture_output=True, text=True)
    assert done.stdout.strip() == str([100_000] * len(names)), done.stderr


def test_a_file_that_shrinks_while_it_is_read(write, monkeypatch):
    from layoutconv.sparse.coords.point_files import source

    path = write("a.bin", bytes(64_000))
    whole = source.Source.records

    def shrinking(self, *arguments):
        os.truncate(path, 20_000)
        return whole(self, *arguments)

    monkeypatch.setattr(source.Source, "records", shrinking)
    refused(path, "changed while it was read", columns=4)
