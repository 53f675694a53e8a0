"""The kernel that adds up the chunks of taps, in the machine, as the executor launches it.

Sums of small integers are exact in every order, and compared with sums in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from layoutconv.kernels.pointwise import segment_sum as kernels
from layoutconv.kernels.pointwise.segment_sum import FLIGHT, THREADS, SegmentShape, build
from layoutconv.ops import chunk_sums
from layoutconv.ops.execute import execute
from layoutconv.sparse.maps.tap_pairs import Counts, counts_of, pairs_of
from layoutconv.sparse.views import pairs_wgrad_view
from tools.ptx_sim import DeviceTensor, HostLaunch, Memory, Stats, launch_of, run

from .launcher import integers
from .simulated import simulated


class Machine:
    """Stands in for the GPU: warps and CTAs run in an order that ``seed`` decides."""

    def __init__(self) -> None:
        self.seed = 0
        self.shapes: list[SegmentShape] = []
        self.asked: list[HostLaunch] = []
        self.stats: list[Stats] = []

    def load(self, shape: SegmentShape, _: str) -> Any:
        function, program = simulated(build, shape, "sm_80")

        def call(parts: Tensor, lengths: Tensor, out: Tensor) -> None:
            memory, ready = Memory(), []
            out.fill_(torch.nan)
            for name, tensor in (("parts", parts), ("lengths", lengths), ("out", out)):
                assert tensor.is_contiguous()
                own = {"writable": name == "out", "output": name == "out"}
                address = memory.add(tensor.view(-1).view(torch.uint8).numpy(), name, **own)
                dtype = str(tensor.dtype).removeprefix("torch.")
                ready.append(DeviceTensor(address, tuple(tensor.shape), dtype))
            asked = launch_of(program, function, *ready)
            count = [(x, y, 0) for y in range(asked.grid[1]) for x in range(asked.grid[0])]
            order = np.random.default_rng(self.seed).permutation(len(count))
            stats = run(
                program, memory, asked.arguments, asked.grid, seed=self.seed,
                ctas=[count[i] for i in order], shared_bytes=asked.shared_bytes,
            )  # fmt: skip
            assert memory.written(memory.find("out")).all()
            self.shapes.append(shape)
            self.asked.append(asked)
            self.stats.append(stats)

        return call


@pytest.fixture
def machine(loader: Callable[..., None]) -> Machine:
    found = Machine()
    loader(kernels, "load_segment_sum", found.load, chunk_sums._segment_sum)
    return found


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return integers(shape, dtype, 0)


def summed(parts: Tensor, lengths: list[int], dtype: torch.dtype) -> Tensor:
    """Return the sums that the kernel makes of ``parts``: (K, taps, C)."""
    out = torch.empty(parts.shape[1], len(lengths), parts.shape[2], dtype=dtype)
    chunk_sums._sum_on_gpu(parts, torch.tensor(lengths), out)
    return out


def check(lengths: list[int], K: int, C: int, *, rest: int = 0, **types: torch.dtype) -> None:
    """Against sums in float64; what the last chunks have is of no tap."""
    dtype = types.get("dtype", torch.float32)
    parts = numbers(sum(lengths) + rest, K, C, dtype=dtype)
    want = torch.stack([chunk.double().sum(0) for chunk in parts.split([*lengths, rest])[:-1]], 1)
    parts[sum(lengths) :] = torch.nan
    out_dtype = types.get("out_dtype", dtype)
    assert torch.equal(summed(parts, lengths, out_dtype), want.to(out_dtype))


@pytest.mark.parametrize(
    ("K", "C", "vector"), [(8, 8, 4), (6, 7, 2), (3, 5, 1), (4, 3, 4), (1, 1, 1), (2, 140, 4)]
)
def test_columns_of_any_number(machine: Machine, K: int, C: int, vector: int) -> None:
    check([3, 0, 1, 2], K, C, rest=2)
    assert machine.shapes[0].vector == vector
    if vector == 4:
        assert machine.stats[0].count("ld.global.v4.b32") >= FLIGHT


@pytest.mark.parametrize(
    ("lengths", "rows"),
    [
        ([1], 4), ([0, 7, 1, 17, 5], 4), ([16] * 3, 8), ([70, 0, 10], 8), ([33, 100, 0, 4], 16),
        ([1, 31, 33, 200], 32), ([2 * 32 * FLIGHT + 1], 32),
    ],
)  # fmt: skip
def test_chunks_of_any_number(machine: Machine, lengths: list[int], rows: int) -> None:
    check(lengths, 4, 6, rest=1)
    assert machine.asked[0].grid[1] == len(lengths)
    log_rows = int.from_bytes(machine.asked[0].arguments[-1], "little")
    assert 1 << log_rows == rows


@pytest.mark.parametrize(("lengths", "K", "across"), [([2, 0, 1], 20, 64), ([140, 2], 2, 8)])
def test_blocks_of_columns(machine: Machine, lengths: list[int], K: int, across: int) -> None:
    """The last block is not full, and a column is written by one block."""
    check(lengths, K, 44)
    assert machine.asked[0].grid[:2] == (-(-K * 44 // 4 // across), len(lengths))


def test_more_taps_than_threads(machine: Machine) -> None:
    check([1, 0, 2] * 86 + [3, 1], 1, 2)
    assert machine.asked[0].grid[1] > THREADS


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_results_of_any_type(machine: Machine, out_dtype: torch.dtype) -> None:
    check([5, 0, 9], 5, 4, out_dtype=out_dtype)


def test_float64(machine: Machine) -> None:
    check([5, 0, 9], 3, 4, dtype=torch.float64)
    assert machine.shapes[0].vector == 2


def test_results_are_the_same_in_every_run(machine: Machine) -> None:
    lengths = [40, 3, 90]
    parts = torch.randn(sum(lengths), 5, 6, generator=torch.Generator().manual_seed(0))
    first = summed(parts, lengths, torch.float32)
    want = torch.stack([chunk.double().sum(0) for chunk in parts.split(lengths)], 1)
    torch.testing.assert_close(first.double(), want, rtol=1e-5, atol=1e-5)
    for machine.seed in (1, 2):
        assert torch.equal(summed(parts, lengths, torch.float32), first)


@pytest.mark.parametrize("chunk", [1, 4, 32])
def test_filter_gradients_of_any_chunk(machine: Machine, chunk: int) -> None:
    """Products of pairs, of groups too, as many chunks as there are, and as there could be."""
    index = torch.randint(-5, 9, (12, 5), generator=torch.Generator().manual_seed(1)).int()
    index = index.clamp(min=-1)
    g, x, groups = numbers(12, 6), numbers(9, 4), 2
    want = torch.zeros(6, 5, 2)
    for row, entries in enumerate(index.tolist()):
        for tap, source in enumerate(entries):
            if source >= 0:
                for k in range(6):
                    c = 2 * (k // 3)
                    want[k, tap] += g[row, k] * x[source, c : c + 2]
    for counts in (None, Counts(counts_of(index).there, None)):
        pairs = pairs_of(index, chunk, counts)
        view = pairs_wgrad_view(pairs, 4, 6, in_rows=9, out_rows=12, groups=groups)
        parts = execute(view, g, x)
        assert torch.equal(summed(parts, pairs.lengths.tolist(), torch.float32), want)
        on_cpu = chunk_sums.sum_chunks(parts, pairs.lengths, (5,), torch.float32)
        assert torch.equal(on_cpu, want)
    assert len(parts) == 5 * -(-12 // chunk) >= int(pairs.lengths.sum())
