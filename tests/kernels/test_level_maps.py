"""Maps of all levels at once, in the machine: those that are found one by one, bit for bit."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.kernels.maps import level_maps
from layoutconv.kernels.maps.box_filter import box_filter
from layoutconv.kernels.maps.box_inverse import RowsOfBoxInverse
from layoutconv.kernels.maps.build_map import HashTable
from layoutconv.kernels.maps.cooperative import bytes_of_arrays
from layoutconv.kernels.maps.level_maps import MOST_ROWS, WantedMap, sorted_maps, suits
from layoutconv.kernels.maps.level_stages import THREADS, all_levels
from layoutconv.kernels.maps.per_rank import build
from layoutconv.kernels.maps.row_order import Sizes
from layoutconv.sparse.maps.reversed_index import reversed_index
from layoutconv.sparse.maps.row_orders import sorted_in_torch
from layoutconv.sparse.maps.taps import Taps

from .cloud_launcher import CTAS, SEEDS, Cell, Launches, cloud, few, reaches, rows_of
from .cloud_launcher import search as search_in
from .cloud_launcher import status as status_of

EXTENTS = {1: (200,), 2: (23, 17), 3: (9, 8, 11), 4: (6, 5, 4, 5)}


def levels_of(
    seed: int, rows: int, grid: Cell, steps: Cell, count: int, padding: int = 0
) -> tuple[list[Tensor], list[Cell]]:
    """The cells of a cloud and of coarser levels, each with rows of padding; and their grids."""
    return levels_by(Taps.strided(len(steps), steps, steps), seed, rows, grid, count, padding)


def levels_by(
    taps: Taps, seed: int, rows: int, grid: Cell, count: int, padding: int = 0
) -> tuple[list[Tensor], list[Cell]]:
    """The same, each level as taps lead to it."""
    found, grids, steps = [cloud(seed, rows, grid)], [grid], taps.stride
    for _ in range(count - 1):
        finer = [extent // step for extent, step in zip(grids[-1][1:], steps, strict=True)]
        grids.append((grid[0], *finer))
        cells = reaches(found[-1], steps, list(taps.offsets), grids[-1], False)
        found.append(torch.tensor(cells, dtype=torch.int32).view(-1, len(grid)))
    padded = torch.tensor([[-1, *[0] * len(steps)]] * padding, dtype=torch.int32)
    return [torch.cat([cells, padded.view(-1, len(grid))]) for cells in found], grids


def tables_of(cells: list[Tensor], grids: list[Cell]) -> list[HashTable]:
    return [HashTable(own, grid[1:], grid[0]) for own, grid in zip(cells, grids, strict=True)]


def wanted_of(rank: int, levels: int, steps: Cell) -> list[WantedMap]:
    """The maps of a U-Net: around each level's cells, down to the next one, and back."""
    own, down = own_taps(rank), Taps.strided(rank, steps, steps)
    found = [WantedMap(own, level, level) for level in range(levels)]
    for level in range(levels - 1):
        found += [
            WantedMap(down, level + 1, level),
            WantedMap(down, level, level + 1, inverse=True),
        ]
    return found


def check(found: Any, wanted: WantedMap, cells: list[Tensor], grids: list[Cell]) -> None:
    """Compare a map with that of a dictionary, sorted by torch."""
    taps = wanted.taps
    finer, coarser = wanted.table, wanted.centres
    if wanted.inverse:
        finer, coarser = coarser, finer
    rows = rows_of(cells[finer], grids[finer])
    index = search_in(rows, cells[coarser], taps.stride, list(taps.offsets))
    index[cells[coarser][:, 0] < 0] = -1
    if wanted.inverse:
        index = reversed_index(index, len(cells[finer]))
    for got, want in zip(found, sorted_in_torch(index, taps.order), strict=True):
        assert torch.equal(got, want)
        assert got.stride() == ((1, len(index)) if got.ndim == 2 else (1,))


