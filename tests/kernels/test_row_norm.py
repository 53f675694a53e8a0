"""Batch norms of rows in the machine, as the executor launches them, beside float64."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layoutconv.gpu import row_norm
from layoutconv.gpu.row_norm import Norm
from layoutconv.kernels.compile.cubin import read_cubin
from layoutconv.kernels.maps.per_rank import build
from layoutconv.kernels.pointwise import row_norm as kernels
from layoutconv.kernels.pointwise.column_sums import PartSums
from layoutconv.kernels.pointwise.group_norm import MergeGroups, MergeGroupSums
from layoutconv.kernels.pointwise.merged_parts import PARTS_AT_ONCE
from layoutconv.kernels.pointwise.row_norm import Gradient, GradientSums, Normalise, Statistics
from layoutconv.kernels.pointwise.row_parts import THREADS, RowReduction
from layoutconv.planning import norm_schedule
from layoutconv.planning.machine import starts_early
from layoutconv.planning.norm_schedule import NormShape
from layoutconv.tensors.epilogue_in_torch import activate

from .cloud_launcher import SEEDS, Launches, few
from .draws import draws
from .test_pdl import MEMORY, START, WAIT

EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 4e-6}  # of a result's own size


def definition(
    x: Tensor, norm: Norm, grad: Tensor
) -> tuple[Tensor, list[Tensor | None], Tensor, Tensor]:
    """The result, gradients of x, past, weight and bias, mean and variance, in float64."""
    there = torch.ones(len(x), dtype=torch.bool) if norm.there is None else norm.there
    leaves = [
        None if t is None else t[there].double().requires_grad_() if t.dim() == 2
        else t.double().requires_grad_()
        for t in (x, norm.past, norm.weight, norm.bias)
    ]  # fmt: skip
    own, past, weight, bias = leaves
    assert own is not None
    y = torch.nn.functional.batch_norm(own, None, None, weight, bias, True, 0.0, norm.eps)
    y = y if past is None else y + past
    y = y if norm.activation is None else activate(y, norm.activation)
    wanted = [leaf for leaf in leaves if leaf is not None]
    found = iter(torch.autograd.grad(y, wanted, grad[there].double()))
    grads = [None if leaf is None else next(found) for leaf in leaves]
    return y, grads, own.mean(0), own.var(0, unbiased=False)


def check(x: Tensor, norm: Norm, grad: Tensor) -> None:
    there = torch.ones(len(x), dtype=torch.bool) if norm.there is None else norm.there
    before = None if norm.running is None else [one.double() for one in norm.running]
    y, (dx, dpast, dw, db), mean, variance = definition(x, norm, grad)
    assert row_norm.takes(x, norm)
    out, kept = row_norm.normalised(x, norm)
    C, close = x.shape[1], EPS[x.dtype]
    of_inverse = (variance.detach() + norm.eps).rsqrt()
    of_mean = 2.0**-23 * (mean.detach().abs() * of_inverse).max().item()  # which is a float32

    def same(found: Tensor, expected: Tensor, more: float = 1.0) -> None:
        scale = expected.abs().max().clamp(min=1e-3).item()
        limit = more * (close * scale + of_mean)
        torch.testing.assert_close(found.double(), expected.detach(), rtol=0, atol=limit)

    same(out[there], y)
    assert not out[~there].any()
    assert kept[2 * C] == there.sum()
    torch.testing.assert_close(kept[:C].double(), mean.detach(), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(kept[C : 2 * C].double(), of_inverse, rtol=1e-5, atol=1e-5)
    if norm.running is not None and before is not None:
        n = int(there.sum())
        for one, past, now in zip(
            norm.running, before, (mean, variance * n / max(n - 1, 1)), strict=True
        ):
            moved = past + norm.momentum * (now.detach() - past)
            torch.testing.assert_close(one.double(), moved, rtol=EPS[one.dtype], atol=1e-6)
    of_x, of_past, of_parameters = row_norm.gradients(
        x, norm, out if norm.activation == "relu" else None, kept, grad
    )
    assert dx is not None
    same(of_x[there], dx, 4)
    assert not of_x[~there].any()
    if dpast is not None:
        if of_past is None:  # the gradient of the result itself
            assert norm.activation is None
            assert norm.there is None
            of_past = grad
        same(of_past[there], dpast)
        assert not of_past[~there].any()
    for found, expected in zip(of_parameters, (dw, db), strict=True):
        if expected is not None:
            torch.testing.assert_close(
                found.double(), expected.detach(), rtol=0,
                atol=4e-6 * grad.float().abs().sum(0).max().item() * 8,
            )  # fmt: skip


def features(seed: int, rows: int, C: int, dtype: torch.dtype, mean: float = 0.0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, C, generator=random) + mean).to(dtype)


@settings(few, max_examples=draws(8))
@given(
    seed=SEEDS, rows=st.integers(2, 700), C=st.sampled_from([1, 3, 8, 16, 20, 64, 72, 136]),
    kind=st.sampled_from([
        (torch.float16, True, "relu", True, True), (torch.float32, False, None, True, False),
        (torch.bfloat16, True, None, False, False), (torch.float32, True, "relu", True, False),
        (torch.float16, False, None, True, True), (torch.float32, True, None, True, True),
        (torch.float32, True, "silu", True, False), (torch.float16, False, "relu6", False, False),
    ]),
    empty=st.sampled_from([0.0, 0.3, 0.9]), mean=st.sampled_from([0.0, 30.0]),
)  # fmt: skip
def test_it_is_the_norm_of_the_rows_that_are_there(
    simulated: Launches, seed: int, rows: int, C: int, kind: Any, empty: float, mean: float
) -> None:
    dtype, masked, last, affine, added = kind
    simulated.seed = seed
    random = torch.Generator().manual_seed(seed)
    there = torch.rand(rows, generator=random) >= empty if masked else None
    if there is not None:
        there[:2] = True
    x, grad = features(seed, rows, C, dtype, mean), features(seed + 1, rows, C, dtype)
    if there is not None:  # nothing of these comes out
        x[~there], grad[~there] = torch.nan, torch.inf
    weight, bias = (features(seed + 2 + i, 1, C, torch.float32)[0] for i in range(2))
    running = torch.zeros(C), torch.ones(C)
    check(x, Norm(
        weight if affine else None, bias if affine else None, running if affine else None, 0.25,
        1e-3, there, features(seed + 4, rows, C, dtype) if added else None, last,
    ), grad)  # fmt: skip


class Others:
    """The messages of other ranks to one whose rows are the first ``own`` of all."""

    def __init__(self, x: Tensor, grad: Tensor, norm: Norm, own: int, others: int) -> None:
        there = torch.ones(len(x), dtype=torch.bool) if norm.there is None else norm.there
        rows, grads = x.double(), grad.double()
        among = rows[there]
        mean = among.mean(0)
        self.moments = [told_of(r[t], norm.eps) for r, t in zip(
            rows[own:].tensor_split(others), there[own:].tensor_split(others), strict=True
        )]  # fmt: skip
        g, centred = grads[own:][there[own:]], (rows - mean)[own:][there[own:]]
        self.sums = torch.stack((g.sum(0), (g * centred).sum(0))).float()

    def gathered(self, told: Tensor) -> Tensor:
        return torch.stack((*self.moments, told))

    def summed(self, told: Tensor) -> Tensor:
        return told + self.sums


def told_of(rows: Tensor, eps: float) -> Tensor:
    """The message of a rank with these rows, which is that of torch.nn.SyncBatchNorm."""
    count = max(len(rows), 1)
    mean = rows.sum(0) / count
    inverse = ((rows - mean).square().sum(0) / count + eps).rsqrt()
    return torch.cat((mean, inverse, rows.new_tensor([len(rows)]))).float()


@pytest.mark.parametrize(
    ("own", "others", "masked"), [(300, 1, False), (0, 2, False), (1, 3, True), (690, 2, True)]
)
@pytest.mark.parametrize(("C", "dtype"), [(20, torch.float32), (72, torch.float16)])
@pytest.mark.chessboard
def test_over_ranks_it_is_the_norm_of_the_rows_of_all(
    simulated: Launches, own: int, others: int, masked: bool, C: int, dtype: torch.dtype
) -> None:
    """A rank may have one row, or none."""
    rows = 700
    x, grad = features(1, rows, C, dtype, 3.0), features(2, rows, C, dtype)
    there = torch.rand(rows, generator=torch.Generator().manual_seed(3)) < 0.8 if masked else None
    weight, bias = features(4, 2, C, torch.float32)
    whole = Norm(weight, bias, None, 0.25, 1e-3, there)
    y, (dx, _, _, _), mean, variance = definition(x, whole, grad)
    running = torch.zeros(C), torch.ones(C)
    mine = whole._replace(
        ranks=Others(x, grad, whole, own, others), running=running,
        there=None if there is None else there[:own],
    )  # fmt: skip
    assert row_norm.takes(x[:own], mine)
    out, kept = row_norm.normalised(x[:own], mine)
    of_x, _, (dw, db) = row_norm.gradients(x[:own], mine, None, kept, grad[:own])
    counted = int(rows if there is None else there.sum())
    n = int(own if there is None else there[:own].sum())  # of these rows, the first that count
    assert kept[-1] == counted
    torch.testing.assert_close(running[0].double(), 0.25 * mean.detach(), rtol=1e-5, atol=1e-5)
    unbiased = variance.detach() * counted / (counted - 1)
    torch.testing.assert_close(running[1].double(), 0.75 + 0.25 * unbiased, rtol=1e-5, atol=1e-5)
    assert dx is not None
    close = EPS[dtype] * 8
    valid = slice(None) if there is None else there[:own]
    for found, expected in ((out, y), (of_x, dx)):
        limit = close * max(expected.abs().max().item(), 1.0)
        torch.testing.assert_close(found[valid].double(), expected[:n].detach(), rtol=0, atol=limit)
    g = grad[:own].double()[valid]
    normal = (x[:own].double()[valid] - mean) * (variance + whole.eps).rsqrt()
    for sums, expected in ((dw, (g * normal).sum(0)), (db, g.sum(0))):  # of a rank's own rows
        torch.testing.assert_close(sums.double(), expected.detach(), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("wrong", [torch.nan, torch.inf])
def test_what_is_not_a_number_reaches_every_rank(simulated: Launches, wrong: float) -> None:
    x, grad = features(0, 90, 4, torch.float32), torch.ones(90, 4)
    x[70, 2] = wrong  # of another rank
    norm = Norm(None, None, None, 0.5, 1e-5)
    running = torch.zeros(4), torch.ones(4)
    mine = norm._replace(ranks=Others(x, grad, norm, 40, 1), running=running)
    out, kept = row_norm.normalised(x[:40], mine)
    dx, _, _ = row_norm.gradients(x[:40], mine, None, kept, grad[:40])
    for found in (out, dx):
        assert found[:, 2].isnan().all()
        assert found[:, [0, 1, 3]].isfinite().all()
    assert running[1].isnan().tolist() == [False, False, True, False]


def test_a_mean_beside_which_the_deviation_is_small(simulated: Launches) -> None:
    """Sums of squares in float32 would have no digit of the variance."""
    x = features(0, 600, 8, torch.float32) + 3000
    check(x, Norm(None, None, None, 0.1, 1e-5), features(1, 600, 8, torch.float32))


def test_rows_without_a_cell_alone(simulated: Launches) -> None:
    x, nothing = torch.full((40, 4), torch.nan), torch.zeros(40, dtype=torch.bool)
    running = torch.zeros(4), torch.ones(4)
    out, kept = row_norm.normalised(x, Norm(None, None, running, 0.5, 1e-5, nothing))
    assert not out.any()
    assert kept[-1] == 0
    assert (running[0].tolist(), running[1].tolist()) == ([0.0] * 4, [1.0] * 4)


def test_one_row_changes_no_running_statistic(simulated: Launches) -> None:
    x, there = torch.randn(9, 4), torch.arange(9) == 5
    running = torch.zeros(4), torch.ones(4)
    out, _ = row_norm.normalised(x, Norm(None, None, running, 0.5, 1e-5, there))
    assert not out.any()
    assert (running[0].tolist(), running[1].tolist()) == ([0.0] * 4, [1.0] * 4)


@pytest.mark.parametrize(("rows", "C"), [(700, 136), (40, 4), (9, 3)])
def test_a_batch_is_counted_once(simulated: Launches, rows: int, C: int) -> None:
    counted, version = torch.tensor(2**40 + 1), torch.tensor(0)._version
    running, x = (torch.zeros(C), torch.ones(C)), features(0, rows, C, torch.float32)
    row_norm.normalised(x, Norm(None, None, running, 0.5, 1e-5, counted=counted))
    assert int(counted) == 2**40 + 2
    assert counted._version > version
    row_norm.normalised(x, Norm(None, None, running, 0.5, 1e-5))
    assert int(counted) == 2**40 + 2


@pytest.mark.parametrize("last", sorted(row_norm.ACTIVATIONS))
def test_what_is_not_a_number_stays_none(simulated: Launches, last: str) -> None:
    """As torch's activations have it: a network that diverges has to show it."""
    x, grad = features(0, 40, 4, torch.float32), torch.ones(40, 4)
    x[7, 2] = torch.nan
    norm = Norm(None, None, None, 0.1, 1e-5, activation=last)
    out, kept = row_norm.normalised(x, norm)
    dx, _, _ = row_norm.gradients(x, norm, out, kept, grad)
    for found in (out, dx):
        assert found[:, 2].isnan().all()
        assert not found[:, [0, 1, 3]].isnan().any()


