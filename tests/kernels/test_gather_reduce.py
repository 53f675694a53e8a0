"""The kernel that reads rows through an index, in the machine: its own host code, every branch.

The executor's launches go to the machine instead of a GPU, with their vectors, integers and parts;
results are compared with loops in float64 over small integers, which are exact in every order.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv.gpu import gathered
from layoutconv.kernels.pointwise import gather_pool as kernels
from layoutconv.kernels.pointwise.gather_pool import FLIGHT, GatherShape, build
from tools.ptx_sim import DeviceTensor, Memory, Stats, launch_of, run

from . import launcher
from .simulated import simulated

DTYPES = [torch.float16, torch.bfloat16, torch.float32, torch.float64]


class Machine:
    """Stands in for the GPU: what it was asked to launch, and what that did."""

    def __init__(self) -> None:
        self.shapes: list[GatherShape] = []
        self.stats: list[Stats] = []

    def load(self, shape: GatherShape, _: str) -> Any:
        function, program = simulated(build, shape, "sm_80")

        def call(*arguments: Any) -> None:
            memory = Memory()
            *tensors, integers = arguments
            out, won = tensors[-2:]
            ready = [
                None if t is None else on_device(memory, str(i), t, t is out or t is won)
                for i, t in enumerate(tensors)
            ]
            for result in (out, won):
                if result is not None:  # what is not written shows
                    result.fill_(-77 if result.dtype in (torch.int16, torch.int32) else torch.nan)
            asked = launch_of(program, function, *ready, integers)
            self.shapes.append(shape)
            self.stats.append(run(program, memory, asked.arguments, asked.grid))

        return call


def on_device(memory: Memory, name: str, x: Tensor, written: bool) -> DeviceTensor:
    """A tensor in the memory of its storage from the first element, as far from a multiple of 16
    bytes as it is here."""
    span = 1 + sum((s - 1) * d for s, d in zip(x.shape, x.stride(), strict=True))
    before = x.data_ptr() % 16 // x.itemsize
    held = x.as_strided((before + span,), (1,), x.storage_offset() - before)
    address = memory.add(held.view(torch.uint8).numpy(), name, writable=written, output=written)
    shape, dtype = tuple(x.shape), str(x.dtype)[6:]
    return DeviceTensor(address + before * x.itemsize, shape, dtype, x.stride())


@pytest.fixture
def machine(loader: Callable[..., None]) -> Machine:
    found = Machine()
    loader(kernels, "load_gather", found.load, gathered._kernel)
    return found


def integers(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return launcher.integers(shape, dtype, seed)


def table(rows: int, taps: int, inputs: int, *, seed: int = 0) -> Tensor:
    """An index as kernel maps have it; the second row reads nothing."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randint(0, inputs, (taps, rows), generator=generator).int()
    index[torch.rand(taps, rows, generator=generator) < 0.4] = -1
    index[:, 1:2] = -1
    return index.T


