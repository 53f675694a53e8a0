"""A kernel map: which row of the inputs feeds which tap of which row of the outputs, and back."""

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
from .reversed_index import reversed_index
from .row_orders import by_taps, sorted_in_torch
from .tap_pairs import Counts, Pairs, counts_of, counts_of_each, is_captured, pairs_of

if TYPE_CHECKING:
    from torch import Tensor

    from ..coords.coordinates import Coordinates
    from ..coords.repeats import Repeats
    from ..coords.table import Table
    from .map_use import Use
    from .taps import Taps


class KernelMap:
    """The input row that each tap of each output row reads.

    Args:
        inputs, outputs: the cells of both.
        taps: extents of the filter's modes, ``(T, R, S)``; ``(taps,)`` of a set of offsets.
        index: int32 (outputs, taps): a row of the inputs, -1 where there is none; no row twice at
            one tap. Its strides are ``(1, outputs)``: what consecutive rows read at one tap lies
            side by side in memory.
        mirrored: whether inputs and outputs are the same cells, and tap ``taps - 1 - t`` reads in
            the direction opposite to tap ``t``: then the map's ``inverse`` is the map itself, read
            with its taps backwards.

    Attributes:
        own: the index with what is derived from it, without the cells.
        views: what executors keep with it, by names of theirs. It must not hold the map or its
            cells, or none of them would ever be freed.

    Where cells of its inputs or outputs are there more than once, rows of ``index`` and the numbers
    in it are those of ``extended``, a map whose rows are these, and after them the sum of the rows
    of each such cell.

    It is made by :func:`submanifold_map`, :func:`strided_map` and :func:`transposed_map`, and by a
    user from an ``index`` of his own. What is derived from it, is derived once and kept.

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
        """The map of an index that is known to fit: a tracer compares no symbols."""
        found, ways = object.__new__(cls), TwoWay(taps, mirrored, _OneWay(taps, index))
        ways.traced = True
        found._join(inputs, outputs, ways, 0)
        return found

    @classmethod
    def of_search(
        cls, inputs: Coordinates, outputs: Coordinates, taps: Taps, *, mirrored: bool = False
    ) -> KernelMap:
        """The map whose index a search among ``inputs`` finds, once somebody asks for it.

        On a GPU, where a forward pass needs it sorted alone, and a search that sorts is faster
        than one that is sorted afterwards; on a CPU at once.
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
        """The map whose :attr:`sorted` index is known, and that of its inverse, as far as they are
        given; the index itself is looked for once somebody asks for it."""
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
        """The map between cells some of which are repeated, of its ``index`` of extended rows."""
        sides = inputs.repeats, outputs.repeats
        # What is kept with the inputs must not hold outputs that know where they come from.
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
        # What is kept for extended rows is for them alone.
        self.views = self.own.views if ways.extended is None else {}
        if not is_dynamo_compiling():  # whose graphs make none for the next call, before torch 2.8
            ways.handles[way] = weakref.ref(self)

    def __repr__(self) -> str:
        rows = f"{len(self.inputs)} -> {len(self.outputs)} rows"
        return f"KernelMap({rows}, taps={self.taps}{', mirrored' if self.mirrored else ''})"

    def __reduce__(self) -> tuple[Any, ...]:
        """Return what is pickled: the index and the cells. What was derived is derived again."""
        index = self.index.detach()  # without the attributes that executors gave it
        made = KernelMap if self.extended is None else _of_extended
        return made, (self.inputs, self.outputs, self.taps, index, self.mirrored)

    @property
    def index(self) -> Tensor:
        """int32 (outputs, taps): a row of the inputs, -1 where there is none."""
        return self.own.index

    @property
    def inverse(self) -> KernelMap:
        """The map with the roles of inputs and outputs exchanged; its inverse is this one.

        Its ``index``, int32 (inputs, taps), says which row of the outputs a tap of an input feeds.
        """
        return self.ways.over(self.outputs, self.inputs, 1 - self.way)

    @property
    def sorted(self) -> tuple[Tensor, Tensor]:
        """``index`` with rows that have the same taps side by side, and which rows those are.

        (index int32 (outputs, taps), order int32 (outputs,)): ``index[i]`` is that of row
        ``order[i]``. Tiles of neighbouring rows then leave out the taps that none of them has.
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
        """Make what a forward pass needs on a GPU; nothing waits for it."""
        self.own.sorted  # noqa: B018

    def pairs(self, chunk: int) -> Pairs:
        """The pairs of rows that each tap multiplies, in chunks of one tap each."""
        return self.own.pairs(chunk)

    def pairs_made(self) -> Pairs:
        """Return those that somebody has asked for, in chunks of whatever length.

        Raises ``RuntimeError`` if nobody has: for what ``torch.compile`` traces on a GPU.
        """
        return self.own.pairs_made()

    @property
    def counts(self) -> Counts | None:
        """Return how many pairs each tap has; None, uncounted, while a CUDA graph is captured."""
        return self.own.counts

    def start_counting(self) -> None:
        """Have pairs counted by the time somebody asks for them; nothing waits for it."""
        cells, use = self.outputs.cells, self.ways.use
        if use is not None:
            use.counted |= 1 << self.way
        if self.own._counts is None and (cells.is_cuda or dry_hooks.covers(cells)):
            self.own.counts  # noqa: B018


def count_each(ways: Sequence[_OneWay | None]) -> None:
    """Have the pairs of those ways counted that are sorted already, by one copy to the host; not of
    those that are counted, as another thread's.
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
    """The index of a kernel map and of its inverse, without the cells: what Coordinates keep."""

    traced = False  # whether a tracer made it, to whom numbers of rows are symbols
    extended: KernelMap | None = None
    # What another stream makes of it: of each way, what to call before it is read.
    coming: dict[int, Callable[[], None]] | None = None
    use: Use | None = None  # if somebody wants to know
    sides: tuple[Repeats | None, Repeats | None] = (None, None)  # of inputs and outputs of way 0

    def __init__(self, taps: tuple[int, ...], mirrored: bool, there: _OneWay) -> None:
        self.taps, self.mirrored = taps, mirrored
        self.ways: list[_OneWay | None] = [there, None]
        self.handles: list[weakref.ref[KernelMap] | None] = [None, None]

    def over(self, inputs: Coordinates, outputs: Coordinates, way: int) -> KernelMap:
        """The map of one way between these cells; the one that there is, if there is one."""
        handle = self.handles[way]
        found = None if handle is None else handle()
        if found is None:
            found = object.__new__(KernelMap)
            found._join(inputs, outputs, self, way)
        return found

    def arrive(self, way: int) -> None:
        """Have the current stream wait for a way that another one makes."""
        wait = None if self.coming is None else self.coming.pop(way, None)
        if wait is not None:
            wait()

    def way(self, way: int, rows: int) -> _OneWay:
        """One of them, with ``rows`` rows."""
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
    """The same where some cells are repeated: an index of extended rows, and what they are."""

    def __init__(self, extended: KernelMap, sides: tuple[Repeats | None, Repeats | None]) -> None:
        super().__init__(extended.taps, extended.mirrored, extended.own)
        self.extended, self.sides = extended, sides

    def way(self, way: int, rows: int) -> _OneWay:
        assert self.extended is not None
        found = self.ways[way] = self.extended.inverse.own
        return found


