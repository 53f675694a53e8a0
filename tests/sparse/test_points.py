"""read_points: what is written comes back, and a file that is not whole is named."""

from __future__ import annotations

import gzip
import io
import os
import struct
import sys
import warnings

import numpy as np
import pytest

from layoutconv.errors import ArgumentError, ArgumentTypeError, PointFileError
from layoutconv.sparse.coords.points import read_points

POINTS = np.random.default_rng(7).normal(size=(9, 5)).astype(np.float32)
NAMES = ["x", "y", "z", "red", "intensity"]


def ply(kind: str, names=NAMES, types=None, rows=POINTS, before=b"", after=b"") -> bytes:
    """A PLY file with an element in front of the vertices, and faces, which are lists, behind."""
    types = types or ["float"] * len(names)
    header = [f"ply\r\nformat {kind} 1.0", "comment element vertex 3", "element camera 2"]
    header += ["property short width", "property double focus", f"element vertex {len(rows)}"]
    header += [f"property {type_} {name}" for type_, name in zip(types, names, strict=True)]
    header += ["element face 1", "property list uchar int vertex_indices", "end_header"]
    data = "\n".join(header).encode() + b"\n"
    if kind == "ascii":
        lines = [
            "7 0.5",
            "8 0.25",
            *(" ".join(repr(float(v)) for v in row) for row in rows),
            "3 0 1 2",
        ]
        return data + "\n".join(lines).encode() + b"\n"
    order = "<" if "little" in kind else ">"
    code = {"float": "f4", "double": "f8", "uchar": "u1", "int": "i4"}
    camera = np.array([(7, 0.5), (8, 0.25)], [("w", order + "i2"), ("f", order + "f8")])
    dtype = [(name, order + code[type_]) for type_, name in zip(types, names, strict=True)]
    vertices = np.array([tuple(row) for row in rows], dtype)
    return data + camera.tobytes() + vertices.tobytes() + b"\x03" + bytes(12)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def pcd(kind: str, rows=POINTS, names=NAMES, types=None, before="", counts=None) -> bytes:
    """A .pcd file as the format's page describes it, with padding between x and y."""
    types = types or ["F4"] * len(names)
    counts = counts or [1] * len(names)
    fields, sizes = [*names], [t[1] for t in types]
    signs, counts = [t[0] for t in types], [*counts]
    if kind != "ascii":
        for of, value in ((fields, "_"), (sizes, "1"), (signs, "U"), (counts, 3)):
            of.insert(1, value)
    dtype = [
        (f"f{i}", f"<{sign.lower()}{size}", (count,))
        for i, (sign, size, count) in enumerate(zip(signs, sizes, counts, strict=True))
    ]
    table = np.zeros(len(rows), dtype)
    column = 0
    for (name, _, _), field, count in zip(dtype, fields, counts, strict=True):
        if field != "_":
            table[name] = rows[:, column : column + count]
            column += count
    header = f"# .PCD v0.7\nVERSION 0.7\nFIELDS {' '.join(fields)}\nSIZE {' '.join(sizes)}\n"
    header += f"TYPE {' '.join(signs)}\nCOUNT {' '.join(map(str, counts))}\nWIDTH {len(rows)}\n"
    header += f"HEIGHT 1\nVIEWPOINT 0 0 0 1 0 0 0\nPOINTS {len(rows)}\nDATA {kind}\n"
    if kind == "ascii":
        lines = [" ".join(str(v) for part in row for v in part.tolist()) for row in table]
        return header.encode() + "\n".join(lines).encode() + b"\n"
    if kind == "binary":
        return header.encode() + table.tobytes()
    packed = b"".join(table[name].tobytes() for name in table.dtype.names)
    # LZF without a match: runs of at most 32 bytes, each behind its length less one.
    runs = [packed[i : i + 32] for i in range(0, len(packed), 32)]
    data = b"".join(bytes([len(run) - 1]) + run for run in runs)
    return header.encode() + struct.pack("<II", len(data), len(packed)) + data


