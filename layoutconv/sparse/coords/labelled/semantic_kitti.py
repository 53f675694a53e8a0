"""SemanticKITTI: sweeps of a street, a class for every point.

J. Behley et al., "SemanticKITTI: A Dataset for Semantic Scene Understanding of LiDAR Sequences",
2019. Sweeps are ``sequences/NN/velodyne/*.bin``, float32 x, y, z, remission; labels are
``sequences/NN/labels/*.label``, a little-endian uint32 per point, whose low 16 bits are the class
and whose high 16 bits are the instance. The single-scan task has 19 classes: moving objects count
as static ones, and some labels are left out.
"""

from __future__ import annotations

import os
from operator import index

from ....errors import PointFileError
from ..points import read_points
from .scans import (
    IGNORED,
    LabelledCloud,
    LabelledClouds,
    check_split,
    classes_of,
    folder,
    read_numbers,
)

SPLITS = {
    "train": ("00", "01", "02", "03", "04", "05", "06", "07", "09", "10"),
    "val": ("08",),
    "test": tuple(f"{number}" for number in range(11, 22)),
}
# The labels of each class, moving objects after static ones.
_LABELS: dict[str, tuple[int, ...]] = {
    "car": (10, 252),
    "bicycle": (11,),
    "motorcycle": (15,),
    "truck": (18, 258),
    "other-vehicle": (13, 16, 20, 256, 257, 259),
    "person": (30, 254),
    "bicyclist": (31, 253),
    "motorcyclist": (32, 255),
    "road": (40, 60),
    "parking": (44,),
    "sidewalk": (48,),
    "other-ground": (49,),
    "building": (50,),
    "fence": (51,),
    "vegetation": (70,),
    "trunk": (71,),
    "terrain": (72,),
    "pole": (80,),
    "traffic-sign": (81,),
}
_LEFT_OUT = 0, 1, 52, 99  # unlabelled, outlier, other structure, other object
LEARNED = dict.fromkeys(_LEFT_OUT, IGNORED) | {
    label: place for place, labels in enumerate(_LABELS.values()) for label in labels
}


class SemanticKitti(LabelledClouds):
    """The sweeps of a folder of SemanticKITTI.

    Args:
        root: the folder that has ``sequences``.
        split: "train" (sequences 00 to 07, 09 and 10), "val" (08) or "test" (11 to 21, without
            labels); sequences that are missing are left out.

    Points are float32 (points, 4): x, y, z in metres, remission.

    Raises :class:`~layoutconv.errors.PointFileError` with the path for a folder without sweeps, and
    for a sweep or labels that are missing, damaged or of another size when they are read.

    >>> import pathlib, tempfile
    >>> import numpy as np
    >>> root = pathlib.Path(tempfile.mkdtemp())
    >>> for part, suffix, rows in (
    ...     ("velodyne", "bin", np.zeros((2, 4), "<f4")),
    ...     ("labels", "label", np.array([10, 252 + (7 << 16)], "<u4")),
    ... ):
    ...     path = root / "sequences" / "08" / part / f"000000.{suffix}"
    ...     path.parent.mkdir(parents=True)
    ...     _ = path.write_bytes(rows.tobytes())
    >>> [scan] = SemanticKitti(root, "val")
    >>> scan.name, scan.points.shape, scan.labels.tolist()  # a car, and one that moves
    ('08/000000', (2, 4), [0, 0])
    """

    classes = tuple(_LABELS)
    columns = "x", "y", "z", "remission"

    def __init__(self, root: str | os.PathLike[str], split: str = "train") -> None:
        check_split(split, tuple(SPLITS))
        sequences = folder(root) / "sequences"
        names = [
            f"{number}/{path.stem}"
            for number in SPLITS[split]
            for path in sorted((sequences / number / "velodyne").glob("*.bin"))
        ]
        super().__init__(root, split, names)

    def __getitem__(self, at: int) -> LabelledCloud:
        name = self.names[index(at)]
        number, sweep = name.split("/")
        within = self.root / "sequences" / number
        path = within / "velodyne" / f"{sweep}.bin"
        points = read_points(path, columns=4)
        beside = within / "labels" / f"{sweep}.label"
        if self.split == "test" and not beside.exists():
            return LabelledCloud(name, points, None)
        if not beside.exists():
            raise PointFileError(f"{beside}: the labels of {path} are missing")
        labels = read_numbers(beside, "<u4", len(points), path) & 0xFFFF
        return LabelledCloud(name, points, classes_of(beside, labels, LEARNED))
