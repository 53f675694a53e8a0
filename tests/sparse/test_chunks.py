"""A cloud in chunks: their kernel maps together are that of the whole, and nothing too much."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.sparse import Chunks, morton_order, submanifold_map
from layoutconv.sparse.coords.morton import Curve
from layoutconv.sparse.stream.sorted_cells import sorted_cells
from layoutconv.sparse.stream.staging import staging

from .clouds import clouds, offset_sets

some = settings(max_examples=40, deadline=None)


@some
@given(st.data(), st.integers(1, 4), st.integers(1, 12))
def test_chunks_have_the_map_of_the_whole(data, rank, max_rows):
    cloud = data.draw(clouds(rank, padded=False))
    offsets = data.draw(offset_sets(rank))
    chunks = Chunks(cloud.cells, cloud.spatial_shape, cloud.batch_size, max_rows=max_rows)
    want = submanifold_map(cloud, offsets=offsets).index
    got = torch.full_like(want, -2)
    assert [row for rows in chunks.ranges() for row in rows] == list(range(len(cloud)))
    for rows, chunk in zip(chunks.ranges(), chunks.maps(offsets=offsets), strict=True):
        assert chunk.rows == rows
        index, rows = chunk.kernel_map.index, chunks.rows_of(chunk.rows)
        assert len(chunk.rows) == len(chunk.kernel_map.outputs) <= max_rows
        own, others = torch.arange(chunk.rows.start, chunk.rows.stop), chunk.halo
        read = chunks.rows_of(torch.cat([own, others]))
        assert (read[: len(own)].diff() > 0).all()  # in the order in which they were given
        assert torch.equal(chunk.kernel_map.inputs.cells, cloud.cells[read])
        assert set(range(len(own), len(read))) <= set(index.flatten().tolist())  # it is read
        assert not set(own.tolist()) & set(others.tolist())
        got[rows] = torch.where(index >= 0, read[index.clamp(min=0).long()].int(), -1)
    assert torch.equal(got, want)


@some
@given(st.data(), st.integers(1, 4))
def test_keys_are_cells_in_the_order_of_the_curve(data, rank):
    cloud = data.draw(clouds(rank, padded=False))
    curve = Curve(cloud.spatial_shape, cloud.batch_size)
    keys = curve.keys(cloud.cells)
    assert torch.equal(curve.cells(keys), cloud.cells)
    assert torch.equal(keys.argsort(), morton_order(cloud.cells))


@some
@given(st.data(), st.integers(1, 4), st.integers(1, 60))
def test_what_is_beyond_a_range_is_what_taps_reach_there(data, rank, at_once):
    cloud = data.draw(clouds(rank, padded=False))
    offsets = data.draw(offset_sets(rank))
    curve = Curve(cloud.spatial_shape, cloud.batch_size)
    ends = st.integers(0, int(curve.keys(cloud.cells).max()) + 1 if len(cloud) else 1)
    first, last = sorted((data.draw(ends), data.draw(ends)))
    want = set()
    for image, *cell in cloud.cells.tolist():
        for offset in offsets:
            there = [c + int(o) for c, o in zip(cell, offset, strict=True)]
            if all(0 <= c < e for c, e in zip(there, cloud.spatial_shape, strict=True)):
                want.add(int(curve.keys(torch.tensor([[image, *there]], dtype=torch.int32))))
    got = curve.beyond(cloud.cells, offsets, first, last, keys_at_once=at_once).tolist()
    assert got == sorted(key for key in want if not first <= key <= last)


def test_keys_of_a_flat_grid_have_the_bits_of_its_cells():
    shape = 2**28, 2**30, 2
    cells = torch.tensor([[7, 2**28 - 1, 2**30 - 1, 1], [3, 5, 2**29, 0]], dtype=torch.int32)
    curve = Curve(shape, 8)
    assert curve.keys(cells)[0] == 2**62 - 1
    assert torch.equal(curve.cells(curve.keys(cells)), cells)
    with pytest.raises(ArgumentError, match=r"argument `spatial_shape`: expected .* 63"):
        Curve(shape, 17)


def test_taps_far_away_wrap_around_nothing():
    cells = torch.tensor([[0, 0, 0], [0, 2**31 - 2, 3]], dtype=torch.int32)
    chunks = Chunks(cells, (2**31 - 1, 4), 1, max_rows=1)
    far = 2**31 - 1
    for offsets in ([(far, 3)], [(-far, -3)], [(2 - far, 0)]):
        assert all((c.kernel_map.index == -1).all() for c in chunks.maps(offsets=offsets))
    there = [c.kernel_map.index.tolist() for c in chunks.maps(offsets=[(far - 1, 3)])]
    assert there == [[[1]], [[-1]]]


@some
@given(st.data(), st.integers(1, 4), st.integers(1, 12), st.integers(1, 3))
def test_places_are_ranges_of_the_curve_and_rise_in_each(data, rank, max_rows, at_once):
    cloud = data.draw(clouds(rank, padded=False))
    keys = Curve(cloud.spatial_shape, cloud.batch_size).keys(cloud.cells)
    chunks = Chunks(cloud.cells, cloud.spatial_shape, cloud.batch_size, max_rows=max_rows)
    rising, order = keys.sort()
    lengths = [len(rows) for rows in chunks.ranges()]
    assert sum(lengths) == len(cloud)
    assert len(lengths) == -(-len(cloud) // max_rows)
    assert lengths == sorted(lengths, reverse=True)
    assert len(set(lengths[:-1])) <= 1  # even ones; the last may be shorter
    assert max(lengths, default=0) <= max_rows
    places = torch.cat([order[:0], *(part.sort().values for part in order.split(lengths))])
    made = [chunks]
    if len(cloud) > max_rows:  # one run of keys that are sorted, and several
        made.append(sorted_cells(cloud.cells, chunks.curve, lengths[0], staging("cpu"), at_once))
    for found in made:
        assert torch.equal(found.keys, rising)
        if len(cloud) <= max_rows or torch.equal(rising, keys):
            assert found.order is None
            assert torch.equal(places, torch.arange(len(cloud)))
        else:
            assert torch.equal(found.order, places.int())


def test_runs_that_are_sorted_apart_are_merged():
    generator = torch.Generator().manual_seed(0)
    places = torch.randperm(4096, generator=generator)[:1000].sort().values
    cells = Curve((16, 16, 16), 1).cells(places)
    chunks = Chunks(cells, (16, 16, 16), 1, max_rows=7)  # 12 runs
    assert chunks.order is None
    for swapped in ((0, 1), (83, 84), (500, 999)):  # within a run, and across two
        given = torch.arange(1000)
        given[list(swapped)] = given[list(swapped[::-1])]
        some = Chunks(cells[given], (16, 16, 16), 1, max_rows=7)
        assert torch.equal(some.keys, places)
        along = given.argsort()  # which row a place of the curve is
        assert torch.equal(some.order, torch.cat([p.sort().values for p in along.split(7)]).int())
    twice = cells.clone()
    twice[999] = twice[0]
    with pytest.raises(ArgumentError, match="in rows 0 and 999"):
        Chunks(twice, (16, 16, 16), 1, max_rows=7)


def test_a_chunk_is_gone_when_the_next_one_is_made():
    """Memory is bounded, since nothing of a chunk waits for the garbage collector."""
    alive, seen = weakref.WeakSet(), []

    class Counted(Chunks):
        def _chunk(self, *arguments):
            seen.append(len(alive))
            return super()._chunk(*arguments)

        def maps(self, *arguments, **options):
            for chunk in super().maps(*arguments, **options):
                alive.update([chunk.kernel_map, chunk.kernel_map.inputs, chunk.kernel_map.own])
                yield chunk
                del chunk

    cells = Curve((8, 8, 8), 1).cells(torch.arange(0, 512, 3))
    chunks = Counted(cells, (8, 8, 8), 1, max_rows=40)
    layer, x = lc.nn.SubmConv3d(1, 1, 3), torch.ones(len(cells), 1)
    gc.disable()
    try:
        lc.nn.stream(layer, x, chunks)
    finally:
        gc.enable()
    assert seen == [0] * 5


def test_a_cloud_of_one_chunk_stays_as_it_is_and_is_not_the_users():
    cells = torch.tensor([[0, 3], [0, 1], [0, 2]], dtype=torch.int32)
    given = cells.clone()
    chunks = Chunks(given, (4,), 1, max_rows=3)
    given.zero_()
    assert chunks.order is None
    assert chunks.keys.tolist() == [1, 2, 3]
    for _ in range(2):
        (chunk,) = chunks.maps()
        assert (chunk.rows, len(chunk.halo)) == (range(3), 0)
        assert torch.equal(chunk.kernel_map.outputs.cells, cells)


@pytest.mark.parametrize("max_rows", [2, 4])  # of several chunks and of one
def test_what_is_wrong_with_cells_is_said(max_rows):
    cells = torch.tensor([[0, 3], [0, 1], [0, 2], [0, 1]], dtype=torch.int32)
    with pytest.raises(ArgumentError, match=r"distinct cells, got \[0, 1\] in rows 1 and 3 \(lc"):
        Chunks(cells, (4,), 1, max_rows=max_rows)
    for wrong in ([0, 4], [1, 0], [0, -1], [-1, 0]):
        bad = torch.cat([cells[:3], torch.tensor([wrong], dtype=torch.int32)])
        said = rf"cells in 1 grids of shape \(4,\), got \[{wrong[0]}, {wrong[1]}\] in row 3"
        with pytest.raises(ArgumentError, match=rf"argument `coords`: expected {said}$"):
            Chunks(bad, (4,), 1, max_rows=max_rows)


def test_what_is_no_cloud_is_said():
    cells = torch.tensor([[0, 3], [0, 1], [0, 2]], dtype=torch.int32)
    for wrong in (0, 2**31, True, 1.5):
        with pytest.raises(ArgumentError, match="argument `max_rows`"):
            Chunks(cells, (4,), 1, max_rows=wrong)
    with pytest.raises(ArgumentTypeError, match="argument `coords`"):
        Chunks(cells.tolist(), (4,), 1)
    with pytest.raises(ArgumentTypeError, match="int32"):
        Chunks(np.zeros((3, 2)), (4,), 1)