STEPS = {
    1: [(2,), (3,)], 2: [(2, 2), (1, 3)], 3: [(2, 2, 2), (1, 2, 3)], 4: [(2, 1, 1, 2)],
}  # fmt: skip


def own_taps(rank: int) -> Taps:
    return Taps.centred(rank, 3 if rank < 4 else 2)  # 81 taps are more than a kernel knows


def found_and_checked(
    tables: list[HashTable], wanted: list[WantedMap], cells: Any, grids: Any
) -> None:
    for maps, each in zip(sorted_maps(tables, wanted), wanted, strict=True):
        check(maps, each, cells, grids)
    for table, own, of in zip(tables, cells, grids, strict=True):
        assert table.status.tolist() == status_of(own, of)
        alone = [(0,) * (len(of) - 1)]
        found = table.search(own, (1,) * (len(of) - 1), alone)
        assert torch.equal(found, search_in(rows_of(own, of), own, (1,) * (len(of) - 1), alone))


@few
@given(st.data())
def test_maps_of_all_levels_are_those_of_each(launches: Launches, data: Any) -> None:
    rank = data.draw(st.integers(1, 4))
    steps, count = data.draw(st.sampled_from(STEPS[rank])), data.draw(st.sampled_from([1, 3]))
    grid = (data.draw(st.integers(1, 3)), *EXTENTS[rank])
    launches.seed, launches.ctas = data.draw(SEEDS), data.draw(CTAS)
    rows, padding = data.draw(st.sampled_from([1, 5, 70, 200])), data.draw(st.sampled_from([0, 40]))
    cells, grids = levels_of(data.draw(SEEDS), rows, grid, steps, count, padding)
    tables = tables_of(cells, grids)
    wanted = wanted_of(rank, count, steps)
    if not all(map(len, cells)):
        assert not suits(tables, wanted)
        return
    assert suits(tables, wanted)
    found_and_checked(tables, wanted, cells, grids)


@st.composite
def boxes(draw: Any, rank: int) -> Taps:
    """Taps of box filters that overlap, that leave cells out, or that are moved; in any order."""
    most = 4 if rank < 3 else 3
    size = tuple(draw(st.integers(1, most)) for _ in range(rank))
    stride = tuple(draw(st.integers(1, 3 if rank < 4 else 2)) for _ in range(rank))
    if rank == 4:  # whose blocks are of 2 x 2 x 4 x 4 cells
        size = tuple(min(k, 2 * s) for k, s in zip(size, stride, strict=True))
    found = Taps.strided(rank, size, stride, tuple(draw(st.integers(0, k)) for k in size))
    if draw(st.booleans()):
        by = draw(st.integers(-1, 2))
        offsets = [tuple(c + by for c in o) for o in draw(st.permutations(found.offsets))]
        found = Taps.strided(rank, 1, stride, offsets=offsets)
    return found


@few
@given(st.data())
def test_inverses_of_box_filters_are_those_of_maps(launches: Launches, data: Any) -> None:
    rank = data.draw(st.integers(1, 4))
    taps = data.draw(boxes(rank))
    if len(taps.offsets) > 64:
        return
    grid = (data.draw(st.integers(1, 3)), *EXTENTS[rank])
    launches.seed, launches.ctas = data.draw(SEEDS), data.draw(CTAS)
    rows, padding = data.draw(st.sampled_from([1, 5, 70, 200])), data.draw(st.sampled_from([0, 40]))
    cells, grids = levels_by(taps, data.draw(SEEDS), rows, grid, 2, padding)
    cells[1] = cells[1][: len(cells[1]) - data.draw(st.integers(0, 3))]  # some that did not fit
    assert level_maps.inverts(taps)
    tables, wanted = tables_of(cells, grids), [WantedMap(taps, 0, 1, inverse=True)]
    if not len(cells[1]) or 0 in grids[1]:
        assert not suits(tables, wanted)
        return
    found_and_checked(tables, wanted, cells, grids)


