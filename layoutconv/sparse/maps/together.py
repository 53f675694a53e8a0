"""Cells and kernel maps of several levels of a network, made with few launches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base.caches import put_few
from ...base.dry_hooks import dry_hooks
from ...base.torch_internals import is_capturing
from ..coords.coordinates import Coordinates
from .map_index import count_each
from .reached import reached
from .taps import Taps
from .two_way import KernelMap, TwoWay

if TYPE_CHECKING:
    from torch import Tensor

    from ...kernels.maps.box_filter import BoxFilter
    from ...kernels.maps.level_maps import LevelPlan, WantedMap
    from ...kernels.maps.per_rank import Chain, PerRank


MOST_GRIDS = 16  # batch sizes, and grids, whose launches ``LevelMaps`` keeps


class Reached(NamedTuple):
    """The name of a map to all reached cells, without its capacity. Maps are kept under the name
    and the capacity; levels with fixed rows are known by the name.
    """

    kind: str  # "strided", "transposed"
    taps: Taps
    spatial_shape: tuple[int, ...]
    corner: tuple[int, ...] | None


class LevelStep(NamedTuple):
    """A level, as a strided convolution makes it from the level before.

    Attributes:
        taps: of the convolution.
        grid: the extents of the level.
        capacity: its number of rows; None for as many as it has cells.
    """

    taps: Taps
    grid: tuple[int, ...]
    capacity: int | None


@cache
def _of_gpu() -> Any:
    """Import kernels only for a GPU, and only once: an import statement takes 1 us per call."""
    from ...kernels.maps import level_cells, level_maps, per_rank

    return SimpleNamespace(level_cells=level_cells, level_maps=level_maps, per_rank=per_rank)


def runs_together(cells: Tensor) -> bool:
    """Return whether kernels make maps of these cells, or would in a call that is run dry."""
    return cells.is_cuda or dry_hooks.covers(cells)


def can_begin(coordinates: Coordinates) -> bool:
    """Return whether maps of such cells can be made together: not without bounds, nor if
    cells are known to be repeated, which :meth:`Coordinates.check` may still find.
    """
    known = runs_together(coordinates.cells) and coordinates.corner is None
    return known and coordinates.rows > 0 and coordinates.repeats is None


def name_of(step: LevelStep) -> Reached:
    return Reached("strided", step.taps, step.grid, None)


def key_of(step: LevelStep) -> tuple[Any, ...]:
    return *name_of(step), step.capacity


def step_of(key: Any) -> LevelStep | None:
    """Return the step whose map is kept under a key; None for other maps."""
    if not isinstance(key, tuple) or len(key) != len(Reached._fields) + 1:
        return None
    *name, capacity = key
    found = LevelStep(name[1], name[2], capacity)
    return found if name_of(found) == tuple(name) else None


@dataclass(frozen=True, eq=False)
class LevelMaps:
    """The maps of levels that are made together.

    Attributes:
        own: submanifold maps, by level.
        steps: from each level to the next, one per level but the first.
        down, back: the levels whose steps, and whose steps' inverses, are sorted.
        counted: for each step, then for each of ``own``, the ways whose pairs are counted, a bit
            each; empty for none.
    """

    own: list[tuple[int, Taps]]
    steps: list[LevelStep]
    down: set[int]
    back: set[int]
    counted: tuple[int, ...] = ()
    plans: dict[Any, LevelPlan | None] = field(default_factory=dict)  # by grids of the first level
    grids: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)  # of steps, by batch size
    by_kind: dict[Any, LevelPlan | None] = field(default_factory=dict)  # by the kinds of all grids

    def through(self, grids: Sequence[tuple[int, ...]]) -> LevelMaps:
        """Return the same maps over other grids; values that do not depend on grids are shared."""
        steps = [s._replace(grid=grid) for s, grid in zip(self.steps, grids, strict=True)]
        same = self.down, self.back, self.counted
        found = LevelMaps(self.own, steps, *same, by_kind=self.by_kind)
        for name in ("around", "counting", "forward", "inverted", "wanted", "filters"):
            found.__dict__[name] = getattr(self, name)
        return found

    @cached_property
    def keys(self) -> list[tuple[Any, ...]]:
        """The keys under which the maps of the steps are kept."""
        return [key_of(step) for step in self.steps]

    @cached_property
    def around(self) -> list[tuple[int, Taps]]:
        """The part of ``own`` that kernels make together; the rest is made on demand."""
        return [(level, taps) for level, taps in self.own if _of_gpu().level_maps.finds(taps)]

    @cached_property
    def counting(self) -> list[tuple[int, int]]:
        """The ways that are counted: the number of a map (steps first, then ``around``), and 0 or 1
        for the way.
        """
        steps = len(self.steps)
        of_own = zip(self.own, self.counted[steps:], strict=False)
        kept = [bits for own, bits in of_own if own in self.around]
        every = enumerate((*self.counted[:steps], *kept))
        return [(number, way) for number, bits in every for way in (0, 1) if bits >> way & 1]

    @cached_property
    def forward(self) -> list[int]:
        """The levels whose steps are sorted, and made together by kernels."""
        finds = _of_gpu().level_maps.finds
        return [n for n, step in enumerate(self.steps) if n in self.down and finds(step.taps)]

    @cached_property
    def inverted(self) -> list[int]:
        """The levels whose steps' inverses kernels make together."""
        inverts = _of_gpu().level_maps.inverts
        return [n for n, step in enumerate(self.steps) if n in self.back and inverts(step.taps)]

    @cached_property
    def wanted(self) -> list[WantedMap]:
        """All of them, as kernels take them: submanifold maps, strided maps, and inverses."""
        WantedMap = _of_gpu().level_maps.WantedMap
        return [
            *(WantedMap(taps, level, level) for level, taps in self.around),
            *(WantedMap(self.steps[n].taps, n + 1, n) for n in self.forward),
            *(WantedMap(self.steps[n].taps, n, n + 1, inverse=True) for n in self.inverted),
        ]

    @cached_property
    def filters(self) -> tuple[BoxFilter, ...]:
        """The filters of the first steps, whose cells may be found together: boxes, all with a
        capacity or all without, that reach few cells from one.
        """
        from ...kernels.maps import level_cells
        from ...kernels.maps.box_filter import box_filter

        fixed = bool(self.steps) and bool(self.steps[0].capacity)
        found: list[BoxFilter] = []
        for step in self.steps[: level_cells.MOST_LEVELS]:
            alike = step.capacity is None if not fixed else bool(step.capacity)
            each = box_filter(step.taps) if alike else None
            if each is None:
                break
            found.append(each)
        return tuple(found)[: level_cells.levels_at_once(tuple(found))]


