"""Readers of published folders: what they return of small ones, and say of damaged ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from layoutconv.errors import ArgumentError, ArgumentTypeError, PointFileError
from layoutconv.sparse import NuScenes, ScanNet, SemanticKitti, labelled_clouds
from layoutconv.sparse.coords.labelled.scans import IGNORED
from layoutconv.sparse.coords.labelled.semantic_kitti import LEARNED, SPLITS

from . import labelled_folders as make

KITTI = {
    "00/000001": [10, 252, 0, 80],
    "00/000000": [40, 60, 99],
    "04/000000": [1, 52, 11],
    "08/000000": [259, 13, 81],
    "11/000000": [],
}
NUSCENES = {"scene-0061": [[17, 0, 24], [31, 17]], "scene-0103": [[24, 24]]}
SCANNET = {"scene0001_00": [1, 39, 13], "scene0000_00": [0, 40, 2]}


def test_semantic_kitti(tmp_path: Path) -> None:
    points = make.semantic_kitti(tmp_path, KITTI)
    train = SemanticKitti(tmp_path)
    assert train.names == ("00/000000", "00/000001", "04/000000")
    want = [["road", "road", None], ["car", "car", None, "pole"], [None, None, "bicycle"]]
    for scan, named in zip(train, want, strict=True):
        assert np.array_equal(scan.points, points[scan.name])
        assert scan.labels is not None
        assert scan.labels.dtype == np.int64
        told = [None if label == IGNORED else train.classes[label] for label in scan.labels]
        assert told == named
    [val] = SemanticKitti(tmp_path, "val")
    assert [train.classes[label] for label in val.labels] == [
        "other-vehicle", "other-vehicle", "traffic-sign"
    ]  # fmt: skip
    [test] = SemanticKitti(tmp_path, "test")
    assert test.labels is None
    assert len(test.points) == 3
    assert len(train.classes) == 19
    assert set(LEARNED.values()) == {IGNORED, *range(19)}
    assert sorted(sum(SPLITS.values(), ())) == [f"{number:02}" for number in range(22)]


def test_nuscenes(tmp_path: Path) -> None:
    points = make.nuscenes(tmp_path, NUSCENES)
    every = NuScenes(tmp_path)
    assert every.names == ("scene-0061/0", "scene-0061/1", "scene-0103/0")  # in time
    car, road = every.classes.index("car"), every.classes.index("driveable_surface")
    want = [[car, IGNORED, road], [IGNORED, car], [road, road]]
    for scan, labels in zip(every, want, strict=True):
        assert np.array_equal(scan.points, points[scan.name])
        assert scan.labels is not None
        assert scan.labels.tolist() == labels
    assert NuScenes(tmp_path, "mini_train").names == every.names[:2]
    assert NuScenes(tmp_path, "mini_val", "v1.0-mini").names == every.names[2:]
    assert NuScenes(tmp_path, scenes=["scene-0103"]).names == every.names[2:]
    assert len(every.classes) == 16


def test_scannet(tmp_path: Path) -> None:
    points = make.scannet(tmp_path, SCANNET)
    make.scannet(tmp_path, {"scene0707_00": []}, "scans_test")
    train = ScanNet(tmp_path)
    assert train.names == ("scene0000_00", "scene0001_00")
    want = [[IGNORED, IGNORED, 1], [0, 19, IGNORED]]
    for scan, labels in zip(train, want, strict=True):
        assert np.array_equal(scan.points, points[scan.name])
        assert scan.labels is not None
        assert scan.labels.tolist() == labels
    (tmp_path / "scannetv2_val.txt").write_text("scene0001_00\n")
    assert ScanNet(tmp_path, "val").names == ("scene0001_00",)
    [test] = ScanNet(tmp_path, "test")
    assert test.labels is None
    assert len(train.classes) == 20


def test_a_folder_says_whose_it_is(tmp_path: Path) -> None:
    make.semantic_kitti(tmp_path / "a", KITTI)
    make.nuscenes(tmp_path / "b", NUSCENES)
    make.scannet(tmp_path / "c", SCANNET)
    kinds = [type(labelled_clouds(tmp_path / name)) for name in "abc"]
    assert kinds == [SemanticKitti, NuScenes, ScanNet]
    assert labelled_clouds(tmp_path / "b", "val").names == ("scene-0103/0",)
    with pytest.raises(PointFileError, match=r"expected a folder with sequences \(SemanticKITTI\)"):
        labelled_clouds(tmp_path)
    with pytest.raises(PointFileError, match="d: no such folder"):
        labelled_clouds(tmp_path / "d")
    with pytest.raises(ArgumentError, match="`split`: expected one of train, val, test, got 'dev'"):
        SemanticKitti(tmp_path / "a", "dev")


def error_of(scans: type, root: Path) -> str:
    with pytest.raises(PointFileError) as caught:
        list(scans(root))
    return str(caught.value)


def test_damaged_sweeps(tmp_path: Path) -> None:
    make.semantic_kitti(tmp_path, {"00/000000": [10, 40, 11]})
    labels = tmp_path / "sequences/00/labels/000000.label"
    sweep = tmp_path / "sequences/00/velodyne/000000.bin"
    good = labels.read_bytes()
    labels.write_bytes(good[:-1])
    told = error_of(SemanticKitti, tmp_path)
    assert told.startswith(f"{labels}: expected 12 bytes, 4 for each of the 3 points of {sweep}")
    labels.write_bytes(np.array([10, 7, 40], "<u4").tobytes())
    assert error_of(SemanticKitti, tmp_path) == f"{labels}: label 7 of point 1 is not a known label"
    labels.unlink()
    assert error_of(SemanticKitti, tmp_path) == f"{labels}: the labels of {sweep} are missing"
    labels.write_bytes(good)
    sweep.write_bytes(sweep.read_bytes()[:-3])
    assert error_of(SemanticKitti, tmp_path).startswith(f"{sweep}: 45 bytes are not a whole number")
    (tmp_path / "empty").mkdir()
    told = error_of(SemanticKitti, tmp_path / "empty")
    assert told == f"{tmp_path / 'empty'}: no scans of the split 'train'"


@pytest.mark.parametrize("name", ["lidarseg", "sample_data", "sample", "scene", "category"])
def test_damaged_tables(tmp_path: Path, name: str) -> None:
    make.nuscenes(tmp_path, NUSCENES)
    path = tmp_path / "v1.0-mini" / f"{name}.json"
    good = json.loads(path.read_text())
    first = next(iter(good[0]))
    cases = [
        ("[{", "expected JSON"),
        ("[" * 100_000, "expected JSON"),
        ("\xff", "expected JSON"),
        ("{}", "expected a list of records, got dict"),
        ("[3]", "record 0: expected a field"),
        (
            json.dumps([*good, {**good[0], first: None}]),
            f"record {len(good)}: expected a field {first!r}",
        ),
    ]
    for content, message in cases:
        path.write_text(content, "latin-1")
        assert error_of(NuScenes, tmp_path).startswith(f"{path}: {message}")
    path.unlink()
    told = error_of(NuScenes, tmp_path)
    assert "lidarseg.json" in told if name == "lidarseg" else told.startswith(f"{path}: ")


@pytest.mark.parametrize(
    ("name", "field", "at", "value", "told"),
    [
        (
            "lidarseg",
            "sample_data_token",
            0,
            "other",
            "sample_data.json: no record of other, which",
        ),
        ("sample", "token", 0, "other", "sample_data.json: the scene of t0 is in no table"),
        ("scene", "token", 1, "other", "sample_data.json: the scene of t2 is in no table"),
        ("sample_data", "timestamp", 0, 0, "two labelled frames of one scene have the same time"),
        ("category", "index", 1, 0, "category.json: index 0 is that of noise and vehicle.car"),
    ],
)
def test_tables_that_do_not_fit_together(
    tmp_path: Path, name: str, field: str, at: int, value: object, told: str
) -> None:
    """Frames would be missing, or have labels of another category, and nobody would know."""
    make.nuscenes(tmp_path, NUSCENES)
    path = tmp_path / "v1.0-mini" / f"{name}.json"
    records = json.loads(path.read_text())
    records[at][field] = value
    path.write_text(json.dumps(records))
    assert told in error_of(NuScenes, tmp_path)


def test_arguments_of_readers(tmp_path: Path) -> None:
    make.nuscenes(tmp_path, NUSCENES)
    for options in ({"scenes": "scene-0103"}, {"scenes": 3}):
        with pytest.raises(ArgumentTypeError, match="`scenes`: expected names of scenes"):
            NuScenes(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="`version`: expected the name of a folder"):
        NuScenes(tmp_path, version=5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="slice"):
        NuScenes(tmp_path)[0:2]  # type: ignore[index]


def test_lists_of_scenes(tmp_path: Path) -> None:
    make.scannet(tmp_path, SCANNET)
    listed = tmp_path / "scannetv2_train.txt"
    listed.write_bytes(b"\xef\xbb\xbfscene0001_00\r\n")  # as an editor of Windows saves it
    assert ScanNet(tmp_path).names == ("scene0001_00",)
    listed.write_bytes(b"scene\xff")
    assert error_of(ScanNet, tmp_path).startswith(f"{listed}: expected names of scenes: ")


def test_labels_that_are_no_whole_numbers(tmp_path: Path) -> None:
    make.scannet(tmp_path, {"scene0000_00": [1, 2, 3]})
    path = tmp_path / "scans/scene0000_00/scene0000_00_vh_clean_2.labels.ply"
    lines = ["ply", "format ascii 1.0", "element vertex 3"]
    lines += [f"property float {name}" for name in ("x", "y", "z", "label")]
    lines += ["end_header", "0 0 0 1", "0 0 0 1.5", "0 0 0 2", ""]
    path.write_text("\n".join(lines))
    assert error_of(ScanNet, tmp_path) == f"{path}: label 1.5 of point 1 is not a whole number"


def test_damaged_meshes(tmp_path: Path) -> None:
    points = make.scannet(tmp_path, {"scene0000_00": [1, 2, 3]})["scene0000_00"]
    base = tmp_path / "scans/scene0000_00"
    mesh, labels = (base / f"scene0000_00_vh_clean_2{end}.ply" for end in ("", ".labels"))
    labels.write_bytes(make.mesh(points[:2], [1, 2]))
    assert error_of(ScanNet, tmp_path) == f"{labels}: 2 vertices, but {mesh} has 3"
    labels.write_bytes(make.mesh(points, None))
    assert error_of(ScanNet, tmp_path) == f"{labels}: expected vertices with a property label"
    labels.write_bytes(make.mesh(points, [1, 2, 41]))
    assert error_of(ScanNet, tmp_path) == f"{labels}: label 41 of point 2 is not a known label"
    labels.unlink()
    assert error_of(ScanNet, tmp_path).startswith(f"{labels}: No such file")