def test_maps_of_detectors_in_two_launches(launches: Launches) -> None:
    """Filters of 3 x 3 x 3 taps at stride 2, and of 3 x 1 x 1: down, and back."""
    own, launches.seed, launches.ctas = own_taps(3), 5, 3
    for taps in (Taps.strided(3, 3, 2, 1), Taps.strided(3, (3, 1, 1), (2, 1, 1))):
        cells, grids = levels_by(taps, 3, 120, (2, 9, 8, 11), 3, padding=9)
        wanted = [WantedMap(own, level, level) for level in range(3)]
        for level in range(2):
            wanted += [
                WantedMap(taps, level + 1, level),
                WantedMap(taps, level, level + 1, inverse=True),
            ]
        launches.keys.clear()
        tables = tables_of(cells, grids)
        assert suits(tables, wanted)
        found = sorted_maps(tables, wanted)
        assert len(launches.keys) == 1
        for maps, each in zip(found, wanted, strict=True):
            check(maps, each, cells, grids)


def test_inverses_by_keys_of_64_bits(launches: Launches) -> None:
    taps, away = Taps.strided(3, 3, 2, 1), torch.tensor([0, 2**19, 2**18, 2**11])
    cells, grids = levels_by(taps, 5, 60, (1, 9, 8, 11), 2)
    cells = [own + (away >> level).int() for level, own in enumerate(cells)]
    grids = [(1, 2**20, 2**20, 2**12), (1, 2**19 + 9, 2**20, 2**12)]
    found_and_checked(tables_of(cells, grids), [WantedMap(taps, 0, 1, inverse=True)], cells, grids)


def test_deep_levels_ride_along_in_two_launches(launches: Launches) -> None:
    """Nine maps of three levels, in any order of CTAs, each of which does several of them."""
    cells, grids = levels_of(3, 260, (2, 9, 8, 11), (2, 2, 2), 3)
    wanted = wanted_of(3, 3, (2, 2, 2))[::-1]
    for launches.seed, launches.ctas in ((1, 1), (2, 3), (3, 5)):
        launches.keys.clear()
        tables = tables_of(cells, grids)
        found = sorted_maps(tables, wanted)
        ((fill, *_), (cooperative, *_)), *others = launches.keys
        assert (fill[0], cooperative[0], others) == ("Fill", "CooperativeKernel", [])
        for maps, each in zip(found, wanted, strict=True):
            check(maps, each, cells, grids)


def test_dilated_filters_and_several_of_a_level(launches: Launches) -> None:
    cells, grids = levels_of(4, 150, (1, 9, 8, 11), (2, 2, 2), 2, padding=3)
    two, three = Taps.centred(3, 3, 2), Taps.centred(3, (1, 3, 3))
    strided = Taps.strided(3, 3, 2, 1)  # whose cells these are not, but some of them
    wanted = [
        WantedMap(two, 0, 0),
        WantedMap(three, 1, 1),
        WantedMap(two, 1, 1),
        WantedMap(strided, 1, 0),
    ]
    tables = tables_of(cells, grids)
    assert suits(tables, wanted)
    found_and_checked(tables, wanted, cells, grids)


def test_lines_of_any_length_and_with_gaps(launches: Launches) -> None:
    """64 taps, which share bits of a key, beside lines of 1, 3 and 4; and taps 0, 1, 3."""
    cells, grids = levels_of(8, 70, (2, 200), (2,), 2)
    gaps = Taps.centred(1, offsets=[(0,), (1,), (3,)])
    own = [Taps.centred(1, size) for size in (1, 3, 4, 64)]
    wanted = [WantedMap(taps, level % 2, level % 2) for level, taps in enumerate((gaps, *own))]
    found_and_checked(tables_of(cells, grids), wanted, cells, grids)
    cells, grids = levels_of(9, 150, (2, 23, 17), (2, 2), 1)
    gaps = Taps.centred(2, offsets=list(product((-3, 0, 1), (0, 2, 3))))
    own = [Taps.centred(2, size) for size in ((2, 1), (5, 4), (1, 3), (4, 8))]
    wanted = [WantedMap(taps, 0, 0) for taps in (*own, gaps)]
    found_and_checked(tables_of(cells, grids), wanted, cells, grids)


