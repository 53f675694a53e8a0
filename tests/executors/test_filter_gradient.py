"""The filter's gradient of a sparse convolution is the same of chunks of any length."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.ops.chunk_sums import sum_chunks
from layoutconv.ops.sparse_operators import MapTensors, chunk_of, wgrad
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.pair_chunks import chunk_for, slots
from layoutconv.sparse.maps.tap_pairs import Counts, counts_of, pairs_of

from .. import exact

examples = settings(max_examples=60, deadline=None)


integers = partial(exact.integers, dtype=torch.float64)


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
    g, x = integers(rows, 4), integers(inputs, 6)
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
    maps = MapTensors(index, none, none, none, pairs.outputs, pairs.inputs, pairs.lengths)
    assert torch.equal(wgrad(g, x, *maps, (taps,), groups), want)


def test_taps_without_pairs_are_zero():
    for chunks in (0, 2):
        got = sum_chunks(torch.ones(chunks, 3, 2), torch.zeros(4).long(), (2, 2), torch.float16)
        assert got.dtype == torch.float16
        assert torch.equal(got, torch.zeros(3, 2, 2, 2, dtype=torch.float16))


def map_on_a_gpu(rows: int, counts: tuple[int, ...] | None) -> Any:
    """A stand-in for a kernel map on a GPU that is not there."""
    cells = SimpleNamespace(is_cuda=True, get_device=lambda: 0, shape=(rows, 4))
    own = SimpleNamespace(counts=None if counts is None else SimpleNamespace(here=counts))
    ways, outputs = SimpleNamespace(traced=False), SimpleNamespace(cells=cells)
    return SimpleNamespace(ways=ways, outputs=outputs, own=own, taps=(3, 3, 3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("sms", [78, 132])
def test_chunks_follow_the_gpu_the_dtype_and_what_is_counted(sms, dtype, gpu):
    machine = replace(MACHINES["sm_90a"], sm_count=sms)
    gpu.like(machine)
    kind = "tfloat32" if dtype == torch.float32 else str(dtype).removeprefix("torch.")
    counts, rows = (60_000,) * 27, 100_000
    for C in (32, 64, 128):
        of_tiles = slots((C, C), kind, machine)
        found = chunk_of(map_on_a_gpu(rows, counts), (C, C), dtype)
        assert found == chunk_for(counts, *of_tiles)
        # While a CUDA graph is captured nobody counts: there could be four times as many.
        found = chunk_of(map_on_a_gpu(rows, None), (C, C), dtype)
        assert found == chunk_for((rows // 4,) * 27, *of_tiles)