def made_together(coordinates: Coordinates, maps: LevelMaps) -> list[Coordinates] | None:
    """Return the cells of all levels, which keep the maps; for cells of which kernels make maps.

    None if some cells are repeated, whose maps have other rows: then no map is kept.
    """
    levels, plan = _levels(coordinates, maps), _plan_of(coordinates, maps)
    tables: list[Any] = [level.table for level in levels]
    found = plan.run(tables) if plan is not None and plan.suits(tables) else []
    if coordinates.check().repeats is not None:  # while the GPU works
        return None
    own, down = len(maps.around), len(maps.forward)
    there = dict(zip(maps.forward, found[own:], strict=False))
    back = dict(zip(maps.inverted, found[own + down :], strict=False))
    made: list[TwoWay] = []
    for n, (step, key) in enumerate(zip(maps.steps, maps.keys, strict=True)):
        finer, coarser = levels[n : n + 2]
        kept = KernelMap.of_sorted(finer, coarser, step.taps, there.get(n), back.get(n))
        # Returns another thread's map, if that came first.
        kept = finer.keep(key, kept)
        levels[n + 1] = kept.outputs
        made.append(kept.ways)
    for (number, taps), around in zip(maps.around, found, strict=False):
        level = levels[number]
        mapped = KernelMap.of_sorted(level, level, taps, around, mirrored=taps.mirrored)
        made.append(level.keep(taps, mapped).ways)
    if found:
        count_each([made[number].ways[way] for number, way in maps.counting])
    return levels