def test_strides_that_lead_beyond_32_bits(launches: Launches) -> None:
    """Cell 2^29 + 3 times 8 is no cell 24, in whole or in part, nor any other cell."""
    taps = Taps.strided(1, 2, 8)
    finer = torch.tensor([[0, 0], [0, 1], [0, 24], [0, 25], [0, 2**30 - 8]], dtype=torch.int32)
    coarser = torch.tensor([[0, 2**29 + 3], [0, 2**27 - 1], [0, 2**29], [0, 3]], dtype=torch.int32)
    cells, grids = [finer, coarser], [(1, 2**30), (1, 2**30)]
    found_and_checked(tables_of(cells, grids), [WantedMap(taps, 1, 0)], cells, grids)


def test_a_table_stays_where_it_is(launches: Launches) -> None:
    """A graph that was captured reads it there, as long as there are its cells."""
    cells, grids = levels_of(6, 40, (1, 9, 8, 11), (2, 2, 2), 2)
    tables, wanted = tables_of(cells, grids), wanted_of(3, 2, (2, 2, 2))
    there = tables[0].memory.slots
    for _ in range(2):
        found_and_checked(tables, wanted, cells, grids)
        assert tables[0].memory.slots == there


def test_what_does_not_suit() -> None:
    cells, grids = levels_of(1, 30, (1, 9, 8, 11), (2, 2, 2), 2)
    tables, own = tables_of(cells, grids), WantedMap(Taps.centred(3, 3), 0, 0)
    assert suits(tables, [own])
    assert not suits(tables, [])
    far = Taps.centred(3, 3, 9)  # not in neighbouring blocks
    apart = Taps.strided(3, 3, 2, 2, dilation=2)  # no box
    wide_box = Taps.strided(3, (9, 1, 1), 2)  # an input feeds five outputs of an axis
    many = Taps.strided(3, 5, 2)
    assert suits(tables, [own, WantedMap(Taps.strided(3, 3, 2, 1), 0, 0, True)])
    none = (far, False), (Taps.centred(3, 5), False), (apart, True), (wide_box, True), (many, True)
    for taps, inverse in none:
        assert not suits(tables, [own, WantedMap(taps, 0, 0, inverse)])
    wide = HashTable(cells[0], (2**20, 2**20, 2**10), 1)
    assert not suits([wide, *tables], [own])
    assert suits([wide], [own])
    nothing = HashTable(torch.empty(0, 4, dtype=torch.int32), (4, 4, 4), 1)
    assert not suits([*tables, nothing], [own])
    full = HashTable(torch.empty(MOST_ROWS, 4, dtype=torch.int32), (99, 99, 99), 1)
    more = HashTable(torch.empty(MOST_ROWS + 1, 4, dtype=torch.int32), (99, 99, 99), 1)
    assert suits([full, *tables], [own])
    assert own.taps.order.window(MOST_ROWS) <= 1 << level_maps.WINDOW
    assert not suits([more, *tables], [own])


