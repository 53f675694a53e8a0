"""``LabelledCloud``: points and the class of each; ``LabelledClouds``: a folder of them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ....errors import ArgumentTypeError, PointFileError, check_choice
from ..point_files.source import opened

if TYPE_CHECKING:
    import numpy as np

IGNORED = -100  # the default ignore_index of torch's cross_entropy


@dataclass(frozen=True, eq=False)
class LabelledCloud:
    """The points of a scan and the class of each.

    Attributes:
        name: of the scan in its folder, such as ``08/000042``.
        points: float32 (points, columns), x, y, z first.
        labels: int64 (points,), indices in ``classes`` of the folder, ``IGNORED`` = -100 for
            points of no class; None if nothing is labelled, as in a test split.
    """

    name: str
    points: np.ndarray
    labels: np.ndarray | None


class LabelledClouds:
    """A sequence of labelled clouds, read on demand: a dataset for a ``DataLoader``.

    Attributes:
        root: the folder.
        split: its name.
        names: of the scans, in order.
        classes: the names of the classes.
        columns: the names of the columns of points.
    """

    classes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def __init__(self, root: Any, split: str, names: Sequence[str]) -> None:
        self.root, self.split, self.names = folder(root), split, tuple(names)
        if not self.names:
            raise PointFileError(f"{self.root}: no scans of the split {split!r}")

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, at: int) -> LabelledCloud:
        raise NotImplementedError

    def __iter__(self) -> Iterator[LabelledCloud]:
        return (self[at] for at in range(len(self)))

    def __repr__(self) -> str:
        of = f"{len(self)} scans of {len(self.classes)} classes"
        return f"{type(self).__name__}({str(self.root)!r}, {self.split!r}: {of})"


def folder(root: Any) -> Path:
    """Return the path of an existing folder; else raise ``PointFileError``."""
    try:
        path = Path(os.fsdecode(root))
    except TypeError:
        raise ArgumentTypeError("root", "a folder", type(root).__name__) from None
    if not path.is_dir():
        raise PointFileError(f"{path}: no such folder")
    return path


def check_split(split: str, known: Sequence[str]) -> str:
    """Return a known split; else raise ``ArgumentError``."""
    check_choice("split", split, known)
    return split


def read_numbers(path: Path, dtype: str, count: int, beside: Path) -> np.ndarray:
    """Read integers, one for each of the ``count`` points of another file, and nothing else.

    Raises :class:`~layoutconv.errors.PointFileError` for another size.
    """
    import numpy as np

    with opened(str(path)) as source:
        kind = np.dtype(dtype)
        if source.size != count * kind.itemsize:
            raise source.error(
                f"expected {count * kind.itemsize} bytes, {kind.itemsize} for each of the {count} "
                f"points of {beside}, got {source.size}"
            )
        found = np.empty(count, kind)
        for at, piece in source.records(kind, count, 0, "labels"):
            found[at] = piece
        return found


def classes_of(path: Path, labels: np.ndarray, learned: Mapping[int, int]) -> np.ndarray:
    """Return the class of each label, int64; ``learned`` maps every possible label.

    Raises :class:`~layoutconv.errors.PointFileError` for another label.
    """
    import numpy as np

    present, places = np.unique(labels, return_inverse=True)
    unknown = [int(label) for label in present if int(label) not in learned]
    if unknown:
        point = int(np.flatnonzero(labels == unknown[0])[0])
        raise PointFileError(f"{path}: label {unknown[0]} of point {point} is not a known label")
    table = np.array([learned[int(label)] for label in present], np.int64)
    return table[places.reshape(-1)]


def read_json(path: Path, **kinds: type) -> list[dict[str, Any]]:
    """Read a table: a list of records, each of which has fields of these types.

    Raises :class:`~layoutconv.errors.PointFileError` for anything else.
    """
    with opened(str(path)) as source:
        content = source.read(0, source.size, "the table")
    try:
        table = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise PointFileError(f"{path}: expected JSON: {error}") from None
    if not isinstance(table, list):
        raise PointFileError(f"{path}: expected a list of records, got {type(table).__name__}")
    for at, record in enumerate(table):
        fields = record if isinstance(record, dict) else {}
        for key, kind in kinds.items():
            if type(fields.get(key)) is not kind:
                expected = f"a field {key!r} of type {kind.__name__}"
                raise PointFileError(f"{path}: record {at}: expected {expected}")
    return table
