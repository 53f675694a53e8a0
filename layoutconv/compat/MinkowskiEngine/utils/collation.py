"""Batches of lists of clouds, with the image in the first column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError, ArgumentTypeError, shown
from ...tensor_arguments import as_device, as_numbers, tensor_of
from ...whole_numbers import whole


def batched_coordinates(
    coords: Sequence[Any], dtype: torch.dtype = torch.int32, device: Any = None
) -> Tensor:
    """Batch coordinates (rows, D), arrays or tensors, to (rows, 1 + D); int32 rounds them down.

    >>> batched_coordinates([torch.tensor([[-0.5, 1.0]]), torch.tensor([[3.0, 4.0]])]).tolist()
    [[0, -1, 1], [1, 3, 4]]
    """
    if not isinstance(dtype, torch.dtype) or dtype not in (torch.int32, torch.float32):
        raise ArgumentError("dtype", "torch.int32 or torch.float32", shown(dtype))
    _check_clouds("coords", coords)
    clouds = [as_numbers("coords", cloud) for cloud in coords]
    if len({cloud.shape[1:] for cloud in clouds}) != 1 or clouds[0].ndim != 2:
        expected = "one or more clouds (rows, D) with the same D"
        raise ArgumentError("coords", expected, [tuple(cloud.shape) for cloud in clouds])
    parts = []
    for image, cloud in enumerate(clouds):
        if dtype == torch.int32 and cloud.is_floating_point():
            cloud = cloud.floor()
        parts.append(torch.nn.functional.pad(cloud.to(dtype), (1, 0), value=image))
    return torch.cat(parts).to(as_device("device", device))


def sparse_collate(
    coords: Sequence[Any],
    feats: Sequence[Any],
    labels: Sequence[Any] | None = None,
    dtype: torch.dtype = torch.int32,
    device: Any = None,
) -> tuple[Any, ...]:
    """Join the coordinates, features and optional labels of clouds to one batch."""
    for name, given in (("coords", coords), ("feats", feats)):
        _check_clouds(name, given)
    rows = [len(cloud) for cloud in coords], [len(features) for features in feats]
    if rows[0] != rows[1]:
        raise ArgumentError("feats", f"{rows[0]} rows, as many as `coords`", rows[1])
    if device is None and isinstance(coords[0], torch.Tensor):
        device = coords[0].device
    batch = batched_coordinates(coords, dtype, device)
    features = torch.cat([tensor_of(part) for part in feats])
    if labels is None:
        return batch, features
    if not isinstance(labels, list | tuple) or not labels:
        raise ArgumentTypeError("labels", "a list of labels, one for each cloud", shown(labels))
    parts = [label if isinstance(label, torch.Tensor) else _tensor(label) for label in labels]
    all_tensors = all(isinstance(part, torch.Tensor) for part in parts)
    return batch, features, torch.cat(parts) if all_tensors else parts


def _check_clouds(name: str, given: Any) -> None:
    several = isinstance(given, Sequence) and not isinstance(given, str)
    if not several or not all(getattr(cloud, "shape", ()) for cloud in given):
        raise ArgumentTypeError(name, "a list of tensors or arrays", type(given).__name__)


def _tensor(label: Any) -> Any:
    return tensor_of(label) if hasattr(label, "__array__") else label


def batch_sparse_collate(
    data: Sequence[Any], dtype: torch.dtype = torch.int32, device: Any = None
) -> tuple[Any, ...]:
    """:func:`sparse_collate` of tuples (coordinates, features, labels), one for each cloud."""
    _check_tuples("data", data)
    parts: list[Any] = [list(part) for part in zip(*data, strict=True)]
    labels = parts[2] if len(parts) > 2 else None
    return sparse_collate(parts[0], parts[1], labels, dtype, device)


def _check_tuples(name: str, data: Any) -> None:
    lists = isinstance(data, Sequence) and all(isinstance(one, list | tuple) for one in data)
    if not lists or not data or min(map(len, data)) < 2:
        expected = "a list of tuples (coordinates, features, ...)"
        raise ArgumentTypeError(name, expected, type(data).__name__)
    if len({len(one) for one in data}) > 1:
        raise ArgumentError(name, "tuples of the same length", sorted({len(one) for one in data}))
    if not all(getattr(part, "shape", ()) for one in data for part in one[:2]):
        expected = "tuples that begin with two tensors or arrays"
        raise ArgumentError(name, expected, [type(part).__name__ for part in data[0][:2]])


class SparseCollation:
    """A ``collate_fn`` of triples; clouds past ``limit_numpoints`` points, if > 0, are left out."""

    def __init__(
        self, limit_numpoints: int = -1, dtype: torch.dtype = torch.int32, device: Any = None
    ) -> None:
        self.limit_numpoints = whole("limit_numpoints", limit_numpoints)
        self.dtype, self.device = dtype, device

    def __call__(self, list_data: Sequence[Any]) -> tuple[Any, ...]:
        _check_tuples("list_data", list_data)
        kept, points = [], 0
        for one in list_data:
            _check_clouds("list_data", [one[0]])
            points += len(one[0])
            if 0 < self.limit_numpoints < points:
                break
            kept.append(one)
        return batch_sparse_collate(kept, self.dtype, self.device)
