"""The passes as torch operators: gradients of every order, what a compiler needs, autocast."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from layoutconv.conv import ConvProblem
from layoutconv.conv.depthwise_views import depthwise_fprop_view
from layoutconv.cpu.cpu_executor import execute_cpu
from layoutconv.errors import ArgumentError
from layoutconv.gpu.depthwise_plan import DotPlan, _StridedPart
from layoutconv.ops.dense_operators import conv_dgrad, conv_fprop, conv_fprop_statistics, conv_wgrad
from layoutconv.tensors.epilogue_in_torch import activate
from layoutconv.testing.problems import conv_problems
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual


def numbers(problem: ConvProblem) -> tuple:
    flat = [side for pair in problem.padding for side in pair]
    return problem.stride, flat, problem.dilation, problem.groups, "view"


def tensors(problem: ConvProblem, dtype=torch.float64) -> list[torch.Tensor]:
    """x, w and y, requiring gradients, of torch's shapes in the order of memory."""
    shapes = problem.activation, problem.stored_filter, problem.output
    made = (torch.randn(shape, dtype=dtype).movedim(-1, 1) for shape in shapes)
    return [tensor.requires_grad_() for tensor in made]


def column(tensor: torch.Tensor) -> torch.Tensor:
    """(C,) as it is beside (N, C, H, W)."""
    return tensor[:, None, None]


@settings(max_examples=12, deadline=None)
@given(
    problem=conv_problems() | conv_problems(groups=3) | conv_problems(channels=1, groups=3),
    seed=st.integers(0, 99),
)
def test_gradients_are_numerical_differences(problem, seed):
    torch.manual_seed(seed)
    x, w, y = tensors(problem)
    assert gradcheck(lambda x, w: conv_fprop(x, w, *numbers(problem)), (x, w), fast_mode=True)
    n, spatial, taps = numbers(problem), problem.spatial, problem.taps
    assert gradcheck(lambda y, w: conv_dgrad(y, w, spatial, *n), (y, w), fast_mode=True)
    assert gradcheck(lambda y, x: conv_wgrad(y, x, taps, *n), (y, x), fast_mode=True)


@pytest.mark.parametrize(
    ("C", "K", "groups"), [(2, 2, 1), (4, 2, 2), (3, 3, 3), (2, 4, 2)],
    ids=["dense", "grouped", "depthwise", "two filters a channel"],
)  # fmt: skip
def test_gradients_of_gradients_are_numerical_differences(C, K, groups):
    problem = ConvProblem((1, 4, 3, C), (K, 3, 2), (2, 1), ((1, 0), 1), (1, 2), groups)
    x, w, y = tensors(problem)
    n = numbers(problem)
    assert gradgradcheck(lambda x, w: conv_fprop(x, w, *n), (x, w), fast_mode=True)
    assert gradgradcheck(lambda y, w: conv_dgrad(y, w, problem.spatial, *n), (y, w), fast_mode=True)
    assert gradgradcheck(lambda y, x: conv_wgrad(y, x, problem.taps, *n), (y, x), fast_mode=True)


def with_epilogue(problem: ConvProblem) -> list[tuple]:
    """The passes that have an epilogue, and what they take: tensors, numbers, (bias, ...)."""
    x, w, y = tensors(problem)
    n = [list(entry) if isinstance(entry, tuple) else entry for entry in numbers(problem)]
    bias, scale = (torch.randn(2, problem.K, dtype=torch.float64)).unbind()
    at_x, at_x_scale = (torch.randn(2, problem.C, dtype=torch.float64)).unbind()
    residuals = torch.randn_like(y), torch.randn_like(x)
    fprop = [bias, scale, residuals[0]], [at_x, at_x_scale, residuals[1]]
    return [
        (conv_fprop, (x, w), n, fprop[0]),
        (conv_dgrad, (y, w), [list(problem.spatial), *n], fprop[1]),
    ]


GROUPED = ConvProblem((2, 5, 4, 4), (6, 3, 2), (3, 1), ((1, 0), 1), (1, 2), 2)
DEPTHWISE = ConvProblem((2, 5, 4, 3), (6, 3, 2), (3, 1), ((1, 0), 1), (1, 2), 3)


@pytest.mark.parametrize("problem", [GROUPED, DEPTHWISE], ids=["grouped", "depthwise"])
@pytest.mark.parametrize("activation", [None, "relu", "relu6", "leaky_relu", "sigmoid", "tanh"])
def test_gradients_through_an_epilogue(problem, activation):
    torch.manual_seed(0)
    for op, pair, n, (bias, scale, residual) in with_epilogue(problem):
        inputs = *pair, bias.requires_grad_(), residual.requires_grad_()

        def fused(a, b, bias, residual, op=op, n=n, scale=scale):
            return op(a, b, *n, bias, scale, residual, activation, 0.3)

        def apart(a, b, bias, residual, op=op, n=n, scale=scale):
            return activate(
                op(a, b, *n) * column(scale) + column(bias) + residual,
                activation or "leaky_relu",
                0.3 if activation else 1.0,
            )

        torch.testing.assert_close(fused(*inputs), apart(*inputs))
        assert gradcheck(fused, inputs, fast_mode=True)
        assert gradgradcheck(fused, inputs, fast_mode=True)


