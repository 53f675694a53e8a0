"""A tensor that is stored only where it is not zero: voxels, and the features they have."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import ArgumentError
from .coordinates import (
    check_coords,
    check_coords_type,
    check_spatial_shape,
    key_strides,
    pack,
)

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


@dataclass(frozen=True, eq=False)
class SparseTensor:
    """Features at integer coordinates of a batch of grids.

    Args:
        features: (rows, C), any dtype.
        coords: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3, on the device of
            ``features``.
        spatial_shape: extents ``(D, H, W)`` of the grid, one to four of them.
        batch_size: number N of grids; one of them may have no rows.

    Building one looks at dtypes and shapes only, so it never waits for a GPU; :meth:`check` looks
    at the values.

    Raises ``ArgumentError``.

    >>> import torch
    >>> coords = torch.tensor([[0, 0, 1, 2], [1, 3, 0, 0]], dtype=torch.int32)
    >>> x = SparseTensor(torch.tensor([[5.0], [7.0]]), coords, (4, 2, 3), batch_size=2)
    >>> x.dense()[0, 0, 1, 2], x.dense().sum()
    (tensor([5.]), tensor(12.))
    """

    features: Tensor
    coords: Tensor
    spatial_shape: tuple[int, ...]
    batch_size: int

    def __post_init__(self) -> None:
        shape = check_spatial_shape(self.spatial_shape, self.batch_size)
        object.__setattr__(self, "spatial_shape", shape)
        coords, features = self.coords, self.features
        check_coords_type(coords, shape)
        if features.ndim != 2 or len(features) != len(coords):
            raise ArgumentError(
                "features", f"({len(coords)}, C), a row per row of coords", tuple(features.shape)
            )
        if features.device != coords.device:
            raise ArgumentError(
                "features", f"a tensor on the device of coords, {coords.device}", features.device
            )

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.coords)

    def check(self) -> Self:
        """This tensor, if all its coordinates lie inside the grid (waits for the device)."""
        check_coords(self.coords, self.spatial_shape, self.batch_size)
        return self

    def replace(self, features: Tensor) -> Self:
        """The same voxels with other features, (rows, any C); the coordinates are shared."""
        return replace(self, features=features)

    def dense(self) -> Tensor:
        """The stored grid, (N, D, H, W, C), with zeros where there is no row.

        Raises ``ArgumentError`` for a coordinate outside the grid. Of rows with the same
        coordinates, one is kept.
        """
        self.check()
        channels = self.features.shape[1]
        grid = self.features.new_zeros(self.batch_size, *self.spatial_shape, channels)
        cells = pack(self.coords, key_strides(self.spatial_shape, self.batch_size))
        grid.view(-1, channels)[cells] = self.features
        return grid

    @classmethod
    def from_dense(cls, grid: Tensor) -> SparseTensor:
        """The cells of ``grid`` (N, D, H, W, C) that have a channel other than zero, in
        lexicographic order.

        >>> import torch
        >>> grid = torch.zeros(1, 2, 2, 2, 3); grid[0, 1, 0, 1, 2] = 4.0
        >>> SparseTensor.from_dense(grid).coords
        tensor([[0, 1, 0, 1]], dtype=torch.int32)
        """
        if not 3 <= grid.ndim <= 6:
            raise ArgumentError("grid", "(N, D, H, W, C), 1 to 4 spatial modes", tuple(grid.shape))
        where = (grid != 0).any(-1).nonzero()
        return SparseTensor(
            features=grid[tuple(where.T)],
            coords=where.int(),
            spatial_shape=tuple(grid.shape[1:-1]),
            batch_size=grid.shape[0],
        )