def _plan_of(coordinates: Coordinates, maps: LevelMaps) -> LevelPlan | None:
    """Return the launches that make these maps; None if kernels cannot make them together."""
    batch, shape = key = coordinates.batch_size, coordinates.spatial_shape
    try:
        return maps.plans[key]
    except KeyError:
        grids = [(batch, *shape), *((batch, *step.grid) for step in maps.steps)]
        kinds = tuple(map(_of_gpu().level_maps.key_kind, grids))
        try:
            plan = maps.by_kind[kinds]
        except KeyError:
            plan = _of_gpu().level_maps.plan_of(grids, maps.wanted)
            put_few(maps.by_kind, kinds, plan, MOST_GRIDS)
        return put_few(maps.plans, key, plan, MOST_GRIDS)


def are_at_hand(coordinates: Coordinates, maps: LevelMaps) -> bool:
    """Return whether all kernels that make these maps are ready; not if the cloud's maps keep a
    GPU busy one by one, nor in a capture, since the host waits for numbers of cells. Meanwhile
    another process compiles those that must be.
    """
    device = coordinates.cells.get_device()
    few = coordinates.rows <= _of_gpu().level_maps.MOST_ROWS
    if not few or (device >= 0 and is_capturing()):
        return False
    kernels = _kernels_of(coordinates, maps)
    return bool(kernels) and _of_gpu().per_rank.are_at_hand(kernels, device)


def _kernels_of(coordinates: Coordinates, maps: LevelMaps) -> list[Chain | PerRank]:
    """Return the kernels that make these maps in an eager call; none if they cannot together."""
    plan = _plan_of(coordinates, maps) if len(maps.wanted) > 1 else None
    if plan is None:
        return []
    filters = _at_once(coordinates, maps)
    of_cells = _of_gpu().level_cells.kernels_by(filters)[:2] if filters else ()
    return [*of_cells, plan.chain]


def load_kernels(coordinates: Coordinates, maps: LevelMaps) -> None:
    """In a dry run, note the kernels that make these maps together, if any do."""
    from ...kernels.maps import per_rank

    for kernel in _kernels_of(coordinates, maps):
        dry_hooks.note(per_rank.launch_nothing, kernel, coordinates.cells)


def note_kernels(levels: Sequence[Coordinates], maps: LevelMaps) -> None:
    """In a dry run, in which torch made the maps, note the kernels."""
    from ...kernels.maps import level_cells, level_maps

    first, steps = levels[0], maps.steps
    grids = [(level.batch_size, *level.spatial_shape) for level in levels]
    filters = _at_once(first, maps)
    if filters:
        fixed = steps[0].capacity is not None
        dry_hooks.note(level_cells.load_kernels, first.cells, filters, fixed)
    cells = (level.cells for level in levels)
    dry_hooks.note(level_maps.load_kernels, maps.wanted, grids, *cells)


def _grids_of(maps: LevelMaps, batch_size: int) -> list[tuple[int, ...]]:
    """Return the grids of the levels whose cells may be found together, ``(batch_size, ...)``."""
    steps = maps.steps[: len(maps.filters)]
    return put_few(maps.grids, batch_size, [(batch_size, *step.grid) for step in steps], MOST_GRIDS)


def _at_once(coordinates: Coordinates, maps: LevelMaps) -> tuple[BoxFilter, ...]:
    """Return the filters of the first levels, whose cells are made together: ``maps.filters``, if
    the grids' occupancy bitmaps are small enough for so many rows.
    """
    filters = maps.filters
    grids = maps.grids.get(coordinates.batch_size) or _grids_of(maps, coordinates.batch_size)
    return filters if _of_gpu().level_cells.suits(coordinates.rows, filters, grids) else ()


def _levels(coordinates: Coordinates, maps: LevelMaps) -> list[Coordinates]:
    """Return the cells of all levels: made at once as far as filters and grids allow."""
    batch, found, filters = coordinates.batch_size, [coordinates], _at_once(coordinates, maps)
    first, others = maps.steps[: len(filters)], maps.steps[len(filters) :]
    if first:
        grids = maps.grids.get(batch) or _grids_of(maps, batch)
        capacities = [step.capacity for step in first if step.capacity is not None]
        find = _of_gpu().level_cells.cells_of_levels
        made = find(coordinates.cells, filters, grids, capacities or None)
        for step, cells, total in zip(first, *made, strict=True):
            level = Coordinates.of_map(cells, step.grid, batch, padded=step.capacity is not None)
            if step.capacity is not None:
                level.total = total
            found.append(level)
    for step in others:
        found.append(reached(found[-1], step.taps, step.grid, step.capacity, transposed=False))
    return found
