"""Channels that are no multiple of 32, or in filter gradients of 64, which tiles round up, against
float64 on a GPU.
"""

from __future__ import annotations

from math import inf, nan

import pytest
import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.channel_padding import has_padded_channels

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="channels are padded on Hopper",
)
CLOSE = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 1.5e-3}
PROBLEMS = {
    "48": ConvProblem((4, 80, 79, 48), (48, 3, 3), padding=1),
    "48 to 192": ConvProblem((8, 75, 75, 48), (192, 3, 3), padding=1),
    "48, volumes": ConvProblem((2, 24, 25, 26, 48), (48, 3, 3, 3), padding=1),
    "16, volumes": ConvProblem((2, 40, 41, 42, 16), (16, 3, 3, 3), padding=1),
    "24": ConvProblem((8, 150, 150, 24), (24, 3, 3), padding=1),
    "80": ConvProblem((16, 3000, 80), (768, 3), padding=1),
    "80, unpadded": ConvProblem((8, 73, 73, 80), (192, 3, 3)),
    "144": ConvProblem((8, 4, 14, 14, 144), (288, 1, 3, 3), padding=(0, 1, 1)),
    "48, 5x5": ConvProblem((32, 35, 35, 48), (64, 5, 5), padding=2),
    "160": ConvProblem((8, 4, 14, 14, 160), (320, 1, 3, 3), padding=(0, 1, 1)),
    "160, a line of taps": ConvProblem((32, 17, 17, 160), (192, 1, 7), padding=(0, 3)),
    "288, few pixels": ConvProblem((8, 4, 14, 14, 288), (288, 3, 1, 1), padding=(1, 0, 0)),
    "96, a stride": ConvProblem((1, 160, 160, 96), (192, 3, 3), stride=2, padding=1),
}


def convolved(x, w, problem):
    conv = getattr(torch.nn.functional, f"conv{problem.rank}d")
    return conv(x, w, None, problem.stride, [near for near, _ in problem.padding])


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("name", PROBLEMS)
def test_all_passes(name, dtype):
    problem = PROBLEMS[name]
    torch.manual_seed(0)
    shapes = problem.activation, problem.stored_filter
    x, w = (torch.randn(s, device="cuda", dtype=dtype).movedim(-1, 1) for s in shapes)
    exact = x.double().requires_grad_(), w.double().requires_grad_()
    expected = convolved(*exact, problem)
    grad = torch.randn_like(expected).to(dtype)
    wanted = torch.autograd.grad(expected, exact, grad.double())
    given = x.requires_grad_(), w.requires_grad_()
    torch.full_like(expected, nan, dtype=dtype)  # whose memory the result takes
    own = getattr(lc, f"conv{problem.rank}d")
    y = own(x, w, None, problem.stride, [near for near, _ in problem.padding])
    found = torch.autograd.grad(y, given, grad)
    assert (y - expected).norm() <= CLOSE[dtype] * expected.norm()
    for gradient, want in zip(found, wanted, strict=True):
        assert (gradient - want).norm() <= CLOSE[dtype] * want.norm()


def test_the_model_pads_most_of_them():
    padded = [
        has_padded_channels(choose_kernel(view, torch.float16, 0).view)
        for problem in PROBLEMS.values()
        for view in (fprop_view(problem), *dgrad_views(problem))
    ]
    assert sum(padded) >= 10


def test_the_model_pads_filter_gradients():
    padded = [
        has_padded_channels(choose_kernel(wgrad_view(problem), torch.float16, 0).view)
        for problem in PROBLEMS.values()
    ]
    assert sum(padded) >= 5


def test_an_infinity_reaches_its_own_windows_alone():
    problem = PROBLEMS["48"]
    x = torch.randn(problem.activation, device="cuda", dtype=torch.float16).movedim(-1, 1)
    w = torch.randn(problem.stored_filter, device="cuda", dtype=torch.float16).movedim(-1, 1)
    x[0, 0, 8, 8] = inf
    found, expected = lc.conv2d(x, w, padding=1), convolved(x.double(), w.double(), problem)
    assert torch.equal(found.isfinite(), expected.isfinite())
    assert 0 < (~expected.isfinite()).sum() <= 9 * problem.K
