"""The pairs of a kernel map are its entries, tap by tap."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.errors import ArgumentError
from layoutconv.sparse import Coordinates, submanifold_map
from layoutconv.sparse.maps import map_index, tap_pairs
from layoutconv.sparse.maps.tap_pairs import Counts, counts_of, counts_of_each, pairs_of, run_of

from .clouds import clouds

examples = settings(max_examples=80, deadline=None)


@st.composite
def indices(draw):
    rows, taps = draw(st.integers(0, 30)), draw(st.integers(1, 9))
    entry = st.one_of(st.just(-1), st.integers(0, 99))
    entries = draw(st.lists(entry, min_size=rows * taps, max_size=rows * taps))
    index = torch.tensor(entries, dtype=torch.int32).view(taps, rows)
    return index.T if draw(st.booleans()) else index.T.contiguous()


@examples
@given(indices(), st.integers(1, 25))
def test_pairs_of_a_tap_are_its_entries_in_the_order_of_the_outputs(index, chunk):
    found = pairs_of(index, chunk)
    assert found.chunk == chunk
    assert found.outputs.dtype == found.inputs.dtype == torch.int32
    assert found.outputs.is_contiguous()
    assert found.inputs.is_contiguous()
    assert found.outputs.shape == found.inputs.shape == (int(found.lengths.sum()), chunk)
    first = 0
    for tap, length in enumerate(found.lengths.tolist()):
        # Runs of a tap's pairs are dealt out to its chunks in turns, which are filled so.
        run = run_of(chunk)
        assert chunk % run == 0
        outputs, inputs = (
            [
                entry
                for at in range(0, chunk, run)
                for part in rows[first : first + length, at : at + run].tolist()
                for entry in part
            ]
            for rows in (found.outputs, found.inputs)
        )
        column = index[:, tap].tolist()
        expected = [(row, entry) for row, entry in enumerate(column) if entry >= 0]
        assert length == -(-len(expected) // chunk)
        assert list(zip(outputs, inputs, strict=True))[: len(expected)] == expected
        assert set(outputs[len(expected) :]) | set(inputs[len(expected) :]) <= {-1}
        first += length


@examples
@given(indices(), st.integers(1, 25))
def test_pairs_that_nobody_counted_are_in_as_many_chunks_as_there_could_be(index, chunk):
    """As while a CUDA graph is captured; the chunks past those of the taps have no pair."""
    rows, taps = index.shape
    exact = pairs_of(index, chunk)
    found = pairs_of(index, chunk, Counts(counts_of(index).there, None))
    used = int(exact.lengths.sum())
    assert len(found.outputs) == len(found.inputs) == taps * -(-rows // chunk)
    assert torch.equal(found.lengths, exact.lengths)
    for some, all_ in ((exact.outputs, found.outputs), (exact.inputs, found.inputs)):
        assert torch.equal(all_[:used], some)
        assert (all_[used:] == -1).all()


def test_who_asks_for_counts_waits_for_them_once():
    waited = []

    class Event:
        def synchronize(self) -> None:
            waited.append(self)

    there = torch.tensor([3, 1])
    counts = Counts(there, coming=(there.clone(), Event()))
    assert not waited
    assert [counts.here, counts.here] == [(3, 1)] * 2
    assert len(waited) == 1


class OnGpu(torch.Tensor):
    """A tensor that says it is on a GPU."""

    is_cuda = True


def test_nobody_waits_for_counts_while_a_graph_is_captured(gpu):
    there = torch.tensor([3, 1])
    counts = Counts(there.as_subclass(OnGpu), coming=(there.clone(), None))
    gpu.says(is_current_stream_capturing=True)
    assert counts.here is None


@examples
@given(clouds(2))
def test_pairs_of_the_inverse_are_the_pairs_exchanged(x):
    found = submanifold_map(x, offsets=[(0, 0), (1, 0), (0, -2)])

    def by_tap(tap_pairs):
        tap_of = torch.repeat_interleave(torch.arange(len(tap_pairs.lengths)), tap_pairs.lengths)
        triples = zip(
            tap_of.repeat_interleave(tap_pairs.chunk).tolist(),
            tap_pairs.outputs.flatten().tolist(),
            tap_pairs.inputs.flatten().tolist(),
            strict=True,
        )
        return {triple for triple in triples if triple[1] >= 0}

    there, back = by_tap(found.pairs(4)), by_tap(found.inverse.pairs(4))
    assert back == {(tap, i, o) for tap, o, i in there}
    assert found.pairs(4) is found.pairs(4)


def test_pairs_of_a_map_are_counted_once(watched):
    calls = watched("counts_of", map_index, tap_pairs)
    x = Coordinates(torch.tensor([[0, 1], [0, 2], [0, 5]], dtype=torch.int32), (6,), 1)
    found = submanifold_map(x, 3)
    for chunk in (1, 2, 64):
        assert found.pairs(chunk).lengths.tolist() == [1, -(-3 // chunk), 1]
    assert found.counts is found.counts
    assert found.counts.here == (1, 3, 1) == tuple(found.counts.there.tolist())
    assert len(calls) == 1


def test_maps_are_counted_as_each_of_them_is():
    torch.manual_seed(0)
    maps = [torch.randint(-3, 9, (rows, taps)).int() for rows, taps in ((40, 27), (1, 3), (0, 8))]
    for index, counts in zip(maps, counts_of_each(maps), strict=True):
        assert counts.here == counts_of(index).here == tuple((index >= 0).sum(0).tolist())
        assert counts.there.tolist() == list(counts.here)


def test_maps_that_are_counted_stay_as_they_are():
    """Another thread may have made one, and be at work with its numbers."""
    x = Coordinates(torch.tensor([[0, 1], [0, 2], [0, 5]], dtype=torch.int32), (6,), 1)
    known, other = submanifold_map(x, 3), submanifold_map(x, 5)
    for found in known, other:
        found.start()
    counts = known.counts
    map_index.count_each([known.own, None, other.own])
    assert known.counts is counts
    assert other.own._counts.here == (0, 1, 3, 1, 0)


def test_a_chunk_has_a_pair():
    with pytest.raises(ArgumentError, match="`chunk`: expected a number of pairs >= 1, got 0"):
        pairs_of(torch.zeros(1, 1, dtype=torch.int32), 0)
