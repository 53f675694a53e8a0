"""Inverse maps by kernels, in the simulator: the index is that of the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from layoutconv.kernels.maps.block_table import Fill
from layoutconv.kernels.maps.inverse import REVERSED, Scatter, reversed_index
from layoutconv.kernels.maps.per_rank import build
from layoutconv.sparse.maps.reversed_index import reversed_index as reversed_in_torch

from .cloud_launcher import SEEDS, Launches, Work, few, in_the_machine


@pytest.fixture(scope="module")
def launches() -> Iterator[Launches]:
    torch.use_deterministic_algorithms(True)  # memory that nobody wrote is no -1
    with in_the_machine() as launches:
        yield launches
    torch.use_deterministic_algorithms(False)


def random_index(seed: int, count: int, rows: int, taps: int, share: float) -> Tensor:
    """No entry twice at a tap."""
    random = np.random.default_rng(seed)
    index = np.full((taps, count), -1, np.int32)
    for column in index:
        there = random.permutation(count)[: round(share * min(count, rows))]
        column[there] = random.permutation(rows)[: len(there)]
    return torch.from_numpy(index).T


@few
@given(
    seed=SEEDS, count=st.integers(0, 1100), rows=st.integers(0, 700), taps=st.integers(0, 5),
    share=st.sampled_from([0.0, 0.3, 1.0]), ordered=st.booleans(), contiguous=st.booleans(),
)  # fmt: skip
def test_it_is_that_of_the_cpu(
    launches: Launches, seed: int, count: int, rows: int, taps: int, share: float, ordered: bool,
    contiguous: bool,
) -> None:  # fmt: skip
    launches.seed = seed
    index = random_index(seed, count, rows, taps, share)
    index = index.contiguous() if contiguous else index
    order = torch.randperm(count).int() if ordered else None
    found = reversed_index(index, rows, order)
    assert torch.equal(found, reversed_in_torch(index, rows, order))
    assert found.stride() == (1, max(rows, 1))
    assert found.storage_offset() == 0


def test_entries_beyond_the_rows_are_written_nowhere(launches: Launches) -> None:
    index = torch.tensor([[0, 5], [3, -7], [2, 1]], dtype=torch.int32)
    assert reversed_index(index, 3).T.tolist() == [[0, -1, 2], [-1, 2, -1]]


def test_what_a_call_costs(launches: Launches) -> None:
    """Two launches of one call, and memory past torch's dispatcher. It was nine launches."""
    index, order = random_index(0, 40, 30, 3, 0.5), torch.randperm(40).int()
    for given_order in (None, order):
        launches.kinds.clear()
        with Work() as noted:
            reversed_index(index, 30, given_order)
        assert launches.kinds == [Fill, Scatter]
        assert noted.names == []


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_it_compiles_for_every_architecture(arch: str, tmp_path: Any) -> None:
    assert build(REVERSED, arch, dump=str(tmp_path)).__ptx__.count(".entry") == 2
