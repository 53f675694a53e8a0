"""nuScenes-lidarseg: key frames of a lidar on a car, a class for every point.

H. Caesar et al., "nuScenes: A multimodal dataset for autonomous driving", 2020. Tables are JSON in
a folder named after the version. Sweeps are ``.pcd.bin``, float32 x, y, z, intensity, ring; labels
are a uint8 per point, the ``index`` of a record of ``category.json``. The task has 16 classes: it
joins some of the 32 categories, and leaves some out.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from operator import index
from pathlib import Path
from typing import cast

from ....errors import ArgumentError, ArgumentTypeError, PointFileError, are_several, check_choice
from ..points import read_points
from .scans import (
    IGNORED,
    LabelledCloud,
    LabelledClouds,
    classes_of,
    folder,
    read_json,
    read_numbers,
)

# The scenes of the small version; users name those of others.
SPLITS = {
    "mini_train": (
        "scene-0061", "scene-0553", "scene-0655", "scene-0757", "scene-0796", "scene-1077",
        "scene-1094", "scene-1100",
    ),
    "mini_val": ("scene-0103", "scene-0916"),
}  # fmt: skip
_CATEGORIES: dict[str, tuple[str, ...]] = {
    "barrier": ("movable_object.barrier",),
    "bicycle": ("vehicle.bicycle",),
    "bus": ("vehicle.bus.bendy", "vehicle.bus.rigid"),
    "car": ("vehicle.car",),
    "construction_vehicle": ("vehicle.construction",),
    "motorcycle": ("vehicle.motorcycle",),
    "pedestrian": (
        "human.pedestrian.adult", "human.pedestrian.child",
        "human.pedestrian.construction_worker", "human.pedestrian.police_officer",
    ),
    "traffic_cone": ("movable_object.trafficcone",),
    "trailer": ("vehicle.trailer",),
    "truck": ("vehicle.truck",),
    "driveable_surface": ("flat.driveable_surface",),
    "other_flat": ("flat.other",),
    "sidewalk": ("flat.sidewalk",),
    "terrain": ("flat.terrain",),
    "manmade": ("static.manmade",),
    "vegetation": ("static.vegetation",),
}  # fmt: skip
_CLASS = {name: place for place, names in enumerate(_CATEGORIES.values()) for name in names}


class NuScenes(LabelledClouds):
    """The labelled key frames of a folder of nuScenes, with its ``lidarseg`` part.

    Args:
        root: the folder that has ``samples``, ``lidarseg`` and the version's folder.
        split: "mini_train" or "mini_val" of the small version; "all" of the version, or of the
            ``scenes``.
        version: the folder of tables; by default the only one.
        scenes: names such as ``scene-0103``, the scenes of the split "all" to keep: a published
            list of training or validation scenes.

    Points are float32 (points, 5): x, y, z in metres, intensity, ring. Labels of categories that
    the task leaves out are ignored.

    Raises :class:`~layoutconv.errors.PointFileError` with the path for tables, sweeps and labels
    that are missing, damaged or do not fit together.
    """

    classes = tuple(_CATEGORIES)
    columns = "x", "y", "z", "intensity", "ring"

    def __init__(
        self,
        root: str | os.PathLike[str],
        split: str = "all",
        version: str | None = None,
        scenes: Iterable[str] | None = None,
    ) -> None:
        check_choice("split", split, ("all", *SPLITS))
        if split != "all" and scenes is not None:
            raise ArgumentError("scenes", f"None beside the split {split!r}", scenes)
        if scenes is not None:
            scenes = _names(scenes)
        if not isinstance(version, str | None):
            raise ArgumentTypeError("version", "the name of a folder", type(version).__name__)
        kept = SPLITS.get(split, scenes)
        tables = _tables(folder(root), version)
        self.learned = _learned(tables / "category.json")
        self._files = _files(tables, kept)
        super().__init__(root, split, list(self._files))

    def __getitem__(self, at: int) -> LabelledCloud:
        name = self.names[index(at)]
        sweep, labels = (self.root / part for part in self._files[name])
        points = read_points(sweep, columns=5)
        found = read_numbers(labels, "u1", len(points), sweep)
        return LabelledCloud(name, points, classes_of(labels, found, self.learned))


def _names(scenes: Iterable[str]) -> tuple[str, ...]:
    found = tuple(scenes) if are_several(scenes) else (None,)
    if not all(isinstance(name, str) for name in found):
        raise ArgumentTypeError("scenes", "names of scenes", repr(scenes))
    return cast(tuple[str, ...], found)


def _tables(root: Path, version: str | None) -> Path:
    if version is not None:
        return folder(root / version)
    found = sorted(path.parent for path in root.glob("*/lidarseg.json"))
    if len(found) == 1:
        return found[0]
    if not found:
        raise PointFileError(f"{root}: no folder contains lidarseg.json, the table of labels")
    several = ", ".join(path.name for path in found)
    raise ArgumentError("version", f"one of {several}", None)


def _learned(path: Path) -> dict[int, int]:
    """Return the class of each category index."""
    records = read_json(path, name=str, index=int)
    names: dict[int, str] = {}
    for one in records:
        if names.setdefault(one["index"], one["name"]) != one["name"]:
            both = f"{names[one['index']]} and {one['name']}"
            raise PointFileError(f"{path}: index {one['index']} is that of {both}")
    return {place: _CLASS.get(name, IGNORED) for place, name in names.items()}


def _files(tables: Path, scenes: tuple[str, ...] | None) -> dict[str, tuple[str, str]]:
    """Return the files of points and labels by the name of a frame, scene by scene in time."""
    labels = {
        one["sample_data_token"]: one["filename"]
        for one in read_json(tables / "lidarseg.json", sample_data_token=str, filename=str)
    }
    scenes_told = read_json(tables / "scene.json", token=str, name=str)
    named = {one["token"]: one["name"] for one in scenes_told}
    samples = read_json(tables / "sample.json", token=str, scene_token=str)
    scene_of = {one["token"]: named.get(one["scene_token"]) for one in samples}
    path = tables / "sample_data.json"
    frames = []
    for one in read_json(path, token=str, sample_token=str, filename=str, timestamp=int):
        found = labels.pop(one["token"], None)
        scene = scene_of.get(one["sample_token"])
        if found is None:
            continue
        if scene is None:
            raise PointFileError(f"{path}: the scene of {one['token']} is in no table")
        if scenes is None or scene in scenes:
            frames.append((scene, one["timestamp"], one["filename"], found))
    if labels:
        raise PointFileError(f"{path}: no record of {min(labels)}, which lidarseg.json labels")
    files = {f"{scene}/{time}": (points, found) for scene, time, points, found in sorted(frames)}
    if len(files) < len(frames):
        raise PointFileError(f"{path}: two labelled frames of one scene have the same timestamp")
    return files
