"""read_points: what is written comes back, and a file that is not whole is named."""

from __future__ import annotations

import io
import struct
import sys

import numpy as np
import pytest

from layoutconv.sparse.coords.points import PointFileError, read_points

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
    if kind == "binary":
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
    path = write("cloud.bin", POINTS[:, :4].astype("<f4").tobytes())
    np.testing.assert_array_equal(read_points(path), POINTS[:, :4])


KINDS = ["ascii", "binary", "binary_compressed"]


@pytest.mark.parametrize("kind", KINDS)
def test_pcd_comes_back_with_x_y_z_first(write, kind):
    pytest.importorskip("pypcd4")
    order = [3, 2, 0, 4, 1]
    path = write("cloud.pcd", pcd(kind, POINTS[:, order], [NAMES[i] for i in order]))
    np.testing.assert_array_equal(read_points(path), POINTS)
    np.testing.assert_array_equal(read_points(path, columns=4), POINTS[:, :4])
    one = write("one.pcd", pcd(kind, POINTS[:1]))
    np.testing.assert_array_equal(read_points(one), POINTS[:1])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["rgb", "rgba"])
def test_pcd_types_are_converted_and_colours_unpacked(write, kind, name):
    pytest.importorskip("pypcd4")
    colour = 0xFF << 24 | 0x12 << 16 | 0x34 << 8 | 0x56
    rows = np.array([[0.5, -1.25, 3.0, colour, -7], [1.0, 2.0, 4.0, 0, 12]])
    types = ["F8", "F4", "F4", "U4", "I2"]
    path = write("cloud.pcd", pcd(kind, rows, ["x", "y", "z", name, "ring"], types))
    expected = [[0.5, -1.25, 3, 0x12, 0x34, 0x56, -7], [1, 2, 4, 0, 0, 0, 12]]
    np.testing.assert_array_equal(read_points(path), np.float32(expected))


@pytest.mark.parametrize("kind", KINDS)
def test_points_that_a_sensor_did_not_see_are_left_out(write, kind):
    pytest.importorskip("pypcd4")
    rows = POINTS.copy()
    rows[[2, 5], :3] = np.nan
    expected = np.delete(rows, [2, 5], axis=0)
    np.testing.assert_array_equal(read_points(write("a.pcd", pcd(kind, rows))), expected)
    rows[4, 1] = np.nan
    with pytest.raises(PointFileError, match="1 of 7 points have values that are not finite"):
        read_points(write("a.pcd", pcd(kind, rows)))


def test_pcd_fields_of_several_numbers(write):
    pytest.importorskip("pypcd4")
    names, types, counts = ["x", "y", "z", "normal"], ["F4"] * 4, [1, 1, 1, 2]
    for kind in ("ascii", "binary"):
        path = write("a.pcd", pcd(kind, POINTS, names, types, counts=counts))
        np.testing.assert_array_equal(read_points(path), POINTS)
    path = write("a.pcd", pcd("binary_compressed", POINTS, names, types, counts=counts))
    with pytest.raises(PointFileError, match=r"several numbers, compressed: \['normal'\]"):
        read_points(path)


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
    with pytest.raises(ValueError, match="`dtype`: expected float32 or float64"):
        read_points("a.npy", dtype="float16")  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["pypcd4", "laspy"])
