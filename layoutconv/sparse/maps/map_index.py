"""The index of a kernel map in one direction: given, searched on demand, or an inverse's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...base.dry_hooks import dry_hooks
from ...base.outlive import keeping
from ..coords.cell_table import DryTable
from ..coords.graphs import REFUSED, is_compiling, refuse_in_graphs
from . import pairs_operator
from .reversed_index import reversed_index
from .row_orders import by_taps, sorted_in_torch
from .tap_pairs import Counts, Pairs, counts_of, counts_of_each, is_captured, pairs_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..coords.cell_table import Table
    from .taps import Taps


class MapIndex:
    """The index of a kernel map in one direction, and values derived from it."""

    _made: Tensor | None = None  # an index that exists, whether or not it is read
    _sorted: tuple[Tensor, Tensor] | None = None
    _counts: Counts | None = None
    note_sorted: Callable[[], None] | None = None  # called when it is

    def __init__(
        self, taps: tuple[int, ...], index: Tensor | None = None, made: Tensor | None = None
    ) -> None:
        self.taps, self._index, self._made = taps, index, made
        self.views: dict[Any, Any] = {}
        self._pairs: dict[int, Pairs] = {}

    @property
    def read(self) -> tuple[bool, bool]:
        """Return whether the sorted index, and the index, were read."""
        return self._sorted is not None, self._index is not None

    @property
    def index(self) -> Tensor:
        found = self._index
        if found is None:
            found = self._index = keeping(self._find_index)
        return found

    def _find_index(self) -> Tensor:
        assert self._made is not None
        return self._made

    @property
    def sorted(self) -> tuple[Tensor, Tensor]:
        found = self._sorted
        if found is None:
            found = self._sorted = keeping(self._find_sorted)
            if self.note_sorted is not None:
                self.note_sorted()
        return found

    def _find_sorted(self) -> tuple[Tensor, Tensor]:
        index = self.index if self._made is None else self._made
        if is_compiling():
            found: tuple[Tensor, Tensor] = torch.ops.layoutconv.by_taps(index, self.taps)
            return found
        return by_taps(index, self.taps)

    def reversed(self, rows: int) -> Tensor:
        """Return the inverse's index, from an index that exists, so that a GPU searches once."""
        if is_compiling():
            found: Tensor = torch.ops.layoutconv.reversed_index(self.index, rows)
            return found
        if self._index is None and self._sorted is not None:
            index, order = self._sorted
            return reversed_index(index, rows, order)
        return reversed_index(self.index, rows)

    @property
    def counts(self) -> Counts | None:
        if self._counts is None:
            # Any order of rows will do: do not search for an index that nobody needs.
            index = self.index if self._sorted is None else self._sorted[0]
            if not is_captured(index):
                self._counts = keeping(counts_of, index)
        return self._counts

    def pairs(self, chunk: int) -> Pairs:
        found = self._pairs.get(chunk)
        if found is None:
            compiling = is_compiling()
            counts = None if compiling else self.counts
            make = pairs_operator.compiled_or_not if compiling else pairs_of
            found = self._pairs[chunk] = keeping(make, self.index, chunk, counts)
        return found

    def pairs_made(self) -> Pairs:
        if not self._pairs:
            raise RuntimeError(REFUSED)
        found, *_ = self._pairs.values()
        return found


class DeferredMapIndex(MapIndex):
    """An index that is searched on demand: it holds the search's arguments, and no Coordinates.

    If ``mirrored``, it searches around the table's own cells.
    """

    def __init__(self, table: Table, centres: Tensor, taps: Taps, mirrored: bool) -> None:
        self.taps, self._index, self.views, self._pairs = taps.extents, None, {}, {}
        self._asked = table, centres, taps, mirrored

    def _find_index(self) -> Tensor:
        table, centres, taps, mirrored = self._asked
        refuse_in_graphs(centres)
        if mirrored:
            return table.search_own(taps.offsets)
        return table.search(centres, taps.stride, taps.offsets)

    def _find_sorted(self) -> tuple[Tensor, Tensor]:
        """Search with a table that sorts, without the index; unless the index exists already."""
        table, centres, taps, _ = self._asked
        if self._index is not None:
            return super()._find_sorted()
        refuse_in_graphs(centres)  # first, as torch.compile cannot trace the rest
        if dry_hooks.covers(centres) and isinstance(table, DryTable):
            index = table.search_to_sort(centres, taps.stride, taps.offsets, taps)
            return sorted_in_torch(index, taps.order)
        search_sorted = getattr(table, "search_sorted", None)
        if search_sorted is None:
            return super()._find_sorted()
        found: tuple[Tensor, Tensor] = search_sorted(centres, taps)
        return found


class InverseMapIndex(MapIndex):
    """The inverse of an index, whose sorted index is known."""

    def __init__(self, there: MapIndex, rows: int, found: tuple[Tensor, Tensor]) -> None:
        super().__init__(there.taps)
        self._there, self._rows, self._sorted = there, rows, found

    def _find_index(self) -> Tensor:
        return self._there.reversed(self._rows)


def count_each(ways: Sequence[MapIndex | None]) -> None:
    """Count the pairs of those ways that are sorted already, with one copy to the host; not of
    ways that are counted, as by another thread.
    """
    found = [
        (way, way._sorted[0])
        for way in ways
        if way is not None and way._counts is None and way._sorted is not None
    ]
    if found and not is_captured(found[0][1]):
        counts = counts_of_each([index for _, index in found])
        for (way, _), counted in zip(found, counts, strict=True):
            way._counts = counted


# -- sorting as an operator, for graphs of torch.compile and torch.export --------------------------

torch.library.define(
    "layoutconv::by_taps",
    "(Tensor index, int[] taps) -> (Tensor, Tensor)",
    tags=torch.Tag.pt2_compliant_tag,
)


@torch.library.impl("layoutconv::by_taps", ("cpu", "cuda"))
def _by_taps(index: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
    return by_taps(index, tuple(taps))


@torch.library.register_fake("layoutconv::by_taps")
def _fake_by_taps(index: Tensor, taps: Sequence[int]) -> tuple[Tensor, Tensor]:
    return index.new_empty(index.shape[::-1]).T, index.new_empty(index.shape[:1])
