"""A kernel map: which input row feeds which tap of which output row, and its inverse."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ...base.dry_hooks import dry_hooks
from ...base.outlive import keeping, to_be_kept
from ...errors import ArgumentError, ArgumentTypeError
from ..coords.graphs import REFUSED, is_compiling, is_dynamo_compiling, refuse_in_graphs
from ..coords.table import DryTable
from . import pairs_operator
from .map_use import Use
from .reversed_index import reversed_index
from .row_orders import by_taps, sorted_in_torch
from .tap_pairs import Counts, Pairs, counts_of, counts_of_each, is_captured, pairs_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..coords.coordinates import Coordinates
    from ..coords.repeats import Repeats
    from ..coords.table import Table
    from .taps import Taps


class KernelMap:
    """The input row that each tap of each output row reads.

    Args:
        inputs, outputs: the cells of both.
        taps: extents of the filter's modes, ``(T, R, S)``; ``(taps,)`` for a set of offsets.
        index: int32 (outputs, taps): a row of the inputs, -1 for none; no row twice at one tap. It
            is stored tap-major, strides ``(1, outputs)``: the entries of consecutive rows at one
            tap are contiguous.
        mirrored: whether inputs and outputs are the same cells, and tap ``taps - 1 - t`` reads in
            the direction opposite to tap ``t``: then the map's ``inverse`` is the map itself, read
            with its taps backwards.

    Attributes:
        own: the index and values derived from it, without the cells.
        views: values that executors keep with it, by their own names. It must not hold the map or
            its cells, or none of them would ever be freed.

    If cells of its inputs or outputs are repeated, rows of ``index`` and the numbers in it are
    those of ``extended``: a map with these rows, and after them the sum of the rows of each such
    cell.

    :func:`submanifold_map`, :func:`strided_map` and :func:`transposed_map` make maps, and users
    from an ``index`` of their own. Derived values are computed once and kept.

    Raises :class:`~layoutconv.errors.ArgumentError` for an index of another dtype, shape or device.

    >>> import torch
    >>> from layoutconv.sparse import Coordinates
    >>> x = Coordinates(torch.tensor([[0, 1], [0, 4]], dtype=torch.int32), (6,), 1)
    >>> found = KernelMap(x, x, (2,), torch.tensor([[0, 1], [-1, -1]], dtype=torch.int32))
    >>> found.inverse.index
    tensor([[ 0, -1],
            [-1,  0]], dtype=torch.int32)
    """

    def __init__(
        self,
        inputs: Coordinates,
        outputs: Coordinates,
        taps: Sequence[int],
        index: Tensor,
        mirrored: bool = False,
    ) -> None:
        if index.dtype != torch.int32:
            raise ArgumentTypeError("index", "a torch tensor of int32", index.dtype)
        expected = len(outputs), prod(taps)
        if tuple(index.shape) != expected:
            raise ArgumentError(
                "index", f"{expected}, rows of the outputs and taps", tuple(index.shape)
            )
        if not index.device == inputs.device == outputs.device:
            raise ArgumentError("index", f"a tensor on the outputs' {outputs.device}", index.device)
        self._join(inputs, outputs, TwoWay(tuple(taps), mirrored, _OneWay(tuple(taps), index)), 0)

    @classmethod
    def of_index(
        cls,
        inputs: Coordinates,
        outputs: Coordinates,
        taps: tuple[int, ...],
        index: Tensor,
        *,
        mirrored: bool,
    ) -> KernelMap:
        """Return the map of an index that is known to fit: a tracer cannot compare symbols."""
        found, ways = object.__new__(cls), TwoWay(taps, mirrored, _OneWay(taps, index))
        ways.traced = True
        found._join(inputs, outputs, ways, 0)
        return found

    @classmethod
    def of_search(
        cls, inputs: Coordinates, outputs: Coordinates, taps: Taps, *, mirrored: bool = False
    ) -> KernelMap:
        """Return the map whose index is searched among ``inputs`` on demand.

        On a GPU a forward pass only needs the sorted index, and a search that sorts is faster than
        sorting afterwards. On a CPU the search is immediate.
        """
        own = _Sought(inputs.table, outputs.cells, taps, mirrored)
        if not (outputs.cells.is_cuda or dry_hooks.covers(outputs.cells)):
            own.index  # noqa: B018
        found = object.__new__(cls)
        found._join(inputs, outputs, TwoWay(taps.extents, mirrored, own), 0)
        return found

    @classmethod
    def of_sorted(
        cls,
        inputs: Coordinates,
        outputs: Coordinates,
        taps: Taps,
        found: tuple[Tensor, Tensor] | None,
        back: tuple[Tensor, Tensor] | None = None,
        *,
        mirrored: bool = False,
    ) -> KernelMap:
        """Return the map whose :attr:`sorted` index is known, and its inverse's, as far as given;
        the index itself is searched on demand."""
        made, own = object.__new__(cls), _Sought(inputs.table, outputs.cells, taps, mirrored)
        own._sorted = found
        ways = TwoWay(taps.extents, mirrored, own)
        if back is not None:
            ways.ways[1] = _Back(own, inputs.rows, back)
        made._join(inputs, outputs, ways, 0)
        return made

    @classmethod
    def of_extended(
        cls,
        inputs: Coordinates,
        outputs: Coordinates,
        taps: Sequence[int],
        index: Tensor,
        mirrored: bool,
    ) -> KernelMap:
        """Return the map between cells, some repeated, from its ``index`` of extended rows."""
        sides = inputs.repeats, outputs.repeats
        # Values kept with the inputs must not hold outputs that know their origin.
        read, made = (
            cells.at(cells.cells) if side is None else side.stand_in
            for cells, side in zip((inputs, outputs), sides, strict=True)
        )
        found = object.__new__(cls)
        extended = cls(read, made, taps, index, mirrored)
        found._join(inputs, outputs, _Extended(extended, sides), 0)
        return found

    def _join(self, inputs: Coordinates, outputs: Coordinates, ways: TwoWay, way: int) -> None:
        self.inputs, self.outputs = inputs, outputs
        self.taps, self.mirrored = ways.taps, ways.mirrored
        self.ways, self.way = ways, way
        if ways.coming is not None:
            ways.arrive(way)
        self.own = ways.ways[way] or ways.way(way, outputs.rows)
        if ways.use is not None:
            ways.use.note(way, self.own._sorted is not None)
        # Values kept for extended rows are for these alone.
        self.views = self.own.views if ways.extended is None else {}
        if not is_dynamo_compiling():  # its graphs make none for the next call, before torch 2.8
            ways.handles[way] = weakref.ref(self)

    def __repr__(self) -> str:
        rows = f"{len(self.inputs)} -> {len(self.outputs)} rows"
        return f"KernelMap({rows}, taps={self.taps}{', mirrored' if self.mirrored else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the index and the cells; derived values are derived again."""
        index = self.index.detach()  # without attributes that executors set
        made = KernelMap if self.extended is None else _of_extended
        return made, (self.inputs, self.outputs, self.taps, index, self.mirrored)

    @property
    def index(self) -> Tensor:
        """int32 (outputs, taps): a row of the inputs, -1 for none."""
        return self.own.index

    @property
    def inverse(self) -> KernelMap:
        """The map with the roles of inputs and outputs exchanged; its inverse is this one.

        Its ``index``, int32 (inputs, taps), says which row of the outputs a tap of an input feeds.
        """
        return self.ways.over(self.outputs, self.inputs, 1 - self.way)

    @property
    def sorted(self) -> tuple[Tensor, Tensor]:
        """``index`` with rows of equal taps next to each other, and the order of its rows.

        (index int32 (outputs, taps), order int32 (outputs,)): ``index[i]`` is that of row
        ``order[i]``. Tiles of neighbouring rows then skip the taps that none of their rows has.
        """
        return self.own.sorted

    @property
    def extended(self) -> KernelMap | None:
        """The map between extended rows, if some cells of this one are repeated."""
        found = self.ways.extended
        return found.inverse if found is not None and self.way else found

    @property
    def repeats(self) -> tuple[Repeats | None, Repeats | None]:
        """The repeated cells of the inputs, and those of the outputs."""
        sides = self.ways.sides
        return sides[::-1] if self.way else sides

    def start(self) -> None:
        """Launch what a forward pass needs on a GPU; nothing waits for it."""
        self.own.sorted  # noqa: B018

    def pairs(self, chunk: int) -> Pairs:
        """The pairs of rows that each tap multiplies, in chunks of one tap each."""
        return self.own.pairs(chunk)

    def pairs_made(self) -> Pairs:
        """Return pairs that were made before, in chunks of any length.

        Raises ``RuntimeError`` if there are none; for code that ``torch.compile`` traces on a GPU.
        """
        return self.own.pairs_made()

    @property
    def counts(self) -> Counts | None:
        """The number of pairs of each tap; None, uncounted, while a CUDA graph is captured."""
        return self.own.counts

    def start_counting(self) -> None:
        """Start to count pairs, so that they are known when needed; nothing waits for it."""
        cells, use = self.outputs.cells, self.ways.use
        if use is not None:
            use.counted |= 1 << self.way
        if self.own._counts is None and (cells.is_cuda or dry_hooks.covers(cells)):
            self.own.counts  # noqa: B018