def reference(
    a: Tensor, index: Tensor, op: str = "sum", *, taps: Tensor | None = None, rows: Any = None,
    chosen: Tensor | None = None, divisor: int = 0, channels: int | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Loops in float64: results and winners."""
    K = channels or a.shape[1]
    out, won = torch.zeros(len(index), K, dtype=torch.float64), torch.full((len(index), K), -1)
    wide = a.double().repeat_interleave(K // a.shape[1], 1)
    for r, entries in enumerate(index.tolist()):
        values, numbers = [], []
        for j, i in enumerate(entries):
            if i < 0 or (rows is not None and rows[1][r, j] < 0):
                continue
            value = wide[i].clone()
            if taps is not None:
                value *= taps[j].double().repeat_interleave(K // taps.shape[1])
            if rows is not None:
                other = rows[0][rows[1][r, j]].double()
                value *= other.repeat_interleave(K // len(other))
            if chosen is not None:
                value[chosen[i] != j] = 0
            values.append(value)
            numbers.append(j)
        if not values:
            continue
        stacked = torch.stack(values)
        if op in ("max", "min"):
            out[r] = stacked.amax(0) if op == "max" else stacked.amin(0)
            best = (stacked == out[r]) | (stacked.isnan() & out[r].isnan())
            won[r] = torch.tensor(numbers)[best.int().argmax(0)]
        else:
            out[r] = stacked.sum(0)
            if op == "mean":
                out[r] /= divisor or len(values)
    return out, won


def launch(
    a: Tensor, index: Tensor, op: str, winners: bool = False, *, taps: Tensor | None = None,
    rows: Any = None, chosen: Tensor | None = None, divisor: int = 0, channels: int | None = None,
    out_dtype: torch.dtype | None = None,
) -> Any:  # fmt: skip
    """One launch as the executor makes it, into memory of its own."""
    out = torch.empty(len(index), channels or a.shape[1], dtype=out_dtype or a.dtype)
    won = None
    if winners:
        won = torch.empty(out.shape, dtype=gathered.number_type(index.shape[1]))
    gathered._launch(op, a, index, out, won, (taps, rows, chosen, divisor))
    return out, won


def check(a: Tensor, index: Tensor, op: str = "sum", winners: bool = False, **more: Any) -> None:
    """In the machine, and on the CPU: both are the loops' results, to the last rounding."""
    named = {k: v for k, v in more.items() if k != "out_dtype"}
    want, want_won = reference(a, index, op, **named)
    for got, won in (
        launch(a, index, op, winners, **more),
        gathered.gather(a, index, op, winners=winners, **more),
    ):
        torch.testing.assert_close(got, want.to(got.dtype), rtol=0, atol=0, equal_nan=True)
        if winners:
            assert torch.equal(won.long(), want_won)


# -- tables ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("C", [1, 3, 8, 20, 64])
@pytest.mark.chessboard
def test_sums(machine: Machine, dtype: torch.dtype, C: int) -> None:
    check(integers(30, C, dtype=dtype), table(37, 5, 30))
    (shape,) = machine.shapes
    vector = min(16 // dtype.itemsize, C & -C)
    assert shape.vector == vector
    bits = vector * dtype.itemsize * 8
    if bits > 32:  # read at once; indices are 32 bits
        words = {64: ("b64", "v2.b32", "v4.b16"), 128: ("v2.b64", "v4.b32")}[bits]
        assert sum(machine.stats[0].count(f"ld.global.{word}") for word in words) > 0


@pytest.mark.parametrize("taps", [1, 3, 4, 5, 8, 27])
@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.chessboard
def test_any_number_of_taps(machine: Machine, op: str, taps: int) -> None:
    a = integers(20, 4)
    a *= 4 * 60480  # quotients by up to 9 are exact
    check(a, table(9, taps, 20).masked_fill(torch.arange(taps) > 8, -1), op)


@pytest.mark.parametrize("op", ["max", "min"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.chessboard
def test_winners_are_the_first(machine: Machine, dtype: torch.dtype, op: str) -> None:
    a = integers(12, 6, dtype=dtype)
    a[2] = torch.inf
    a[3] = -torch.inf
    a[4, ::2] = torch.nan
    index = table(40, 6, 12)
    index[5] = 3  # nothing but -inf, and of that the first
    index[6] = torch.tensor([-1, 4, 4, -1, 4, 2])
    check(a, index, op, winners=True)
    check(a, index, op)
    (shape,) = {shape.winners for shape in machine.shapes} - {""}
    assert shape == "int16"


def test_winners_of_many_taps_are_int32(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gathered, "number_type", lambda taps: torch.int32)
    check(integers(12, 6), table(9, 6, 12), "max", winners=True)
    assert machine.shapes[0].winners == "int32"


@pytest.mark.parametrize("dtype", [torch.int16, torch.int32])
@pytest.mark.parametrize("C", [8, 6, 1])
@pytest.mark.chessboard
def test_rows_that_were_chosen(machine: Machine, C: int, dtype: torch.dtype) -> None:
    index = table(25, 7, 19)
    chosen = torch.randint(-1, 7, (19, C)).to(dtype)
    check(integers(19, C, dtype=torch.float16), index, chosen=chosen)


def test_a_constant_divisor_counts_what_is_not_there(machine: Machine) -> None:
    check(integers(19, 8), table(25, 8, 19), "mean", divisor=8)
    assert machine.shapes[0].mean == "constant"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("C", [3, 16])
@pytest.mark.chessboard
def test_filters(machine: Machine, dtype: torch.dtype, C: int) -> None:
    index = table(25, 9, 19)
    check(integers(19, C, dtype=dtype), index, taps=integers(9, C, dtype=dtype, seed=1))


@pytest.mark.parametrize(("C", "filters", "vector"), [(4, 16, 4), (3, 6, 2), (5, 15, 1), (1, 8, 8)])
def test_filters_that_share_a_channel(machine: Machine, C: int, filters: int, vector: int) -> None:
    index, w = table(25, 9, 19), integers(9, filters, dtype=torch.float16, seed=1)
    check(integers(19, C, dtype=torch.float16), index, taps=w, channels=filters)
    assert machine.shapes[0].vector == vector
    assert machine.shapes[0].shared == (True, False)


@pytest.mark.parametrize("shared", [(1, 1), (4, 1), (1, 4), (2, 2)])
def test_products_of_rows(machine: Machine, shared: tuple[int, int]) -> None:
    filters = 8
    a, b = (integers(23, filters // n, dtype=torch.float16, seed=n) for n in shared)
    index = table(11, 13, 23), table(11, 13, 23, seed=1)
    rows = (b, index[1])
    check(a, index[0], rows=rows, channels=filters, out_dtype=torch.float32)


def test_what_is_not_there_may_be_infinite(machine: Machine) -> None:
    """Row 0 stands in for a row that is not there, and a filter is infinite."""
    a, w, b = integers(19, 8), integers(5, 8, seed=1), integers(7, 8)
    index, index_b = table(25, 5, 19), table(25, 5, 7, seed=1)
    index[index == 0] = 1
    index_b[index_b == 0] = 1
    a[0], b[0], w[2] = torch.nan, torch.inf, torch.inf
    index[:, 2] = -1
    check(a, index)
    check(a, index, "max")
    check(a, index, taps=w)
    check(a, index, rows=(b, index_b))


@pytest.mark.parametrize("of", ["column", "odd row stride", "transposed", "expanded", "shifted"])
def test_memory(machine: Machine, of: str) -> None:
    wide = integers(30, 24)
    a = {
        "column": wide[:, 3:4],
        "odd row stride": integers(30, 17)[:, :16],
        "transposed": integers(24, 30).T,
        "expanded": wide[:1].expand(30, 24),
        "shifted": wide[:, 2:18],
    }[of]
    index = table(21, 6, 30)
    check(a, index)
    check(a, index.contiguous(), "max", winners=True)
    vector = {"column": 1, "odd row stride": 1, "transposed": 4, "expanded": 4, "shifted": 2}[of]
    assert machine.shapes[0].vector == vector


def test_more_channels_than_a_cta_has_threads(machine: Machine) -> None:
    check(integers(5, 4 * gathered.THREADS + 12), table(3, 2, 5))
    check(integers(5, 261), table(3, 2, 5))


@pytest.mark.parametrize("C", [24, 100])
def test_rows_that_do_not_fill_a_cta(machine: Machine, C: int) -> None:
    for rows in (1, 2, 50):
        check(integers(5, C), table(rows, 2, 5))


def test_one_kernel_serves_all_sizes(machine: Machine) -> None:
    for C, rows, taps in ((8, 3, 27), (64, 20, 8), (120, 5, 1)):
        check(integers(9, C), table(rows, taps, 9))
    assert len(set(machine.shapes)) == 1


def test_results_are_the_same_in_every_run(machine: Machine) -> None:
    a, index = torch.randn(30, 8), table(20, 9, 30)
    first, second = (launch(a, index, "sum")[0] for _ in range(2))
    assert torch.equal(first, second)


# -- segments -------------------------------------------------------------------------------------


def cloud(lengths: list[int], C: int) -> tuple[Tensor, Tensor, Tensor]:
    """Rows, where their images start and an order of them; the first two rows are of none."""
    total = sum(lengths) + 2
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(total, generator=generator).int()
    return integers(total, C) - 6, torch.tensor([0, *lengths]).cumsum(0) + 2, order


@pytest.mark.parametrize("op", ["sum", "mean", "max", "min"])
@pytest.mark.parametrize("sorted_", [True, False])
@pytest.mark.parametrize(
    ("lengths", "launches"), [([3, 0, 9], 1), ([20, 0, 1, 60], 2), ([300], 3), ([0, 0], 1)]
)
@pytest.mark.chessboard
def test_segments(machine: Machine, lengths: Any, launches: int, sorted_: bool, op: str) -> None:
    a, starts, order = cloud(lengths, 6)
    a[len(a) // 2] = -torch.inf
    if op == "mean":
        a *= torch.tensor(lengths).clamp(min=1).prod()
    rows = None if sorted_ else order
    extreme = op in ("max", "min")
    out = torch.empty(len(lengths), 6)
    won = torch.empty(out.shape, dtype=torch.int32) if extreme else None
    gathered._segments_on_gpu(a, starts, rows, op, out, won, part=9)
    assert len(machine.shapes) == launches
    cpu, cpu_won = gathered.segments(a, starts, rows, op, winners=extreme)
    place = torch.arange(len(a)) if rows is None else rows.long()
    for s, (first, last) in enumerate(zip(starts.tolist(), starts[1:].tolist(), strict=False)):
        values = a[place[first:last]].double()
        want = torch.zeros(6, dtype=torch.float64)
        if len(values):
            want = {"sum": values.sum, "mean": values.mean, "max": values.amax, "min": values.amin}[
                op
            ](0)
        assert torch.equal(out[s].double(), want)
        assert torch.equal(cpu[s].double(), want)
        if won is None or cpu_won is None:
            continue
        assert torch.equal(won[s], cpu_won[s])
        for c, row in enumerate(won[s].tolist()):
            assert row == -1 if not len(values) else a[row, c] == want[c]


def test_means_of_halves_are_not_sums_of_halves(machine: Machine) -> None:
    """200 times 1000 is more than fp16 holds; its mean is not."""
    a = torch.full((200, 2), 1000.0, dtype=torch.float16)
    out = torch.empty(1, 2, dtype=torch.float16)
    gathered._segments_on_gpu(a, torch.tensor([0, 200]), None, "mean", out, None)
    assert len(machine.shapes) > 1
    assert out.tolist() == [[1000.0, 1000.0]]


def test_constants_are_those_of_the_kernel() -> None:
    assert gathered.THREADS == kernels.THREADS
    assert FLIGHT > 1