@pytest.mark.parametrize("problem", [GROUPED, DEPTHWISE], ids=["grouped", "depthwise"])
def test_what_has_no_gradient_says_so(problem):
    for op, pair, n, (bias, scale, residual) in with_epilogue(problem):
        y = op(*pair, *n, bias, scale, residual, "gelu")
        with pytest.raises(ArgumentError, match="`activation`: expected None, or no gradient"):
            y.sum().backward()
        y = op(*pair, *n, bias, scale.requires_grad_(), residual, "relu")
        with pytest.raises(ArgumentError, match="`scale`: expected None, or no gradient"):
            y.sum().backward()


@pytest.mark.parametrize("problem", [GROUPED, DEPTHWISE], ids=["grouped", "depthwise"])
def test_operators_keep_the_rules_of_torch_library(problem):
    for op, pair, n, (bias, scale, residual) in with_epilogue(problem):
        torch.library.opcheck(op, (*pair, *n))
        bias.requires_grad_()
        torch.library.opcheck(op, (*pair, *n, bias, scale, residual, "tanh"))
        torch.library.opcheck(op, (*pair, *n, bias, scale, None, None, 0.01, torch.float16))
    (x, w), n = with_epilogue(problem)[0][1:3]
    torch.library.opcheck(conv_fprop_statistics, (x, w, *n, None, None, None, "relu"))
    torch.library.opcheck(conv_wgrad, (tensors(problem)[2], x, list(problem.taps), *n))


def test_what_finishes_depthwise_sums_on_a_gpu(monkeypatch, gpu):
    """Sums that are stored, and finished by torch, are those that an executor finishes."""
    x, w, y = (t.detach().float() for t in tensors(DEPTHWISE))
    bias, residual = torch.randn(DEPTHWISE.K), torch.randn_like(y)
    arguments = x, w, *numbers(DEPTHWISE), bias, None, residual, "silu", 0.01, torch.int8
    fused = conv_fprop_statistics(*arguments)
    x, w, residual = (t.movedim(1, -1) for t in (x, w, residual))  # as a plan takes them

    view = depthwise_fprop_view(DEPTHWISE)
    plan = object.__new__(DotPlan)  # all but its kernels, which want a GPU
    plan.device, plan.sums, plan.in_torch = 0, torch.float32, True
    plan.place = _StridedPart.of_view(view)
    plan._launch = partial(execute_cpu, view)
    gpu.says(device=nullcontext)
    epilogue = Epilogue((Bias(bias), Residual(residual), Activation("silu")), statistics=True)
    y, statistics = torch.empty(DEPTHWISE.output, dtype=torch.int8), torch.empty(2, DEPTHWISE.K)
    plan(x, w, y, epilogue, statistics)
    assert torch.equal(y.movedim(-1, 1), fused[0])
    torch.testing.assert_close(statistics, fused[1])


def test_statistics_are_constants_to_a_gradient():
    x, w, _ = tensors(GROUPED)
    y, statistics = conv_fprop_statistics(x, w, *numbers(GROUPED))
    assert not statistics.requires_grad
    grads = torch.autograd.grad(y.square().sum(), (x, w))
    expected = torch.autograd.grad(conv_fprop(x, w, *numbers(GROUPED)).square().sum(), (x, w))
    for a, b in zip(grads, expected, strict=True):
        assert torch.equal(a, b)
    flat = y.detach().movedim(1, -1).reshape(-1, 6)
    torch.testing.assert_close(statistics, torch.stack((flat.sum(0), flat.square().sum(0))).float())


def test_cells_that_no_window_covers_have_no_gradient():
    """A residue without taps, and new memory that is full of NaN."""
    problem = ConvProblem((1, 7, 2), (3, 1), stride=3)
    x, w, _ = tensors(problem)
    torch.use_deterministic_algorithms(True)
    try:
        conv_fprop(x, w, *numbers(problem)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    covered = w.sum((0, 2)).detach()
    zero = torch.zeros_like(covered)
    expected = [covered, zero, zero, covered, zero, zero, covered]
    torch.testing.assert_close(x.grad[0], torch.stack(expected, 1))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_lowers_all_but_float64(dtype):
    problem = ConvProblem((2, 5, 3), (2, 3), padding=1)
    x, w, _ = tensors(problem, torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        y = conv_fprop(x, w.to(dtype), *numbers(problem))
        double = conv_fprop(x.double(), w.double(), *numbers(problem))
    assert (y.dtype, double.dtype) == (dtype, torch.float64)
    assert torch.equal(y, conv_fprop(x.to(dtype), w.to(dtype), *numbers(problem)))
    y.float().sum().backward()
    assert x.grad.dtype == torch.float32
    bias = torch.randn(2, requires_grad=True)
    with torch.autocast("cpu", dtype=dtype):
        fused = conv_fprop(x, w, *numbers(problem), bias, activation="relu")
    assert fused.dtype == dtype
    torch.testing.assert_close(fused, torch.relu(y + bias.to(dtype)[:, None]), atol=0.05, rtol=0.02)
    fused.float().sum().backward()
    assert bias.grad.dtype == torch.float32


def test_numbers_of_8_bits_stay_as_they_are_under_autocast():
    problem = ConvProblem((2, 5, 3), (2, 3), padding=1)
    x, w, _ = (t.detach() for t in tensors(problem, torch.float32))
    for dtype, stored in ((torch.int8, torch.int32), (torch.float8_e4m3fn, torch.float16)):
        a, b = (3 * x).to(dtype), (3 * w).to(dtype)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = conv_fprop(a, b, *numbers(problem))
        assert y.dtype == stored
        assert torch.equal(y, conv_fprop(a.float(), b.float(), *numbers(problem)).to(stored))
