"""Rows in the order of their taps, in the machine, against the CPU's."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.kernels.maps import build_map
from layoutconv.kernels.maps.block_table import EDGES, Fill
from layoutconv.kernels.maps.build_map import sort_index
from layoutconv.kernels.maps.probe import Search
from layoutconv.kernels.maps.row_order import Sizes
from layoutconv.sparse.maps import map_index, row_orders
from layoutconv.sparse.maps.taps import Taps

from ..grid_cover import with_deep
from .cloud_launcher import (
    Launches,
    cloud,
    few,
    rows_of,
    search,
    sought,
    table_of,
    with_sizes,
)
from .draws import draws

# Before the tests patch them.
ORDER_BITS = row_orders.PLACE_BITS, row_orders.WINDOWS.bits, row_orders.KEY_BITS


@pytest.fixture
def larger() -> Iterator[None]:
    """Larger sizes: four numbers for each thread, and strides beyond a warp."""
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
    want, want_order = row_orders.by_taps(index, (9,))
    got, got_order = sort_index(index, row_orders.tap_order((9,)))
    assert torch.equal(got_order, want_order)
    assert torch.equal(got, want)


def test_windows_of_more_chunks_than_threads(launches: Launches) -> None:
    """And places of several windows."""
    random, rows = np.random.default_rng(3), 1100
    index = torch.from_numpy(random.integers(-1, 1, (rows, 4), dtype=np.int32))
    launches.ctas = 3
    with with_sizes(Sizes(place=5, window=5, chunk=5, threads=32)):
        want, want_order = row_orders.by_taps(index, (4,))
        got, got_order = sort_index(index, row_orders.tap_order((4,)))
    assert torch.equal(got_order, want_order)
    assert torch.equal(got, want)


@settings(few, max_examples=draws(4))
@given(st.data())
def test_sorted_rows_are_those_of_the_cpu(
    launches: Launches, monkeypatch: pytest.MonkeyPatch, data: Any
) -> None:
    kind = data.draw(st.tuples(st.booleans(), st.booleans()))  # for any small grid
    monkeypatch.setattr(build_map, "key_kind", lambda _: kind)
    grid, indices, centres, stride, offsets = sought(data.draw, launches)
    tap_order = row_orders.tap_order((len(offsets),))
    want = search(rows_of(indices, grid), centres, stride, offsets)
    want_sorted, want_order = row_orders.by_taps(want, (len(offsets),))
    table = table_of(indices, grid)
    taps = Taps((len(offsets),), tuple(offsets), stride)
    results = [table.search_sorted(centres, taps)]
    if data.draw(st.booleans()):  # the table is there now
        results.append(table.search_sorted(centres, taps))
    if want.numel():
        results.append(sort_index(want, tap_order))
    for got, got_order in results:
        assert torch.equal(got_order, want_order)
        assert torch.equal(got, want_sorted)
        assert got.T.is_contiguous()


@pytest.mark.parametrize("extents", with_deep([(3, 3, 3), (5, 3, 5)], (3, 3, 3)), ids=str)
def test_sorted_filters_of_three_axes(launches: Launches, extents: tuple[int, ...]) -> None:
    grid = (2, 7, 9, 13)
    indices = cloud(4, 150, grid)
    offsets = [tuple(t - e // 2 for t, e in zip(tap, extents, strict=True))
               for tap in product(*map(range, extents))]  # fmt: skip
    table = table_of(indices, grid)
    want = row_orders.by_taps(search(rows_of(indices, grid), indices, (1, 1, 1), offsets), extents)
    got = table.search_sorted(indices, Taps.centred(3, extents))
    assert torch.equal(got[1], want[1])
    assert torch.equal(got[0], want[0])


@pytest.mark.parametrize("extents", with_deep([(5,), (3, 3), (2, 2, 3, 3)], (2, 2, 3, 3)), ids=str)
def test_sorted_filters_of_other_axes(launches: Launches, extents: tuple[int, ...]) -> None:
    """Blocks that begin at any cell: every number of steps into a block, on every axis."""
    rank = len(extents)
    grid = (2, *(2 * (1 << b) + 1 for b in EDGES[rank]))
    indices = cloud(6, 200, grid)
    offsets = [tuple(t - e // 2 for t, e in zip(tap, extents, strict=True))
               for tap in product(*map(range, extents))]  # fmt: skip
    table = table_of(indices, grid)
    want = row_orders.by_taps(
        search(rows_of(indices, grid), indices, (1,) * rank, offsets), extents
    )
    got = table.search_sorted(indices, Taps.centred(rank, extents))
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
        return map_index.DeferredMapIndex(table, indices, filter_taps, True)

    want = search(rows_of(indices, grid), indices, (1, 1, 1), list(filter_taps.offsets))
    want_sorted = row_orders.by_taps(want, filter_taps.extents)
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
