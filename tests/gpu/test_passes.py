"""Convolutions and their gradients on a GPU, against the same call in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

# tf32 has 10 bits of mantissa, as float16; results and gradients are rounded to the dtype.
CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 4e-3}


def gradients(call, x, w, device, dtype):
    """The result, and the gradients of input and weight, in float64 on the CPU."""
    x, w = (t.to(device, dtype).requires_grad_() for t in (x, w))
    y = call(x, w)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape)
    found = torch.autograd.grad(y, (x, w), weights.to(device, dtype))
    return [t.detach().cpu().double() for t in (y, *found)]


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(
    "arguments",
    [
        {"padding": 1},
        {"stride": 2, "padding": ((0, 1), (1, 1), (2, 0))},
        {"stride": (1, 3, 2), "dilation": (2, 1, 3), "padding": 3},
    ],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_step_is_that_of_the_cpu(arguments, dtype, transposed):
    torch.manual_seed(0)
    # Numbers that all dtypes hold, so that only sums and results are rounded.
    x = torch.randn(2, 16, 5, 9, 8).bfloat16().double()
    w = (torch.randn(16, 24, 3, 3, 3) if transposed else torch.randn(24, 16, 3, 3, 3)) / 16
    conv = lc.conv_transpose3d if transposed else lc.conv3d
    call = lambda x, w: conv(x, w, **arguments)  # noqa: E731
    expected = gradients(call, x, w.bfloat16().double(), "cpu", torch.float64)
    found = gradients(call, x, w.bfloat16().double(), "cuda", dtype)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= CLOSE[dtype] * b.norm()


def test_a_filter_of_one_tap_leaves_cells_without_a_gradient():
    x = torch.randn(1, 16, 7, device="cuda", dtype=torch.float16).requires_grad_()
    w = torch.ones(8, 16, 1, device="cuda", dtype=torch.float16)
    lc.conv1d(x, w, stride=3).sum().backward()
    assert x.grad[0, 0].tolist() == [8, 0, 0, 8, 0, 0, 8]


def test_empty_batches():
    x = torch.randn(0, 16, 7, device="cuda", dtype=torch.float16).requires_grad_()
    w = torch.randn(8, 16, 3, device="cuda", dtype=torch.float16).requires_grad_()
    lc.conv1d(x, w).sum().backward()
    assert x.grad.shape == x.shape
    assert not w.grad.any()


def test_autocast():
    x, net = torch.randn(2, 16, 9, 9, device="cuda"), lc.nn.Conv2d(16, 8, 3, device="cuda")
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = net(x)
    assert y.dtype == torch.bfloat16
    y.float().square().mean().backward()
    assert net.weight.grad.dtype == torch.float32


def test_channels_that_are_no_whole_vectors():
    x = torch.randn(1, 12, 7, device="cuda", dtype=torch.float16)
    with pytest.raises(ArgumentError, match=r"`weight`: expected C a multiple of 8 .*got 12"):
        lc.conv1d(x, torch.randn(8, 12, 3, device="cuda", dtype=torch.float16))
