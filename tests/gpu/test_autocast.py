"""Filters' gradients under autocast on a GPU: sums that nothing rounds, in every family of layers.

Beside float64, of operands that 16 bits hold; memory that nobody wrote is NaN.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

# Shapes of the input and of the filter, and the rest of a layer's arguments.
LAYERS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "3x3": ((4, 64, 28, 28), (96, 64, 3, 3), {"padding": 1}),
    "3x3, in parts": ((2, 128, 7, 7), (256, 128, 3, 3), {"padding": 1}),
    "1x1": ((8, 64, 14, 14), (256, 64, 1, 1), {}),
    "1x1, stride 2": ((2, 64, 15, 15), (128, 64, 1, 1), {"stride": 2}),
    "stem": ((2, 3, 56, 56), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
    "one output": ((2, 48, 20, 20), (1, 48, 3, 3), {"padding": 1}),
    "odd channels": ((2, 19, 11, 13), (33, 19, 3, 2), {"dilation": 2}),
    "groups of 4": ((2, 64, 14, 14), (64, 4, 3, 3), {"padding": 1, "groups": 16}),
    "groups of 48": ((2, 96, 9, 9), (192, 48, 3, 3), {"padding": 1, "groups": 2}),
    "depthwise 3x3": ((2, 96, 14, 14), (96, 1, 3, 3), {"padding": 1, "groups": 96}),
    "depthwise 7x7": ((2, 32, 20, 20), (32, 1, 7, 7), {"padding": 3, "groups": 32}),
    "depthwise 3x3x3": ((1, 16, 6, 9, 8), (16, 1, 3, 3, 3), {"padding": 1, "groups": 16}),
    "depthwise of two": ((2, 16, 9, 9), (32, 1, 3, 3), {"groups": 16}),
    "3x3x3": ((2, 32, 8, 10, 9), (64, 32, 3, 3, 3), {"padding": 1}),
    "1-D": ((4, 24, 200), (40, 24, 5), {"padding": 2}),
    "depthwise 1-D, 31 taps": ((2, 64, 150), (64, 1, 31), {"padding": 15, "groups": 64}),
}
TRANSPOSED = "3x3", "1x1, stride 2", "groups of 4", "3x3x3", "1-D"


@pytest.fixture(autouse=True)
def poisoned() -> Iterator[None]:
    torch.use_deterministic_algorithms(True, warn_only=True)  # which fills empty memory with NaN
    yield
    torch.use_deterministic_algorithms(False)


def gradient(call: Any, x: Tensor, w: Tensor) -> Tensor:
    y = call(x, w)
    weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).bfloat16()
    return torch.autograd.grad(y, w, weights.to(y.device, y.dtype))[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    ("name", "transposed"), [(n, False) for n in LAYERS] + [(n, True) for n in TRANSPOSED]
)
def test_gradients_of_filters_are_sums(name: str, transposed: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    of_x, of_w, options = LAYERS[name]
    conv: Any = getattr(lc, f"conv{'_transpose' if transposed else ''}{len(of_x) - 2}d")
    if transposed:
        of_x = of_x[0], of_w[0], *of_x[2:]
    x, w = (torch.randn(shape).bfloat16().double() for shape in (of_x, of_w))
    expected = gradient(lambda x, w: conv(x, w, **options), x, w.requires_grad_())
    here, leaf = x.to("cuda", dtype), w.detach().to("cuda", torch.float32).requires_grad_()
    found = []
    for _ in range(3):
        with torch.autocast("cuda", dtype):
            found.append(gradient(lambda x, w: conv(x, w, **options), here, leaf))
    for one in found:
        assert one.dtype is torch.float32
        assert torch.equal(one, found[0])
        assert (one.cpu().double() - expected).norm() <= 3e-6 * expected.norm()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("channels", [(16, 32), (5, 7), (64, 64)])
def test_gradients_of_sparse_filters_are_sums(
    channels: tuple[int, int], dtype: torch.dtype
) -> None:
    """A first call has the bits of later ones, and clouds have other rows."""
    C, K = channels
    torch.manual_seed(0)
    w = torch.randn(K, 3, 3, 3, C).to(dtype).float().cuda().requires_grad_()
    for rows in (700, 700, 1100, 2):
        cells = torch.cat([torch.zeros(rows, 1), torch.randperm(8000)[:rows, None] + 0.0], 1).long()
        z, y, x = cells[:, 1] // 400, cells[:, 1] // 20 % 20, cells[:, 1] % 20
        cells = torch.stack([cells[:, 0], z, y, x], 1).int().cuda()
        features = torch.randn(rows, C).to(dtype).cuda().requires_grad_()
        found = []
        for _ in range(2):
            sparse = lc.SparseTensor(features, cells, (20, 20, 20), 1)
            with torch.autocast("cuda", dtype):
                y = lc.subm_conv(sparse, w, torch.ones(K, device="cuda")).features
            weights = torch.linspace(-1, 1, y.numel(), dtype=torch.float64).view(y.shape).to(dtype)
            found.append(torch.autograd.grad(y, (features, w), weights.cuda()))
        exact = w.detach().cpu().double().requires_grad_()
        wide = lc.SparseTensor(features.detach().cpu().double(), cells.cpu(), (20, 20, 20), 1)
        lc.subm_conv(wide, exact).features.backward(weights.double())
        for one, other in zip(*found, strict=True):
            assert torch.equal(one, other)
        dw = found[0][1]
        assert dw.dtype is torch.float32
        assert exact.grad is not None
        assert (dw.cpu() - exact.grad).abs().max() <= 2e-5 * exact.grad.abs().max()
