"""Orders of rows: tap masks, rows sorted by them, tiles, and the Morton curve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.errors import ArgumentError
from layoutconv.sparse import (
    SparseTensor,
    cat,
    collate,
    dense_index,
    morton_order,
    submanifold_map,
    tap_masks,
    tile_taps,
)
from layoutconv.sparse.maps import row_orders as order_module
from layoutconv.sparse.maps.row_orders import by_taps

examples = settings(max_examples=60, deadline=None)


@st.composite
def indices(draw, most=70):
    """An index whose rows have few different sets of taps, in the usual memory or the other."""
    taps = draw(st.sampled_from([1, 2, 8, 27, 31, 32, 33, 63, 64, 70, 125]))
    rows = draw(st.integers(0, most))
    sets = draw(st.lists(st.integers(0, 2**taps - 1), min_size=1, max_size=5))
    sets += [0, 2**taps - 1, 1 << (taps - 1)]
    chosen = draw(st.lists(st.integers(0, len(sets) - 1), min_size=rows, max_size=rows))
    index = torch.full((taps, rows), -1, dtype=torch.int32)
    for row, which in enumerate(chosen):
        for tap in range(taps):
            if sets[which] >> tap & 1:
                index[tap, row] = 1000 * row + tap
    return index.T.contiguous() if draw(st.booleans()) else index.T


def mask_of(entries):
    return sum(1 << tap for tap, row in enumerate(entries) if row >= 0)


def key_of(entries):
    """The place among all masks, in 2^31 parts, in the order of a Gray code whose highest bit is
    the tap that is farthest from the middle; and the code's number. Of more than 50 taps, several
    share a bit."""
    taps = len(entries)
    near_first = sorted(range(taps), key=lambda tap: abs(2 * tap - taps + 1))
    bits = min(taps, 50)
    there = [False] * bits
    for place, tap in enumerate(near_first):
        there[place * bits // taps] |= entries[tap] >= 0
    number, parity, below, width = 0, False, 0, 2**31 - 1
    for done, bit in enumerate(reversed(there)):
        present = width * ((sum(there[bits - done :]) + 1) * (2**16 // (done + 5))) // 2**16
        low = present if parity else width - present  # of the digit 0, which comes first
        parity ^= bit
        below, width = (below + low, width - low) if parity else (below, low)
        number = 2 * number + parity
    assert 0 <= below <= below + width < 2**31
    return below, number


def in_window(keys):
    """Return the numbers that sort a window's keys: 19 bits behind those that places share."""
    places = [key >> 19 for key in keys]
    span = max(places, default=0) - min(places, default=0)
    return [(key - (min(places) << 19)) >> span.bit_length() for key in keys]


