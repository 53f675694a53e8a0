"""Tables that the CPU executor derives from a view and keeps with it: structure and positions.

Structure (parsed chains of maps, blocks, tiles) is always kept. Positions of rows and columns are
kept while all tables of a view take at most 16 MB together, and end with its index buffers; for a
view without an index, 256 KB. Such views are kept for all calls of a problem, so all their tables
together are bounded, too: to the 16 MB used last. What a product reads through an index buffer is
kept as lists of the present rows, block by block, with a copy of the index: if its entries have
changed in any way, everything is derived again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..base.caches import BoundedCache, footprint
from ..tensors.expected_tensors import expected
from ..view.gemm_view import GemmView
from .panels import MatrixPlace

BYTES = 16 << 20  # of the tables that are kept with a view that has an index
PLAIN_BYTES = 256 << 10  # with a view that has none
_STRUCTURES = 256  # problems of a batch whose structure is kept
_EMPTY = 1024  # bytes of an object without tables

# Tables of views without an index, by the identity of their marks.
_plain: BoundedCache[int, Tables] = BoundedCache("CPU tables", entries=1024, nbytes=16 << 20)


class _Mark:
    """Stands for the tables in a view that may outlive them, and drops them when the view ends."""

    # A default argument: at interpreter exit, module globals may be gone.
    def __del__(self, drop: Callable[[int], None] = _plain.drop) -> None:
        drop(id(self))


class Tables:
    """The tables that are kept with a view.

    >>> from layoutconv.algebra import Layout
    >>> view = GemmView(Layout((4, 8), (8, 1)), Layout((5, 8), (8, 1)), Layout((4, 5), (5, 1)))
    >>> Tables.of(view) is Tables.of(view)
    True
    """

    def __init__(self, room: int, mark: int = 0) -> None:
        self.room, self.mark, self.nbytes = room, mark, _EMPTY
        self.structures: dict[Any, Any] = {}
        self.tables: dict[Any, Any] = {}
        self.left = room
        self.entries: list[Tensor] | None = None  # of the index buffers, when tables were made

    @classmethod
    def of(cls, view: GemmView, room: int | None = None) -> Tables:
        """Return the tables of a view, up to date with its index buffers.

        New ones have ``room`` for as many bytes, if not the usual number.
        """
        indices = expected(view).indices
        if not indices:
            return cls._of_plain(view, PLAIN_BYTES if room is None else room)
        kept: Tables | None = view.kept.get("tables")
        if kept is None:
            kept = view.kept["tables"] = cls(BYTES if room is None else room)
        kept._follow([index.buffer for index in indices])
        return kept

    @classmethod
    def _of_plain(cls, view: GemmView, room: int) -> Tables:
        mark = id(view.kept.get("tables") or view.kept.setdefault("tables", _Mark()))
        kept = _plain.get(mark)
        if kept is None:
            kept = cls(room, mark)
            _plain.put(mark, kept, kept.nbytes)
        return kept

    def _grow(self, nbytes: int) -> None:
        self.nbytes += nbytes
        if self.mark:
            _plain.put(self.mark, self, self.nbytes)

    def _follow(self, buffers: list[Tensor]) -> None:
        if self.entries is not None and all(map(_same, buffers, self.entries)):
            return
        self.tables = {}
        self.left = self.room - sum(4 * len(buffer) for buffer in buffers)
        self.entries = [buffer.clone() for buffer in buffers] if self.left > 0 else None

    def structure(self, key: Any, make: Any) -> Any:
        """Return something that does not depend on index entries; make it if it is missing."""
        found = self.structures.get(key)
        if found is None:
            found = make()
            if len(self.structures) < _STRUCTURES:
                self.structures[key] = found
                self._grow(footprint(found) if self.mark else 0)
        return found

    def place(self, key: Any, make: Any) -> MatrixPlace:
        """Return a place; make it if it is missing, and keep it while there is room."""
        found: MatrixPlace | None = self.tables.get(key)
        if found is None:
            found = make()
            if found.nbytes <= self.left:
                self._keep(key, found.kept(), found.nbytes)
        return found

    def table(self, key: Any, make: Any) -> Any:
        """Return a few numbers; make and keep them if they are missing."""
        if key not in self.tables:
            self.tables[key] = make()
        return self.tables[key]

    def pieces(self, key: Any, make: Any) -> Iterator[Any]:
        """Iterate over the pieces of an iterator; keep them while there is room for all."""
        found = self.tables.get(key)
        return iter(found) if found is not None else self._recorded(key, make)

    def _recorded(self, key: Any, make: Any) -> Iterator[Any]:
        pieces: list[Any] | None = []
        size = 0
        for piece in make():
            if pieces is not None:
                size += piece.kept().nbytes
                if size > self.left:
                    pieces = None
                else:
                    pieces.append(piece)
            yield piece
        if pieces is not None:
            self._keep(key, pieces, size)

    def _keep(self, key: Any, found: Any, size: int) -> None:
        self.left -= size
        self.tables[key] = found
        self._grow(size)


def _same(buffer: Tensor, entries: Tensor) -> bool:
    """Return whether two int32 vectors are equal, two entries at a time in half the time."""
    if buffer.storage_offset() % 2:
        return torch.equal(buffer, entries)
    even = len(buffer) & ~1
    pairs = (t[:even].view(torch.int64) for t in (buffer, entries))
    return torch.equal(*pairs) and torch.equal(buffer[even:], entries[even:])
