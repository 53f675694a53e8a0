"""Norms over channels on a GPU, as a converted module launches them, beside float64."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from tests.nn.test_own_norm import Root

from .on_device import captured, kernels_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")
EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 4e-6}
SHAPES = [
    (1, 96, 2, 30, 52), (2, 384, 1, 9, 7), (1, 3, 4, 5, 6), (3, 192, 40, 41), (1, 1024, 300),
    (1, 20, 5, 5), (2, 4096, 3, 3),
]  # fmt: skip


@pytest.mark.parametrize("dtype", EPS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("biased", [False, True])
def test_it_is_the_norm_in_float64(
    shape: tuple[int, ...], dtype: torch.dtype, biased: bool
) -> None:
    torch.manual_seed(0)
    module = Root(shape[1], len(shape) - 2, biased)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter)
    x = torch.randn(shape[0], *shape[2:], shape[1]).to(dtype).movedim(-1, 1)
    ours = lc.nn.convert(module.to("cuda", dtype))
    with torch.no_grad():
        y = Root.forward(module.cpu().double(), x.double())
        found = ours.to("cuda", dtype)(x.cuda())
    assert found.dtype is dtype
    assert found.movedim(1, -1).is_contiguous()
    limit = EPS[dtype] * max(y.abs().max().item(), 1.0)
    torch.testing.assert_close(found.cpu().double(), y, rtol=0, atol=limit)


def test_it_is_one_launch_and_captured() -> None:
    module: torch.nn.Module = lc.nn.convert(Root(96).cuda().bfloat16())
    x = torch.randn(1, 96, 2, 30, 30, device="cuda").bfloat16()
    x = x.to(memory_format=torch.channels_last_3d)
    with torch.no_grad():
        y = module(x)
        assert len(kernels_of(lambda: module(x))) == 1
        graph, found = captured(lambda: module(x))
        graph.replay()
        assert torch.equal(found, y)
    assert torch.allclose(module(x), y, atol=0.1)  # with a gradient, as it is written
