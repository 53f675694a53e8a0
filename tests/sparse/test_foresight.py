"""Maps that are foreseen are those of before, made together, and only those that somebody reads."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from layoutconv.errors import ArgumentError
from layoutconv.sparse import Coordinates
from layoutconv.sparse.coords.row_plan import FixedRows
from layoutconv.sparse.maps.foresight import Foresight, grid_after
from layoutconv.sparse.maps.kernel_map import strided_in, strided_map, submanifold_map
from layoutconv.sparse.maps.reached import reached
from layoutconv.sparse.maps.taps import Taps
from layoutconv.sparse.maps.together import MOST_GRIDS, LevelMaps, LevelStep, key_of, load_kernels
from layoutconv.sparse.maps.two_way import KernelMap

from .test_levels import random_cells

OWN, DOWN = Taps.centred(2, 3), (3, 2, 1)


def cloud(seed: int, shape: tuple[int, int] = (19, 14), rows: int = 40) -> Coordinates:
    return Coordinates(random_cells(rows, (2, *shape), seed), shape, 2)


class Network:
    """Requests of a network: submanifold maps of levels, strided ones between them, their inverses.

    ``together`` counts the calls that made several maps, and has the maps of each.
    """

    def __init__(self, levels: int = 3, *, back: bool = False, at_hand: bool = True) -> None:
        self.levels, self.back, self.together = levels, back, list[LevelMaps]()
        self.foresight = Foresight(lambda cells: True, lambda cells, maps: at_hand, self._make)

    def __call__(self, cells: Coordinates) -> list[KernelMap]:
        found, level = [], cells
        for number in range(self.levels):
            found.append(self.ask(level, OWN, lambda level: KernelMap.of_search(level, level, OWN)))
            found[-1].sorted  # noqa: B018
            if number + 1 < self.levels:
                found.append(self.down(level, *DOWN))
                level = found[-1].outputs
        return found

    def down(self, level: Coordinates, *sizes: int) -> KernelMap:
        taps, grid = strided_in(level.spatial_shape, *sizes, 1)
        step = LevelStep(taps, tuple(grid or ()), None)
        found = self.ask(level, key_of(step), lambda level: strided(level, step))
        found.sorted  # noqa: B018
        if self.back:
            found.inverse.sorted  # noqa: B018
        return found

    def ask(
        self, cells: Coordinates, key: object, make: Callable[[Coordinates], KernelMap]
    ) -> KernelMap:
        """Ask for a map as ``kernel_map`` does."""
        known, found = cells._known, cells.kept(key)
        if found is None and not (known.made or known.run or cells._source):
            found = self.foresight.first(cells, key)
        if found is None:
            found = cells.keep(key, make(cells))
            if known.run is not None:
                run, level = known.run
                run.note(level, found, key)
        return found

    def _make(self, cells: Coordinates, maps: LevelMaps) -> list[Coordinates]:
        self.together.append(maps)
        return in_torch(cells.check(), maps)


def strided(level: Coordinates, step: LevelStep) -> KernelMap:
    outputs = reached(level, step.taps, step.grid, transposed=False)
    return KernelMap.of_search(level, outputs, step.taps)


def in_torch(cells: Coordinates, maps: LevelMaps) -> list[Coordinates]:
    """Cells of all levels, which keep their maps, sorted."""
    levels = [cells]
    for number, step in enumerate(maps.steps):
        one = strided(levels[-1], step)
        there = one.sorted if number in maps.down else None
        back = one.inverse.sorted if number in maps.back else None
        kept = KernelMap.of_sorted(levels[-1], one.outputs, step.taps, there, back)
        levels.append(levels[-1].keep(key_of(step), kept).outputs)
    for number, taps in maps.own:
        level = levels[number]
        around = KernelMap.of_search(level, level, taps).sorted
        level.keep(taps, KernelMap.of_sorted(level, level, taps, around, mirrored=True))
    return levels


def check_same(found: Sequence[KernelMap], expected: Sequence[KernelMap]) -> None:
    for have, want in zip(found, expected, strict=True):
        assert torch.equal(have.outputs.cells, want.outputs.cells)
        assert torch.equal(have.index, want.index)
        assert torch.equal(have.inverse.index, want.inverse.index)
        for ours, theirs in zip(have.sorted, want.sorted, strict=True):
            assert torch.equal(ours, theirs)


@pytest.mark.parametrize("back", [False, True])
def test_the_third_cloud_has_its_maps_together(back: bool) -> None:
    net = Network(back=back)
    for number in range(5):
        found = net(cloud(number, (19 + number, 14)))
        assert len(net.together) == max(0, number - 1)
        check_same(found, Network()(cloud(number, (19 + number, 14))))
    *_, maps = net.together
    assert maps.own == [(0, OWN), (1, OWN), (2, OWN)]
    assert [step.grid for step in maps.steps] == [(12, 7), (6, 4)]
    assert (maps.down, maps.back) == ({0, 1}, {0, 1} if back else set())


def test_a_network_that_changes_is_looked_at_again() -> None:
    net = Network()
    for number in range(3):
        net(cloud(number))
    net.levels = 2
    for number in range(3, 7):
        net(cloud(number))
    # As before, as nobody knew; one by one; one by one once more, and then fewer.
    assert [len(maps.steps) for maps in net.together] == [2, 2, 1, 1]
    net.levels, net.back = 3, True
    for number in range(7, 11):
        net(cloud(number))
    assert [len(maps.steps) for maps in net.together[4:]] == [1, 2, 2]
    assert net.together[-1].back == {0, 1}


def test_two_networks_in_turns_are_not_foreseen() -> None:
    net = Network()
    for number in range(8):
        net.levels = 2 + number % 2
        net(cloud(number))
    assert not net.together


def test_gradients_are_another_kind_of_call() -> None:
    net = Network(back=True)
    for number in range(6):
        net.back = number % 2 == 0
        with torch.set_grad_enabled(net.back):
            net(cloud(number))
    assert [maps.back for maps in net.together] == [{0, 1}, set()]


def test_maps_that_are_counted_are_counted_as_they_are_made() -> None:
    """Maps whose pairs were asked for, of steps first and then submanifold ones."""
    network = Network()
    for seed in range(3):
        own, down, *_, last = network(cloud(seed))
        for found in (own, down, last):
            found.start_counting()
    (maps,) = network.together
    assert maps.counting == [(0, 0), (2, 0), (4, 0)]
    assert maps.through([(9, 9), (5, 5)]).counting is maps.counting
    for seed in range(3, 6):
        network(cloud(seed))
    assert [maps.counting for maps in network.together[1:]] == [maps.counting, [], []]


def test_networks_that_count_others_of_the_same_maps_are_foreseen() -> None:
    """A student in turns with its teacher: what both count is counted together."""
    network = Network()
    for seed in range(6):
        own, *_, last = network(cloud(seed))
        own.start_counting()
        if seed % 2:
            last.start_counting()
    assert [maps.counting for maps in network.together] == [[(2, 0)]] * 4
    assert network.together[0].filters is network.together[1].filters  # found out once


def test_a_map_whose_index_alone_is_read_is_not_foreseen() -> None:
    net = Network(2)

    def call(cells: Coordinates) -> None:
        found = net(cells)
        wide = Taps.centred(2, 5)
        level = found[-1].outputs
        net.ask(level, wide, lambda level: KernelMap.of_search(level, level, wide)).index  # noqa: B018

    for number in range(4):
        call(cloud(number))
    assert [maps.own for maps in net.together] == [[(0, OWN), (1, OWN)]] * 2


def test_unequal_padding_ends_what_is_foreseen() -> None:
    net = Network(1)
    for number in range(4):
        cells = cloud(number)
        net(cells)
        taps, grid = strided_in(cells.spatial_shape, 3, 2, ((1, 0), (1, 0)), 1)
        step = LevelStep(taps, tuple(grid or ()), None)
        assert step.grid == (9, 7) != grid_after(taps, cells.spatial_shape)
        level = net.ask(cells, key_of(step), lambda level, step=step: strided(level, step)).outputs
        net.ask(level, OWN, lambda level: KernelMap.of_search(level, level, OWN)).sorted  # noqa: B018
    assert [(maps.own, maps.steps) for maps in net.together] == [([(0, OWN)], [])] * 2


def test_nothing_is_foreseen_without_kernels() -> None:
    net = Network(at_hand=False)
    for number in range(4):
        net(cloud(number))
    assert not net.together


def test_nothing_is_foreseen_of_fixed_rows() -> None:
    net = Network()
    for number in range(2):
        net(cloud(number))
    with FixedRows([], [], [40]).in_effect():
        net.foresight.first(cloud(2), OWN)
    assert not net.together


def test_cells_that_are_wrong_are_refused() -> None:
    net = Network()
    for number in range(2):
        net(cloud(number))
    cells = cloud(2).cells.clone()
    cells[3] = cells[4]
    with pytest.raises(ArgumentError, match="`coords`"):
        net(Coordinates(cells, (19, 14), 2))
    for number in range(3, 6):
        net(cloud(number))
    assert len(net.together) == 2  # that of the cloud that was refused, and the last


@pytest.mark.parametrize("repeated", [False, True])
def test_clouds_with_repeated_cells_are_not_tried_each_time(repeated: bool) -> None:
    tried: list[LevelMaps] = []

    def make(cells: Coordinates, maps: LevelMaps) -> None:
        tried.append(maps)

    foresight = Foresight(lambda cells: True, lambda cells, maps: True, make)
    for number in range(6):
        cells = cloud(number).cells
        cells = torch.cat([cells, cells[: 3 * repeated]])
        given = Coordinates(cells, (19, 14), 2, repeated=True)
        foresight.first(given, OWN)
        submanifold_map(strided_map(given, *DOWN).outputs).sorted  # noqa: B018
    assert len(tried) == (0 if repeated else 4)


def test_launches_of_few_batch_sizes_are_kept() -> None:
    taps, grid = strided_in((19, 14), 2, 2, 0, 1)
    maps = LevelMaps([(0, OWN), (1, OWN)], [LevelStep(taps, tuple(grid or ()), None)], {0}, set())
    for batch in range(1, 3 * MOST_GRIDS):
        load_kernels(Coordinates(cloud(0).cells, (19, 14), 1 + batch), maps)
    assert len(maps.plans) == len(maps.grids) == MOST_GRIDS


def test_what_is_noted_keeps_no_memory() -> None:
    net = Network(back=True)
    gc.disable()
    try:
        for number in range(4):
            found = net(cloud(number))
            tensors: list[weakref.ref[Tensor]] = [weakref.ref(m.sorted[0]) for m in found]
            del found
            assert [tensor() for tensor in tensors] == [None] * len(tensors)
    finally:
        gc.enable()
