"""Recognise the publisher of a folder."""

from __future__ import annotations

import os
from typing import Any

from ....errors import PointFileError
from .nuscenes import NuScenes
from .scannet import ScanNet
from .scans import LabelledClouds, folder
from .semantic_kitti import SemanticKitti


def labelled_clouds(root: str | os.PathLike[str], split: str = "train") -> LabelledClouds:
    """Return the labelled clouds of a folder of SemanticKITTI, nuScenes-lidarseg or ScanNet.

    Args:
        root: a folder that has ``sequences`` (:class:`SemanticKitti`), ``lidarseg``
            (:class:`NuScenes`), or ``scans`` (:class:`ScanNet`).
        split: of that publisher; "train" and "val" of nuScenes are those of its small version.

    Raises :class:`~layoutconv.errors.PointFileError` for any other folder.

    >>> labelled_clouds("/")
    Traceback (most recent call last):
    layoutconv.errors.PointFileError: /: expected a folder with sequences (SemanticKITTI), lidarseg\
 (nuScenes) or scans (ScanNet)
    """
    base = folder(root)
    kinds: dict[str, Any] = {"sequences": SemanticKitti, "lidarseg": NuScenes, "scans": ScanNet}
    for part, kind in kinds.items():
        if (base / part).is_dir():
            if kind is NuScenes and split in ("train", "val"):
                split = f"mini_{split}"
            found: LabelledClouds = kind(root, split)
            return found
    expected = "a folder with sequences (SemanticKITTI), lidarseg (nuScenes) or scans (ScanNet)"
    raise PointFileError(f"{base}: expected {expected}")
