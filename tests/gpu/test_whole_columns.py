"""Tiles of 96, 160 and 192 columns against float64 on a GPU, with and without steps after sums."""

from __future__ import annotations

from math import nan

import pytest
import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.gpu.select import choose_kernel

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="these tiles are Hopper's",
)
CLOSE = {torch.float16: 1e-3, torch.bfloat16: 8e-3}
PROBLEMS = {
    "96": (ConvProblem((8, 80, 81, 96), (96, 3, 3), padding=1), 96),
    "320": (ConvProblem((4, 64, 63, 320), (320, 3, 3), padding=1), 160),
    "640": (ConvProblem((4, 32, 31, 640), (640, 3, 3), padding=1), 160),
    "192": (ConvProblem((16, 80, 79, 192), (192, 3, 3), padding=1), 192),
    "192, volumes": (ConvProblem((1, 6, 60, 61, 192), (192, 3, 3, 3), padding=1), 192),
    "160, few rows": (ConvProblem((32, 17, 17, 160), (160, 1, 7), padding=(0, 3)), 160),
}


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("name", PROBLEMS)
def test_both_passes(name, dtype):
    problem, columns = PROBLEMS[name]
    assert choose_kernel(fprop_view(problem), dtype, 0).spec.tile.n == columns
    torch.manual_seed(0)
    shapes = problem.activation, problem.stored_filter
    x, w = (torch.randn(s, device="cuda", dtype=dtype).movedim(-1, 1) for s in shapes)
    bias = torch.randn(problem.K, device="cuda", dtype=dtype)
    padding = [near for near, _ in problem.padding]
    reference = getattr(torch.nn.functional, f"conv{problem.rank}d")
    own = getattr(lc, f"conv{problem.rank}d")
    exact = x.double().requires_grad_()
    expected = reference(exact, w.double(), None, 1, padding)
    grad = torch.randn_like(expected).to(dtype)
    (want,) = torch.autograd.grad(expected, exact, grad.double())
    x.requires_grad_()
    torch.full_like(expected, nan, dtype=dtype)  # whose memory the result takes
    y = own(x, w, None, 1, padding)
    (dx,) = torch.autograd.grad(y, x, grad)
    assert (y - expected).norm() <= CLOSE[dtype] * expected.norm()
    assert (dx - want).norm() <= CLOSE[dtype] * want.norm()
    with torch.no_grad():
        y = own(x, w, bias, 1, padding, activation="relu")
    expected = (expected + bias.double().view(-1, *[1] * problem.rank)).relu()
    assert (y - expected).norm() <= CLOSE[dtype] * expected.norm()
