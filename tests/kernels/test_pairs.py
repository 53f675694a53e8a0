"""The pairs of kernel maps in the machine, against those that a CPU finds tap by tap."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.kernels.maps import pairs
from layoutconv.kernels.maps.pairs import COUNT, CTAS, WRITE, CountPairs, WritePairs
from layoutconv.kernels.maps.per_rank import PerRank, build
from layoutconv.sparse.maps.tap_pairs import counts_of, pairs_of, run_of

from .cloud_launcher import SEEDS, Launches, Work, few, in_the_machine
from .draws import draws


@pytest.fixture(scope="module")
def launches() -> Iterator[Launches]:
    with pytest.MonkeyPatch.context() as patch, in_the_machine() as launches:
        patch.setattr(pairs, "sm_count", lambda _: launches.ctas)
        patch.setattr(pairs, "COUNT", CountPairs(96))  # few: small maps have several CTAs a tap
        patch.setattr(pairs, "WRITE", WritePairs(64))
        yield launches


def indices(seed: int, rows: int, taps: int, share: float, memory: str = "taps") -> Tensor:
    """A share of the entries is there; rows lie side by side at a tap, or taps at a row."""
    random = np.random.default_rng(seed)
    there = random.random((taps, rows)) < share
    index = torch.from_numpy(np.where(there, random.integers(0, 99, (taps, rows)), -1)).int()
    return index.T if memory == "taps" else index.T.contiguous()


def check(index: Tensor, chunk: int, more: int = 0) -> None:
    want = pairs_of(index, chunk)
    counts = pairs.counts(index)
    assert torch.equal(counts, counts_of(index).there)
    into = torch.full((len(counts) + 2,), -7)
    assert pairs.counts(index, into[1:-1]).data_ptr() == into[1:].data_ptr()
    assert into.tolist() == [-7, *counts.tolist(), -7]
    chunks = len(want.outputs)
    outputs, inputs, lengths = pairs.pairs(index, counts, chunk, run_of(chunk), chunks + more)
    assert torch.equal(lengths, want.lengths)
    for found, expected in ((outputs, want.outputs), (inputs, want.inputs)):
        assert found.shape == (chunks + more, chunk)
        assert found.is_contiguous()
        assert found.storage_offset() * 4 % 16 == 0  # where vectors start
        assert torch.equal(found[:chunks], expected)
        assert (found[chunks:] == -1).all()


@settings(few, max_examples=draws(5))
@given(
    seed=SEEDS, rows=st.integers(1, 900), taps=st.integers(1, 6),
    share=st.sampled_from([0.0, 0.02, 0.5, 1.0]), memory=st.sampled_from(["taps", "rows"]),
    chunk=st.one_of(st.integers(1, 300), st.sampled_from([48, 128, 192, 320])),
    more=st.integers(0, 3), ctas=st.integers(1, 9),
)  # fmt: skip
def test_pairs_are_those_of_the_cpu(
    launches: Launches, seed: int, rows: int, taps: int, share: float, memory: str, chunk: int,
    more: int, ctas: int,
) -> None:  # fmt: skip
    launches.seed, launches.ctas = seed, ctas
    check(indices(seed, rows, taps, share, memory), chunk, more)


@pytest.mark.parametrize(("rows", "taps"), [(2, 70), (1100, 1), (0, 3), (5, 0)])
def test_any_number_of_rows_and_taps(launches: Launches, rows: int, taps: int) -> None:
    launches.ctas = 5
    for share, chunk in ((0.3, 16), (1.0, 512))[: 1 if taps > 9 else 2]:
        if rows and taps:
            check(indices(3, rows, taps, share), chunk, 1)
            continue
        index = torch.empty(taps, rows, dtype=torch.int32).T
        counts = pairs.counts(index)
        assert counts.tolist() == [0] * taps
        outputs, inputs, lengths = pairs.pairs(index, counts, chunk, run_of(chunk), 0)
        assert (outputs.shape, inputs.shape) == ((0, chunk), (0, chunk))
        assert lengths.tolist() == [0] * taps


def test_the_same_bits_whatever_the_order_of_threads(launches: Launches) -> None:
    index, found = indices(0, 900, 3, 0.4), set()
    counts = pairs.counts(index)
    for seed in range(3):
        launches.seed, launches.ctas = seed, 1 + 3 * seed
        parts = pairs.pairs(index, counts, 64, 16, 20)
        found.add(tuple(part.numpy().tobytes() for part in parts))
    assert len(found) == 1


def test_pairs_of_other_counts_stay_in_their_memory(launches: Launches) -> None:
    """A caller who wrote to an index that was counted gets nonsense, and nobody else does."""
    launches.ctas = 4
    index, full = indices(1, 700, 3, 0.1), indices(2, 700, 3, 1.0)
    counts = pairs.counts(index)
    chunks = sum(-(-count // 32) for count in counts.tolist())
    outputs, _, _ = pairs.pairs(full, counts, 32, 32, chunks)  # the machine checks every address
    assert outputs[0].tolist() == list(range(32))


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a", "sm_120a"])
@pytest.mark.parametrize("kernel", [COUNT, WRITE], ids=lambda kernel: kernel.key[0])
def test_kernels_fit_into_every_gpu(kernel: PerRank, arch: str, tmp_path: Any) -> None:
    built = build(kernel, arch, dump=str(tmp_path))
    assert built.__ptx__.count(".entry") == 1
    (found,) = read_cubin(built.__cubin__).values()
    assert found.stack == 0
    # Two of those that write are on a multiprocessor: all at once, whatever the taps.
    assert found.registers * kernel.threads * (CTAS if kernel is WRITE else 1) <= 65_536


def test_what_a_call_costs(launches: Launches) -> None:
    """A launch each, and memory past torch's dispatcher. A dozen of small ones were 0.3 ms."""
    index = indices(0, 50, 3, 0.5)
    of_taps = pairs.counts(index)
    for run, kind in (
        (lambda: pairs.counts(index), CountPairs),
        (lambda: pairs.pairs(index, of_taps, 8, 4, 12), WritePairs),
    ):
        launches.kinds.clear()
        with Work() as noted:
            run()
        assert launches.kinds == [kind]
        assert noted.names == []
