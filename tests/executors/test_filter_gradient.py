"""The filter's gradient of a sparse convolution is the same of chunks of any length."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.ops.sparse_operators import Maps, chunk_for, sum_chunks, wgrad
from layoutconv.sparse.maps.tap_pairs import Counts, counts_of, pairs_of

examples = settings(max_examples=60, deadline=None)


def numbers(*shape: int) -> torch.Tensor:
    """Small integers: every sum of products is exact."""
    return torch.randint(-4, 5, shape, generator=torch.Generator().manual_seed(0)).double()


@examples
@given(
    rows=st.integers(1, 20), inputs=st.integers(1, 12), taps=st.integers(1, 6),
    chunk=st.integers(1, 40), groups=st.integers(1, 2), counted=st.booleans(),
    seed=st.integers(0, 99),
)  # fmt: skip
def test_chunks_of_any_length_give_the_sum_over_pairs(
    rows, inputs, taps, chunk, groups, counted, seed
):
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(-inputs, inputs, (rows, taps), generator=generator).int().clamp(min=-1)
    g, x = numbers(rows, 4), numbers(inputs, 6)
    want = torch.zeros(4, taps, 6 // groups, dtype=torch.float64)
    for row, entries in enumerate(index.tolist()):
        for tap, source in enumerate(entries):
            if source < 0:
                continue
            for k, part in enumerate(g[row].chunk(groups)):
                own = slice(k * 4 // groups, (k + 1) * 4 // groups)
                want[own, tap] += torch.outer(part, x[source].chunk(groups)[k])
    counts = None if counted else Counts(counts_of(index).there, None)
    pairs, none = pairs_of(index, chunk, counts), index.new_empty(0)
    maps = Maps(index, none, none, none, pairs.outputs, pairs.inputs, pairs.lengths)
    assert torch.equal(wgrad(g, x, *maps, (taps,), groups), want)


def test_taps_without_pairs_are_zero():
    for chunks in (0, 2):
        got = sum_chunks(torch.ones(chunks, 3, 2), torch.zeros(4).long(), (2, 2), torch.float16)
        assert got.dtype == torch.float16
        assert torch.equal(got, torch.zeros(3, 2, 2, 2, dtype=torch.float16))


@examples
@given(
    st.lists(st.one_of(st.integers(0, 300), st.integers(0, 10**6)), min_size=1, max_size=40),
    st.tuples(st.integers(1, 600), st.integers(1, 600)),
)
def test_chunks_are_short_enough_to_fill_a_gpu_and_long_enough_to_be_worth_it(counts, channels):
    chunk = chunk_for(counts, channels)
    tiles = -(-channels[0] // 128) * -(-channels[1] // 128)
    products, mean = tiles * sum(counts) / chunk, sum(counts) / len(counts)
    assert chunk >= 32
    assert chunk & (chunk - 1) == 0
    assert chunk <= 512 or products >= 4 * 132
    assert chunk <= max(32, mean, 32 * mean**0.5)  # so that most of what is multiplied are pairs
    assert products < 8 * 132 or 2 * chunk > min(max(counts), 32 * mean**0.5) - 32
    assert chunk >= min(512, mean / 2) - 1