def test_a_package_that_is_missing_is_named(write, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    path = write("a" + {"pypcd4": ".pcd", "laspy": ".laz"}[name], b"")
    with pytest.raises(PointFileError, match=name + r", which .*pip install .layoutconv\[points\]"):
        read_points(path)


def test_a_missing_decompressor_is_named(write, monkeypatch):
    laspy = pytest.importorskip("laspy")
    path = write("a.laz", las(".laz", LAS))
    monkeypatch.setattr(laspy.LazBackend, "detect_available", classmethod(lambda cls: ()))
    with pytest.raises(PointFileError, match=r".laz files are read by lazrs, which is not"):
        read_points(path)


def broken():
    for kind in KINDS:
        whole = pcd(kind)
        yield ".pcd", b"", "not a whole .pcd file"
        yield ".pcd", whole[:40], "not a whole .pcd file"
        yield ".pcd", whole.replace(b"FIELDS", b"FIELD"), "not a whole .pcd file"
        yield ".pcd", whole.replace(b" y ", b" q "), "fields x, y, z expected, got x, q, z"
        yield ".pcd", pcd(kind, POINTS[:0]), "has no points"
    rows = whole.index(b"DATA")
    yield ".pcd", whole[: rows + 60], "not a whole .pcd file"
    binary = pcd("binary")
    yield ".pcd", binary[:-23], "9 points expected, but there are 8"
    yield ".pcd", binary[:-1], "not a whole .pcd file"
    text = pcd("ascii").splitlines(keepends=True)
    yield ".pcd", b"".join(text[:-2]), "9 points expected, but there are 7"
    for suffix in (".las", ".laz"):
        yield suffix, b"", "not a whole file"
        yield suffix, b"LASF" + bytes(400), "not a whole file|has no points"


BAD = POINTS.copy()
BAD[3, 1], BAD[5, 4] = np.nan, np.inf


@pytest.mark.parametrize(("suffix", "data", "message"), list(broken()))
def test_files_of_packages_that_are_refused(write, suffix, data, message):
    pytest.importorskip("pypcd4" if suffix == ".pcd" else "laspy")
    path = write("a" + suffix, data)
    with pytest.raises(PointFileError, match=message) as error:
        read_points(path)
    assert str(path) in str(error.value)


@pytest.mark.parametrize("suffix", [".las", ".laz"])
def test_las_files_that_are_cut_off(write, suffix):
    whole = las(suffix, LAS)
    for length in (10, 230, len(whole) - 26, len(whole) - 5):
        with pytest.raises(PointFileError, match=r"not a whole file|2 points expected"):
            read_points(write("a" + suffix, whole[:length]))
    with pytest.raises(PointFileError, match="has no points"):
        read_points(write("a" + suffix, las(suffix, np.zeros((0, 4)))))
    with pytest.raises(PointFileError, match="99 columns expected, but the file has"):
        read_points(write("a" + suffix, whole), columns=99)


BINARY = ply("binary_little_endian")


@pytest.mark.parametrize(
    ("name", "data", "columns", "message"),
    [
        ("a.bin", b"", 4, "no points"),
        ("a.bin", bytes(47), 4, "47 bytes are not a whole number of points of 4"),
        ("a.bin", BAD.tobytes(), 5, r"2 of 9 points .* not finite .* point 3"),
        ("a.npy", npy(POINTS)[:-1], None, "not a whole .npy file"),
        ("a.npy", b"", None, "not a whole .npy file"),
        ("a.npy", npy(POINTS)[:9], None, "not a whole .npy file"),
        ("a.npy", b"x,y,z\n1,2,3\n", None, "not a whole .npy file"),
        ("a.npy", npy(POINTS[:, :2]), None, "3 columns expected, but the file has 2"),
        ("a.npy", npy(POINTS), 6, "6 columns expected, but the file has 5"),
        ("a.npy", npy(POINTS[0]), None, r"\(points, columns\) expected, got float32 \(5,\)"),
        ("a.npy", npy(POINTS > 0), None, "expected, got bool"),
        ("a.npy", npy(POINTS[:0]), None, "no points"),
        ("a.npy", npy(np.full((1, 3), 1e300)), None, "1 of 1 points .* not finite float32"),
        ("a.ply", b"plx", None, "not a PLY file"),
        ("a.ply", BINARY[:60], None, "the header has no end"),
        ("a.ply", BINARY[:-20], None, "9 vertices of 20 bytes expected, but only"),
        ("a.ply", ply("ascii")[:-30], None, "9 vertices of 5 properties expected, but there are"),
        ("a.ply", ply("ascii").replace(b"0.25", b"0.25\nfour"), None, "not made of numbers"),
        ("a.ply", BINARY.replace(b"float y", b"float q"), None, "x, y, z .* got x, q, z"),
        ("a.ply", BINARY.replace(b"float y", b"quad y"), None, "not PLY: 'property quad y'"),
        ("a.ply", BINARY.replace(b"t vertex 9", b"t point 9"), None, "no element named vertex"),
        ("a.ply", BINARY.replace(b"short w", b"list uchar int w"), None, "lists in front"),
        ("a.ply", BINARY.replace(b"format", b"comment"), None, "no line 'format'"),
        ("a.ply", ply("binary_big_endian", rows=BAD), None, "2 of 9 points"),
        ("a.xyz", b"", None, r"suffix '.xyz'; known are .bin, .npy, .ply"),
        ("a", b"", None, "known are .bin, .npy, .ply"),
    ],
)
def test_files_that_are_refused(write, name, data, columns, message):
    path = write(name, data)
    with pytest.raises(PointFileError, match=message) as error:
        read_points(path, columns)
    assert str(path) in str(error.value)


def test_paths_that_cannot_be_read(tmp_path):
    for suffix in (".bin", ".npy", ".ply", ".pcd", ".las", ".laz"):
        with pytest.raises(PointFileError, match="No such file"):
            read_points(tmp_path / ("nowhere" + suffix))
        (tmp_path / ("folder" + suffix)).mkdir()
        with pytest.raises(PointFileError, match="Is a directory"):
            read_points(tmp_path / ("folder" + suffix))
    with pytest.raises(ValueError, match="`columns`: expected 3"):
        read_points(tmp_path / "nowhere.bin", columns=2)
