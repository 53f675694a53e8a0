"""Kernel maps of all levels of a network, made at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ...base.dry_hooks import dry_hooks
from ...base.outlive import keeping
from ...conv.problem import Padding
from ...errors import ArgumentError, ArgumentTypeError
from ..coords import row_plan
from ..coords.coordinates import Coordinates
from ..coords.graphs import is_compiling
from .kernel_map import (
    KernelMap,
    Reached,
    check_capacity,
    strided_in,
    strided_map,
    submanifold_map,
)
from .reached import reached
from .taps import Ints, Taps, frozen, per_axis

if TYPE_CHECKING:
    from torch import Tensor

    from ...kernels.maps.box_filter import BoxFilter
    from ...kernels.maps.level_maps import Wanted

    Sorted = tuple[Tensor, Tensor]


class Step(NamedTuple):
    """A level, as a strided convolution makes it of the level before.

    Attributes:
        taps: of the convolution.
        grid: the extents of the level.
        capacity: its rows; None for as many as it has.
    """

    taps: Taps
    grid: tuple[int, ...]
    capacity: int | None


def build_maps(
    coordinates: Coordinates,
    levels: int,
    kernel_size: Ints = 3,
    stride: Ints = 2,
    *,
    strided_size: Ints | None = None,
    padding: Padding = 0,
    inverse: bool = True,
    capacities: Sequence[int] | None = None,
) -> list[Coordinates]:
    """Make the kernel maps of all levels of a U-Net together, before its layers ask for them.

    Every level has submanifold convolutions; strided ones lead from each to the next, and inverse
    ones back. On a GPU a network that asks layer by layer takes two to six launches for each map.
    Here all cells take four, and all maps two. Of strided filters that lead from one cell to more
    than 64 of all levels, as 3 x 3 x 3 taps at stride 1 do, the cells of further levels are found
    one level after the other. The host waits twice, or with ``capacities`` and cells that were
    looked at not at all. Maps of a cloud with more than 262,144 rows keep a GPU busy by themselves,
    and are made one by one, as layers ask. Cells that may be repeated, or have no bounds, are taken
    level by level, and so is everything on a CPU.

    Args:
        coordinates: the cells of the finest level.
        levels: how many there are, with the finest.
        kernel_size: of the submanifold convolutions, as of :func:`submanifold_map`.
        stride, strided_size, padding: of the strided ones, whose filter is as large as its stride
            by default, as of :func:`strided_map`.
        inverse: whether inverse convolutions follow, or gradients of the strided ones.
        capacities: of every level but the finest, as of :func:`strided_map`. Of a level whose cells
            do not fit, coarser ones may have cells that lie above none of those that did.

    Returns the cells of all levels. Their maps are those that :func:`submanifold_map` and
    :func:`strided_map` return, with the same rows in the same order, and stay with the cells. A
    layer of another kind makes its own, as always.

    Raises :class:`~layoutconv.errors.ArgumentError` as these functions do, and for another number
    of ``capacities`` than levels need.

    >>> import torch
    >>> cells = torch.tensor([[0, 0, 5], [0, 3, 4], [0, 7, 7]], dtype=torch.int32)
    >>> found = build_maps(Coordinates(cells, (8, 8), 1), levels=3)
    >>> [level.cells[:, 1:].tolist() for level in found[1:]]
    [[[0, 2], [1, 2], [3, 3]], [[0, 1], [1, 1]]]
    """
    if not isinstance(coordinates, Coordinates):
        expected = "Coordinates, such as those of a SparseTensor, x.coordinates"
        raise ArgumentTypeError("coordinates", expected, type(coordinates).__name__)
    if not isinstance(levels, int) or isinstance(levels, bool) or levels < 1:
        raise ArgumentError("levels", "an integer >= 1", levels)
    if capacities is not None and (
        not isinstance(capacities, Sequence) or len(capacities) != levels - 1
    ):
        raise ArgumentError("capacities", f"{levels - 1} numbers of rows", capacities)
    for given in capacities or ():
        check_capacity(given)
    rows: Sequence[int | None] = capacities or [None] * (levels - 1)
    rank, size = coordinates.rank, strided_size
    steps_of = per_axis("stride", stride, rank)
    size = steps_of if size is None else per_axis("strided_size", size, rank)
    sizes = size, steps_of, padding
    own = Taps.centred(rank, kernel_size)
    steps: list[Step] = []
    together, dry = _begins_here(coordinates), dry_hooks.covers(coordinates.cells)
    if together:
        shape = coordinates.spatial_shape
        for capacity in rows:
            taps, grid = strided_in(shape, *map(frozen, sizes), 1)
            shape = tuple(grid or ())
            steps.append(Step(taps, shape, capacity))
    every = set(range(levels))
    maps = Maps([(n, own) for n in range(levels)], steps, every, every if inverse else set())
    if together and not dry and not _is_kept(coordinates, own, steps):
        found, plan = keeping(made_together, coordinates, maps), row_plan.current()
        if plan is not None:
            for step, finer, coarser in zip(steps, found, found[1:], strict=False):
                plan.lead(finer, _name_of(step), coarser)
        return found
    found = [coordinates]
    submanifold_map(coordinates, kernel_size)
    for capacity in rows:
        found.append(strided_map(found[-1], *sizes, capacity=capacity).outputs)
        submanifold_map(found[-1], kernel_size)
    if together and dry:
        _note(found, maps)
    return found


def runs_together(cells: Tensor) -> bool:
    """Return whether cells are where kernels make maps, or would in a call that is run dry."""
    return cells.is_cuda or dry_hooks.covers(cells)


def _begins_here(coordinates: Coordinates) -> bool:
    """Return whether maps of such cells are made together by who asks; not where rows are fixed,
    and another stream makes maps ahead of all layers.
    """
    return not is_compiling() and row_plan.fixed() is None and can_begin(coordinates)


def can_begin(coordinates: Coordinates) -> bool:
    """Return whether maps of such cells can be made together: not of cells that may be repeated,
    whose maps are of other rows, or that have no bounds.
    """
    known = runs_together(coordinates.cells) and not coordinates.repeated
    return known and coordinates.corner is None and len(coordinates) > 0


def _is_kept(coordinates: Coordinates, own: Taps, steps: Sequence[Step]) -> bool:
    """Return whether one of the first maps is there already."""
    if coordinates.kept(own) is not None:
        return True
    return bool(steps) and coordinates.kept(_key_of(steps[0])) is not None


def _name_of(step: Step) -> Reached:
    return Reached("strided", step.taps, step.grid, None)


def _key_of(step: Step) -> tuple[Any, ...]:
    return *_name_of(step), step.capacity


def step_of(key: Any) -> Step | None:
    """The step whose map is kept under a key; None of another one's."""
    if not isinstance(key, tuple) or len(key) != len(Reached._fields) + 1:
        return None
    *name, capacity = key
    found = Step(name[1], name[2], capacity)
    return found if _name_of(found) == tuple(name) else None


