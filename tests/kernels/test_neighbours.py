"""Kernel maps in the machine, against a Python dictionary."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from math import prod
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from layoutconv.kernels import cell_bits, hash_table, map_chains, neighbours, per_rank, store
from layoutconv.kernels import reached as reached_module
from layoutconv.kernels.blocks import EDGES, Fill
from layoutconv.kernels.cell_bits import CountBits, Mark, WriteCells
from layoutconv.kernels.neighbours import HashTable, Search, sort_index
from layoutconv.kernels.per_rank import Chain, build, load_per_rank
from layoutconv.kernels.reached import Unpack, reached
from layoutconv.kernels.tap_order import Sizes
from layoutconv.kernels.together import SHARED_BYTES, size_of

from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.sparse import order, two_way
from layoutconv.sparse.taps import Taps

from ..machine import read_cubin
from .cloud_launcher import (
    CTAS,
    OF_RANK,
    ROWS,
    SEEDS,
    SIZES,
    Launches,
    Work,
    box,
    cloud,
    compiled,
    few,
    grids,
    reaches,
    rows_of,
    search,
    status,
    table_of,
    tap_lists,
)


@pytest.fixture(scope="module")
def launches() -> Iterator[Launches]:
    patch = pytest.MonkeyPatch()
    patched = Launches()
    patch.setattr(per_rank, "launch", patched)
    patch.setattr(neighbours, "multiprocessors", lambda _: patched.ctas)
    patch.setattr(map_chains, "FEWEST_OF_CHUNK", 32)
    with with_sizes(SIZES):
        yield patched
    patch.undo()


# Before the tests patch them.
ORDER_BITS = order.PLACE_BITS, order.WINDOW_BITS, order.KEY_BITS

# -- laws -----------------------------------------------------------------------------------------


@few
@given(st.data())
def test_search_is_a_dictionary(launches: Launches, data: Any) -> None:
    grid = data.draw(grids())
    rank = len(grid) - 1
    beyond, again = data.draw(st.sampled_from([(0, 0.0), (1, 0.0), (0, 0.3), (2, 0.3)]))
    launches.seed, launches.ctas = data.draw(SEEDS), data.draw(CTAS)
    indices = cloud(data.draw(SEEDS), data.draw(ROWS), grid, beyond, again)
    centres = cloud(data.draw(SEEDS), data.draw(ROWS), grid, 2)
    stride = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    offsets = tap_lists(data.draw, rank)
    table = table_of(indices, grid)
    assert table.status.tolist() == status(indices, grid)
    got = table.search(centres, stride, offsets)
    assert torch.equal(got, search(rows_of(indices, grid), centres, stride, offsets))


@settings(few, max_examples=4)
@given(st.data())
def test_a_filter_that_is_its_own_mirror(launches: Launches, data: Any) -> None:
    grid = data.draw(grids())
    rank = len(grid) - 1
    beyond, again = data.draw(st.sampled_from([(0, 0.0), (0, 0.0), (1, 0.0), (0, 0.3), (2, 0.3)]))
    indices = cloud(data.draw(SEEDS), data.draw(ROWS), grid, beyond, again)
    half = tap_lists(data.draw, rank, 5)
    middle = [(0,) * rank] if data.draw(st.booleans()) else []
    offsets = half + middle + [tuple(-c for c in tap) for tap in reversed(half)]
    launches.seed, launches.ctas = data.draw(SEEDS), data.draw(CTAS)
    table = table_of(indices, grid)
    own = table.search_own(offsets)
    launches.seed = data.draw(SEEDS)
    assert torch.equal(own, table.search(indices, (1,) * rank, offsets))
    assert torch.equal(own, search(rows_of(indices, grid), indices, (1,) * rank, offsets))
    assert own.stride() == table.search(indices, (1,) * rank, offsets).stride()


@contextmanager
def with_sizes(sizes: Sizes, windows: int = 3) -> Iterator[None]:
    patch = pytest.MonkeyPatch()
    patch.setattr(map_chains, "SIZES", sizes)
    patch.setattr(order, "PLACE_BITS", sizes.place)
    patch.setattr(order, "WINDOW_BITS", sizes.window)
    patch.setattr(order, "FEWEST_OF_WINDOW", 32)
    patch.setattr(order, "WINDOWS", windows)
    neighbours._plan.cache_clear()
    yield
    patch.undo()
    neighbours._plan.cache_clear()


@pytest.fixture
def larger() -> Iterator[None]:
    """Of more: four numbers a thread, and strides beyond a warp."""
    with with_sizes(Sizes(place=10, window=10, chunk=9, threads=256), windows=1):
        yield


def test_sizes_are_those_that_the_order_is_defined_by() -> None:
    sizes = Sizes()
    assert (sizes.place, sizes.window, sizes.key) == ORDER_BITS
    assert sizes.low + sizes.window <= 31  # a row's number and what it is sorted by, in its window


def test_rows_of_several_windows(launches: Launches, larger: None) -> None:
    random, rows = np.random.default_rng(7), 1100
    there = random.random((rows, 9)) < random.random(9)
    index = torch.from_numpy(np.where(there, 5, -1).astype(np.int32))
    want, want_order = order.by_taps(index, (9,))
    got, got_order = sort_index(index, order.tap_order((9,)))
    assert torch.equal(got_order, want_order)
    assert torch.equal(got, want)


def test_windows_of_more_chunks_than_threads(launches: Launches) -> None:
    """And places of several windows."""
    random, rows = np.random.default_rng(3), 1100
    index = torch.from_numpy(random.integers(-1, 1, (rows, 4), dtype=np.int32))
    launches.ctas = 3
    with with_sizes(Sizes(place=5, window=5, chunk=5, threads=32)):
        want, want_order = order.by_taps(index, (4,))
        got, got_order = sort_index(index, order.tap_order((4,)))
    assert torch.equal(got_order, want_order)
    assert torch.equal(got, want)


@settings(few, max_examples=6)
@given(st.data())
def test_sorted_rows_are_those_of_the_cpu(launches: Launches, data: Any) -> None:
    grid = data.draw(grids())
    rank = len(grid) - 1
    beyond, again = data.draw(st.sampled_from([(0, 0.0), (1, 0.0), (0, 0.3), (2, 0.3)]))
    launches.seed, launches.ctas = data.draw(SEEDS), data.draw(CTAS)
    indices = cloud(data.draw(SEEDS), data.draw(ROWS), grid, beyond, again)
    centres = cloud(data.draw(SEEDS), data.draw(ROWS), grid, 2)
    stride = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    offsets = tap_lists(data.draw, rank)
    tap_order = order.tap_order((len(offsets),))
    want = search(rows_of(indices, grid), centres, stride, offsets)
    want_sorted, want_order = order.by_taps(want, (len(offsets),))
    table = table_of(indices, grid)
    results = [table.search_sorted(centres, stride, offsets, tap_order)]
    if data.draw(st.booleans()):  # the table is there now
        results.append(table.search_sorted(centres, stride, offsets, tap_order))
    if want.numel():
        results.append(sort_index(want, tap_order))
    for got, got_order in results:
        assert torch.equal(got_order, want_order)
        assert torch.equal(got, want_sorted)
        assert got.T.is_contiguous()


@pytest.mark.parametrize("extents", [(3, 3, 3), (5, 3, 5)], ids=str)
def test_sorted_filters_of_three_axes(launches: Launches, extents: tuple[int, ...]) -> None:
    grid = (2, 7, 9, 13)
    indices = cloud(4, 150, grid)
    offsets = [tuple(t - e // 2 for t, e in zip(tap, extents, strict=True))
               for tap in product(*map(range, extents))]  # fmt: skip
    table = table_of(indices, grid)
    want = order.by_taps(search(rows_of(indices, grid), indices, (1, 1, 1), offsets), extents)
    got = table.search_sorted(indices, (1, 1, 1), offsets, order.tap_order(extents))
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("extents", [(5,), (3, 3), (2, 2, 3, 3)], ids=str)
def test_sorted_filters_of_other_axes(launches: Launches, extents: tuple[int, ...]) -> None:
    """Blocks that begin at any cell: every number of steps into a block, on every axis."""
    rank = len(extents)
    grid = (2, *(2 * (1 << b) + 1 for b in EDGES[rank]))
    indices = cloud(6, 200, grid)
    offsets = [tuple(t - e // 2 for t, e in zip(tap, extents, strict=True))
               for tap in product(*map(range, extents))]  # fmt: skip
    table = table_of(indices, grid)
    want = order.by_taps(search(rows_of(indices, grid), indices, (1,) * rank, offsets), extents)
    got = table.search_sorted(indices, (1,) * rank, offsets, order.tap_order(extents))
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])


def test_a_map_is_sorted_as_it_is_searched_and_searched_for_those_who_ask(
    launches: Launches,
) -> None:
    grid = (1, 6, 7, 5)
    indices = cloud(5, 90, grid)
    filter_taps = Taps.centred(3, 3)
    table = table_of(indices, grid)

    def lazily() -> Any:
        return two_way._OneWay(
            filter_taps.extents, search=two_way.Search(table, indices, filter_taps, True)
        )

    want = search(rows_of(indices, grid), indices, (1, 1, 1), list(filter_taps.offsets))
    want_sorted = order.by_taps(want, filter_taps.extents)
    first, then = lazily(), lazily()
    launches.kinds.clear()
    for got, expected in zip(first.sorted, want_sorted, strict=True):
        assert torch.equal(got, expected)
    assert launches.kinds.count(Search) == 1  # the index was not made to be sorted
    assert launches.kinds.count(Fill) == 1  # by the same call
    assert first.sorted is first.sorted
    assert torch.equal(first.index, want)
    assert torch.equal(then.index, want)
    launches.kinds.clear()
    for got, expected in zip(then.sorted, want_sorted, strict=True):
        assert torch.equal(got, expected)
    assert not launches.kinds  # an index that is there is sorted, not searched again


@few
@given(st.data())
def test_reached_cells_are_a_sorted_set(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, data: Any
) -> None:
    grid = data.draw(grids())
    rank = len(grid) - 1
    indices = cloud(data.draw(SEEDS), data.draw(ROWS), grid, data.draw(st.integers(0, 3)), 0.2)
    stride = tuple(data.draw(st.integers(1, 3)) for _ in range(rank))
    offsets = tap_lists(data.draw, rank)
    transposed, as_bits = data.draw(st.booleans()), data.draw(st.booleans())
    monkeypatch.setattr(reached_module, "suits", lambda *_: as_bits)
    launches.seed = data.draw(SEEDS)
    want = reaches(indices, stride, offsets, grid, transposed)
    arguments = (indices, stride, offsets, grid[1:], grid[0])
    cells, count = reached(*arguments, transposed=transposed)
    assert list(map(tuple, cells.tolist())) == want
    assert (cells.shape, cells.dtype) == ((len(want), 1 + rank), torch.int32)
    assert (count.shape, int(count)) == ((), len(want))

    capacity = max(0, len(want) + data.draw(st.integers(-3, 5)))
    cells, count = reached(*arguments, capacity, transposed=transposed)
    padding = [(-1, *[0] * rank)] * (capacity - len(want))
    assert list(map(tuple, cells.tolist())) == want[:capacity] + padding
    assert int(count) == len(want)


@pytest.mark.parametrize(("size", "dilation"), [(3, 1), (3, 2), (2, 1), (4, 3)])
def test_filters_of_three_axes(launches: Launches, size: int, dilation: int) -> None:
    grid = (2, 9, 10, 11)
    indices = cloud(size, 250, grid)
    offsets = box(3, size, dilation)
    table = table_of(indices, grid)
    want = search(rows_of(indices, grid), indices, (1, 1, 1), offsets)
    got = table.search(indices, (1, 1, 1), offsets)
    assert torch.equal(got, want)
    assert got.stride() == (1, len(indices))
    if size == 3:
        assert torch.equal(table.search_own(offsets), want)
    # Every neighbour reaches what it feeds.
    for stride in ((1, 1, 1), (2, 2, 2), (3, 1, 2)):
        small = (2, *(-(-extent // s) for extent, s in zip(grid[1:], stride, strict=True)))
        outputs, _ = reached(indices, stride, offsets, small[1:], 2)
        assert list(map(tuple, outputs.tolist())) == reaches(indices, stride, offsets, small, False)
        assert (table.search(outputs, stride, offsets) >= 0).any(1).all()


def test_cells_of_several_blocks_of_bits(launches: Launches) -> None:
    grid = (2, 21, 33, 47)
    assert prod(grid) > 3 * 64 * cell_bits.BLOCK
    indices = cloud(2, 120, grid)
    offsets = box(3, 2)
    want = reaches(indices, (1, 1, 1), offsets, grid, False)
    reached(indices, (1, 1, 1), offsets, grid[1:], 2)  # copies the taps to where they are read
    for capacity in (None, 0, 300, len(want) + 2000):
        launches.kinds.clear()
        with Work() as noted:
            cells, count = reached(indices, (1, 1, 1), offsets, grid[1:], 2, capacity)
        rows = len(want) if capacity is None else capacity
        padding = [(-1, 0, 0, 0)] * (rows - len(want))
        assert list(map(tuple, cells.tolist())) == want[:rows] + padding
        assert int(count) == len(want)
        # What a call costs: a dozen launches were 0.2 ms. The host waits once, or not at all.
        kernels = [Fill, Mark, CountBits, WriteCells]
        assert launches.kinds == (kernels if rows else kernels[:-1])
        assert noted.names.count("_local_scalar_dense") == (capacity is None)
        assert set(noted.names) <= {"new_empty", "select", "_local_scalar_dense"}


def test_bits_are_for_grids_that_are_not_too_great() -> None:
    assert cell_bits.suits(8 * 10**6, 1)
    assert cell_bits.suits(90 * 10**6, 700_000)
    assert not cell_bits.suits(90 * 10**6, 100_000)
    assert not cell_bits.suits(1 << 29, 10**8)


def test_cells_before_the_first_one_are_divided_downwards(launches: Launches) -> None:
    indices = torch.tensor([[0, -1, -3], [1, -2, 4], [0, -7, 5]], dtype=torch.int32)
    cells, _ = reached(indices, (2, 3), [(-1, -3), (-2, 1), (-5, -1)], (4, 4), 2)
    assert cells.tolist() == [[0, 0, 0], [1, 0, 1]]


def test_more_taps_than_a_mask_has_bits(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reached_module, "suits", lambda *_: False)
    grid = (1, 40, 40)
    indices = cloud(1, 90, grid)
    offsets = box(2, 7)
    for transposed in (False, True):
        cells, _ = reached(indices, (1, 2), offsets, grid[1:], 1, transposed=transposed)
        assert list(map(tuple, cells.tolist())) == reaches(
            indices, (1, 2), offsets, grid, transposed
        )


@pytest.mark.parametrize("as_bits", [True, False])
def test_the_result_does_not_depend_on_the_order_of_threads(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, as_bits: bool
) -> None:
    monkeypatch.setattr(reached_module, "suits", lambda *_: as_bits)
    grid = (1, 5, 6, 7)
    indices = cloud(3, 400, grid, again=0.5)
    results = set()
    for seed in range(4):
        launches.seed, launches.ctas = seed, 1 + seed % 3
        table = table_of(indices, grid)
        found = table.search(indices, (1, 1, 1), box(3, 3)[:5])
        cells, count = reached(indices, (2, 2, 2), box(3, 3), (3, 3, 4), 1)
        parts = (table.status, found, cells, count)
        results.add(tuple(part.contiguous().numpy().tobytes() for part in parts))
    assert len(results) == 1


def test_status_tells_of_the_second_row_of_a_cell(launches: Launches) -> None:
    """Whichever of them comes first: rows of one warp, of two, and of two CTAs."""
    indices = cloud(0, 500, (1, 1000))
    for first, *others in ((3, 290), (3, 40, 290), (200, 210), (0, 130, 140), (270, 290)):
        cells = indices[:300].clone()
        cells[others] = indices[first]
        for launches.seed in range(2):
            assert table_of(cells, (1, 1000)).status.tolist() == [min(others) + 1, 0]


# -- the table ------------------------------------------------------------------------------------


def home_of(key: int, bits: int) -> int:
    """``hash_table.home`` in Python's integers."""
    low, high, last = hash_table._FACTORS
    mixed = ((key >> 2) % 2**32 * low + (key >> 34) * high) % 2**32
    mixed = (mixed ^ mixed >> 16) * last % 2**32
    return mixed >> (34 - bits) << 2 | key & 3