def test_keys_of_64_bits(launches: Launches) -> None:
    grid = (1, 2**20, 2**20, 2**12)
    near = cloud(5, 60, (1, 9, 8, 11))
    cells = [near + torch.tensor([0, 2**19, 2**18, 2**11], dtype=torch.int32)]
    tables, wanted = tables_of(cells, [grid]), [WantedMap(Taps.centred(3, 3), 0, 0)]
    assert suits(tables, wanted)
    found_and_checked(tables, wanted, cells, [grid])


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_launch_shares_an_sm(arch: str, tmp_path: Any) -> None:
    """An H200 has four CTAs at once, a GPU of the least shared memory two, by one kernel."""
    own, down = Taps.centred(3, 3), Taps.strided(3, 2, 2)
    wanted = [WantedMap(own, 0, 0), WantedMap(down, 1, 0), WantedMap(down, 0, 1, inverse=True)]
    groups, _ = level_maps._by_kind(tuple(wanted))
    sizes = Sizes(window=11, chunk=11, threads=THREADS)
    kinds, _ = level_maps.kinds_of(3, (False, True), groups, sizes)
    chain = all_levels(3, False, 2, kinds, sizes)
    needs = bytes_of_arrays(chain.parts[1][0].shared())
    for bytes_of_sm, ctas in ((228 << 10, 4), (100 << 10, 2), (48 << 10, 1)):
        assert level_maps.ctas_of_sm(needs, bytes_of_sm) == ctas
        assert ctas * needs < bytes_of_sm
    # Shared memory comes in pieces of 128 bytes: no cooperative launch has more than there is.
    for bytes_of_sm, most in product((228 << 10, 164 << 10, 100 << 10), range(16, 99 << 10, 16)):
        ctas = level_maps.ctas_of_sm(most, bytes_of_sm)
        assert ctas == 1 or ctas * (-(-most // 128) * 128 + 1024) <= bytes_of_sm
    built = build(chain, arch, dump=str(tmp_path))
    assert built.__ptx__.count(".entry") == 2
    # Grid syncs behind rows in slots, behind counts and behind rows in places.
    assert built.__ptx__.count("ld.acquire.gpu") == 3
    most = max(kernel.registers for kernel in read_cubin(built.__cubin__).values())
    assert most * 4 * sizes.threads <= 1 << 16


def test_filters_that_lie_alike_share_their_code(tmp_path: Any) -> None:
    """A network's kernel is hardly longer for filters of other sizes, paddings and strides."""
    own, sizes = Taps.centred(3, 3), Sizes(window=11, chunk=11, threads=THREADS)
    paddings = [Taps.strided(3, 3, 2, padding) for padding in (1, (0, 1, 1))]
    others = [*paddings, Taps.strided(3, (3, 1, 1), (2, 1, 1)), Taps.centred(3, 2)]

    def instructions(filters: list[Taps], inverses: list[Taps]) -> int:
        forward = [WantedMap(taps, 0, 0) for taps in filters]
        groups, _ = level_maps._by_kind((*forward, *(WantedMap(t, 0, 0, True) for t in inverses)))
        kinds, _ = level_maps.kinds_of(3, (False, True), groups, sizes)
        built = build(all_levels(3, False, 1, kinds, sizes), "sm_90a", dump=str(tmp_path))
        return sum(kernel.instructions for kernel in read_cubin(built.__cubin__).values())

    few = instructions([own] * 5, [paddings[0]] * 2)
    assert instructions([own, *others], paddings) < 1.05 * few


def test_instructions_of_a_row(launches: Launches) -> None:
    """A warp of rows takes at most 4,000 instructions: to fill the table, sort, and find taps."""
    cells, grids = levels_of(7, 900, (1, 12, 12, 12), (2, 2, 2), 1)
    wanted, launches.ctas = [WantedMap(own_taps(3), 0, 0)], 1
    found_and_checked(tables_of(cells, grids), wanted, cells, grids)
    launches.executed.clear()
    sorted_maps(tables_of(cells, grids), wanted)
    waiting = 3 * launches.executed["ld.acquire.gpu.global.b32"]  # a loop of three instructions
    assert 32 * (launches.executed.total() - waiting) < 4_000 * len(cells[0])


def test_registers_of_an_inverse(tmp_path: Any) -> None:
    """Ten CTAs of it to an SM: no address is held while the box of outputs is looked up."""
    found, taps = box_filter(Taps.strided(3, 3, 2, 1)), tuple(product(range(3), repeat=3))
    assert found is not None
    kernel = RowsOfBoxInverse(3, found, taps)
    built = build(kernel, "sm_90a", dump=str(tmp_path))
    (of_kernel,) = read_cubin(built.__cubin__).values()
    assert of_kernel.registers * kernel.threads * 10 <= 1 << 16
