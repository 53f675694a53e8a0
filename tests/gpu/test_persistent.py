"""Convolutions that the model gives to persistent kernels: all kinds of them, against float64."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem
from layoutconv.gpu.folding_choice import arranged_fprop, line_for
from layoutconv.gpu.phase_choice import arranged_dgrad, columns_for
from layoutconv.gpu.select import choose_kernel
from layoutconv.tensors.expected_tensors import expected
from layoutconv.tensors.tensor_checks import as_stored
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="CTAs last on Hopper",
)
CLOSE = {torch.float16: 1e-3, torch.bfloat16: 8e-3}

# With the consumers of the kernel, the taps that share rows, and whether it holds B.
FORWARD = {
    "windows": (((2, 16, 64, 62, 64), (56, 3, 3, 3), 1, 1), 1, 3, False),
    "windows of teams": (((1, 16, 66, 63, 64), (64, 3, 3, 3), 1, 1), 2, 3, False),
    "B held": (((64, 57, 56, 64), (64, 3, 3), 1, 1), 2, 3, True),
    "B held, few channels": (((1, 41, 66, 63, 32), (32, 3, 3, 3), 1, 1), 2, 3, True),
    "folded lines": (((1, 81, 66, 64, 32), (64, 3, 3, 3), 2, 1), 2, 2, True),
    "no windows": (((63, 28, 28, 128), (128, 3, 3), 1, 1), 2, 1, False),
    "a k-tile each": (((61, 56, 56, 64), (256, 1, 1), 1, 0), 1, 1, False),
}
STRIDED = ((1, 64, 66, 66, 32), (64, 3, 3, 3), 2, 1)


def operands(numbers, dtype):
    """Input and filter in NDHWC memory, but their modes in torch's order."""
    torch.manual_seed(0)
    activation, filter, *_ = numbers
    x = torch.randn(activation, device="cuda", dtype=dtype)
    w = torch.randn(*filter, activation[-1], device="cuda", dtype=dtype) / 16
    return x.movedim(-1, 1), w.movedim(-1, 1)


def in_float64(x, w, numbers):
    conv = (torch.nn.functional.conv2d, torch.nn.functional.conv3d)[x.dim() - 4]
    return conv(x.double(), w.double(), None, *numbers[2:])


def chosen(views, a):
    return [choose_kernel(view, a.dtype, 0).spec.tile for view in views]


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("name", FORWARD)
def test_forward_passes(name, dtype):
    numbers, teams, taps, held = FORWARD[name]
    x, w = operands(numbers, dtype)
    problem = ConvProblem(*numbers)
    view = arranged_fprop(problem, line_for(x))
    [tile] = chosen([view], x)
    if "H100" in torch.cuda.get_device_name():  # of other bandwidths others are faster
        assert (tile.persistent, tile.consumers) == (True, teams)
        assert (tile.halo_taps, tile.b_resident > 0) == (taps, held)
    a, b = as_stored(view, x.movedim(1, -1)), w.movedim(1, -1)
    stored = expected(view).d.shape  # of a 1x1 a matrix of pixels
    out = torch.full(stored, nan, device="cuda", dtype=dtype)
    lc.execute(view, a, b, out)
    product = in_float64(x, w, numbers).movedim(1, -1).reshape(stored)
    assert (out - product).norm() <= CLOSE[dtype] * product.norm()

    bias, residual = torch.randn(problem.K, device="cuda"), torch.randn_like(out)
    relu = Activation("relu")
    for steps in (Bias(bias), relu), (Bias(bias), Residual(residual), relu):
        out.fill_(nan)
        lc.execute(view, a, b, out, epilogue=Epilogue(steps))
        more = residual.double() if len(steps) > 2 else 0
        want = (product + bias.double() + more).relu()
        assert (out - want).norm() <= CLOSE[dtype] * want.norm()


@pytest.mark.parametrize("dtype", list(CLOSE))
def test_strided_gradients(dtype):
    x, w = operands(STRIDED, dtype)
    problem = ConvProblem(*STRIDED)
    a, b = x.double().requires_grad_(), w
    y = in_float64(a, b, STRIDED)
    grad = torch.randn_like(y).to(dtype)
    (expected,) = torch.autograd.grad(y, a, grad.double())
    views = arranged_dgrad(problem, columns_for(grad))
    assert [(tile.consumers, tile.b_resident) for tile in chosen(views, x)] == [(2, 4), (2, 8)]
    out = torch.full(problem.activation, nan, device="cuda", dtype=dtype)
    for view in views:
        lc.execute(view, grad.movedim(1, -1).contiguous(), w.movedim(1, -1), out)
    assert (out.movedim(-1, 1) - expected).norm() <= CLOSE[dtype] * expected.norm()


def test_an_infinity_reaches_its_own_windows_alone():
    """Folded lines have elements beside a window, outside the filter: these are not multiplied."""
    numbers, *_ = FORWARD["folded lines"]
    x, w = operands(numbers, torch.float16)
    x[0, 5, 8, 8, 7] = inf
    found = lc.conv3d(x, w, stride=2, padding=1)
    expected = in_float64(x, w, numbers)
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert 0 < (~expected.isfinite()).sum() <= 8 * w.shape[0]


@pytest.mark.parametrize("name", ["windows", "windows of teams", "B held, few channels"])
def test_statistics_of_teams(name):
    numbers, *_ = FORWARD[name]
    x, w = operands(numbers, torch.float16)
    found, sums = lc.conv3d(x, w, padding=1, activation="relu", return_statistics=True)
    expected = in_float64(x, w, numbers).relu()
    assert (found - expected).norm() <= CLOSE[torch.float16] * expected.norm()
    stored = found.double().movedim(1, -1).reshape(-1, w.shape[0])
    both = torch.stack((stored.sum(0), stored.square().sum(0))).float()
    torch.testing.assert_close(sums, both, rtol=1e-4, atol=1e-2)
    assert torch.equal(
        sums, lc.conv3d(x, w, padding=1, activation="relu", return_statistics=True)[1]
    )
