"""ScanNet: rooms as meshes, a class for every vertex.

A. Dai et al., "ScanNet: Richly-annotated 3D Reconstructions of Indoor Scenes", 2017. A scene's
vertices and colours are ``scans/NAME/NAME_vh_clean_2.ply``, and their labels are the property
``label`` of ``NAME_vh_clean_2.labels.ply``: numbers of the 40 classes of NYU. The benchmark has 20
of them. Splits are lists of names, ``scannetv2_train.txt`` and ``_val.txt``.
"""

from __future__ import annotations

import os
from operator import index
from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import PointFileError
from ..point_files.ply_header import read_header
from ..point_files.source import opened
from ..points import read_points
from .scans import IGNORED, LabelledCloud, LabelledClouds, check_split, classes_of, folder

if TYPE_CHECKING:
    import numpy as np

SPLITS = "train", "val", "test"
_POINTS, _LABELS = "_vh_clean_2.ply", "_vh_clean_2.labels.ply"
_NYU = {
    "wall": 1, "floor": 2, "cabinet": 3, "bed": 4, "chair": 5, "sofa": 6, "table": 7, "door": 8,
    "window": 9, "bookshelf": 10, "picture": 11, "counter": 12, "desk": 14, "curtain": 16,
    "refrigerator": 24, "shower curtain": 28, "toilet": 33, "sink": 34, "bathtub": 36,
    "other furniture": 39,
}  # fmt: skip
LEARNED = dict.fromkeys(range(41), IGNORED) | {
    label: place for place, label in enumerate(_NYU.values())
}


class ScanNet(LabelledClouds):
    """The scenes of a folder of ScanNet.

    Args:
        root: the folder that has ``scans``, or ``scans_test`` for the split "test".
        split: "train", "val" or "test". The names are those of ``scannetv2_SPLIT.txt`` in the
            folder; without that file, all scenes in the folder.

    Points are float32 (vertices, 6): x, y, z in metres, red, green, blue from 0 to 255. Scenes of
    the split "test" have no labels.

    Raises :class:`~layoutconv.errors.PointFileError` with the path for a folder without scenes, and
    for a mesh that is missing, damaged, without labels, or has other vertices than its labels.
    """

    classes = tuple(_NYU)
    columns = "x", "y", "z", "red", "green", "blue"

    def __init__(self, root: str | os.PathLike[str], split: str = "train") -> None:
        check_split(split, SPLITS)
        base = folder(root)
        listed = base / f"scannetv2_{split}.txt"
        if listed.is_file():
            try:
                names = listed.read_text("utf-8-sig").split()
            except UnicodeDecodeError as error:
                raise PointFileError(f"{listed}: expected names of scenes: {error}") from None
        else:
            names = sorted(path.parent.name for path in _scans(base, split).glob(f"*/*{_POINTS}"))
        super().__init__(root, split, names)

    def __getitem__(self, at: int) -> LabelledCloud:
        name = self.names[index(at)]
        scene = _scans(self.root, self.split) / name
        path, beside = scene / f"{name}{_POINTS}", scene / f"{name}{_LABELS}"
        points = read_points(path, columns=6)
        if self.split == "test" and not beside.exists():
            return LabelledCloud(name, points, None)
        labels = _labels(beside)
        if len(labels) != len(points):
            told = f"{len(labels)} vertices, but {path} has {len(points)}"
            raise PointFileError(f"{beside}: {told}")
        return LabelledCloud(name, points, classes_of(beside, labels, LEARNED))


def _scans(root: Path, split: str) -> Path:
    return root / ("scans_test" if split == "test" else "scans")


def _labels(path: Path) -> np.ndarray:
    """Return the property ``label`` of the vertices of a mesh, int64."""
    with opened(str(path)) as source:
        properties: list[str] = []
        for element in read_header(source).elements:
            if element.name == "vertex":
                properties = [*element.properties]
        if "label" not in properties:
            raise source.error("expected vertices with a property label")
    rest = [name for name in properties if name not in ("x", "y", "z")]
    found: np.ndarray = read_points(path, dtype="float64")[:, 3 + rest.index("label")]
    labels = found.astype("int64")
    (other,) = (labels != found).nonzero()
    if len(other):
        at = int(other[0])
        raise PointFileError(f"{path}: label {found[at]} of point {at} is not a whole number")
    return labels
