"""Kernel maps of a network with fixed rows, made on a stream of their own, beside its layers.

Maps depend on cells alone. So a run of fixed rows makes, as soon as it has cells, all maps that the
run before derived from these cells. Each layer waits for its own map.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NamedTuple, Protocol

import torch

from ...base.outlive import keeping
from ..coords.coordinates import Coordinates
from ..coords.row_plan import Made
from .taps import Taps
from .together import LevelMaps, can_begin, made_together, step_of
from .two_way import KernelMap, TwoWay

Place = tuple[str, int]  # cells: "given" as the n-th of a run, or "made" by its n-th map
Wait = Callable[[], None]


class Side(Protocol):
    """A stream beside the current one: a GPU's, or a stand-in in tests."""

    def fork(self) -> AbstractContextManager[None]:
        """Launch there, after all work on the current stream so far."""

    def mark(self) -> Wait:
        """Return a function that has the current stream wait for all work on this one so far."""


class SideStream:
    """A GPU's :class:`Side`, also within a capture. Its kernels have priority."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.Stream(device, priority=-1)

    @contextmanager
    def fork(self) -> Iterator[None]:
        from ...kernels.maps.cooperative import beside_others  # for a GPU alone

        self._stream.wait_stream(torch.cuda.current_stream(self._stream.device))
        with torch.cuda.stream(self._stream), beside_others():
            yield

    def mark(self) -> Wait:
        event = torch.cuda.Event()
        event.record(self._stream)

        def wait() -> None:
            torch.cuda.current_stream(self._stream.device).wait_event(event)

        return wait


def side_of(device: torch.device) -> Side | None:
    """Return a stream beside those of a device; None if the device has no streams."""
    return SideStream(device) if device.type == "cuda" else None


class Asked(NamedTuple):
    """A map that a run asked for, and the parts of both its ways that it read.

    Attributes:
        root: the number of the given cells that it needs last.
        source, target: the cells from which it starts, and the given outputs, if any.
        key: the key under which it is kept.
        make: makes it from the cells of both.
        sorted, indexed: for each way, whether its sorted index was read, and its index.
    """

    root: int
    source: Place
    target: Place | None
    key: Any
    make: Callable[[Coordinates, Coordinates | None], KernelMap]
    sorted: tuple[bool, bool]
    indexed: tuple[bool, bool]


def asked_of(given: Sequence[Coordinates], made: Sequence[Made]) -> list[Asked]:
    """Return the maps that a finished run asked for, in order; not those of cells it computed."""
    places: dict[int, tuple[int, Place]] = {
        id(cells._known): (number, ("given", number)) for number, cells in enumerate(given)
    }
    found: list[Asked] = []
    for inputs, outputs, key, make, kernel_map in made:
        source = places.get(id(inputs._known))
        target = None if outputs is None else places.get(id(outputs._known))
        if source is None or (outputs is not None and target is None):
            continue
        root = source[0] if target is None else max(source[0], target[0])
        there, back = kernel_map.ways.ways
        places.setdefault(id(kernel_map.outputs._known), (root, ("made", len(found))))
        there_sorted, there_indexed = (False, False) if there is None else there.read
        back_sorted, back_indexed = (False, False) if back is None else back.read
        leads = None if target is None else target[1]
        read = (there_sorted, back_sorted), (there_indexed, back_indexed)
        found.append(Asked(root, source[1], leads, key, make, *read))
    return found


class Ahead:
    """The maps of one run, made on another stream: each :meth:`start` makes those of its cells.

    Memory that this stream allocated stays until this object is gone, which is after :meth:`join`:
    freed earlier, the stream could reuse it while the current stream still reads it. The stream
    reads other memory no longer than the cells exist.

    Args:
        asked: the maps that the run before asked for.
        side: the stream.
    """

    def __init__(self, asked: Sequence[Asked], side: Side) -> None:
        self._asked, self._side = asked, side
        self._cells: dict[Place, Coordinates] = {}
        self._given = 0
        self._ways: list[TwoWay] = []
        self._end: Wait | None = None

    def start(self, cells: Coordinates) -> None:
        """Make the maps that had to wait for these cells."""
        number, self._given = self._given, self._given + 1
        self._cells["given", number] = cells
        wanted = [(n, asked) for n, asked in enumerate(self._asked) if asked.root == number]
        if wanted:
            try:
                with self._side.fork():
                    coming = self._make(wanted)
            finally:  # a failed call has launched something, too
                self._end = self._side.mark()
            for ways, waits in coming:
                ways.coming = waits

    def _make(self, wanted: list[tuple[int, Asked]]) -> list[tuple[TwoWay, dict[int, Wait]]]:
        """Make maps: forward ones first, as layers need them, then inverses, the deepest first.
        Return what to wait for before reading either way of each."""
        maps: list[tuple[Asked, KernelMap, dict[int, Wait]]] = []
        self._make_together(wanted)
        for number, asked in wanted:
            source = self._cells[asked.source]
            target = None if asked.target is None else self._cells[asked.target]
            found = source.kept(asked.key, target)
            if found is None:
                made = keeping(asked.make, source, target)
                found = source.keep(asked.key, made, given=target is not None)
            self._cells["made", number] = found.outputs
            _read(asked, found)
            mark = self._side.mark()
            maps.append((asked, found, {0: mark, 1: mark}))
        for asked, found, waits in reversed(maps):
            other = 1 - found.way
            if asked.sorted[other] or asked.indexed[other]:
                _read(asked, found.inverse)
                waits[other] = self._side.mark()
        self._ways += [found.ways for _, found, _ in maps]
        return [(found.ways, waits) for _, found, waits in maps]

    def _make_together(self, wanted: list[tuple[int, Asked]]) -> None:
        """Make the maps of levels that kernels can make together, with one launch; the others are
        made afterwards."""
        root: Place = "given", wanted[0][1].root
        if not can_begin(self._cells[root]):
            return
        maps, levels = LevelMaps([], [], set(), set()), {root: 0}
        for number, asked in wanted:
            level, step = levels.get(asked.source), step_of(asked.key)
            if level is None or asked.target is not None:
                continue
            there, back = asked.sorted
            if isinstance(asked.key, Taps) and there:
                maps.own.append((level, asked.key))
            elif step is not None and level == len(maps.steps):
                maps.steps.append(step)
                levels["made", number] = level + 1
                maps.down.update({level} if there else ())
                maps.back.update({level} if back else ())
        if len(maps.wanted) > 1:
            keeping(made_together, self._cells[root], maps)

    def join(self) -> None:
        """Have the current stream wait for all of it."""
        end, self._end = self._end, None
        if end is None:
            return
        end()
        for ways in self._ways:
            ways.coming = None


def _read(asked: Asked, found: KernelMap) -> None:
    """Make the parts of a map's way that were read."""
    if asked.sorted[found.way]:
        found.own.sorted  # noqa: B018
    if asked.indexed[found.way]:
        found.own.index  # noqa: B018


@contextmanager
def joined(ahead: Ahead | None) -> Iterator[None]:
    """Join the stream in the end, also after an error, which the capture then reports."""
    try:
        yield
    except BaseException:
        if ahead is not None:
            with suppress(RuntimeError):
                ahead.join()
        raise
    if ahead is not None:
        ahead.join()