class _OneWay:
    """An index, and what is derived from it."""

    _made: Tensor | None = None  # an index that is there, whether or not it is read
    _sorted: tuple[Tensor, Tensor] | None = None
    _counts: Counts | None = None
    note_sorted: Callable[[], None] | None = None  # of who wants to know that it is

    def __init__(
        self, taps: tuple[int, ...], index: Tensor | None = None, made: Tensor | None = None
    ) -> None:
        self.taps, self._index, self._made = taps, index, made
        self.views: dict[Any, Any] = {}
        self._pairs: dict[int, Pairs] = {}

    @property
    def read(self) -> tuple[bool, bool]:
        """The parts that somebody read: the sorted index, the index."""
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
        """The index of the inverse; of what there is, so that a GPU searches once."""
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
            # Of rows in any order: an index that nobody needs is not looked for.
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
    """An index that nobody has made yet: what is looked for where. It holds no Coordinates.

    If ``mirrored``, around the table's own cells.
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
        """By a table that finds it without the index, if there is none yet."""
        table, centres, taps, _ = self._asked
        if self._index is not None:
            return super()._find_sorted()
        refuse_in_graphs(centres)  # first: torch.compile cannot trace what follows
        if dry_hooks.covers(centres) and isinstance(table, DryTable):
            index = table.search_to_sort(centres, taps.stride, taps.offsets, taps)
            return sorted_in_torch(index, taps.order)
        search_sorted = getattr(table, "search_sorted", None)
        if search_sorted is None:
            return super()._find_sorted()
        found: tuple[Tensor, Tensor] = search_sorted(centres, taps)
        return found


class _Back(_OneWay):
    """The way back of an index, whose sorted index is known."""

    def __init__(self, there: _OneWay, rows: int, found: tuple[Tensor, Tensor]) -> None:
        super().__init__(there.taps)
        self._there, self._rows, self._sorted = there, rows, found

    def _find_index(self) -> Tensor:
        return self._there.reversed(self._rows)


# -- sorted rows by an operator, for graphs of torch.compile and torch.export ----------------------

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
