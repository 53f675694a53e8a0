"""The index buffers, against a Python dictionary."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.sparse import Coordinates, dense_index, submanifold_map, tap_offsets


@st.composite
def clouds(draw, rank=3):
    """(coords, spatial_shape, batch_size): distinct cells in any order, on small and odd grids."""
    shape = tuple(draw(st.integers(1, 6)) for _ in range(rank))
    batch_size = draw(st.integers(1, 3))
    cell = st.tuples(st.integers(0, batch_size - 1), *(st.integers(0, e - 1) for e in shape))
    cells = draw(st.lists(cell, max_size=40, unique=True))
    coords = torch.tensor(cells, dtype=torch.int32).reshape(len(cells), 1 + rank)
    return coords, shape, batch_size


def per_axis(draw, rank, high):
    return tuple(draw(st.integers(1, high)) for _ in range(rank))


@settings(max_examples=60, deadline=None)
@given(st.data(), st.integers(1, 4))
def test_entry_is_the_row_of_the_neighbour_or_minus_one(data, rank):
    coords, shape, batch_size = data.draw(clouds(rank))
    kernel_size = per_axis(data.draw, rank, 4 if rank < 4 else 2)
    dilation = per_axis(data.draw, rank, 3)
    row_of = {tuple(cell): row for row, cell in enumerate(coords.tolist())}
    expected = [
        [
            row_of.get((b, *(c + o for c, o in zip(cell, offset, strict=True))), -1)
            for offset in tap_offsets(kernel_size, dilation, rank)
        ]
        for b, *cell in coords.tolist()
    ]
    kernel_map = submanifold_map(
        Coordinates(coords, shape, batch_size), kernel_size, dilation
    ).index
    assert kernel_map.tolist() == expected
    assert kernel_map.dtype == torch.int32
    if len(coords) > 1:
        assert kernel_map.T.is_contiguous()


@settings(max_examples=30, deadline=None)
@given(clouds(), st.sampled_from([1, 3, 5, (1, 3, 5)]), st.integers(1, 3))
def test_odd_filters_are_mirror_symmetric_about_the_row_itself(cloud, kernel_size, dilation):
    coords, shape, batch_size = cloud
    kernel_map = submanifold_map(
        Coordinates(coords, shape, batch_size), kernel_size, dilation
    ).index
    rows, taps = kernel_map.shape
    assert kernel_map[:, taps // 2].tolist() == list(range(rows))
    for row, tap in (kernel_map >= 0).nonzero().tolist():
        assert kernel_map[kernel_map[row, tap], taps - 1 - tap] == row


def test_taps_are_numbered_s_fastest_then_r_then_t():
    T, R, S = 3, 2, 4
    offsets = tap_offsets((T, R, S), dilation=(1, 2, 3))
    for t in range(T):
        for r in range(R):
            for s in range(S):
                expected = (t - T // 2, (r - R // 2) * 2, (s - S // 2) * 3)
                assert offsets[s + S * (r + R * t)] == expected


def test_cells_at_the_end_of_int32_have_neighbours():
    last = 2**31 - 2
    coords = torch.tensor([[0, 0, 0, last], [0, 0, 0, last - 1]], dtype=torch.int32)
    kernel_map = submanifold_map(Coordinates(coords, (1, 1, last + 1), 1), (1, 1, 3)).index
    assert kernel_map.tolist() == [[1, 0, -1], [-1, 1, 0]]


@settings(max_examples=40, deadline=None)
@given(st.data(), clouds())
def test_dense_index_finds_every_row_of_the_box_and_nothing_else(data, cloud):
    coords, shape, batch_size = cloud
    low = tuple(data.draw(st.integers(-2, e)) for e in shape)
    high = tuple(data.draw(st.integers(a, e + 2)) for a, e in zip(low, shape, strict=True))
    index = dense_index(Coordinates(coords, shape, batch_size), box=(low, high))
    assert index.shape == (batch_size, *(b - a for a, b in zip(low, high, strict=True)))
    expected = torch.full_like(index, -1)
    for row, (n, z, y, x) in enumerate(coords.tolist()):
        if all(a <= c < b for a, c, b in zip(low, (z, y, x), high, strict=True)):
            expected[n, z - low[0], y - low[1], x - low[2]] = row
    assert torch.equal(index, expected)


CELL = torch.tensor([[0, 1, 2, 3], [1, 0, 0, 0], [0, 1, 2, 3]], dtype=torch.int32)


@pytest.mark.parametrize("function", [submanifold_map, dense_index])
def test_errors_name_the_rows_at_fault(function):
    def build(*grid):
        return function(Coordinates(*grid))

    with pytest.raises(
        ValueError, match=r"`coords`: expected distinct cells, got \[0, 1, 2, 3\] in rows 0 and 2"
    ):
        build(CELL, (4, 4, 4), 2)
    with pytest.raises(ValueError, match=r"expected column 3 in \[0, 3\), got .* in row 0 "):
        build(CELL[:2], (4, 4, 3), 2)
    with pytest.raises(ValueError, match=r"expected column 0 in \[0, 1\), got .* in row 1 "):
        build(CELL[:2], (4, 4, 4), 1)
    with pytest.raises(ValueError, match=r"expected column 1 in .* got \[0, -1, 2, 3\] in row 0"):
        build(CELL[:1] - torch.tensor([0, 2, 0, 0], dtype=torch.int32), (4, 4, 4), 1)
    with pytest.raises(
        ValueError, match=r"`coords`: expected a torch tensor of int32, got torch.int64"
    ):
        build(CELL[:1].long(), (4, 4, 4), 1)
    with pytest.raises(ValueError, match=r"`coords`: expected \(rows, 3\)"):
        build(CELL[:1], (4, 4), 1)


def test_a_grid_too_large_for_its_keys_is_an_error():
    huge = (2**31 - 1,) * 3
    with pytest.raises(ValueError, match=r"fewer than 2\*\*63 cells in all"):
        submanifold_map(Coordinates(CELL[:1], huge, 1))
    with pytest.raises(ValueError, match="`box`: expected fewer than"):
        dense_index(Coordinates(CELL[:1], (1 << 11, 1 << 10, 1 << 10), 1))
    with pytest.raises(ValueError, match="`kernel_size`: expected an integer >= 1, or 3 of them"):
        submanifold_map(Coordinates(CELL[:1], (4, 4, 4), 1), (3, 3))
    with pytest.raises(ValueError, match="`dilation`: expected an integer >= 1"):
        submanifold_map(Coordinates(CELL[:1], (4, 4, 4), 1), dilation=0)
