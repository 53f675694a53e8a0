"""A tensor that is stored only where it is not zero: cells, and the features they have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from .coordinates import Coordinates

if TYPE_CHECKING:
    from torch import Tensor
    from typing_extensions import Self


class SparseTensor:
    """Features at integer coordinates of a batch of grids. It cannot be changed.

    Args:
        features: (rows, C), any dtype.
        coords: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3, on the device of
            ``features``, no cell twice; or :class:`Coordinates`, which are then shared with all
            that is known of them.
        spatial_shape: extents ``(D, H, W)`` of the grid, one to four of them; not with
            ``Coordinates``, which have them.
        batch_size: number N of grids; one of them may have no rows; not with ``Coordinates``.

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
    coordinates: Coordinates

    def __init__(
        self,
        features: Tensor,
        coords: Tensor | Coordinates,
        spatial_shape: Sequence[int] | None = None,
        batch_size: int | None = None,
    ) -> None:
        if isinstance(coords, Coordinates):
            for name, given in (("spatial_shape", spatial_shape), ("batch_size", batch_size)):
                if given is not None:
                    raise ArgumentError(name, "None: `coords` are Coordinates, which say it", given)
        else:
            if spatial_shape is None:
                raise ArgumentError("spatial_shape", "the extents (D, H, W) of the grid", None)
            if batch_size is None:
                raise ArgumentError("batch_size", "the number of grids", None)
            coords = Coordinates(coords, spatial_shape, batch_size)
        if features.ndim != 2 or len(features) != len(coords):
            raise ArgumentError(
                "features", f"({len(coords)}, C), a row per row of coords", tuple(features.shape)
            )
        if features.device != coords.device:
            raise ArgumentError(
                "features", f"a tensor on the device of coords, {coords.device}", features.device
            )
        self.__dict__.update(features=features, coordinates=coords)

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(
            f"a {type(self).__name__} cannot be changed: replace(features) makes another"
        )

    @property
    def coords(self) -> Tensor:
        """int32 (rows, 1 + rank), columns ``(batch, z, y, x)``."""
        return self.coordinates.cells

    @property
    def spatial_shape(self) -> tuple[int, ...]:
        """Extents ``(D, H, W)`` of the grid."""
        return self.coordinates.spatial_shape

    @property
    def batch_size(self) -> int:
        """The number N of grids."""
        return self.coordinates.batch_size

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.coordinates)

    def check(self) -> Self:
        """This tensor, if no cell is outside the grid or there twice (waits for the device)."""
        self.coordinates.check()
        return self

    def replace(self, features: Tensor) -> Self:
        """The same cells with other features, (rows, any C); the coordinates are shared."""
        made = object.__new__(type(self))
        made.__dict__.update(self.__dict__)
        SparseTensor.__init__(made, features, self.coordinates)
        return made

    def dense(self) -> Tensor:
        """The stored grid, (N, D, H, W, C), with zeros where there is no row.

        Raises ``ArgumentError`` for a coordinate outside the grid, and for a cell that is there
        twice.
        """
        self.check()
        channels = self.features.shape[1]
        grid = self.features.new_zeros(self.batch_size, *self.spatial_shape, channels)
        cells, features = self.coordinates.keys(), self.features
        if self.coordinates.padded:
            there = self.coords[:, 0] >= 0
            cells, features = cells[there], features[there]
        grid.view(-1, channels)[cells] = features
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
        coordinates = Coordinates(where.int(), grid.shape[1:-1], grid.shape[0], valid=True)
        return SparseTensor(grid[tuple(where.T)], coordinates)