@pytest.mark.parametrize("last", ["silu", "hardswish"])
def test_an_activation_far_from_zero(simulated: Launches, last: str) -> None:
    """There exponentials are infinite, and gradients 0 or 1."""
    x, grad = features(0, 90, 16, torch.float32), features(1, 90, 16, torch.float32)
    norm = Norm(torch.full((16,), 90.0), torch.zeros(16), None, 0.25, 1e-3, activation=last)
    check(x, norm, grad)


def test_the_same_bits_whatever_the_order_of_threads(simulated: Launches) -> None:
    x, grad, found = features(0, 700, 72, torch.float16), features(1, 700, 72, torch.float16), set()
    for seed in range(2):
        simulated.seed = seed
        norm = Norm(None, None, None, 0.1, 1e-5)
        out, kept = row_norm.normalised(x, norm)
        parts = out, kept, row_norm.gradients(x, norm, None, kept, grad)[0]
        found.add(tuple(part.numpy().tobytes() for part in parts))
    assert len(found) == 1


@pytest.mark.parametrize("columns", [1, 5, 16, 64, 96, 257, 1024])
def test_schedules_have_every_row_and_column_once(columns: int) -> None:
    vector = norm_schedule.columns_per_load(columns, 2)
    for rows in (1, 31, 128, 4_000, 48_743, 1_000_000):
        plan = norm_schedule.schedule(rows, columns, vector)
        assert (plan.parts - 1) * plan.share < rows <= plan.parts * plan.share
        assert vector << plan.log_across <= THREADS
        blocks = -(-columns // (vector << plan.log_across))
        assert blocks * plan.parts <= max(blocks, norm_schedule.CTAS)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize(
    "kind", [Statistics, kernels.MergeMoments, Normalise, GradientSums, kernels.MergeSums, Gradient]
)
def test_kernels_fit_into_every_gpu(kind: type[RowReduction], arch: str, tmp_path: Any) -> None:
    shape = NormShape("float16", 8, "float32", "float32", True, "relu", True, True)
    shape = replace(shape, early=starts_early(arch))
    built = build(kind(shape), arch, dump=str(tmp_path))
    (found,) = read_cubin(built.__cubin__).values()
    ptx, first = built.__ptx__, re.search(MEMORY, built.__ptx__)
    assert first is not None
    assert ptx.count(WAIT) == ptx.count(START) == shape.early
    if shape.early:
        assert ptx.index(START) < ptx.index(WAIT) < first.start()
    assert found.stack == 0
    assert found.registers * THREADS <= 32_768  # two CTAs to a multiprocessor


def test_kernels_are_told_apart_by_what_they_read() -> None:
    """Norms that differ in what follows share those that come before it."""
    plain = NormShape("float16", 8)
    other = NormShape("float16", 8, "float32", "float32", added=True, counts=True, ranks=True)
    masked = replace(plain, masked=True)
    for kind in (Statistics, GradientSums, kernels.MergeMoments, kernels.MergeSums, PartSums):
        assert kind(plain).key == kind(other).key
        reads_mask = kind in (Statistics, GradientSums)
        assert (kind(plain).key == kind(masked).key) is not reads_mask
    for kind in (Normalise, Gradient):
        assert len({kind(shape).key for shape in (plain, other, masked)}) == 3
    early = replace(plain, dtype="float32", vector=4, early=True)
    for kind in (MergeGroups, MergeGroupSums):
        assert kind(plain).key == kind(replace(early, early=False)).key != kind(early).key


@pytest.mark.parametrize("last", ["silu", "hardswish", "relu6"])
@pytest.mark.parametrize("kind", [Normalise, GradientSums, Gradient])
@pytest.mark.chessboard
def test_activations_leave_room_for_two_ctas(
    kind: type[RowReduction], last: str, tmp_path: Any
) -> None:
    """As kernels of sums did not, while all rows of a turn were in float32 at once."""
    shape = NormShape("float16", 8, "float32", "float32", False, last, counts=True, remakes=True)
    built = build(kind(shape), "sm_90a", dump=str(tmp_path))
    (found,) = read_cubin(built.__cubin__).values()
    assert found.stack == 0
    assert found.registers * THREADS <= 32_768


@pytest.mark.parametrize(("kind", "each"), [(Normalise, 3), (Gradient, 2)])
def test_parts_are_asked_for_together(kind: type[RowReduction], each: int, tmp_path: Any) -> None:
    """One after the other they took half of the time of a norm of 64 columns, or more."""
    shape = NormShape("float16", 1, "float32", "float32")
    ptx = build(kind(shape), "sm_90a", dump=str(tmp_path)).__ptx__
    blocks = re.split(r"^\$\w+:|\bbra\b", ptx, flags=re.MULTILINE)
    assert max(len(re.findall(r"\bld\.global\.[bf]32\b", block)) for block in blocks) >= (
        each * PARTS_AT_ONCE
    )


@pytest.mark.parametrize("parts", [1, 3, 8, 9, 37])
def test_any_number_of_parts(simulated: Launches, parts: int) -> None:
    """A thread's last turn has parts that are not there, and merges none of them."""
    x, grad = (features(seed, 40 * parts, 64, torch.float32, 3.0) for seed in (parts, 200 + parts))
    norm = Norm(*features(400 + parts, 2, 64, torch.float32), None, 0.1, 1e-5)
    plan = row_norm.planned(x, norm)
    plan = plan._replace(schedule=plan.schedule._replace(share=40, parts=parts))
    y, (dx, _, dw, db), mean, _ = definition(x, norm, grad)
    out, kept = row_norm.normalised(x, norm, plan)
    torch.testing.assert_close(kept[:64].double(), mean.detach(), rtol=0, atol=1e-5)
    torch.testing.assert_close(out.double(), y.detach(), rtol=0, atol=1e-4)
    of_x, _, of_parameters = row_norm.gradients(x, norm, None, kept, grad, plan.back())
    for found, expected in zip((of_x, *of_parameters), (dx, dw, db), strict=True):
        assert expected is not None
        torch.testing.assert_close(found.double(), expected, rtol=1e-3, atol=2e-2)


@pytest.mark.parametrize("why", ["eps", "large eps", "momentum", "past", "there", "weight", "rows"])
def test_what_kernels_do_not_take(why: str) -> None:
    x, C = torch.ones(6, 4), 4
    norm = Norm(torch.ones(C), torch.ones(C), None, 0.1, 1e-5, torch.ones(6) > 0, torch.ones(6, C))
    assert row_norm.takes(x, norm)
    changed = {
        "eps": {"eps": 0.0},
        "large eps": {"eps": 1e300},
        "momentum": {"momentum": 1e300},
        "past": {"past": torch.ones(6, C, device="meta")},
        "there": {"there": torch.ones(5) > 0},
        "weight": {"weight": torch.ones(C + 1)},
        "rows": {"past": torch.ones(5, C)},
    }
    assert not row_norm.takes(x, norm._replace(**changed[why]))


@pytest.mark.parametrize("name", ["moments", "sums"])
def test_ranks_share_kernels_whose_code_is_the_same(name: str, tmp_path: Path) -> None:
    """Steps behind a norm, and the types of its parameters, change nothing in these."""
    full = NormShape(
        "float16", 8, "float32", "float32", masked=True, activation="relu", added=True, counts=True,
        early=True, ranks=True,
    )  # fmt: skip
    least = row_norm._of_chain(full, name)
    assert least != full
    texts = [
        build(getattr(kernels, name)(shape), "sm_90a", str(tmp_path)).__ptx__
        for shape in (full, least)
    ]
    assert texts[0] == texts[1]
    chains = [row_norm._chain(shape, name) for shape in (full, replace(full, counts=False))]
    assert chains[0].key == chains[1].key
    for other in ("forward", "normalise", "backward", "gradient"):
        assert row_norm._of_chain(full, other) is full
