"""Tiles of 96, 160 and 192 columns and of 192 rows on a GPU, with and without steps after sums."""

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
CLOSE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1e-3}  # fp32 by tf32
# With the rows and columns of the tile that is expected, of 16 bits; 0 where it is not said.
PROBLEMS = {
    "96": (ConvProblem((8, 80, 81, 96), (96, 3, 3), padding=1), 256, 96),
    "320": (ConvProblem((4, 64, 63, 320), (320, 3, 3), padding=1), 128, 160),
    "640": (ConvProblem((4, 32, 31, 640), (640, 3, 3), padding=1), 0, 0),
    "192": (ConvProblem((16, 80, 79, 192), (192, 3, 3), padding=1), 0, 192),
    "192, volumes": (ConvProblem((1, 6, 60, 61, 192), (192, 3, 3, 3), padding=1), 0, 192),
    "160, few rows": (ConvProblem((32, 17, 17, 160), (160, 1, 7), padding=(0, 3)), 128, 160),
    "192 rows": (ConvProblem((64, 14, 14, 256), (256, 3, 3), padding=1), 192, 128),
    "192 rows, persistent": (ConvProblem((4, 100, 88, 256), (256, 3, 3), padding=1), 0, 0),
    "a head's width": (ConvProblem((2, 60, 61, 48), (72, 3, 3), padding=1), 0, 0),
}


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("name", PROBLEMS)
def test_all_passes(name, dtype):
    problem, rows, columns = PROBLEMS[name]
    # Of other bandwidths other tiles are faster, and for an H200 measured ones are shipped.
    if dtype.itemsize == 2 and "H100" in torch.cuda.get_device_name():
        tile = choose_kernel(fprop_view(problem), dtype, 0).spec.tile
        assert (rows or tile.m, columns or tile.n) == (tile.m, tile.n)
    torch.manual_seed(0)
    shapes = problem.activation, problem.stored_filter
    x, w = (torch.randn(s, device="cuda", dtype=dtype).movedim(-1, 1) for s in shapes)
    bias = torch.randn(problem.K, device="cuda", dtype=dtype)
    padding = [near for near, _ in problem.padding]
    reference = getattr(torch.nn.functional, f"conv{problem.rank}d")
    own = getattr(lc, f"conv{problem.rank}d")
    exact, filter = x.double().requires_grad_(), w.double().requires_grad_()
    expected = reference(exact, filter, None, 1, padding)
    grad = torch.randn_like(expected).to(dtype)
    want = torch.autograd.grad(expected, (exact, filter), grad.double())
    x.requires_grad_()
    w.requires_grad_()
    torch.full_like(expected, nan, dtype=dtype)  # whose memory the result takes
    y = own(x, w, None, 1, padding)
    got = torch.autograd.grad(y, (x, w), grad)
    assert (y - expected).norm() <= CLOSE[dtype] * expected.norm()
    for one, other in zip(got, want, strict=True):
        assert (one - other).norm() <= CLOSE[dtype] * other.norm()
    with torch.no_grad():
        y = own(x, w, bias, 1, padding, activation="relu")
    expected = (expected + bias.double().view(-1, *[1] * problem.rank)).relu()
    assert (y - expected).norm() <= CLOSE[dtype] * expected.norm()
