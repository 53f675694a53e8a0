"""From points to the voxels whose centres surround them, with interpolation weights."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import TYPE_CHECKING, Literal

import torch

from ...errors import ArgumentError, check_choice
from .coordinates import Coordinates
from .interpolation import around, lattice_of, points_of
from .keys import key_strides, pack
from .lattice import Lattice, check_rank, voxel_edges
from .rows import add_rows
from .sparse_tensor import SparseTensor
from .voxels import Voxels, joined

if TYPE_CHECKING:
    from numpy import ndarray
    from torch import Tensor


def splat(
    points: Tensor | ndarray | Sequence[Tensor | ndarray],
    voxel_size: float | Sequence[float] | None = None,
    range: Sequence[float] | None = None,
    reduce: Literal["sum", "mean"] = "sum",
    *,
    rank: int = 3,
    onto: SparseTensor | None = None,
    origin: Sequence[float] | None = None,
) -> SparseTensor:
    """Distribute each point of a cloud over the voxels whose centres surround it.

    A point adds its columns to two voxels per mode, 8 in space, with the weights of linear
    interpolation. If all voxels exist, this is the transpose of :func:`devoxelize` in mode
    ``linear``; weights here are not divided by their sum.

    Args:
        points, voxel_size, range, rank: as for :func:`voxelize`. Shares for cells outside
            ``range`` are lost, and points outside it are ignored.
        reduce: ``sum``, or ``mean``: divided by the sum of a voxel's weights.
        onto: a tensor whose cells receive the points, in place of all cells around them; shares
            for other cells are lost. Pass its ``voxel_size`` and ``origin`` too, unless it is
            :class:`Voxels`; its ``rank`` is known.
        origin: as for :func:`devoxelize`, for ``onto``.

    Returns :class:`Voxels` as :func:`voxelize` does, of all cells with a positive weight; or
    ``onto`` with these features. Sums are in float64 and in one order, the same bits every time.
    Differentiable in the columns of the points, including ``x, y, z`` in weights.

    Raises :class:`~layoutconv.errors.ArgumentError` like those two.

    >>> import torch
    >>> cloud = torch.tensor([[0.75, 8.0], [2.5, 1.0]])
    >>> v = splat(cloud, voxel_size=1.0, rank=1)
    >>> v.coords[:, 1].tolist(), v.features[:, 1].tolist()
    ([0, 1, 2], [6.0, 2.0, 1.0])
    >>> splat(cloud, onto=v, reduce="mean").features[:, 1].tolist()
    [8.0, 8.0, 1.0]
    """
    check_choice("reduce", reduce, ("sum", "mean"), "sum or mean")
    if onto is not None:
        if range is not None:
            raise ArgumentError("range", "None beside `onto`, which has its own cells", range)
        lattice = lattice_of(onto, voxel_size, origin)
        modes = len(lattice.shape)
        cloud, batch = points_of(onto, points, modes)
        positions = lattice.positions(cloud[:, :modes])
        return onto.replace(_shared(cloud, onto.coordinates, positions, batch, reduce))
    if voxel_size is None:
        raise ArgumentError("voxel_size", "the edges of a voxel, or `onto` instead", None)
    if origin is not None:
        raise ArgumentError(
            "origin", "None without `onto`, as `range` says where cells begin", origin
        )
    return _generated(points, voxel_edges(voxel_size, check_rank(rank)), range, reduce, rank)


def _generated(
    points: Tensor | ndarray | Sequence[Tensor | ndarray],
    size: tuple[float, ...],
    range: Sequence[float] | None,
    reduce: str,
    rank: int,
) -> Voxels:
    cloud, batch, count = joined(points, rank)
    xyz = cloud[:, :rank]
    if range is None:
        lattice = Lattice.of_points(xyz, size, below=(-0.5, 0.5))
    else:
        lattice = Lattice.of_range(range, size)
    own, inside = lattice.cells(xyz)
    batch = torch.where(inside, batch, -1)
    positions = lattice.positions(xyz)
    strides = key_strides(lattice.shape, count)
    limits = own.new_tensor(lattice.shape)
    corners = positions.detach().add(0.5).floor().long().flip(1)
    upper = positions.detach().flip(1) - corners + 0.5
    keys = []
    for offset in product((-1, 0), repeat=rank):
        cells = corners + corners.new_tensor(offset)
        there = inside & ((cells >= 0) & (cells < limits)).all(1)
        for axis, step in enumerate(offset):  # a weight of zero adds no cell
            there &= (upper[:, axis] if step == 0 else 1 - upper[:, axis]) > 0
        rows = there.nonzero()[:, 0]
        keys.append(pack(torch.cat([batch[rows, None], cells[rows]], 1), strides))
    found = torch.unique(torch.cat(keys))
    coordinates = Coordinates.of_keys(found, lattice.shape, count)
    features = _shared(cloud, coordinates, positions, batch, reduce)
    own_keys = pack(torch.cat([batch[:, None], own.flip(1)], 1), strides)
    nearest = torch.searchsorted(found, own_keys).masked_fill(~inside, -1)
    dropped = int((~inside).sum())
    return Voxels(features, coordinates, point_to_voxel=nearest, lattice=lattice, dropped=dropped)


def _shared(
    cloud: Tensor, coordinates: Coordinates, positions: Tensor, batch: Tensor, reduce: str
) -> Tensor:
    rows, weights = around(coordinates, positions, batch)
    given = torch.cat([weight[:, None] * cloud.double() for weight in weights])
    sums = add_rows(given, rows.flatten(), len(coordinates))
    if reduce == "mean":
        whole = add_rows(torch.cat(weights)[:, None], rows.flatten(), len(coordinates))
        sums = sums / torch.where(whole > 0, whole, 1)
    return sums.to(cloud.dtype)
