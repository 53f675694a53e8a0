"""Unique coordinates."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError, ArgumentTypeError, shown
from ....sparse import Coordinates
from ...tensor_arguments import as_device, as_numbers
from ...whole_numbers import int32_cells, whole
from ..MinkowskiCoordinateManager import first_rows


def unique_coordinate_map(coordinates: Tensor, tensor_stride: Any = 1) -> tuple[Tensor, Tensor]:
    """Return the first row of each coordinate (rows, 1 + D), int64, and each row's index in these.

    >>> rows, inverse = unique_coordinate_map(torch.tensor([[0, -3], [0, 5], [0, -3]]))
    >>> rows.tolist(), inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    cells = int32_cells("coordinates", coordinates)
    if cells.ndim != 2:
        raise ArgumentError("coordinates", "(rows, 1 + D)", tuple(cells.shape))
    return first_rows(Coordinates.unbounded(cells, repeated=True))


def sparse_quantize(
    coordinates: Any,
    features: Any = None,
    labels: Any = None,
    ignore_label: int = -100,
    return_index: bool = False,
    return_inverse: bool = False,
    return_maps_only: bool = False,
    quantization_size: Any = None,
    device: Any = "cpu",
) -> Any:
    """Return the unique cells of points, each with the features of its first point.

    Args:
        coordinates: (points, D), an array or a tensor; divided by ``quantization_size``, a number
            or one per axis, and rounded down.
        features: (points, C).
        labels: (points,); a cell whose points' labels differ gets ``ignore_label``.
        return_index, return_inverse: also return the rows of the first points, and the cell of
            every point; with ``return_maps_only`` only these.

    Returns coordinates, then the requested features, labels and maps. Raises
    :class:`~layoutconv.errors.ArgumentTypeError` for anything but numbers, and
    :class:`~layoutconv.errors.ArgumentError` for other modes, another number of rows than points,
    sizes that are not above 0, and an ``ignore_label`` that the labels' type cannot hold.
    """
    flags = {"return_index": return_index, "return_inverse": return_inverse}
    for name, flag in (flags | {"return_maps_only": return_maps_only}).items():
        if getattr(flag, "shape", ()):
            raise ArgumentTypeError(name, "a bool", shown(flag))
    given = as_numbers("coordinates", coordinates, "(points, D)")
    if quantization_size is not None:
        given = given / _size(quantization_size, given)
    if features is not None and not hasattr(features, "dtype"):
        raise ArgumentTypeError("features", "a tensor or an array", type(features).__name__)
    own = None if labels is None else as_numbers("labels", labels, "(points,)")
    for name, beside in (("features", features), ("labels", own)):
        if beside is not None and (not beside.ndim or len(beside) != len(given)):
            got = len(beside) if beside.ndim else "a number"
            raise ArgumentError(name, f"{len(given)} rows, as many as `coordinates`", got)
    cells = given.floor() if given.is_floating_point() else given
    cells = int32_cells("coordinates", cells).to(as_device("device", device))
    rows, inverse = unique_coordinate_map(torch.nn.functional.pad(cells, (1, 0)))
    if return_maps_only:
        return (rows, inverse) if return_inverse else rows
    # MinkowskiEngine keeps arrays with labels; without, all but features become tensors.
    arrays = labels is not None and not isinstance(coordinates, torch.Tensor)
    if arrays:
        cells, rows, inverse = cells.cpu(), rows.cpu(), inverse.cpu()
    found: list[Any] = [cells[rows]]
    if features is not None:
        found.append(features[_like(features, rows)])
    if own is not None:
        merged = _labels(own.to(rows.device), rows, inverse, ignore_label)
        found.append(merged if isinstance(labels, Tensor) else merged.cpu().numpy())
    if return_index:
        found.append(rows)
    if return_inverse:
        found.append(inverse)
    if arrays:
        found = [x.numpy() if isinstance(x, torch.Tensor) else x for x in found]
    return found[0] if len(found) == 1 else tuple(found)


def _like(array: Any, rows: Tensor) -> Any:
    return rows.to(array.device) if isinstance(array, torch.Tensor) else rows.cpu().numpy()


def _size(quantization_size: Any, points: Tensor) -> Tensor | float:
    """Return the size of cells that divides points: a number, or one per axis."""
    size = as_numbers("quantization_size", quantization_size, device=points.device)
    if not bool((size > 0).all()) or not size.numel():
        raise ArgumentError("quantization_size", "numbers > 0", shown(quantization_size))
    if size.ndim > 1 or (size.ndim and len(size) not in (1, points.shape[1])):
        expected = f"a number, or {points.shape[1]} of them"
        raise ArgumentError("quantization_size", expected, shown(quantization_size))
    return size.to(points.device) if size.ndim else float(size)


def _labels(labels: Tensor, rows: Tensor, inverse: Tensor, ignore_label: Any) -> Tensor:
    ignore = whole("ignore_label", ignore_label)
    if not labels.is_floating_point():
        limits = torch.iinfo(labels.dtype)
        if not limits.min <= ignore <= limits.max:
            expected = f"a number of {labels.dtype}, the dtype of `labels`"
            raise ArgumentError("ignore_label", expected, ignore)
    first = labels[rows]
    differs = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    differs[inverse[labels != first[inverse]]] = True
    return first.masked_fill(differs, ignore)
