"""Kernel maps of all levels of a network, made at once."""

from __future__ import annotations

from collections.abc import Sequence

from ...base.dry_hooks import dry_hooks
from ...base.outlive import keeping
from ...conv.problem import Ints, Padding
from ...errors import ArgumentError, ArgumentTypeError
from ..coords import row_plan
from ..coords.coordinates import Coordinates
from ..coords.graphs import is_compiling
from .kernel_map import check_capacity, strided_in, strided_map, submanifold_map
from .taps import Taps, frozen, per_axis
from .together import LevelMaps, LevelStep, can_begin, key_of, made_together, name_of, note_kernels


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

    Every level has submanifold convolutions; strided ones lead from each level to the next, and
    inverse ones back. On a GPU a network that asks layer by layer takes two to six launches per
    map; here all cells take four, and all maps two. If the strided filters lead from one cell to
    more than 64 cells over all levels, as 3 x 3 x 3 taps at stride 1 do, the cells of further
    levels are found level by level. The host waits twice; with ``capacities`` and checked cells it
    does not wait. Maps of a cloud with more than 262,144 rows keep a GPU busy by themselves, and
    are made one by one, as layers ask. Repeated cells, cells without bounds, and all cells on a CPU
    are taken level by level.

    Args:
        coordinates: the cells of the finest level.
        levels: the number of levels, with the finest.
        kernel_size: of the submanifold convolutions, as for :func:`submanifold_map`.
        stride, strided_size, padding: of the strided ones, whose filter is as large as its stride
            by default, as for :func:`strided_map`.
        inverse: whether inverse convolutions follow, or gradients of the strided ones.
        capacities: of every level but the finest, as for :func:`strided_map`. If a level's cells
            do not fit, coarser levels may have cells above those that were dropped.

    Returns the cells of all levels. Their maps are those that :func:`submanifold_map` and
    :func:`strided_map` return, with the same rows in the same order, and stay with the cells. A
    layer that needs another map makes it as usual.

    Raises :class:`~layoutconv.errors.ArgumentError` like these functions, and if the number of
    ``capacities`` is not ``levels - 1``.

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
    (pads,) = frozen(padding=padding)
    sizes = size, steps_of, pads
    own = Taps.centred(rank, kernel_size)
    steps: list[LevelStep] = []
    together, dry = _begins_here(coordinates), dry_hooks.covers(coordinates.cells)
    if together:
        shape = coordinates.spatial_shape
        for capacity in rows:
            taps, grid = strided_in(shape, *sizes, 1)
            shape = tuple(grid or ())
            steps.append(LevelStep(taps, shape, capacity))
    every = set(range(levels))
    maps = LevelMaps([(n, own) for n in range(levels)], steps, every, every if inverse else set())
    if together and not dry and not _is_kept(coordinates, own, steps):
        made, plan = keeping(made_together, coordinates, maps), row_plan.current()
        if made is not None and plan is not None:
            for step, finer, coarser in zip(steps, made, made[1:], strict=False):
                plan.lead(finer, name_of(step), coarser)
        if made is not None:
            return made
    found = [coordinates]
    submanifold_map(coordinates, kernel_size)
    for capacity in rows:
        found.append(strided_map(found[-1], *sizes, capacity=capacity).outputs)
        submanifold_map(found[-1], kernel_size)
    if together and dry:
        note_kernels(found, maps)
    return found


def _begins_here(coordinates: Coordinates) -> bool:
    """Return whether the caller makes maps of such cells together; not with fixed rows, whose maps
    another stream makes ahead of all layers.
    """
    return not is_compiling() and row_plan.fixed() is None and can_begin(coordinates)


def _is_kept(coordinates: Coordinates, own: Taps, steps: Sequence[LevelStep]) -> bool:
    """Return whether one of the first maps exists already."""
    if coordinates.kept(own) is not None:
        return True
    return bool(steps) and coordinates.kept(key_of(steps[0])) is not None