def count_each(ways: Sequence[_OneWay | None]) -> None:
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


def _of_extended(inputs: Coordinates, outputs: Coordinates, *others: Any) -> KernelMap:
    return KernelMap.of_extended(inputs.check(), outputs.check(), *others)


class TwoWay:
    """The index of a kernel map and of its inverse, without the cells; Coordinates keep it."""

    traced = False  # whether a tracer made it, which has symbols for numbers of rows
    extended: KernelMap | None = None
    # If another stream makes it: for each way, what to call before it is read.
    coming: dict[int, Callable[[], None]] | None = None
    use: Use | None = None  # if its use is recorded
    sides: tuple[Repeats | None, Repeats | None] = (None, None)  # of inputs and outputs of way 0

    def __init__(self, taps: tuple[int, ...], mirrored: bool, there: _OneWay) -> None:
        self.taps, self.mirrored = taps, mirrored
        self.ways: list[_OneWay | None] = [there, None]
        self.handles: list[weakref.ref[KernelMap] | None] = [None, None]

    def over(self, inputs: Coordinates, outputs: Coordinates, way: int) -> KernelMap:
        """Return the map of one way between these cells; the existing one, if there is one."""
        # Not in what torch.compile traces: a map that dies meanwhile contradicts its guards.
        handle = None if is_dynamo_compiling() else self.handles[way]
        found = None if handle is None else handle()
        if found is None:
            found = object.__new__(KernelMap)
            found._join(inputs, outputs, self, way)
        return found

    def watch(self) -> Use:
        """Record the map's use from now on; nobody has asked for the map so far."""
        use = self.use = Use()
        own = self.ways[0]
        if own is not None and not own.read[0]:
            own.note_sorted = partial(use.note, 0, True)
        return use

    def arrive(self, way: int) -> None:
        """Have the current stream wait for a way that another stream makes."""
        wait = None if self.coming is None else self.coming.pop(way, None)
        if wait is not None:
            wait()

    def way(self, way: int, rows: int) -> _OneWay:
        """Return one of the ways, with ``rows`` rows."""
        found = self.ways[way]
        if found is None:
            back = self.ways[1 - way]
            assert back is not None
            with to_be_kept():
                if self.mirrored:
                    found = _OneWay(self.taps, back.index.T.flip(0).T)
                else:
                    found = _OneWay(self.taps, made=back.reversed(rows))
            if self.use is not None:
                found.note_sorted = partial(self.use.note, way, True)
            self.ways[way] = found
        return found


class _Extended(TwoWay):
    """The same with repeated cells: an index of extended rows, and the repeats of both sides."""

    def __init__(self, extended: KernelMap, sides: tuple[Repeats | None, Repeats | None]) -> None:
        super().__init__(extended.taps, extended.mirrored, extended.own)
        self.extended, self.sides = extended, sides

    def way(self, way: int, rows: int) -> _OneWay:
        assert self.extended is not None
        found = self.ways[way] = self.extended.inverse.own
        return found


class _OneWay:
    """An index, and values derived from it."""

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


class _Sought(_OneWay):
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


class _Back(_OneWay):
    """The inverse of an index, whose sorted index is known."""

    def __init__(self, there: _OneWay, rows: int, found: tuple[Tensor, Tensor]) -> None:
        super().__init__(there.taps)
        self._there, self._rows, self._sorted = there, rows, found

    def _find_index(self) -> Tensor:
        return self._there.reversed(self._rows)


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
