"""Coordinates, each once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ....errors import ArgumentError
from ....sparse import Coordinates
from ...whole_numbers import int32_cells
from ..MinkowskiCoordinateManager import first_rows


def unique_coordinate_map(coordinates: Tensor, tensor_stride: Any = 1) -> tuple[Tensor, Tensor]:
    """The first row of each coordinate (rows, 1 + D), int64, and which of those every row has.

    >>> rows, inverse = unique_coordinate_map(torch.tensor([[0, -3], [0, 5], [0, -3]]))
    >>> rows.tolist(), inverse.tolist()
    ([0, 1], [0, 1, 0])
    """
    cells = int32_cells("coordinates", coordinates)
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
    """The cells of points, each once, with the features of its first point.

    Args:
        coordinates: (points, D), an array or a tensor; divided by ``quantization_size``, a number
            or one per axis, and rounded down.
        features: (points, C).
        labels: (points,): a cell whose points differ gets ``ignore_label``.
        return_index, return_inverse: whether the rows of the first points, and the cell of every
            point, are returned too; with ``return_maps_only`` nothing else.

    Returns coordinates, then features, labels and maps, as far as they are asked for.
    """
    given = torch.as_tensor(coordinates)
    if given.ndim != 2:
        raise ArgumentError("coordinates", "(points, D)", tuple(given.shape))
    if quantization_size is not None:
        size = torch.as_tensor(quantization_size)
        if not bool((size > 0).all()):
            raise ArgumentError("quantization_size", "numbers > 0", quantization_size)
        given = given / (size.to(given.device) if size.ndim else float(size))
    for name, beside in (("features", features), ("labels", labels)):
        if beside is not None and len(beside) != len(given):
            raise ArgumentError(name, f"{len(given)} rows, as `coordinates`", len(beside))
    cells = given.floor() if given.is_floating_point() else given
    cells = int32_cells("coordinates", cells).to(device)
    rows, inverse = unique_coordinate_map(torch.nn.functional.pad(cells, (1, 0)))
    if return_maps_only:
        return (rows, inverse) if return_inverse else rows
    # With labels MinkowskiEngine keeps arrays as arrays, without them all but features are tensors.
    arrays = labels is not None and not isinstance(coordinates, torch.Tensor)
    if arrays:
        cells, rows, inverse = cells.cpu(), rows.cpu(), inverse.cpu()
    found: list[Any] = [cells[rows]]
    if features is not None:
        found.append(features[_like(features, rows)])
    if labels is not None:
        found.append(_labels(labels, rows, inverse, ignore_label))
    if return_index:
        found.append(rows)
    if return_inverse:
        found.append(inverse)
    if arrays:
        found = [x.numpy() if isinstance(x, torch.Tensor) else x for x in found]
    return found[0] if len(found) == 1 else tuple(found)


def _like(array: Any, rows: Tensor) -> Any:
    return rows.to(array.device) if isinstance(array, torch.Tensor) else rows.cpu().numpy()


def _labels(labels: Any, rows: Tensor, inverse: Tensor, ignore: int) -> Any:
    own = torch.as_tensor(labels).to(rows.device)
    first = own[rows]
    differs = torch.zeros(len(rows), dtype=torch.bool, device=rows.device)
    differs[inverse[own != first[inverse]]] = True
    found = first.masked_fill(differs, ignore)
    return found if isinstance(labels, torch.Tensor) else found.cpu().numpy()
