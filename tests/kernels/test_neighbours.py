"""Kernel maps in the machine, against a Python dictionary."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.base.memory import maker
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.kernels.maps import build_map
from layoutconv.kernels.maps.build_map import HashTable
from layoutconv.kernels.maps.output_coords import reached
from layoutconv.sparse.maps.taps import Taps

from .cloud_launcher import (
    CTAS,
    ROWS,
    SEEDS,
    Launches,
    box,
    cloud,
    few,
    grids,
    reaches,
    rows_of,
    search,
    sought,
    status,
    table_of,
    tap_lists,
)
from .draws import draws


@few
@given(st.data())
def test_search_is_a_dictionary(launches: Launches, data: Any) -> None:
    grid, indices, centres, stride, offsets = sought(data.draw, launches)
    table = table_of(indices, grid)
    assert table.status.tolist() == status(indices, grid)
    got = table.search(centres, stride, offsets)
    assert torch.equal(got, search(rows_of(indices, grid), centres, stride, offsets))


@settings(few, max_examples=draws(4))
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


@pytest.mark.parametrize(
    ("size", "dilation"), [(3, 1), pytest.param(3, 2, marks=pytest.mark.deep), (2, 1), (4, 3)]
)
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


@pytest.mark.parametrize("as_bits", [True, False])
def test_the_result_does_not_depend_on_the_order_of_threads(
    launches: Launches, as_bits: bool
) -> None:
    grid = (1, 5, 6, 7)
    indices = cloud(3, 400, grid, again=0.5)
    results = set()
    for seed in range(4):
        launches.seed, launches.ctas = seed, 1 + seed % 3
        table = table_of(indices, grid)
        found = table.search(indices, (1, 1, 1), box(3, 3)[:5])
        cells, count = reached(indices, (2, 2, 2), box(3, 3), (3, 3, 4), 1, as_bits=as_bits)
        parts = (table.status, found, cells, count)
        results.add(tuple(part.contiguous().numpy().tobytes() for part in parts))
    assert len(results) == 1


# -- the ends of ranges ----------------------------------------------------------------------------


def test_a_sorted_search_asks_for_memory_three_times(
    launches: Launches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For its two results, and for all else: each time takes the host a microsecond."""
    asked: list[Any] = []

    def counted(device: torch.device) -> Any:
        def make(*kind: Any) -> torch.Tensor:
            asked.append(kind)
            return maker(device)(*kind)

        return make

    monkeypatch.setattr(build_map, "maker", counted)
    grid = (1, 6, 7, 8)
    indices = cloud(7, 150, grid)
    table, taps, found = table_of(indices, grid), Taps.centred(3), []
    for _ in ("a table that is filled", "one that is there"):
        asked.clear()
        found.append(table.search_sorted(indices, taps))
        assert len(asked) == 3
    assert all(map(torch.equal, *found))
    assert table.status.tolist() == [0, 0]


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


# -- arguments -------------------------------------------------------------------------------------


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