class Maps(NamedTuple):
    """The maps of levels that are made together.

    Attributes:
        own: submanifold ones, by level.
        steps: from each level to the next; there is one for every level but the first.
        down, back: of which levels these and their inverses are sorted.
    """

    own: list[tuple[int, Taps]]
    steps: list[Step]
    down: set[int]
    back: set[int]

    def wanted(self) -> list[Wanted]:
        """All of them, as a kernel finds them."""
        from ...kernels.maps.level_maps import Wanted, inverts

        steps = list(enumerate(self.steps))
        return [
            *(Wanted(taps, level, level) for level, taps in self.own),
            *(Wanted(step.taps, n + 1, n) for n, step in steps if n in self.down),
            *(
                Wanted(step.taps, n, n + 1, inverse=True)
                for n, step in steps
                if n in self.back and inverts(step.taps)
            ),
        ]


def made_together(coordinates: Coordinates, maps: Maps) -> list[Coordinates]:
    """Return the cells of all levels, which keep the maps; of cells that kernels make maps of."""
    from ...kernels.maps import level_maps  # for a GPU alone

    levels, wanted = _levels(coordinates, maps.steps), maps.wanted()
    tables: list[Any] = [level.table for level in levels]
    found: dict[Wanted, Sorted] = {}
    if level_maps.suits(tables, wanted):
        found = dict(zip(wanted, level_maps.sorted_maps(tables, wanted), strict=True))
    coordinates.check()  # while the GPU is at work
    for n, step in enumerate(maps.steps):
        there = found.get(level_maps.Wanted(step.taps, n + 1, n))
        back = found.get(level_maps.Wanted(step.taps, n, n + 1, inverse=True))
        finer, coarser = levels[n : n + 2]
        kept = KernelMap.of_sorted(finer, coarser, step.taps, there, back)
        # Those of another thread, if it was first.
        levels[n + 1] = finer.keep(_key_of(step), kept).outputs
    for number, taps in maps.own:
        around = found.get(level_maps.Wanted(taps, number, number))
        if around is not None:
            level = levels[number]
            level.keep(
                taps, KernelMap.of_sorted(level, level, taps, around, mirrored=taps.mirrored)
            )
    return levels


