"""Kernel maps that an eager network is about to ask for, made together at its first layer.

All clouds that go through a network ask for the same maps, call by call. So the requests of a
cloud's layers are recorded. Once two clouds in a row have made the same requests, the first request
of the next cloud makes all its maps: with few launches, and two device-to-host syncs instead of one
per level. A layer that asks for another map gets it as usual, and clouds are recorded again.

Another process compiles the kernels for this; until then maps are made one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, NamedTuple

import torch

from ...base.caches import BoundedCache
from ...base.dry_hooks import dry_hooks
from ...base.outlive import keeping
from ..coords import row_plan
from ..coords.graphs import is_compiling
from .map_use import Use
from .taps import Taps
from .together import (
    LevelMaps,
    LevelStep,
    are_at_hand,
    can_begin,
    load_kernels,
    made_together,
    step_of,
)

if TYPE_CHECKING:
    from ..coords.coordinates import Coordinates
    from .two_way import KernelMap

Make = Callable[["Coordinates", LevelMaps], "list[Coordinates] | None"]


HISTORY_BYTES = 100_000  # of eight plans: taps and addresses, no tensors


class Ask(NamedTuple):
    """A map that a layer asked for: its level and taps, and its use since then."""

    level: int
    taps: Taps
    leads: bool  # to the next level; else it is a submanifold map
    use: Use


class Lead(NamedTuple):
    """The map from a level to the next: its taps, whether it and its inverse are read, and the
    ways whose pairs are counted, a bit each.
    """

    taps: Taps
    read: bool
    read_back: bool
    counted: int


class Foreseen(NamedTuple):
    """Maps of a cloud in any grid.

    Attributes:
        own: submanifold maps: the level, the taps and the counted ways of each.
        leads: the map from each level to the next.
    """

    own: frozenset[tuple[int, Taps, int]]
    leads: tuple[Lead, ...]

    def counted_by(self, others: Foreseen) -> Foreseen | None:
        """Return the same maps, counted where others are, too; None if the others differ."""
        mine, theirs = ({own[:2]: own[2] for own in found.own} for found in (self, others))
        if mine.keys() != theirs.keys() or len(self.leads) != len(others.leads):
            return None
        leads = [
            lead._replace(counted=lead.counted & other.counted)
            for lead, other in zip(self.leads, others.leads, strict=True)
            if lead[:-1] == other[:-1]
        ]
        own = [(level, taps, bits & theirs[level, taps]) for (level, taps), bits in mine.items()]
        same = len(leads) == len(self.leads)
        return Foreseen(frozenset(own), tuple(leads)) if same else None

    def grids(self, shape: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Return the grids of all levels but the first, from the shape of the first."""
        found = []
        for lead in self.leads:
            shape = grid_after(lead.taps, shape)
            found.append(shape)
        return found

    def maps(self, shape: tuple[int, ...]) -> LevelMaps:
        """Return the maps of a cloud in a grid of a shape."""
        along = zip(self.leads, self.grids(shape), strict=True)
        steps = [LevelStep(lead.taps, grid, None) for lead, grid in along]
        down = {level for level, lead in enumerate(self.leads) if lead.read}
        back = {level for level, lead in enumerate(self.leads) if lead.read_back}
        every = sorted((a for a in self.own if a[0] <= len(steps)), key=_in_order)
        own = [(level, taps) for level, taps, _ in every]
        counted = *(lead.counted for lead in self.leads), *(counted for *_, counted in every)
        return LevelMaps(own, steps, down, back, counted)


class AskedMaps:
    """The maps that layers asked for over one cloud, in order; it outlives them.

    Attributes:
        repeated: whether some cells are repeated, so that maps cannot be made together.
    """

    def __init__(self) -> None:
        self.asked: list[Ask] = []
        self.repeated = False
        self._levels = 1

    def note(self, level: int, found: KernelMap, key: Hashable) -> None:
        """Note a map that was made of the cells of a level, and the level to which it leads."""
        self.repeated = self.repeated or found.ways.extended is not None
        taps, step = taps_of(key), step_of(key)
        if taps is None:
            return
        if step is not None:
            usual = step.grid == grid_after(taps, found.inputs.spatial_shape)
            if step.capacity is not None or level + 1 != self._levels or not usual:
                return
            self._levels += 1
            found.outputs._known.run = self, level + 1
        use = found.ways.watch()
        use.note(0, found.own.read[0])
        self.asked.append(Ask(level, taps, step is not None, use))

    def note_ahead(self, levels: Sequence[Coordinates], maps: LevelMaps) -> None:
        """Note maps of all levels, which no layer has asked for yet."""
        for level, (step, key) in enumerate(zip(maps.steps, maps.keys, strict=True)):
            ways, _, made = levels[level]._known.made[key]
            self.asked.append(Ask(level, step.taps, True, ways.watch()))
            if made is not None:
                made.run = self, level + 1
        self._levels = len(levels)
        for level, taps in maps.own:
            found = levels[level]._known.made.get(taps)
            if found is not None:
                self.asked.append(Ask(level, taps, False, found[0].watch()))

    def wanted(self) -> Foreseen:
        """Return the maps that were read, over levels that were reached."""
        leads: list[Lead] = []
        for ask in self.asked:
            if ask.leads and ask.use.asked and ask.level == len(leads):
                leads.append(Lead(ask.taps, *ask.use.read, ask.use.counted))
        own = [ask for ask in self.asked if not ask.leads and ask.use.read[0]]
        found = frozenset([(ask.level, ask.taps, ask.use.counted) for ask in own])
        return Foreseen(found, tuple(leads))


