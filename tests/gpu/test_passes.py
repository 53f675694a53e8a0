"""Convolutions and their gradients on a GPU, against the same call in float64 on the CPU."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem
from layoutconv.gpu.folding_choice import arranged_fprop, line_for
from layoutconv.tensors.tensor_checks import as_stored
from layoutconv.view.epilogue import ACTIVATIONS

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
@pytest.mark.parametrize(
    ("C", "K", "groups"),
    [(16, 24, 1), (3, 5, 1), (1, 7, 1), (16, 24, 8), (6, 4, 2), (5, 5, 5), (8, 16, 8)],
)
@pytest.mark.parametrize("transposed", [False, True])
def test_a_step_is_that_of_the_cpu(arguments, C, K, groups, dtype, transposed):
    torch.manual_seed(0)
    # Numbers that all dtypes hold, so that only sums and results are rounded.
    x = torch.randn(2, C, 5, 9, 8).bfloat16().double()
    w = torch.randn(C, K // groups, 3, 3, 3) if transposed else torch.randn(K, C // groups, 3, 3, 3)
    w = (w / 16).bfloat16().double()
    conv = lc.conv_transpose3d if transposed else lc.conv3d
    call = lambda x, w: conv(x, w, groups=groups, **arguments)  # noqa: E731
    expected = gradients(call, x, w, "cpu", torch.float64)
    found = gradients(call, x, w, "cuda", dtype)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).norm() <= CLOSE[dtype] * b.norm()


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize(("C", "K", "groups"), [(16, 24, 1), (6, 4, 2), (5, 5, 5)])
@pytest.mark.parametrize("transposed", [False, True])
def test_what_follows_the_sums_is_that_of_the_cpu(activation, C, K, groups, dtype, transposed):
    torch.manual_seed(0)
    x = torch.randn(2, C, 9, 8).bfloat16()
    w = torch.randn(C, K // groups, 3, 3) if transposed else torch.randn(K, C // groups, 3, 3)
    w = (w / 8).bfloat16()
    scale, bias = torch.rand(2, K) + 0.5
    conv = lc.conv_transpose2d if transposed else lc.conv2d
    residual = torch.randn_like(conv(x.double(), w.double(), groups=groups).float()).bfloat16()
    numbers = {"groups": groups, "activation": activation, "slope": 0.3}
    operands = x, w, bias, scale, residual

    def call(device, dtype, kind):
        a, b, c, d, e = (
            t.to(device, k)
            for t, k in zip(operands, (dtype, dtype, kind, kind, dtype), strict=True)
        )
        return conv(a, b, c, scale=d, residual=e, **numbers).cpu().double()

    expected = call("cpu", torch.float64, torch.float64)
    found = call("cuda", dtype, torch.float32)
    assert (found - expected).norm() <= CLOSE[dtype] * expected.norm()


FOLDED = [
    ((2, 48, 64, 64, 32), (64, 3, 3, 3), 2, 1),
    ((4, 192, 128, 16), (32, 5, 3), (1, 2), ((2, 2), (0, 1))),
    ((2, 96000, 16), (40, 7), 4, 3),
]


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() != (9, 0),
    reason="lines are folded on Hopper",
)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(("activation", "filter", "stride", "padding"), FOLDED)
def test_lines_folded_by_their_stride(activation, filter, stride, padding, dtype):
    torch.manual_seed(0)
    problem = ConvProblem(activation, filter, stride, padding)
    a = torch.randn(activation, device="cuda", dtype=dtype)
    b = torch.randn(*filter, activation[-1], device="cuda", dtype=dtype) / 16
    view = arranged_fprop(problem, line_for(a))
    assert view is not arranged_fprop(problem)
    out = torch.full(problem.output, torch.nan, device="cuda", dtype=dtype)
    lc.execute(view, as_stored(view, a), b, out)
    x, w = a.movedim(-1, 1), b.movedim(-1, 1)  # in NDHWC memory
    conv = getattr(lc, f"conv{problem.rank}d")
    numbers = {"stride": stride, "padding": padding}
    expected = conv(x.double(), w.double(), **numbers)
    assert (out.movedim(-1, 1) - expected).norm() <= CLOSE[dtype] * expected.norm()
    bias = torch.randn(filter[0], device="cuda")
    found, sums = conv(x, w, bias, **numbers, activation="relu", return_statistics=True)
    expected = (expected + bias.double().view(-1, *[1] * problem.rank)).relu()
    assert (found - expected).norm() <= CLOSE[dtype] * expected.norm()
    stored = found.double().movedim(1, -1).reshape(-1, filter[0])
    both = torch.stack((stored.sum(0), stored.square().sum(0))).float()
    torch.testing.assert_close(sums, both, rtol=1e-4, atol=1e-2)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(("C", "K", "groups"), [(16, 24, 1), (3, 6, 1), (6, 4, 2), (5, 5, 5)])
def test_statistics_are_of_what_is_stored(C, K, groups, dtype):
    x = torch.randn(3, C, 17, 9, device="cuda", dtype=dtype)
    w = torch.randn(K, C // groups, 3, 3, device="cuda", dtype=dtype)
    numbers = {"stride": 2, "padding": 1, "groups": groups, "activation": "relu"}
    y, statistics = lc.conv2d(x, w, **numbers, return_statistics=True)
    assert torch.equal(y, lc.conv2d(x, w, **numbers))
    stored = y.double().movedim(1, -1).reshape(-1, K)
    expected = torch.stack((stored.sum(0), stored.square().sum(0))).float()
    torch.testing.assert_close(statistics, expected, rtol=1e-4, atol=1e-4)


def test_complex_numbers():
    x, w = torch.randn(2, 3, 9, 8, dtype=torch.complex64), torch.randn(5, 3, 3, 3) + 0j
    w = w + 1j * torch.randn_like(w.real)
    found = lc.conv2d(x.cuda(), w.cuda(), padding=1).cpu()
    expected = lc.conv2d(x, w, padding=1)
    assert (found - expected).abs().norm() <= CLOSE[torch.float32] * expected.abs().norm()


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