@examples
@given(indices())
def test_bit_of_a_mask_is_a_tap(index):
    words = tap_masks(index)
    rows, taps = index.shape
    assert words.shape == (rows, -(-taps // 32))
    assert words.dtype == torch.int32
    masks = [
        sum((word & 0xFFFFFFFF) << 32 * w for w, word in enumerate(row)) for row in words.tolist()
    ]
    assert masks == [mask_of(entries) for entries in index.tolist()]


@examples
@given(st.integers(0, 2_000_000))
def test_windows_are_whole_warps_one_for_each_cta_as_far_as_4096_rows_suffice(rows):
    window = order_module.tap_order((3,)).window(rows)
    assert window % 32 == 0
    assert 256 <= window <= 4096
    if rows <= 132 * 4096:
        assert -(-rows // window) <= 132
    if 256 < window < 4096:
        assert -(-rows // (window - 32)) > 132


@dataclass(frozen=True, eq=False)
class Windows(order_module.TapOrder):
    """The same order, with windows of ``length`` rows."""

    length: int

    def window(self, rows):
        return self.length


@examples
@given(indices(), st.integers(1, 70))
def test_rows_are_sorted_by_12_bits_and_within_windows_by_more(index, window):
    before = index.clone()
    taps = order_module.tap_order((index.shape[1],))
    found, order = order_module.sorted_in_torch(index, Windows(taps.visits, taps.weights, window))
    assert torch.equal(index, before)
    assert order.dtype == torch.int32
    assert sorted(order.tolist()) == list(range(len(index)))
    assert torch.equal(found, index[order.long()])
    assert found.T.is_contiguous() or len(index) < 2
    keys = [key_of(entries)[0] for entries in index.tolist()]
    rows = sorted(range(len(keys)), key=lambda row: keys[row] >> 19)
    wanted = []
    for first in range(0, len(rows), window):
        part = rows[first : first + window]
        rest = in_window([keys[row] for row in part])
        assert all(0 <= key < 2**19 for key in rest)
        wanted += [row for _, row in sorted(zip(rest, part, strict=True), key=lambda pair: pair[0])]
    assert order.tolist() == wanted
    usual = order_module.sorted_in_torch(index, taps)
    assert all(map(torch.equal, by_taps(index, (index.shape[1],)), usual))


@examples
@given(indices())
def test_keys_are_in_the_order_of_the_gray_code(index):
    """No row comes before one of a lower number."""
    both = sorted((key_of(entries) for entries in index.tolist()), key=lambda pair: pair[1])
    keys = [key for key, _ in both]
    assert keys == sorted(keys)
    assert sorted(order_module.tap_order((index.shape[1],)).keys(index).tolist()) == keys


@examples
@given(indices(), st.integers(1, 40))
def test_tile_has_the_taps_that_some_row_of_it_has(index, rows):
    found = tile_taps(index, rows).tolist()
    entries = index.tolist()
    expected = [
        [any(row[tap] >= 0 for row in entries[first : first + rows]) for tap in range(len(got))]
        for first, got in zip(range(0, len(index), rows), found, strict=True)
    ]
    assert found == expected


@examples
@given(st.data(), st.integers(1, 4))
def test_morton_order_interleaves_bits(data, rank):
    column = st.one_of(st.integers(0, 5), st.integers(0, 30).map((1).__lshift__))
    cell = st.tuples(st.integers(-1, 2), *[column] * rank)
    rows = data.draw(st.lists(cell, max_size=30))
    cells = torch.tensor(rows, dtype=torch.int32).reshape(len(rows), 1 + rank)

    def curve(row):
        batch, *at = rows[row]
        bits = [
            (column >> bit & 1) << bit * rank + rank - 1 - axis
            for axis, column in enumerate(at)
            for bit in range(63 // rank)
        ]
        return batch, sum(bits)

    assert morton_order(cells).tolist() == sorted(range(len(rows)), key=curve)


CLOUD = SparseTensor(torch.zeros(2, 1), torch.tensor([[0, 1], [0, 3]], dtype=torch.int32), (5,), 1)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: morton_order(CLOUD.coordinates), "`cells`: expected .*, got Coordinates"),
        (lambda: morton_order(CLOUD.features), "`cells`: expected .*int32, got torch.float32"),
        (lambda: morton_order(CLOUD.coords[:, :1]), r"`cells`: .*1 to 4 modes, got \(2, 1\)"),
        (lambda: tap_masks(submanifold_map(CLOUD.coordinates, 3)), "`index`: .*, got KernelMap"),
        (lambda: tap_masks(CLOUD.coords[0]), r"`index`: expected \(rows, taps\).*, got \(2,\)"),
        (lambda: tile_taps(CLOUD.coords, 0), "`rows`: expected an integer >= 1, got 0"),
        (lambda: dense_index(CLOUD), "`coordinates`: expected Coordinates.*, got SparseTensor"),
        (lambda: dense_index(CLOUD.coordinates, (1, 3)), r"`box`: .*each, got \(1, 3\)"),
        (lambda: dense_index(CLOUD.coordinates, ((0.5,), (2,))), "`box`: expected a first cell"),
        (lambda: cat(CLOUD.coordinates), "`tensors`: expected a sequence.*, got Coordinates"),
        (lambda: collate(torch.tensor(3)), "`tensors`: expected a sequence.*, got Tensor"),
    ],
)
def test_functions_of_cells_name_what_they_cannot_take(call: Any, said: str) -> None:
    with pytest.raises(ArgumentError, match=said):
        call()