def _in_order(own: tuple[int, Taps, int]) -> tuple[object, ...]:
    level, taps, _ = own
    return level, taps.extents, taps.offsets


def taps_of(key: Hashable) -> Taps | None:
    """Return the taps of the submanifold map or step kept under a key; None for other maps."""
    step = step_of(key)
    return step.taps if step is not None else key if isinstance(key, Taps) else None


def grid_after(taps: Taps, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the grid to which a strided filter leads, with the same padding on both sides.

    >>> grid_after(Taps.strided(2, 3, 2, 1), (41, 8))
    (21, 4)
    """
    along = zip(shape, taps.stride, zip(*taps.offsets, strict=True), strict=True)
    return tuple(
        max(0, (extent - max(steps) - min(steps) - 1) // stride + 1)
        for extent, stride, steps in along
    )


class _History:
    """The last run of clouds of a kind, and the maps of the run before.

    Networks that read the same maps share a history, even if only some are trained, as a student
    and its teacher.
    """

    def __init__(self) -> None:
        self._last: AskedMaps | None = None
        self._before: Foreseen | None = None
        self._maps: tuple[Foreseen, tuple[int, ...], LevelMaps] | None = None  # for the last grid

    def next(self, run: AskedMaps, shape: tuple[int, ...]) -> LevelMaps | None:
        """Return the maps of the two runs before this one, if they are the same; counted where both
        counted them.
        """
        last, before = self._last, self._before
        came_to = None if last is None or last.repeated else last.wanted()
        self._last, self._before = run, came_to
        if came_to != before:
            came_to = came_to and before and came_to.counted_by(before)
        if came_to is None:
            return None
        known = self._maps
        if known is None or known[0] != came_to:
            self._maps = known = came_to, shape, came_to.maps(shape)
        elif known[1] != shape:
            self._maps = known = came_to, shape, known[2].through(came_to.grids(shape))
        return known[2]


class Foresight:
    """Memory of the maps that clouds asked for, by their first map.

    Args:
        begins: returns whether maps of these cells may be made together.
        at_hand: returns whether the kernels that make them are loaded or can be.
        make: makes them.
    """

    def __init__(
        self,
        begins: Callable[[Coordinates], bool] = can_begin,
        at_hand: Callable[[Coordinates, LevelMaps], bool] = are_at_hand,
        make: Make = made_together,
    ) -> None:
        self._begins, self._at_hand, self._make = begins, at_hand, make
        self._histories: BoundedCache[Hashable, _History] = BoundedCache(
            "foreseen maps", entries=256, nbytes=32 << 20
        )
        self._dry: list[tuple[AskedMaps, Coordinates]] | None = None

    def first(self, cells: Coordinates, key: Hashable) -> KernelMap | None:
        """Return the first map asked for over a cloud that no map produced, after making all maps
        foreseen with it; None if none are.
        """
        if is_compiling() or not self._begins(cells) or (taps := taps_of(key)) is None:
            return None
        run = AskedMaps()
        cells._known.run = run, 0
        if dry_hooks.covers(cells.cells):
            if self._dry is not None:
                self._dry.append((run, cells))
            return None
        name = taps, isinstance(key, Taps), cells.device, torch.is_grad_enabled()
        history = self._histories.get(name)
        if history is None:
            history = _History()
            self._histories.put(name, history, HISTORY_BYTES)
        maps = history.next(run, cells.spatial_shape)
        if maps is None or row_plan.fixed() is not None or not self._at_hand(cells, maps):
            return None
        levels = keeping(self._make, cells, maps)
        if levels is None:
            return None
        run.note_ahead(levels, maps)
        return cells.kept(key)

    @contextmanager
    def noted(self) -> Iterator[None]:
        """At the end of a dry run, note the kernels that make its maps together."""
        noted = self._dry = list[tuple[AskedMaps, "Coordinates"]]()
        try:
            yield
            for run, cells in noted:
                load_kernels(cells, run.wanted().maps(cells.spatial_shape))
        finally:
            self._dry = None


foresight = Foresight()
