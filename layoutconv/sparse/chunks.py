"""A cloud that no GPU holds at once, cut into ranges of a Morton curve, a kernel map for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import ArgumentError, ArgumentTypeError
from .coordinates import Coordinates
from .kernel_map import submanifold_map
from .keys import MAX_KEY, check_coords_type
from .morton import Curve
from .staging import finish, staging
from .taps import Ints, Taps
from .two_way import KernelMap

if TYPE_CHECKING:
    from concurrent.futures import Future

    from torch import Tensor

    from .staging import Staging

_SORTED_AT_ONCE = 12  # rows of keys that are sorted in the memory of a row of a chunk, about


class Chunk(NamedTuple):
    """Some rows of a cloud, and what a filter reads around them.

    The map's outputs are the cells of ``rows``; its inputs are these, then those of ``halo``.
    """

    rows: range  # of the cloud along its curve
    halo: Tensor  # int64, on the host: other rows along the curve
    kernel_map: KernelMap


class Chunks:
    """A cloud of any number of voxels, along a Morton curve and in chunks.

    Args:
        coords: int32 (rows, 1 + rank), columns ``(batch, z, y, x)`` for rank 3, in any order, no
            cell twice: a tensor on the CPU, a NumPy array, or an ``np.memmap``. It is read once,
            front to back, and not kept.
        spatial_shape: extents ``(D, H, W)`` of the grid, one to four of them.
        batch_size: number N of grids.
        max_rows: how many rows a chunk has at most, beside its halo. Of a layer of 32 channels in
            fp16, 27 taps, a row takes about 0.7 kB on the device.
        device: where keys are sorted and kernel maps made.

    Attributes:
        keys: int64 (rows,), on the host, of the cells in the order of the curve.
        order: int64 (rows,), on the host: which row of ``coords`` that is. None if they were in
            that order, which :func:`morton_order` gives; then no features are read at random.

    On the host that takes 16 bytes a row, and twice that while it is sorted. Keys are sorted on the
    device, twelve chunks' worth at once; several such runs are merged on the host, where 10^8 rows
    take some seconds.

    Raises :class:`~layoutconv.errors.ArgumentError` for a cell outside the grid, and for one that
    two rows have.

    >>> import torch
    >>> cells = torch.tensor([[0, 3], [0, 0], [0, 2], [0, 1]], dtype=torch.int32)
    >>> chunks = Chunks(cells, (4,), batch_size=1, max_rows=2)
    >>> len(chunks), chunks.order
    (4, tensor([1, 3, 2, 0]))
    >>> for chunk in chunks.maps(3):
    ...     print(chunk.rows, chunk.halo.tolist(), chunk.kernel_map.index.tolist())
    range(0, 2) [2] [[-1, 0, 1], [0, 1, 2]]
    range(2, 4) [1] [[2, 0, 1], [0, 1, -1]]
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
        import torch

        self.curve = Curve(spatial_shape, batch_size)
        if not isinstance(max_rows, int) or isinstance(max_rows, bool) or not 0 < max_rows < 2**31:
            raise ArgumentError("max_rows", "a number of rows from 1 to 2**31 - 1", max_rows)
        cells = on_host("coords", coords)
        check_coords_type(cells, self.curve.shape)
        self.max_rows, self.device = max_rows, torch.device(device)
        self.keys, self.order = self._sorted(cells)

    def __len__(self) -> int:
        """The number of rows."""
        return len(self.keys)

    def __repr__(self) -> str:
        grid = f"spatial_shape={self.curve.shape}, batch_size={self.curve.batch_size}"
        return f"Chunks({len(self)} rows, {grid}, max_rows={self.max_rows}, device='{self.device}')"

    def maps(
        self,
        kernel_size: Ints = 3,
        dilation: Ints = 1,
        offsets: Sequence[Sequence[int]] | None = None,
    ) -> Iterator[Chunk]:
        """The chunks with their maps of a submanifold convolution, one after the other.

        Arguments as of :func:`submanifold_map`. What a chunk's cells read of others is derived from
        the taps, and looked up among all keys: by taps that leave the chunk's range alone.
        """
        filter = kernel_size, dilation, offsets
        for rows in self.ranges():
            # Nothing of a chunk is held here while the next one is made.
            yield self._chunk(rows, filter)

    def ranges(self) -> Iterator[range]:
        """The rows of each chunk, along the curve."""
        for first in range(0, len(self), self.max_rows):
            yield range(first, min(first + self.max_rows, len(self)))

    def rows_of(self, places: Tensor | range) -> Tensor | slice:
        """Which rows of the cloud, as it was given, places along the curve are."""
        if isinstance(places, range):
            part = slice(places.start, places.stop)
            return part if self.order is None else self.order[part]
        return places if self.order is None else self.order.index_select(0, places)

    def _chunk(self, rows: range, filter: tuple[Any, ...]) -> Chunk:
        import torch

        taps = Taps.centred(len(self.curve.shape), *filter)
        cells = self.curve.cells(self.keys[rows.start : rows.stop].to(self.device))
        shape, images = self.curve.shape, self.curve.batch_size
        outputs = Coordinates(cells, shape, images, valid=True)
        if len(rows) == len(self):
            none = torch.empty(0, dtype=torch.int64)
            return Chunk(rows, none, submanifold_map(outputs, *filter))
        first = int(self.keys[rows.start]) if rows.start else 0
        last = int(self.keys[rows.stop]) - 1 if rows.stop < len(self) else MAX_KEY
        wanted = self.curve.beyond(cells, taps.offsets, first, last).cpu()
        place = torch.searchsorted(self.keys, wanted).clamp_(max=len(self) - 1)
        halo = place[self.keys.index_select(0, place) == wanted]
        if not len(halo):
            return Chunk(rows, halo, submanifold_map(outputs, *filter))
        others = self.curve.cells(self.keys.index_select(0, halo).to(self.device))
        inputs = Coordinates(torch.cat([cells, others]), shape, images, valid=True)
        return Chunk(rows, halo, KernelMap.of_search(inputs, outputs, taps))

    def _sorted(self, cells: Tensor) -> tuple[Tensor, Tensor | None]:
        """Keys in order, and the rows that have them; what is wrong with cells is an error."""
        import numpy as np
        import torch

        rows, most = len(cells), _SORTED_AT_ONCE * self.max_rows
        runs = [slice(first, min(first + most, rows)) for first in range(0, rows, most)]
        # Memory that nobody writes to is none yet: cells may be in order.
        keys, order = torch.empty(2, rows, dtype=torch.int64)
        rising, move = [], staging(self.device)
        for run in runs:
            found = self._keys(cells, run, move)
            tasks: list[Future[None]] = []
            if _rising(found):
                rising.append(run)
            else:
                found, places = torch.sort(found)
                places += run.start
                tasks += move.to_host(places, order, run)
            tasks += move.to_host(found, keys, run)
            again = bool((found[1:] == found[:-1]).any())
            finish(tasks)
        if len(rising) == len(runs) and (len(runs) < 2 or _rising(keys)):
            return keys, None
        for run in rising:
            torch.arange(run.start, run.stop, out=order[run])
        if len(runs) > 1:
            # NumPy's stable sort finds the runs that there are, and merges them.
            merged = torch.from_numpy(np.argsort(keys.numpy(), kind="stable"))
            keys, order = keys.index_select(0, merged), order.index_select(0, merged)
            again = not _rising(keys)
        if again:
            twice = int((keys[1:] == keys[:-1]).nonzero()[0])
            one, other = sorted(order[twice : twice + 2].tolist())
            got = f"{cells[one].tolist()} in rows {one} and {other}"
            raise ArgumentError("coords", "no cell twice", got)
        return keys, order

    def _keys(self, cells: Tensor, run: slice, move: Staging) -> Tensor:
        """The keys of a run of cells, on the device, where not all of these need be at once."""
        import torch

        keys = torch.empty(run.stop - run.start, dtype=torch.int64, device=self.device)
        for first in range(run.start, run.stop, self.max_rows):
            some = slice(first, min(first + self.max_rows, run.stop))
            piece = move.bring(cells, some).here()
            self._check_inside(piece, first)
            keys[first - run.start : some.stop - run.start] = self.curve.keys(piece)
        return keys

    def _check_inside(self, piece: Tensor, first: int) -> None:
        limits = piece.new_tensor((self.curve.batch_size, *self.curve.shape))
        if not len(piece) or (piece.amin(0) >= 0).logical_and(piece.amax(0) < limits).all():
            return
        row = int(((piece < 0) | (piece >= limits)).any(1).nonzero()[0])
        expected = f"cells of {self.curve.batch_size} grids of {self.curve.shape}"
        raise ArgumentError("coords", expected, f"{piece[row].tolist()} in row {first + row}")


def on_host(name: str, array: Any) -> Tensor:
    """A tensor on the CPU, over the memory of what is given: that, a NumPy array or a memmap."""
    import warnings

    import numpy as np
    import torch

    if isinstance(array, np.ndarray):
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The given NumPy array is not writable")
            return torch.from_numpy(array)
    if not isinstance(array, torch.Tensor):
        raise ArgumentTypeError(name, "a torch tensor or a NumPy array", type(array).__name__)
    if array.device.type != "cpu":
        raise ArgumentError(name, "a tensor on the CPU", str(array.device))
    return array


def _rising(keys: Tensor) -> bool:
    return bool((keys[1:] > keys[:-1]).all())
