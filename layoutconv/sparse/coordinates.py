"""The cells of a batch of grids that are there, and what has been found out about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ..errors import ArgumentError
from .keys import check_coords_type, check_spatial_shape, key_strides, pack, unpack
from .table import Table, table_of

if TYPE_CHECKING:
    from torch import Tensor

    from .kernel_map import KernelMap


class Coordinates:
    """Cells of a batch of grids, one to a row: tensors that share them share their kernel maps.

    Args:
        cells: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3, in any order, no
            cell twice. Not to be written to afterwards.
        spatial_shape: extents ``(D, H, W)`` of the grid, one to four of them.
        batch_size: number N of grids; one of them may have no cells.
        padded: whether rows whose batch is -1 are there to fill memory up: they are no cells, no
            row reads them, and they read nothing. That is how a cloud of any size has the shape
            that a CUDA graph was captured with.
        valid: what :meth:`check` looks for is known not to be there.

    Making one looks at dtypes and shapes only and never waits for a GPU. The values are looked at
    once, when the first kernel map is made (:meth:`check`).

    Two of them are equal if they are one object.

    Raises :class:`~layoutconv.errors.ArgumentError`.

    >>> import torch
    >>> cells = torch.tensor([[0, 0, 1, 2], [1, 3, 0, 0]], dtype=torch.int32)
    >>> Coordinates(cells, (4, 2, 3), batch_size=2)
    Coordinates(2 rows, spatial_shape=(4, 2, 3), batch_size=2)
    """

    def __init__(
        self,
        cells: Tensor,
        spatial_shape: Sequence[int],
        batch_size: int,
        *,
        padded: bool = False,
        valid: bool = False,
    ) -> None:
        self.spatial_shape = check_spatial_shape(spatial_shape, batch_size)
        check_coords_type(cells, self.spatial_shape)
        if len(cells) >= 2**31:
            raise ArgumentError("coords", "fewer than 2**31 rows", len(cells))
        self.cells = cells
        self.batch_size = int(batch_size)
        self.padded = padded
        self.maps: dict[Any, KernelMap] = {}  # by what they were asked for with
        self.origin: KernelMap | None = None  # the map whose outputs these are
        self._valid = valid
        self._table: Table | None = None

    def __len__(self) -> int:
        return len(self.cells)

    def __repr__(self) -> str:
        padded = ", padded" if self.padded else ""
        grid = f"spatial_shape={self.spatial_shape}, batch_size={self.batch_size}"
        return f"Coordinates({len(self)} rows, {grid}{padded})"

    @property
    def rank(self) -> int:
        """The number of spatial modes."""
        return len(self.spatial_shape)

    @property
    def device(self) -> Any:
        return self.cells.device

    @property
    def table(self) -> Table:
        """Rows by the keys of their cells; made once."""
        if self._table is None:
            self._table = table_of(self.cells, self.spatial_shape, self.batch_size)
        return self._table

    def check(self) -> Coordinates:
        """These, if every cell is inside the grid and none is there twice (waits for the device).

        Looked at once; while a CUDA graph is captured not at all.

        Raises :class:`~layoutconv.errors.ArgumentError` that names a row, or two.

        >>> import torch
        >>> Coordinates(torch.tensor([[0, 7]], dtype=torch.int32), (4,), 1).check()
        Traceback (most recent call last):
        layoutconv.errors.ArgumentError: argument `coords`: expected column 1 in [0, 4), got [0, 7]\
 in row 0 (1 rows are outside)
        """
        import torch

        if self._valid or not len(self):
            return self
        if self.cells.is_cuda and torch.cuda.is_current_stream_capturing():
            return self
        status = self.table.status
        absent = status.new_zeros(1) if self.padded else (self.cells[:, :1] < 0).any(0)
        repeated, outside, absent_rows = torch.cat([status, absent]).tolist()
        if absent_rows:
            self._refuse_outside(int((self.cells[:, 0] < 0).nonzero()[0]))
        if outside:
            self._refuse_outside(outside - 1)
        if repeated:
            self._refuse_repeated(repeated - 1)
        self._valid = True
        return self

    def _refuse_outside(self, row: int) -> None:
        cell = self.cells[row].tolist()
        for axis, limit in enumerate((self.batch_size, *self.spatial_shape)):
            if not 0 <= cell[axis] < limit:
                column = self.cells[:, axis]
                here = (column >= limit) | (column < 0)
                raise ArgumentError(
                    "coords",
                    f"column {axis} in [0, {limit})",
                    f"{cell} in row {row} ({int(here.sum())} rows are outside)",
                )

    def _refuse_repeated(self, row: int) -> None:
        cell = self.cells[row]
        first = int((self.cells == cell).all(1).nonzero()[0])
        raise ArgumentError(
            "coords",
            "no cell twice",
            f"{cell.tolist()} in rows {first} and {row} (lc.sparse.merge_repeated joins them)",
        )

    def to(self, device: Any) -> Coordinates:
        """The same cells on another device, where their maps are made anew."""
        cells = self.cells.to(device)
        if cells is self.cells:
            return self
        return Coordinates(
            cells, self.spatial_shape, self.batch_size, padded=self.padded, valid=self._valid
        )

    def __getstate__(self) -> dict[str, Any]:
        """What is pickled and copied: the cells. What was found out is found out again."""
        return {**self.__dict__, "maps": {}, "origin": None, "_table": None}

    def __deepcopy__(self, memo: Any) -> Coordinates:
        return self  # nothing of it changes but what is found out

    @classmethod
    def of_keys(cls, keys: Tensor, spatial_shape: Sequence[int], batch_size: int) -> Coordinates:
        """Cells in the order of their keys, each different, in a grid without a halo."""
        cells = unpack(keys, tuple(spatial_shape))
        return cls(cells, spatial_shape, batch_size, valid=True)

    def keys(self) -> Tensor:
        """The number of each cell in its grid, images outermost: int64 (rows,)."""
        return pack(self.cells, key_strides(self.spatial_shape, self.batch_size))
