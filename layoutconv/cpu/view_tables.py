"""Tables that the CPU executor derives from a view and keeps with it: structure, and small tables.

Parsed chains of maps, blocks and tiles always; where rows and columns lie while all tables of a
view take no more than 16 MB together, which end with its index buffers, or 256 KB where it has
none. Views without an index are kept for all calls of a problem, so their tables have a bound
together: 16 MB, of those that were used last. What a product reads through an index buffer is kept
as lists of the rows that are there, block by block, with a copy of the index's entries: where those
have changed, in whatever way, everything is derived again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

from ..base.caches import BoundedCache, footprint
from ..tensors.tensor_checks import expected
from ..view.gemm_view import GemmView
from .panels import Place

BYTES = 16 << 20  # of the tables that are kept with a view that has an index
PLAIN_BYTES = 256 << 10  # with one that has none
_STRUCTURES = 256  # problems of a batch whose structure is kept
_EMPTY = 1024  # bytes of an object without tables

# Of views without an index, by the identity of their marks.
_plain: BoundedCache[int, Tables] = BoundedCache("CPU tables", entries=1024, nbytes=16 << 20)


class _Mark:
    """Stands for the tables in a view that may outlive them, and takes them along where it goes."""

    # As a default: an interpreter that ends has no module left where it might be looked up.
    def __del__(self, drop: Callable[[int], None] = _plain.drop) -> None:
        drop(id(self))


class Tables:
    """The tables that are kept with a view.

    >>> from layoutconv.algebra import Layout
    >>> view = GemmView(Layout((4, 8), (8, 1)), Layout((5, 8), (8, 1)), Layout((4, 5), (5, 1)))
    >>> Tables.of(view) is Tables.of(view)
    True
    """

    def __init__(self, mark: int = 0) -> None:
        self.mark, self.nbytes = mark, _EMPTY
        self.structures: dict[Any, Any] = {}
        self.tables: dict[Any, Any] = {}
        self.left = PLAIN_BYTES
        self.entries: list[Tensor] | None = None  # of the index buffers, when tables were made

    @classmethod
    def of(cls, view: GemmView) -> Tables:
        """Return those of a view, up to date with its index buffers."""
        indices = expected(view).indices
        if not indices:
            return cls._of_plain(view)
        kept: Tables | None = view.kept.get("tables")
        if kept is None:
            kept = view.kept["tables"] = cls()
        kept._follow([index.buffer for index in indices])
        return kept

    @classmethod
    def _of_plain(cls, view: GemmView) -> Tables:
        mark = id(view.kept.get("tables") or view.kept.setdefault("tables", _Mark()))
        kept = _plain.get(mark)
        if kept is None:
            kept = cls(mark)
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
        self.left = BYTES - sum(4 * len(buffer) for buffer in buffers)
        self.entries = [buffer.clone() for buffer in buffers] if self.left > 0 else None

    def structure(self, key: Any, make: Any) -> Any:
        """Return what does not depend on the entries of an index; made where it is not there."""
        found = self.structures.get(key)
        if found is None:
            found = make()
            if len(self.structures) < _STRUCTURES:
                self.structures[key] = found
                self._grow(footprint(found) if self.mark else 0)
        return found

    def place(self, key: Any, make: Any) -> Place:
        """A place; made where it is not there, and kept while there is room."""
        found: Place | None = self.tables.get(key)
        if found is None:
            found = make()
            if found.nbytes <= self.left:
                self._keep(key, found.kept(), found.nbytes)
        return found

    def table(self, key: Any, make: Any) -> Any:
        """Return what is a few numbers."""
        if key not in self.tables:
            self.tables[key] = make()
        return self.tables[key]

    def pieces(self, key: Any, make: Any) -> Iterator[Any]:
        """Return what an iterator gives, one after the other; kept while there is room for all."""
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
    """Return whether two vectors of int32 are equal: two entries at once, in half the time."""
    if buffer.storage_offset() % 2:
        return torch.equal(buffer, entries)
    even = len(buffer) & ~1
    pairs = (t[:even].view(torch.int64) for t in (buffer, entries))
    return torch.equal(*pairs) and torch.equal(buffer[even:], entries[even:])
