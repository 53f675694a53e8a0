"""The passes as torch operators: gradients of every order, what a compiler needs, autocast."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd import gradcheck, gradgradcheck

from layoutconv.conv import ConvProblem
from layoutconv.executors import autograd
from layoutconv.executors.autograd import conv_dgrad, conv_fprop, conv_wgrad

from ..conv.loops import problems


def numbers(problem: ConvProblem) -> tuple:
    flat = [side for pair in problem.padding for side in pair]
    return problem.stride, flat, problem.dilation


def tensors(problem: ConvProblem, dtype=torch.float64) -> list[torch.Tensor]:
    """x, w and y, requiring gradients."""
    shapes = problem.activation, (*problem.filter, problem.C), problem.output
    return [torch.randn(shape, dtype=dtype).requires_grad_() for shape in shapes]


@settings(max_examples=8, deadline=None)
@given(problem=problems(), seed=st.integers(0, 99))
def test_gradients_are_numerical_differences(problem, seed):
    torch.manual_seed(seed)
    x, w, y = tensors(problem)
    assert gradcheck(lambda x, w: conv_fprop(x, w, *numbers(problem)), (x, w), fast_mode=True)
    n, spatial, taps = numbers(problem), problem.spatial, problem.taps
    assert gradcheck(lambda y, w: conv_dgrad(y, w, spatial, *n), (y, w), fast_mode=True)
    assert gradcheck(lambda y, x: conv_wgrad(y, x, taps, *n), (y, x), fast_mode=True)


def test_gradients_of_gradients_are_numerical_differences():
    problem = ConvProblem((1, 4, 3, 2), (2, 3, 2), (2, 1), ((1, 0), 1), (1, 2))
    x, w, y = tensors(problem)
    n = numbers(problem)
    assert gradgradcheck(lambda x, w: conv_fprop(x, w, *n), (x, w), fast_mode=True)
    assert gradgradcheck(lambda y, w: conv_dgrad(y, w, problem.spatial, *n), (y, w), fast_mode=True)
    assert gradgradcheck(lambda y, x: conv_wgrad(y, x, problem.taps, *n), (y, x), fast_mode=True)


def test_operators_keep_the_rules_of_torch_library():
    problem = ConvProblem((2, 5, 4, 3), (2, 3, 2), (3, 1), ((1, 0), 1), (1, 2))
    x, w, y = tensors(problem)
    n = [list(entry) for entry in numbers(problem)]
    for op, args in (
        (conv_fprop, (x, w)),
        (conv_dgrad, (y, w, list(problem.spatial))),
        (conv_wgrad, (y, x, list(problem.taps))),
    ):
        torch.library.opcheck(op, (*args, *n))


@settings(max_examples=30, deadline=None)
@given(problem=problems(), seed=st.integers(0, 99))
def test_what_stands_in_for_wgrad_on_a_gpu(problem, seed):
    torch.manual_seed(seed)
    x, _, y = (t.detach() for t in tensors(problem))
    ours = conv_wgrad(y, x, problem.taps, *numbers(problem))
    theirs = autograd._wgrad_of_torch(y, x, problem.taps, *numbers(problem))
    assert theirs.is_contiguous()
    torch.testing.assert_close(theirs, ours)


def test_cells_that_no_window_covers_have_no_gradient():
    """A residue without taps, and new memory that is full of NaN."""
    problem = ConvProblem((1, 7, 2), (3, 1), stride=3)
    x, w, _ = tensors(problem)
    torch.use_deterministic_algorithms(True)
    try:
        conv_fprop(x, w, *numbers(problem)).sum().backward()
    finally:
        torch.use_deterministic_algorithms(False)
    covered = w.sum((0, 1)).detach()
    zero = torch.zeros_like(covered)
    expected = [covered, zero, zero, covered, zero, zero, covered]
    torch.testing.assert_close(x.grad[0], torch.stack(expected))


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