def las(suffix: str, rows, offsets=(0.0, 0.0, 0.0), scale=2.0**-10, extra=False) -> bytes:
    laspy = pytest.importorskip("laspy")
    header = laspy.LasHeader(point_format=2, version="1.2")
    header.scales, header.offsets = [scale] * 3, offsets
    if extra:
        header.add_extra_dim(laspy.ExtraBytesParams("normal", "3f4"))
    cloud = laspy.LasData(header)
    rows = np.asarray(rows, np.float64)
    cloud.x, cloud.y, cloud.z = rows[:, :3].T
    cloud.intensity, cloud.red = rows[:, 3], 256 * rows[:, 3]
    if extra:
        cloud["normal"] = rows[:, :3]
    buffer = io.BytesIO()
    cloud.write(buffer, do_compress=suffix == ".laz")
    return buffer.getvalue()


@pytest.fixture
def write(tmp_path):
    def write(name: str, data: bytes):
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return write


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_comes_back_with_x_y_z_first(write, kind):
    order = [3, 2, 0, 4, 1]
    path = write("cloud.PLY", ply(kind, names=[NAMES[i] for i in order], rows=POINTS[:, order]))
    np.testing.assert_array_equal(read_points(path), POINTS)
    np.testing.assert_array_equal(read_points(path, columns=4), POINTS[:, :4])


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_ply_types_are_converted(write, kind):
    rows = np.array([[0.5, -1.25, 3.0, 255, -70000], [1.0, 2.0, 4.0, 0, 12]])
    types = ["double", "float", "float", "uchar", "int"]
    points = read_points(write("cloud.ply", ply(kind, types=types, rows=rows)))
    assert points.dtype == np.float32
    np.testing.assert_array_equal(points, rows)


@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", "<f2", "<i4"])
def test_npy_comes_back_as_float32(write, dtype):
    array = (8 * POINTS).astype(dtype)
    points = read_points(write("cloud.npy", npy(np.asfortranarray(array))), columns=4)
    assert points.dtype == np.float32
    np.testing.assert_array_equal(points, array[:, :4].astype(np.float32))


@pytest.mark.parametrize("columns", [3, 5])
def test_bin_comes_back(write, columns):
    rows = POINTS[:, :columns]
    path = write("cloud.bin", rows.astype("<f4").tobytes())
    np.testing.assert_array_equal(read_points(path, columns=columns), rows)


def test_bin_has_four_columns_unless_told_otherwise(write):
    path = write("cloud.bin", POINTS[:7, :4].astype("<f4").tobytes())
    np.testing.assert_array_equal(read_points(path), POINTS[:7, :4])


