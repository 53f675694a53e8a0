"""A kernel map: which input row feeds which tap of which output row, and its inverse."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from typing import TYPE_CHECKING, Any

import torch

from ...base.dry_hooks import dry_hooks
from ...base.outlive import to_be_kept
from ...errors import ArgumentError, ArgumentTypeError
from ..coords.graphs import is_dynamo_compiling
from .map_index import DeferredMapIndex, InverseMapIndex, MapIndex
from .map_use import Use
from .tap_pairs import Counts, Pairs

if TYPE_CHECKING:
    from torch import Tensor

    from ..coords.coordinates import Coordinates
    from ..coords.repeats import Repeats
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
        self._join(inputs, outputs, TwoWay(tuple(taps), mirrored, MapIndex(tuple(taps), index)), 0)

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
        found, ways = object.__new__(cls), TwoWay(taps, mirrored, MapIndex(taps, index))
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
        own = DeferredMapIndex(inputs.table, outputs.cells, taps, mirrored)
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
        made = object.__new__(cls)
        own = DeferredMapIndex(inputs.table, outputs.cells, taps, mirrored)
        own._sorted = found
        ways = TwoWay(taps.extents, mirrored, own)
        if back is not None:
            ways.ways[1] = InverseMapIndex(own, inputs.rows, back)
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

    def __init__(self, taps: tuple[int, ...], mirrored: bool, there: MapIndex) -> None:
        self.taps, self.mirrored = taps, mirrored
        self.ways: list[MapIndex | None] = [there, None]
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

    def way(self, way: int, rows: int) -> MapIndex:
        """Return one of the ways, with ``rows`` rows."""
        found = self.ways[way]
        if found is None:
            back = self.ways[1 - way]
            assert back is not None
            with to_be_kept():
                if self.mirrored:
                    found = MapIndex(self.taps, back.index.T.flip(0).T)
                else:
                    found = MapIndex(self.taps, made=back.reversed(rows))
            if self.use is not None:
                found.note_sorted = partial(self.use.note, way, True)
            self.ways[way] = found
        return found


class _Extended(TwoWay):
    """Both ways of a map of repeated cells: its index of extended rows, and both repeats."""

    def __init__(self, extended: KernelMap, sides: tuple[Repeats | None, Repeats | None]) -> None:
        super().__init__(extended.taps, extended.mirrored, extended.own)
        self.extended, self.sides = extended, sides

    def way(self, way: int, rows: int) -> MapIndex:
        assert self.extended is not None
        found = self.ways[way] = self.extended.inverse.own
        return found