def _note(levels: Sequence[Coordinates], maps: Maps) -> None:
    """Have a dry run note the kernels, where torch made the maps."""
    from ...kernels.maps import level_cells, level_maps

    first, steps = levels[0], maps.steps
    grids = [(level.batch_size, *level.spatial_shape) for level in levels]
    filters = _at_once(first, steps)
    if filters:
        fixed = steps[0].capacity is not None
        dry_hooks.note(level_cells.load_kernels, first.cells, filters, fixed)
    cells = (level.cells for level in levels)
    dry_hooks.note(level_maps.load_kernels, maps.wanted(), grids, *cells)


def _at_once(coordinates: Coordinates, steps: Sequence[Step]) -> tuple[BoxFilter, ...]:
    """Return the filters to the levels, the first ones, whose cells are made together: boxes, all
    with a capacity or all without, that reach few cells from one, of grids of few enough bits.
    """
    from ...kernels.maps import level_cells
    from ...kernels.maps.box_filter import box_filter

    fixed = bool(steps) and bool(steps[0].capacity)
    found: list[BoxFilter] = []
    for step in steps[: level_cells.MOST_LEVELS]:
        alike = step.capacity is None if not fixed else bool(step.capacity)
        each = box_filter(step.taps) if alike else None
        if each is None:
            break
        found.append(each)
    filters = tuple(found)[: level_cells.levels_at_once(tuple(found))]
    grids = [(coordinates.batch_size, *step.grid) for step in steps[: len(filters)]]
    return filters if level_cells.suits(len(coordinates), filters, grids) else ()


def _levels(coordinates: Coordinates, steps: Sequence[Step]) -> list[Coordinates]:
    """The cells of all levels: at once, as far as their filters and grids let them."""
    from ...kernels.maps import level_cells

    batch, found, filters = coordinates.batch_size, [coordinates], _at_once(coordinates, steps)
    first = steps[: len(filters)]
    if first:
        grids = [(batch, *step.grid) for step in first]
        capacities = [step.capacity for step in first if step.capacity is not None]
        made = level_cells.cells_of_levels(coordinates.cells, filters, grids, capacities or None)
        for step, cells, total in zip(first, *made, strict=True):
            level = Coordinates.of_map(cells, step.grid, batch, padded=step.capacity is not None)
            if step.capacity is not None:
                level.total = total
            found.append(level)
    for step in steps[len(first) :]:
        found.append(reached(found[-1], step.taps, step.grid, step.capacity, transposed=False))
    return found
