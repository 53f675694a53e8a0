"""Few columns and few channels on a GPU: narrow tiles, runs, packed passes, against float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.packed_channels import LinePacking
from layoutconv.gpu import machines
from layoutconv.gpu.line_packing import pack_lines
from layoutconv.gpu.packing_choice import (
    Packed,
    dgrad_packings,
    fprop_packings,
    multiplied_for,
    wgrad_packings,
)
from layoutconv.gpu.plan import Plan
from layoutconv.ops.dense_passes import PassViews
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.planning import legality
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.view_rules import UnsupportedViewError

from ..watched import Watch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 4e-3}
CONVOLUTIONS: Any = [None, torch.conv1d, torch.conv2d, torch.conv3d]


def random(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    return torch.randn(shape, device="cuda").bfloat16().to(dtype)


def close(found: Tensor, want: Tensor) -> bool:
    """NaN, of an element that nobody wrote, is close to nothing."""
    return bool((found.double() - want).norm() <= CLOSE[found.dtype] * want.norm())


def reference(problem: ConvProblem, x: Tensor, w: Tensor) -> list[Tensor]:
    """The result, the gradients of input and filter for ones that vary, and those; fp64, memory."""
    a, b = (t.double().movedim(-1, 1).requires_grad_() for t in (x, w))
    near = [pair[0] for pair in problem.padding]
    numbers = problem.stride, near, problem.dilation
    y = CONVOLUTIONS[problem.rank](a, b, None, *numbers)
    grad = random(tuple(y.shape), torch.float32).double()
    found = torch.autograd.grad(y, (a, b), grad)
    return [t.detach().movedim(1, -1) for t in (y, *found, grad)]


@pytest.mark.parametrize(
    ("K", "taps", "dtype"),
    [
        (1, 1, torch.float16),
        (3, 1, torch.bfloat16),
        (8, 1, torch.float16),
        (3, 3, torch.float16),
        (12, 3, torch.float16),
        (3, 3, torch.float32),
    ],
    ids=str,
)
def test_every_narrow_tile(K: int, taps: int, dtype: torch.dtype) -> None:
    """Narrow tiles that the cost model offers, with all loads, on rows that fill no tile."""
    problem = ConvProblem((2, 7, 19, 23, 64), (K, taps, taps, taps), padding=taps // 2)
    view = fprop_view(problem)
    x, w = random(problem.activation, dtype), random(problem.stored_filter, dtype)
    want, *_ = reference(problem, x, w)
    chosen = Plan(view, dtype, 0, bind=False)
    narrow = {t: s for t, s in ranked(chosen.problem, chosen.machine) if t.n < 32}
    assert narrow
    ran = 0
    for tile, splits in narrow.items():
        try:
            plan = Plan(view, dtype, 0, tile=tile, splits=splits)
        except UnsupportedViewError:
            continue
        out = torch.full(problem.output, torch.nan, dtype=dtype, device="cuda")
        plan(x, w, out)
        assert close(out, want), tile
        ran += 1
    assert ran


@pytest.mark.parametrize("K", [1, 3, 6])
@pytest.mark.parametrize("shift", [0, 1])
def test_a_run_ends_with_the_last_row(K: int, shift: int) -> None:
    """Memory behind the result stays as it was, even if the result is not aligned."""
    problem = ConvProblem((1, 1003, 32), (K, 1))
    x, w = random(problem.activation, torch.float16), random(problem.stored_filter, torch.float16)
    memory = torch.full((1003 * K + 64,), 7.0, dtype=torch.float16, device="cuda")
    out = memory[shift : shift + 1003 * K].view(problem.output)
    out.fill_(torch.nan)
    lc.execute(fprop_view(problem), x, w, out)
    assert close(out, reference(problem, x, w)[0])
    assert memory[shift + 1003 * K :].eq(7).all()


def test_bias_and_sigmoid_of_a_head() -> None:
    x, w = random((2, 64, 33, 31), torch.float16), random((3, 64, 1, 1), torch.float16)
    bias = torch.randn(3, device="cuda")
    found = lc.conv2d(x, w, bias, activation="sigmoid")
    want = torch.conv2d(x.double(), w.double(), bias.double()).sigmoid()
    assert close(found, want)


PROBLEMS = {
    "ResNet's stem": ConvProblem((4, 61, 64, 3), (64, 7, 7), 2, 3),
    "five channels": ConvProblem((1, 9, 21, 24, 5), (32, 3, 3, 3), 1, 1),
    "patches": ConvProblem((2, 32, 48, 3), (96, 4, 4), 4),
    "a head": ConvProblem((1, 9, 30, 32, 64), (3, 1, 1, 1)),
    "one output": ConvProblem((2, 501, 32), (1, 7), 1, 3),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*((name, torch.float16) for name in PROBLEMS), ("a head", torch.float32)],
    ids=str,
)
def test_every_packing(name: str, dtype: torch.dtype) -> None:
    """Each pass, by each way of packing, whatever the cost model would choose."""
    problem = PROBLEMS[name]
    x, w = random(problem.activation, dtype), random(problem.stored_filter, dtype)
    y, dx, dw, grad = reference(problem, x, w)
    grad = grad.to(dtype)
    of = multiplied_for(x)
    assert of is not None
    views = dgrad_views(problem, empty=False)

    def views_of(K: int) -> Any:
        return dgrad_views(replace(problem, filter=(K, *problem.taps)), empty=False)

    passes: Any = [
        (PassViews((fprop_view(problem),), problem.output), fprop_packings(problem, of), x, w, y),
        (
            PassViews(views, problem.activation, zeroed=True),
            dgrad_packings(problem, views, views_of, of), grad, w, dx,
        ),
        (
            PassViews((wgrad_view(problem),), problem.stored_filter), wgrad_packings(problem, of),
            grad, x, dw,
        ),
    ]  # fmt: skip
    tried = 0
    for direct, packings, a, b, want in passes:
        for packed in (None, *packings):
            assert packed is None or isinstance(packed, Packed)
            out = torch.full(direct.shape, torch.nan, dtype=dtype, device="cuda").movedim(-1, 1)
            found = direct._replace(packed=packed)
            a_, b_ = a.movedim(-1, 1), b.movedim(-1, 1)
            found.compute(a_, b_, EpilogueArgs(), out)
            assert close(out.movedim(1, -1), want), packed
            tried += packed is not None
    assert tried


@pytest.mark.usefixtures("packed_for_any_gain")
@pytest.mark.parametrize("name", ["ResNet's stem", "five channels", "a head"])
def test_a_training_step_packs(name: str, watched: Watch) -> None:
    """Functions reach the copies, forward and backward, where the cost model wants them."""
    from layoutconv.gpu import packing_choice
    from layoutconv.ops import dense_passes

    problem = PROBLEMS[name]
    larger = (4 * problem.N, *(2 * cells for cells in problem.spatial), problem.C)
    problem = replace(problem, activation=larger)
    used = watched("pack_lines", packing_choice)
    dense_passes.forget()
    x, w = random(problem.activation, torch.float16), random(problem.stored_filter, torch.float16)
    y, dx, dw, grad = reference(problem, x, w)
    a, b = (t.movedim(-1, 1).requires_grad_() for t in (x, w))
    call = [None, lc.conv1d, lc.conv2d, lc.conv3d][problem.rank]
    assert call is not None
    found = call(a, b, stride=problem.stride, padding=problem.padding, dilation=problem.dilation)
    gradients = torch.autograd.grad(found, (a, b), grad.movedim(-1, 1).half())
    for got, want in zip((found, *gradients), (y, dx, dw), strict=True):
        assert close(got.detach().movedim(1, -1), want)
    dense_passes.forget()
    assert used


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_lines_are_packed_as_on_a_cpu(dtype: torch.dtype) -> None:
    for packing in (LinePacking.resized(3, 4), LinePacking(27, 5, 6, -3, 9, 16)):
        x = random((1003, packing.length), dtype)
        assert torch.equal(pack_lines(x, packing).cpu(), pack_lines(x.cpu(), packing))


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="there is no Hopper",
)
def test_heads_take_narrow_tiles() -> None:
    for taps in (1, 3):
        view = fprop_view(ConvProblem((2, 64, 64, 64, 64), (3, taps, taps, taps)))
        plan = Plan(view, torch.float16, 0, bind=False)
        assert plan.tile.n == 8
        wide = widened(view) if plan.tile.halo_taps > 1 else view
        assert wide is not None
        assert legality.reasons(wide, plan.spec, machines.machine_of(0).smem_per_cta) == []
