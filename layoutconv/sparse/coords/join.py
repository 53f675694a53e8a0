"""One sparse tensor from several: joined along channels or the batch, or with repeated cells."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from ...errors import ArgumentError, ArgumentTypeError
from .bounds import joint
from .coordinates import Coordinates
from .lattice import Lattice
from .rows import Reduce, check_reduce, reduce_runs, runs_of
from .sparse_tensor import SparseTensor
from .voxels import Voxels

if TYPE_CHECKING:
    from torch import Tensor


def cat(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """Concatenate the channels of tensors that share their coordinates; differentiable.

    The result shares the coordinates too, and has the type of the first.

    Raises ``ArgumentError`` for no tensors, and for tensors with coordinates of their own.

    >>> import torch
    >>> coords = torch.tensor([[0, 1], [0, 3]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [2.0]]), coords, (5,), batch_size=1)
    >>> cat([x, x * 10]).features
    tensor([[ 1., 10.],
            [ 2., 20.]])
    """
    first = _first(tensors)
    for number, tensor in enumerate(tensors):
        if tensor.coordinates is not first.coordinates:
            raise ArgumentError(
                "tensors",
                "tensors that share their coordinates, as replace() makes them (`+` and collate() "
                "take others)",
                f"{tensor!r} with coordinates of its own at {number}",
            )
    return first.replace(torch.cat([tensor.features for tensor in tensors], dim=1))


def collate(tensors: Sequence[SparseTensor]) -> SparseTensor:
    """Join tensors as the images of one batch: the inverse of slicing it; differentiable.

    A tensor of several images contributes all of them. Rows are in the order of the tensors, cells
    keep their places, and the grid is as large as the largest along each axis; without bounds, if
    none has any. Use it as the ``collate_fn`` of a DataLoader.

    :class:`Voxels` of one voxel size keep their points: their cells are counted from a common
    origin, and the result is that of ``voxelize`` on the list of clouds.

    Raises ``ArgumentError`` for no tensors, and for tensors that differ in the number of spatial
    modes or channels, dtype or device, or in having bounds.

    >>> import torch
    >>> coords = torch.tensor([[0, 1], [0, 3]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[1.0], [2.0]]), coords, (5,), batch_size=1)
    >>> both = collate([x, x * 10])
    >>> both.coords.tolist(), both.features.T
    ([[0, 1], [0, 3], [1, 1], [1, 3]], tensor([[ 1.,  2., 10., 20.]]))
    """
    first = _first(tensors)
    kinds = [
        (t.coordinates.rank, t.coordinates.corner is None, t.features.shape[1], t.dtype, t.device)
        for t in tensors
    ]
    for number, kind in enumerate(kinds):
        if kind != kinds[0]:
            raise ArgumentError(
                "tensors",
                f"tensors of the same kind, like {first!r}",
                f"{tensors[number]!r} at {number}",
            )
    voxels = [t for t in tensors if isinstance(t, Voxels)]
    lattice = Lattice.around([v.lattice for v in voxels]) if len(voxels) == len(tensors) else None
    corner, largest = _common_box([t.coordinates for t in tensors])
    images, cells = 0, []
    for number, tensor in enumerate(tensors):
        own = tensor.coordinates
        batch, space = own.cells[:, :1], own.cells[:, 1:]
        if corner is not None and own.corner != corner:
            moves = [a - b for a, b in zip(own.corner or (), corner, strict=True)]
            space = torch.where(batch < 0, space, space + space.new_tensor(moves))
        if lattice and lattice.first != voxels[number].lattice.first:
            firsts = zip(voxels[number].lattice.first, lattice.first, strict=True)
            space = space + space.new_tensor([mine - first for mine, first in firsts][::-1])
        cells.append(torch.cat([torch.where(batch < 0, batch, batch + images), space], dim=1))
        images += tensor.batch_size
    coordinates = Coordinates(
        torch.cat(cells),
        lattice.shape if lattice else largest,
        images,
        padded=any(t.coordinates.padded for t in tensors),
        valid=all(t.coordinates.valid for t in tensors),
        repeated=any(t.coordinates.repeated for t in tensors),
        corner=corner,
    )
    features = torch.cat([t.features for t in tensors])
    if lattice is None:
        return SparseTensor(features, coordinates)
    rows, of_points = 0, []
    for one in voxels:
        found = one.point_to_voxel
        of_points.append(torch.where(found < 0, found, found + rows))
        rows += len(one)
    dropped = sum(one.dropped for one in voxels)
    points = torch.cat(of_points)
    return Voxels(features, coordinates, point_to_voxel=points, lattice=lattice, dropped=dropped)


def merge_repeated(
    features: Tensor,
    coords: Tensor,
    spatial_shape: Sequence[int],
    batch_size: int,
    reduce: Reduce = "sum",
) -> SparseTensor:
    """Make a sparse tensor of rows with repeated cells: each cell once, its rows reduced.

    Args:
        features: floating (rows, C); any dtype for ``first``.
        coords, spatial_shape, batch_size: as for :class:`SparseTensor`, cells repeated or not.
        reduce: ``sum``, ``mean``, ``max``, ``min``, or ``first`` (the row that comes first).

    Returns rows in lexicographic order of their cells. Sums are in float64 in the order of the
    rows, so a second run gives the same bits. Differentiable in ``features``. It waits for the
    device.

    Raises ``ArgumentError``, also for a coordinate outside the grid.

    >>> import torch
    >>> coords = torch.tensor([[0, 3], [0, 1], [0, 3]], dtype=torch.int32)
    >>> x = merge_repeated(torch.tensor([[1.0], [2.0], [4.0]]), coords, (5,), batch_size=1)
    >>> x.coords.tolist(), x.features.T
    ([[0, 1], [0, 3]], tensor([[2., 5.]]))
    """
    reduce = check_reduce(reduce)
    for name, tensor in (("features", features), ("coords", coords)):
        if not isinstance(tensor, torch.Tensor):
            raise ArgumentTypeError(name, "a torch tensor", type(tensor).__name__)
    if reduce != "first" and not features.is_floating_point():
        expected = f"a tensor of a floating-point type, to take their {reduce}"
        raise ArgumentTypeError("features", expected, features.dtype)
    given = SparseTensor(features, coords, spatial_shape, batch_size)
    limits = coords.new_tensor((given.batch_size, *given.spatial_shape))
    outside = ((coords < 0) | (coords >= limits)).any(1)
    if outside.any():
        given.coordinates._refuse_outside(int(outside.nonzero()[0]))
    runs = runs_of(given.coordinates.keys())
    cells = coords[runs.order[runs.first]]
    merged = Coordinates(cells, spatial_shape, batch_size, valid=True)
    return SparseTensor(reduce_runs(features, runs, reduce), merged)


def _common_box(clouds: Sequence[Coordinates]) -> tuple[tuple[int, ...] | None, tuple[int, ...]]:
    """Return the corner (None with bounds) and the extents of a grid that has all cells."""
    if clouds[0].corner is not None:
        return joint([(c.corner or (), c.spatial_shape) for c in clouds])
    shapes = [cells.spatial_shape for cells in clouds]
    return None, tuple(max(extents) for extents in zip(*shapes, strict=True))


def _first(tensors: Sequence[SparseTensor]) -> SparseTensor:
    listed = hasattr(tensors, "__len__") and hasattr(tensors, "__getitem__")
    of_numbers = isinstance(tensors, torch.Tensor) or getattr(tensors, "ndim", 1) == 0
    if not listed or of_numbers:  # a generator is read only once
        raise ArgumentTypeError("tensors", "a sequence of sparse tensors", type(tensors).__name__)
    if not len(tensors):
        raise ArgumentError("tensors", "one sparse tensor or more", tensors)
    for number, tensor in enumerate(tensors):
        if not isinstance(tensor, SparseTensor):
            got = f"{type(tensor).__name__} at {number}"
            raise ArgumentTypeError("tensors", "sparse tensors", got)
    return tensors[0]
