"""Small folders as SemanticKITTI, nuScenes and ScanNet publish them, of random points."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np


def written(path: Path, content: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def table(path: Path, records: Any) -> None:
    written(path, json.dumps(records).encode())


def points_of(count: int, columns: int, seed: int) -> np.ndarray:
    found: np.ndarray = np.random.default_rng(seed).normal(0, 5, (count, columns)).astype("<f4")
    return found


def semantic_kitti(root: Path, sweeps: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Sweeps by sequence and number, ``{"00/000000": labels}``; returns their points."""
    made = {}
    for seed, (name, labels) in enumerate(sweeps.items()):
        number, sweep = name.split("/")
        points = made[name] = points_of(max(len(labels), 3), 4, seed)
        folder = root / "sequences" / number
        written(folder / "velodyne" / f"{sweep}.bin", points.tobytes())
        if labels:
            instances = np.arange(len(labels), dtype="<u4") << 16
            content = (instances | np.array(labels, "<u4")).tobytes()
            written(folder / "labels" / f"{sweep}.label", content)
    return made


CATEGORIES = {0: "noise", 17: "vehicle.car", 24: "flat.driveable_surface", 31: "vehicle.ego"}


def nuscenes(root: Path, scenes: dict[str, list[list[int]]]) -> dict[str, np.ndarray]:
    """Frames by scene, each a list of labels, the last one first; returns their points."""
    tables = root / "v1.0-mini"
    records: dict[str, list[Any]] = {name: [] for name in ("lidarseg", "sample_data", "sample")}
    made, at = {}, 0
    for scene, frames in scenes.items():
        for time in reversed(range(len(frames))):
            points, token = points_of(len(frames[time]), 5, at), f"t{at}"
            sweep, labels = f"samples/LIDAR_TOP/{token}.pcd.bin", f"lidarseg/v1.0-mini/{token}.bin"
            written(root / sweep, points.tobytes())
            written(root / labels, np.array(frames[time], "u1").tobytes())
            records["sample"].append({"token": f"s{at}", "scene_token": scene})
            frame = {"token": token, "sample_token": f"s{at}", "filename": sweep, "timestamp": time}
            records["sample_data"].append(frame)
            unlabelled = {**frame, "token": f"camera {at}", "filename": "samples/CAM/a.jpg"}
            records["sample_data"].append(unlabelled)
            records["lidarseg"].append({"sample_data_token": token, "filename": labels})
            made[f"{scene}/{time}"] = points
            at += 1
    for name, found in records.items():
        table(tables / f"{name}.json", found)
    table(tables / "scene.json", [{"token": scene, "name": scene} for scene in scenes])
    named = [{"name": name, "index": index} for index, name in CATEGORIES.items()]
    table(tables / "category.json", named)
    return made


def mesh(points: np.ndarray, labels: list[int] | None) -> bytes:
    """A mesh of one face, as ScanNet's: x, y, z, colours, alpha, and labels if there are any."""
    names = [(axis, "<f4") for axis in "xyz"]
    names += [(colour, "u1") for colour in ("red", "green", "blue", "alpha")]
    names += [] if labels is None else [("label", "<u2")]
    rows = np.zeros(len(points), names)
    for place, (name, _) in enumerate(names[:6]):
        rows[name] = points[:, place]
    if labels is not None:
        rows["label"] = labels
    kinds = {"<f4": "float", "u1": "uchar", "<u2": "ushort"}
    lines = [f"property {kinds[kind]} {name}" for name, kind in names]
    header = [
        "ply", "format binary_little_endian 1.0", f"element vertex {len(points)}", *lines,
        "element face 1", "property list uchar int vertex_indices", "end_header", "",
    ]  # fmt: skip
    return "\n".join(header).encode() + rows.tobytes() + b"\x03" + bytes(12)


def scannet(root: Path, scenes: dict[str, list[int]], folder: str = "scans") -> dict[str, Any]:
    made = {}
    for seed, (name, labels) in enumerate(scenes.items()):
        points = made[name] = points_of(max(len(labels), 3), 6, seed)
        points[:, 3:] = np.arange(points[:, 3:].size).reshape(-1, 3)
        path = root / folder / name / f"{name}_vh_clean_2"
        written(path.with_name(f"{path.name}.ply"), mesh(points, None))
        if labels:
            written(path.with_name(f"{path.name}.labels.ply"), mesh(points, labels))
    return made