@pytest.mark.parametrize("rows", range(1, 31))
@pytest.mark.parametrize("columns", [3, 4, 5, 6])
def test_a_bin_says_what_it_fits(write, rows, columns):
    """It is read as 4 columns, with a warning where 5 or 6 fit its size as well."""
    path = write("cloud.bin", np.ones((rows, columns), "<f4").tobytes())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert read_points(path, columns).shape == (rows, columns)
    fits = [count for count in (4, 5, 6) if rows * columns % count == 0]
    if 4 not in fits:
        with pytest.raises(PointFileError, match="not a whole number of points of 4") as error:
            read_points(path)
        assert not fits or f"columns={' and '.join(map(str, fits))}" in str(error.value)
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert read_points(path).shape == (rows * columns // 4, 4)
    expected = f"{4 * rows * columns} bytes fit {', '.join(map(str, fits))} float32 columns"
    assert [expected in str(each.message) for each in said] == [True] * (len(fits) > 1)
    assert all(each.filename == __file__ for each in said)


KINDS = ["ascii", "binary", "binary_compressed"]


@pytest.mark.parametrize("kind", KINDS)
def test_pcd_comes_back_with_x_y_z_first(write, kind):
    order = [3, 2, 0, 4, 1]
    path = write("cloud.pcd", pcd(kind, POINTS[:, order], [NAMES[i] for i in order]))
    np.testing.assert_array_equal(read_points(path), POINTS)
    np.testing.assert_array_equal(read_points(path, columns=4), POINTS[:, :4])
    one = write("one.pcd", pcd(kind, POINTS[:1]))
    np.testing.assert_array_equal(read_points(one), POINTS[:1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["rgb", "rgba"])
def test_pcd_types_are_converted_and_colours_unpacked(write, kind, name):
    colour = 0xFF << 24 | 0x12 << 16 | 0x34 << 8 | 0x56
    rows = np.array([[0.5, -1.25, 3.0, colour, -7], [1.0, 2.0, 4.0, 0, 12]])
    types = ["F8", "F4", "F4", "U4", "I2"]
    path = write("cloud.pcd", pcd(kind, rows, ["x", "y", "z", name, "ring"], types))
    expected = [[0.5, -1.25, 3, 0x12, 0x34, 0x56, -7], [1, 2, 4, 0, 0, 0, 12]]
    np.testing.assert_array_equal(read_points(path), np.float32(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_points_that_a_sensor_did_not_see_are_left_out(write, kind):
    rows = POINTS.copy()
    rows[[2, 5], :3] = np.nan
    expected = np.delete(rows, [2, 5], axis=0)
    np.testing.assert_array_equal(read_points(write("a.pcd", pcd(kind, rows))), expected)
    rows[4, 1] = np.nan
    with pytest.raises(PointFileError, match="1 of 7 points have values that are not finite"):
        read_points(write("a.pcd", pcd(kind, rows)))


@pytest.mark.parametrize("kind", KINDS)
def test_pcd_fields_of_several_numbers(write, kind):
    names, types, counts = ["x", "y", "z", "normal"], ["F4"] * 4, [1, 1, 1, 2]
    path = write("a.pcd", pcd(kind, POINTS, names, types, counts=counts))
    np.testing.assert_array_equal(read_points(path), POINTS)


LAS = [[0.5, -1.25, 3.0, 7], [1.0, 2.0, 4.0, 200]]


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_las_comes_back_scaled_and_shifted(write, suffix):
    data = las(suffix, LAS, offsets=(10.0, -20.0, 30.0), extra=True)
    points = read_points(write("cloud" + suffix, data))
    np.testing.assert_array_equal(points[:, :4], np.float32(LAS))
    np.testing.assert_array_equal(points[:, -6:-3], np.float32([[7 * 256, 0, 0], [51200, 0, 0]]))
    np.testing.assert_array_equal(points[:, -3:], np.float32(LAS)[:, :3])
    np.testing.assert_array_equal(read_points(write("a" + suffix, data), 3), points[:, :3])


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_coordinates_of_maps_are_not_rounded(write, suffix):
    rows = [[431_000.125, 4_500_000.5, 1.5, 0], [431_001.0, 4_500_002.25, 2.5, 0]]
    path = write("map" + suffix, las(suffix, rows, offsets=(431_000.0, 4_500_000.0, 0.0)))
    message = r"up to 4500002.25, in steps of 0.0009\d+, do not fit float32: .* dtype='float64'"
    with pytest.raises(PointFileError, match=message):
        read_points(path)
    points = read_points(path, dtype="float64")
    assert points.dtype == np.float64
    np.testing.assert_array_equal(points[:, :4], rows)


def test_float64_keeps_what_the_file_has(write):
    rows = np.random.default_rng(0).normal(size=(4, 3))
    types = ["double"] * 3
    for name, data in [
        ("a.npy", npy(rows)),
        ("a.ply", ply("binary_little_endian", ["x", "y", "z"], types, rows)),
        ("a.ply", ply("ascii", ["x", "y", "z"], types, rows)),
    ]:
        np.testing.assert_array_equal(read_points(write(name, data), dtype="float64"), rows)


def test_a_package_that_is_missing_is_named(write, monkeypatch):
    path = write("a.laz", las(".laz", LAS))
    monkeypatch.setitem(sys.modules, "lazrs", None)
    with pytest.raises(PointFileError, match=r"lazrs, which .*pip install .layoutconv\[points\]"):
        read_points(path)
    assert len(read_points(write("a.las", las(".las", LAS)))) == 2  # which wants none


BAD = POINTS.copy()
BAD[3, 1], BAD[5, 4] = np.nan, np.inf
BINARY = ply("binary_little_endian")


def broken():
    """Files that are refused: a name, the bytes, how many columns are wanted, the message."""
    yield "a.bin", bytes(47), 4, "47 bytes are not a whole number of points of 4"
    yield "a.bin", BAD.tobytes(), 5, r"2 of 9 points .* not finite .* point 3"
    yield "a.npy", npy(POINTS)[:-1], None, "180 bytes from byte 128 on, but the file has 307 bytes"
    yield "a.npy", npy(POINTS) + b"1", None, "1 bytes follow the array"
    yield "a.npy", npy(POINTS)[:9], None, "expected a .npy file of version 1.0 to 3.0"
    yield "a.npy", npy(POINTS)[:40], None, "expected a header of 128 bytes, but there are 40"
    yield "a.npy", b"x,y,z\n1,2,3\n", None, "not a .npy file"
    yield "a.npy", npy(POINTS[:, :2]), None, "expected 3 columns, but the file has 2"
    yield "a.npy", npy(POINTS), 6, "expected 6 columns, but the file has 5"
    yield "a.npy", npy(POINTS[0]), None, r"expected an array \(points, columns\), got shape \(5,\)"
    yield "a.npy", npy(POINTS > 0), None, r"expected an array of numbers, got .*\|b1"
    yield "a.npy", npy(POINTS.astype(complex)), None, "expected an array of numbers, got .*<c16"
    yield "a.npy", npy(POINTS[:0]), None, "no points"
    yield "a.npy", npy(np.full((1, 3), 1e300)), None, "1 of 1 points .* not finite float32"
    yield "a.ply", b"plx", None, "not a PLY file"
    yield "a.ply", BINARY[:60], None, "has no line 'end_header'"
    yield "a.ply", BINARY[:-9], None, "element 'face' should take 0 bytes from byte"
    yield "a.ply", BINARY[:-20], None, "vertices should take 180 bytes"
    yield "a.ply", BINARY + b"abc", None, "all elements end at byte .*, but 3 bytes follow"
    yield "a.ply", ply("ascii")[:-30], None, "expected a line of 5 numbers, got"
    yield (
        "a.ply",
        ply("ascii").replace(b"0.25", b"0.25\nfour"),
        None,
        "expected a line of 5 numbers, got 'four'",
    )
    yield "a.ply", ply("ascii") + b"1\n", None, "followed by another line: '1'"
    yield (
        "a.ply",
        BINARY.replace(b"float y", b"float q"),
        None,
        "expected columns x, y, z, got x, q, z",
    )
    yield "a.ply", BINARY.replace(b"float y", b"quad y"), None, "not PLY: 'property quad y'"
    yield (
        "a.ply",
        BINARY.replace(b"t vertex 9", b"t point 9"),
        None,
        "expected an element named vertex, got",
    )
    yield "a.ply", BINARY.replace(b"format", b"comment"), None, "no line 'format'"
    lists = BINARY.replace(b"float red", b"list uchar float red")
    yield "a.ply", lists, None, "expected vertices of numbers alone, got lists: red"
    yield "a.ply", ply("binary_big_endian", rows=BAD), None, "2 of 9 points"
    for kind in KINDS:
        whole = pcd(kind)
        yield "a.pcd", whole[:40], None, "not a whole .pcd file: its header has no line 'DATA'"
        yield "a.pcd", whole.replace(b"FIELDS", b"FIELD"), None, "not PCD: 'FIELD x"
        yield "a.pcd", whole.replace(b" y ", b" q "), None, "expected columns x, y, z, got x, q, z"
        yield "a.pcd", pcd(kind, POINTS[:0]), None, "has no points"
        yield (
            "a.pcd",
            whole[: whole.index(b"DATA") + 60],
            None,
            "bytes from byte|expected a line of 5 numbers",
        )
    binary = pcd("binary")
    yield "a.pcd", binary[:-23], None, "9 points of 23 bytes should take 207 bytes"
    yield "a.pcd", binary + b"abc", None, "but 3 bytes follow that are no padding"
    text = pcd("ascii").splitlines(keepends=True)
    yield "a.pcd", b"".join(text[:-2]), None, "points: expected 9 lines, but the file has 7"
    yield "a.pcd", b"".join([*text, text[-1]]), None, "points are followed by another line"
    for suffix in (".las", ".laz"):
        yield "a" + suffix, b"LASX" + bytes(400), None, "not a LAS file"
        yield (
            "a" + suffix,
            b"LASF" + bytes(400),
            None,
            "expected LAS of version 1.0 to 1.5, got 0.0",
        )
    for suffix in (".bin", ".npy", ".ply", ".pcd", ".las", ".laz"):
        yield "a" + suffix, b"", None, "is empty"
        yield "a" + suffix, gzip.compress(BINARY), None, "is compressed with gzip; unpack it first"
    yield "a.xyz", b"", None, r"suffix '.xyz'; known are .bin, .npy, .ply"
    yield "a", b"", None, "known are .bin, .npy, .ply"
    yield "a.ply.gz", b"", None, "unpack it first"


@pytest.mark.parametrize(("name", "data", "columns", "message"), list(broken()))
def test_files_that_are_refused(write, name, data, columns, message):
    path = write(name, data)
    with pytest.raises(PointFileError, match=message) as error:
        read_points(path, columns)
    assert str(error.value).startswith(f"{path}: ")


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_las_files_that_are_cut_off(write, suffix):
    whole = las(suffix, LAS)
    for length in range(1, len(whole)):
        with pytest.raises(PointFileError):
            read_points(write("a" + suffix, whole[:length]))
    with pytest.raises(PointFileError, match="has no points"):
        read_points(write("a" + suffix, las(suffix, np.zeros((0, 4)))))
    with pytest.raises(PointFileError, match="expected 99 columns, but the file has"):
        read_points(write("a" + suffix, whole), columns=99)


@pytest.mark.parametrize("kind", ["ascii", "binary_little_endian", "binary_big_endian"])
def test_lists_in_front_of_vertices_are_passed(write, kind):
    """Faces come first in some files."""
    faces = [(3, 0, 1, 2), (0,), (4, 5, 6, 7, 8)]
    header = f"ply\nformat {kind} 1.0\nelement face 3\nproperty list uchar short vertex_indices\n"
    header += "element vertex 2\nproperty float x\nproperty float y\nproperty float z\nend_header\n"
    order = ">" if "big" in kind else "<"
    if kind == "ascii":
        lines = [*faces, (0.5, 1, 2), (3, 4, 5)]
        body = "".join(" ".join(map(str, line)) + "\n" for line in lines).encode()
    else:
        body = b"".join(struct.pack(f"{order}B{len(f) - 1}h", *f) for f in faces)
        body += struct.pack(f"{order}6f", 0.5, 1, 2, 3, 4, 5)
    path = write("a.ply", header.encode() + body)
    np.testing.assert_array_equal(read_points(path), [[0.5, 1, 2], [3, 4, 5]])


@pytest.mark.parametrize("suffix", [".bin", ".npy", ".ply", ".pcd", ".las", ".laz"])
def test_paths_that_cannot_be_read(tmp_path, suffix):
    with pytest.raises(PointFileError, match="No such file"):
        read_points(tmp_path / ("nowhere" + suffix))
    (tmp_path / ("folder" + suffix)).mkdir()
    with pytest.raises(PointFileError, match=r"expected a regular file, got a directory"):
        read_points(tmp_path / ("folder" + suffix))
    os.mkfifo(tmp_path / ("pipe" + suffix))
    with pytest.raises(PointFileError, match=r"expected a regular file, got a FIFO"):
        read_points(tmp_path / ("pipe" + suffix))
    (tmp_path / ("loop" + suffix)).symlink_to(tmp_path / ("loop" + suffix))
    with pytest.raises(PointFileError, match="symbolic links"):
        read_points(tmp_path / ("loop" + suffix))
    with pytest.raises(PointFileError, match=r"null (byte|character)"):
        read_points("a\0" + suffix)


def test_arguments_that_are_refused(write):
    path = write("a.npy", npy(POINTS))
    for columns in (2, 0, -1, True):
        with pytest.raises(ArgumentError, match="`columns`: expected 3"):
            read_points(path, columns)
    for columns in ("4", 4.0):
        with pytest.raises(ArgumentTypeError, match="`columns`: expected an int"):
            read_points(path, columns)
    for dtype in ("float16", "flat", None, 7):
        with pytest.raises(ArgumentError, match="`dtype`: expected float32 or float64"):
            read_points(path, dtype=dtype)
    for wrong in (7, None, 1.5, [path]):
        with pytest.raises(ArgumentTypeError, match="`path`: expected a path"):
            read_points(wrong)
    np.testing.assert_array_equal(read_points(os.fsencode(path), np.int64(3)), POINTS[:, :3])
