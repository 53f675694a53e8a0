"""A cloud too large for a GPU, cut into ranges of a Morton curve, with a kernel map for each."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ...base.outlive import to_be_kept
from ...conv.problem import Ints
from ...errors import ArgumentError
from ..coords.coordinates import Coordinates
from ..coords.keys import MAX_KEY, check_coords_type
from ..coords.morton import Curve
from ..maps.kernel_map import submanifold_map
from ..maps.taps import Taps
from ..maps.two_way import KernelMap
from .host import on_host
from .sorted_cells import SortedCells, check_inside, sorted_cells
from .staging import Arriving, staging


class Chunk(NamedTuple):
    """Some rows of a cloud, and the halo: the rows around them that a filter reads.

    The map's outputs are the cells of ``rows``; its inputs are these, then those of ``halo``.
    """

    rows: range  # of places, see Chunks
    halo: Tensor  # int64, on the host: other places
    kernel_map: KernelMap


class Chunks:
    """A cloud of any number of voxels, in chunks: ranges of a Morton curve.

    Rows have *places*: chunk after chunk along the curve, and in a chunk in the given order. So
    memory is read nearly front to back, and a cloud of one chunk stays as it is.

    Args:
        coords: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3, in any order, no
            cell twice: a tensor on the CPU, a NumPy array, or an ``np.memmap``. It is read once,
            front to back, and not kept.
        spatial_shape: extents ``(D, H, W)`` of the grid, one to four of them.
        batch_size: number N of grids.
        max_rows: the most rows of a chunk, besides its halo. For a layer of 32 channels in fp16
            with 27 taps, a row takes about 0.7 kB on the device.
        device: where keys are sorted and kernel maps made.

    Attributes:
        order: int32 (rows,), int64 from 2^31 rows on, on the host: the row of ``coords`` at each
            place. None if each place is its row: with one chunk, or if the cells were in the order
            of the curve, which :func:`morton_order` gives. Then nothing is gathered or scattered.

    Cells of one chunk stay on the device, and are not sorted. Those of several take 16 bytes a row
    on the host, and twice that while they are sorted: on the device, twelve chunks at once; several
    such runs are merged on the host, where 10^8 rows take some seconds.

    Raises :class:`~layoutconv.errors.ArgumentError` for a cell outside the grid, and for a cell
    two rows have.

    >>> import torch
    >>> cells = torch.tensor([[0, 3], [0, 0], [0, 2], [0, 1]], dtype=torch.int32)
    >>> chunks = Chunks(cells, (4,), batch_size=1, max_rows=2)
    >>> len(chunks), chunks.order
    (4, tensor([1, 3, 0, 2], dtype=torch.int32))
    >>> for chunk in chunks.maps(3):
    ...     print(chunk.rows, chunk.halo.tolist(), chunk.kernel_map.index.tolist())
    range(0, 2) [3] [[-1, 0, 1], [0, 1, 2]]
    range(2, 4) [1] [[1, 0, -1], [2, 1, 0]]
    """

    def __init__(
        self,
        coords: Any,
        spatial_shape: Sequence[int],
        batch_size: int,
        *,
        max_rows: int = 1 << 22,
        device: Any = "cpu",
    ) -> None:
        self.curve = Curve(spatial_shape, batch_size)
        if not isinstance(max_rows, int) or isinstance(max_rows, bool) or not 0 < max_rows < 2**31:
            raise ArgumentError("max_rows", "a number of rows from 1 to 2**31 - 1", max_rows)
        cells = on_host("coords", coords)
        check_coords_type(cells, self.curve.shape)
        self.max_rows, self.device = max_rows, torch.device(device)
        self._rows = len(cells)
        # Even chunks: results of one go out while as many rows come in.
        count = max(1, -(-self._rows // max_rows))
        self._length = max(1, -(-self._rows // count))
        # If there is one chunk, its cells, on the device.
        self._cells: Tensor | SortedCells
        if len(cells) <= max_rows:
            self._cells, self.order = self._checked(cells), None
        else:
            self._cells = sorted_cells(cells, self.curve, self._length, staging(self.device))
            self.order = self._cells.order

    def __len__(self) -> int:
        """The number of rows."""
        return self._rows

    def __repr__(self) -> str:
        grid = f"spatial_shape={self.curve.shape}, batch_size={self.curve.batch_size}"
        return f"Chunks({len(self)} rows, {grid}, max_rows={self.max_rows}, device='{self.device}')"

    @property
    def keys(self) -> Tensor:
        """int64 (rows,), on the host: the keys of the cells, in the order of the curve."""
        if isinstance(self._cells, SortedCells):
            return self._cells.keys
        return self.curve.keys(self._cells).sort().values.cpu()

    def maps(
        self,
        kernel_size: Ints = 3,
        dilation: Ints = 1,
        offsets: Sequence[Sequence[int]] | None = None,
    ) -> Iterator[Chunk]:
        """Yield the chunks with their maps of a submanifold convolution, one after the other.

        Arguments are as for :func:`submanifold_map`. The halo of a chunk is derived from the taps,
        and looked up among all keys: only for taps that leave the chunk's range.
        """
        # Copy keys before features, which are larger.
        coming = deque([self._start(0)])
        return self._maps((kernel_size, dilation, offsets), coming)

    def ranges(self) -> Iterator[range]:
        """Yield the places of each chunk."""
        for first in range(0, len(self), self._length):
            yield range(first, min(first + self._length, len(self)))

    def rows_of(self, places: Tensor | range) -> Tensor | slice:
        """Return the rows of the given cloud at some places."""
        if isinstance(places, range):
            part = slice(places.start, places.stop)
            return part if self.order is None else self.order[part]
        return places if self.order is None else self.order.index_select(0, places)

    def _maps(self, filter: tuple[Any, ...], coming: deque[list[Arriving]]) -> Iterator[Chunk]:
        for rows in self.ranges():
            coming.append(self._start(rows.stop))
            # Hold nothing of a chunk while the next one is made.
            yield self._chunk(rows, coming.popleft(), filter)

    def _start(self, first: int) -> list[Arriving]:
        """Begin to copy the keys of a chunk, and their places in it, if these are not known."""
        part = slice(first, min(first + self._length, len(self)))
        if not isinstance(self._cells, SortedCells) or part.start == part.stop:
            return []
        arrays, move = (self._cells.keys, self._cells.place), staging(self.device)
        return [move.bring(array, part) for array in arrays if array is not None]

    def _chunk(self, rows: range, coming: list[Arriving], filter: tuple[Any, ...]) -> Chunk:
        shape, images = self.curve.shape, self.curve.batch_size
        if not isinstance(self._cells, SortedCells):
            none = torch.empty(0, dtype=torch.int64)
            whole = Coordinates(self._cells, shape, images, valid=True)
            return Chunk(rows, none, submanifold_map(whole, *filter))
        taps = Taps.centred(len(shape), *filter)
        keys, *where = (array.here() for array in coming)
        for place in where:
            keys = torch.empty_like(keys).scatter_(0, place.long(), keys)
        cells = self.curve.cells(keys)
        outputs = Coordinates(cells, shape, images, valid=True)
        every, moved = self._cells.keys, self._cells.place
        first = int(every[rows.start]) if rows.start else 0
        last = int(every[rows.stop]) - 1 if rows.stop < len(self) else MAX_KEY
        wanted = self.curve.beyond(cells, taps.offsets, first, last).cpu()
        at = torch.searchsorted(every, wanted).clamp_(max=len(self) - 1)
        at = at[every.index_select(0, at) == wanted]
        if not len(at):
            return Chunk(rows, at, submanifold_map(outputs, *filter))
        others = self.curve.cells(every.index_select(0, at).to(self.device))
        inputs = Coordinates(torch.cat([cells, others]), shape, images, valid=True)
        halo = at if moved is None else at - at % self._length + moved.index_select(0, at)
        return Chunk(rows, halo, KernelMap.of_search(inputs, outputs, taps))

    def _checked(self, cells: Tensor) -> Tensor:
        """Check all cells, and return them on the device."""
        with to_be_kept():
            there = staging(self.device).bring(cells, slice(0, len(cells))).here()
            try:
                Coordinates(there, self.curve.shape, self.curve.batch_size).check()
            except ArgumentError:
                check_inside(there, self.curve)
                raise
            return there
