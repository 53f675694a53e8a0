"""read_points: what is written comes back, and a file that is not whole is named."""

from __future__ import annotations

import io

import numpy as np
import pytest

from layoutconv.sparse.points import PointFileError, read_points

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


BAD = POINTS.copy()
BAD[3, 1], BAD[5, 4] = np.nan, np.inf
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
    for suffix in (".bin", ".npy", ".ply"):
        with pytest.raises(PointFileError, match="No such file"):
            read_points(tmp_path / ("nowhere" + suffix))
        (tmp_path / ("folder" + suffix)).mkdir()
        with pytest.raises(PointFileError, match="Is a directory"):
            read_points(tmp_path / ("folder" + suffix))
    with pytest.raises(ValueError, match="`columns`: expected 3"):
        read_points(tmp_path / "nowhere.bin", columns=2)