def keys_in(table: HashTable) -> torch.Tensor:
    """Of all slots."""
    return table.memory.whole[: 4 << table._bits].view(torch.int64)[::2]


def test_keys_that_share_a_home(launches: Launches) -> None:
    """They wrap around the end of the table, too."""
    bits, width = 6, 2**31 - 1
    last = [key for key in range(100_000) if home_of(key, bits) == 2**bits - 1]
    cells = torch.tensor([[0, 0, 8 * key + 3] for key in last[:40]], dtype=torch.int32)
    table = HashTable(cells[:32], (2, width), 1)
    assert table._bits == bits
    assert int(keys_in(table)[-1]) in last  # the model above is the kernel's
    for offsets in ([(0, 0), (0, 1)], [(0, 0), (0, 9)]):
        found = table.search(cells, (1, 1), offsets)
        assert found[:, 0].tolist() == [*range(32), *[-1] * 8]
        assert (found[:, 1] == -1).all()


def test_a_table_with_one_free_slot(launches: Launches, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(neighbours, "table_bits", lambda rows: 6)
    grid = 1, 64 * 64
    indices = cloud(0, 10_000, (1, 64))[:63]
    indices[:, 1] = 64 * indices[:, 1] + indices[:, 1] % 3
    table = table_of(indices, grid)
    assert int((keys_in(table) == hash_table.EMPTY).sum()) == 1
    for offsets in ([(0,), (1,), (64,)], [(0,), (63,), (5 * 64,)]):
        want = search(rows_of(indices, grid), indices, (1,), offsets)
        assert torch.equal(table.search(indices, (1,), offsets), want)


# -- the ends of ranges ---------------------------------------------------------------------------


def test_grids_of_almost_2_to_the_63_cells(launches: Launches) -> None:
    top = 2**31 - 1
    corner = torch.tensor([[1, top - 1, top - 1], [0, 0, 0], [1, top - 1, 0]], dtype=torch.int32)
    table = HashTable(corner, (top, top), 2)
    assert table.status.tolist() == [0, 0]
    offsets = [(0, 0), (0, 1 - top), (0, top), (top, top), (-top, -top), (0, -1)]
    want = search(rows_of(corner, (2, top, top)), corner, (1, 1), offsets)
    assert want[0].tolist() == [0, 2, -1, -1, -1, -1]
    assert torch.equal(table.search(corner, (1, 1), offsets), want)
    # A centre times a stride leaves 32 bits, and an offset brings it back.
    centres = torch.tensor([[1, 2**30, 2**30], [1, -3, top]], dtype=torch.int32)
    assert table.search(centres, (2, 2), [(-2, -2), (-2, -(2**31) + 2)]).tolist() == [
        [0, -1], [-1, -1],
    ]  # fmt: skip
    assert table.search(centres, (2, 1), [(-2, 0 - 2**30)]).tolist() == [[2], [-1]]
    cells, _ = reached(corner, (1, 1), [(0, 0), (0, 1)], (top, top), 2)
    assert cells.tolist() == sorted(
        [[1, top - 1, top - 1], [0, 0, 0], [1, top - 1, 0], [1, top - 1, top - 2]]
    )


@pytest.mark.parametrize("several_gpus", [False, True])
def test_memory_is_of_the_same_kind_whoever_is_asked(
    several_gpus: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if several_gpus:
        monkeypatch.setattr(neighbours, "past_dispatcher", lambda _: None)
    table = HashTable(torch.zeros(5, 4, dtype=torch.int32), (4, 4, 4), 1)
    index, words = table._room_for_index(5, 27), table._words(9)
    assert (index.shape, index.stride(), index.dtype) == ((5, 27), (1, 5), torch.int32)
    assert (words.shape, words.stride(), words.dtype) == ((9,), (1,), torch.int32)


def test_nothing_is_found_in_nothing(launches: Launches) -> None:
    launches.kinds.clear()
    none = torch.empty(0, 4, dtype=torch.int32)
    some = torch.zeros(3, 4, dtype=torch.int32)
    ones, offsets = (1, 1, 1), box(3, 3)
    table = HashTable(none, (4, 4, 4), 1)
    assert table.status.tolist() == [0, 0]
    assert table.search_own(offsets).shape == (0, 27)
    assert table.search(some, ones, offsets).tolist() == [[-1] * 27] * 3
    assert table.search(some, ones, []).shape == (3, 0)
    for capacity in (None, 0, 2):
        for indices, taps, shape, batches in [
            (none, offsets, (4, 4, 4), 1), (some, [], (4, 4, 4), 1),
            (some, offsets, (4, 0, 4), 1), (some, offsets, (4, 4, 4), 0),
        ]:  # fmt: skip
            cells, count = reached(indices, ones, taps, shape, batches, capacity)
            assert int(count) == 0
            assert cells.tolist() == [[-1, 0, 0, 0]] * (capacity or 0)
    assert launches.kinds == []
    # A grid without cells has every row outside.
    table = HashTable(some, (4, 0, 4), 1)
    assert table.status.tolist() == [0, 1]
    assert table.search(some, ones, offsets).tolist() == [[-1] * 27] * 3
    assert table.search_own(offsets).tolist() == [[-1] * 27] * 3


def test_padding_finds_nothing_and_is_no_error(launches: Launches) -> None:
    indices = torch.tensor([[-1, 0, 0], [0, 1, 1], [-1, 0, 0], [-5, 9, 9]], dtype=torch.int32)
    table = HashTable(indices, (3, 3), 1)
    assert table.status.tolist() == [0, 0]
    want = [[-1] * 3, [-1, 1, -1], [-1] * 3, [-1] * 3]
    offsets = [(0, -1), (0, 0), (0, 1)]
    assert table.search_own(offsets).tolist() == want
    assert table.search(indices, (1, 1), offsets).tolist() == want
    assert reached(indices, (1, 1), offsets[:2], (3, 3), 1)[0].tolist() == [[0, 1, 1], [0, 1, 2]]


def test_memory_that_starts_anywhere(launches: Launches) -> None:
    grid = (1, 4, 4, 4)
    indices = cloud(0, 50, grid)
    shifted = torch.empty(4 * len(indices) + 1, dtype=torch.int32)[1:].view(-1, 4)
    columns = torch.empty(4, len(indices), dtype=torch.int32).T
    want = search(rows_of(indices, grid), indices, (1, 1, 1), box(3, 3))
    for other in (shifted, columns):
        other.copy_(indices)
        assert torch.equal(table_of(other, grid).search(other, (1, 1, 1), box(3, 3)), want)


# -- kernels --------------------------------------------------------------------------------------


@pytest.mark.parametrize("arch", ["sm_80", "sm_100a", "sm_120a"])
@pytest.mark.parametrize("kind", OF_RANK)
def test_kernels_compile_for_every_architecture(kind: Any, arch: str) -> None:
    kernel = OF_RANK[kind](2)
    if arch == "sm_80":  # as the machine runs it
        assert compiled(kernel)
        return
    with tempfile.TemporaryDirectory() as folder:
        assert f".target {arch}" in build(kernel, arch, dump=folder).__ptx__


def sorted_chain(taps: Taps, empty: bool) -> Chain:
    rank = len(taps.stride)
    with with_sizes(Sizes()):
        plan = neighbours._plan(
            taps.offsets, taps.stride, order.tap_order(taps.extents), rank, torch.device("cpu")
        )
        return plan.sorted(empty)


CHAINS = {
    "filled": map_chains.filled(3, Sizes().threads),
    "known": sorted_chain(Taps.centred(3, 3), True),
    "known, of a table that is there": sorted_chain(Taps.centred(2, 3), False),
    "near": sorted_chain(Taps.centred(3, offsets=[(0, 0, 0), (1, 0, 2)]), True),
    "far": sorted_chain(Taps.centred(3, 2, 900), True),
    "4-D": sorted_chain(Taps.centred(4, 2), True),
    "index": map_chains.sorted_index(Sizes()),
}


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", CHAINS)
def test_chains_are_two_launches_that_fit_into_every_gpu(name: str, arch: str) -> None:
    """The second needs a multiprocessor for each CTA: 65,536 registers, 99 KB on most."""
    chain = CHAINS[name]
    with tempfile.TemporaryDirectory() as folder:
        built = build(chain, arch, dump=folder)
    assert built.__ptx__.count(".entry") == len(chain.parts) == 2
    assert ".nc" not in built.__ptx__  # of what others write, no cache may be trusted
    kernels = read_cubin(built.__cubin__)
    (together,) = (kernel for name, kernel in kernels.items() if "Together" in name)
    assert together.registers * chain.parts[1][0].threads <= 65_536
    # Of a submanifold filter nothing is spilled; of others what is found once, and kept.
    assert together.stack <= (0 if name == "known" else 96)
    needs = [part.shared(chain.parts[1][0].threads) for part, *_ in chain.parts[1][0].parts]
    assert max(map(size_of, needs)) <= SHARED_BYTES == 99 * 1024


@pytest.mark.parametrize(("rank", "arch"), [(1, "sm_80"), (3, "sm_90a"), (4, "sm_80")])
def test_cells_of_bits_are_one_call_of_four_kernels(rank: int, arch: str, tmp_path: Any) -> None:
    count, _, both = cell_bits.kernels_of(rank)
    for chain, kernels in ((count, 3), (both, 4)):
        built = build(chain, arch, dump=str(tmp_path))
        assert built.__ptx__.count(".entry") == kernels
        assert ".nc" not in built.__ptx__
        assert all(kernel.stack == 0 for kernel in read_cubin(built.__cubin__).values())


# Those that ask for the whole of a cell.
WHOLE = [kind for kind in OF_RANK if kind not in ("fill", "count bits")]


@pytest.mark.parametrize(("kind", "rank"), list(product(WHOLE, (1, 2, 3))))
def test_cells_are_read_at_once_where_they_are_a_vector(kind: str, rank: int) -> None:
    _, program = compiled(OF_RANK[kind](rank))
    word = {1: {"v2.b32"}, 3: {"v4.b32"}}.get(rank, set())
    move = "st.global." if kind in ("unpack", "write cells") else "ld.global."
    found = {i.opcode for i in program.instructions if i.opcode.startswith(move + "v")}
    slot = {move + "v2.b64"} if kind.startswith(("search", "keys")) else set()
    assert found == {move + vector for vector in word} | slot


def test_kernels_are_kept_by_rank(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(store, "_loaded", {})
    built: list[Any] = []

    def counted(*arguments: Any) -> Any:
        built.append(arguments)
        return build(*arguments)

    monkeypatch.setattr(per_rank, "build", counted)
    load: Callable[..., Any] = load_per_rank
    assert load(Search(1, True), "sm_80") is load(Search(1, True), "sm_80")
    assert load(Search(1, True), "sm_80") is not load(Search(2, True), "sm_80")
    assert load(Unpack(1), "sm_80") is not load(Search(1, True), "sm_80")
    monkeypatch.setattr(store, "_loaded", {})
    assert callable(load(Search(2, True), "sm_80"))  # from disk
    assert len(built) == len(list(tmp_path.iterdir())) == 3


# -- arguments ------------------------------------------------------------------------------------


def test_arguments_that_are_refused(launches: Launches) -> None:
    indices = torch.zeros(2, 3, dtype=torch.int32)
    for bad, error, message in [
        (lambda: HashTable(indices.long(), (3, 3), 1), ArgumentTypeError, "`indices`.*int64"),
        (lambda: HashTable(indices, (3, 3, 3), 1), ArgumentError, r"`indices`.*\(rows, 4\)"),
        (lambda: HashTable(indices, (), 1), ArgumentError, "`spatial_shape`.*1 to 4"),
        (lambda: HashTable(indices, (3, -1), 1), ArgumentError, "`spatial_shape`.*-1"),
        (lambda: HashTable(indices, (3, 3), 2**31), ArgumentError, "`batch_size`"),
        (lambda: HashTable(indices, (2**31 - 1,) * 2, 3), ArgumentError, r"2\*\*63"),
        (lambda: HashTable(indices, (3, 3), 1).search(indices, (1,), []), ArgumentError, "stride"),
        (lambda: HashTable(indices, (3, 3), 1).search(indices, (1, 0), []), ArgumentError, "stri"),
        (lambda: HashTable(indices, (3, 3), 1).search(indices, (1, 1), [(1,)]), ArgumentError,
         "`offsets`"),
        (lambda: HashTable(indices, (3, 3), 1).search(indices, (1, 1), [(1, 0.5)]),
         ArgumentTypeError, "`offsets`.*integers"),
        (lambda: HashTable(indices, (3, 3), 1).search(indices, (1, 1), [(1, 2**31)]),
         ArgumentError, "`offsets`.*32 bits"),
        (lambda: reached(indices, (1, 1), [], (3, 3), 1, -1), ArgumentError, "`capacity`"),
    ]:  # fmt: skip
        with pytest.raises(error, match=message):
            bad()
