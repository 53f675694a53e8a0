"""Converted networks on a GPU: gradients of torch's, and streams that are the whole."""

from __future__ import annotations

from copy import deepcopy

import pytest
import torch

import layoutconv as lc

from ..nn.test_convert import gradients_of_a_step, small_residual_network
from ..nn.test_own_padding import Causal, Decoder

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def test_gradients_where_batch_norms_see_two_elements() -> None:
    net, x = small_residual_network()
    ours = lc.nn.convert(deepcopy(net)).cuda()
    found = [value.cpu() for value in gradients_of_a_step(ours, x.cuda())]
    for value, expected in zip(found, gradients_of_a_step(net, x), strict=True):
        assert (value - expected).norm() <= 1e-9 * (expected.norm() + 1e-3)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_a_stream_of_a_converted_decoder_is_the_whole(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    net = Decoder().double()
    x = torch.randn(1, 4, 9, 20, 24, dtype=torch.float64)
    expected = net(x)
    ours = lc.nn.convert(net).cuda().to(dtype)
    parts = x.cuda().to(dtype).split((1, 4, 4), 2)
    kept: list[torch.Tensor | None] = [None] * len(net.layers)
    with torch.no_grad():
        stream = torch.cat([ours(part, kept) for part in parts], 2).double().cpu()
        whole = ours(torch.cat(parts, 2)).double().cpu()
    limit = 4 * torch.finfo(dtype).eps
    for found in (stream, whole):
        assert (found - expected).abs().max() <= limit * (1 + expected.abs().max())


@pytest.mark.parametrize("count", [None, 1, 2, 3])
def test_a_causal_layer_reads_its_cache_and_zeros(count: int | None) -> None:
    """A layer gives the right results in memory that held NaN before."""
    torch.manual_seed(0)
    layer = Causal(16, 24, 3, padding=1, dtype=torch.float64)
    x = torch.randn(2, 16, 3, 9, 10, dtype=torch.float64)
    frames = None if count is None else torch.randn(2, 16, count, 9, 10, dtype=torch.float64)
    expected = layer(x, frames)
    ours = lc.nn.convert(layer).cuda().half()
    given = x.cuda().half(), None if frames is None else frames.cuda().half()
    with torch.no_grad():
        for _ in range(3):
            poison = [torch.full((1 << size,), torch.nan, device="cuda") for size in range(8, 20)]
            del poison
            found = ours(*given).double().cpu()
            assert (found - expected).abs().max() <= 4e-3 * (1 + expected.abs().max())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("sizes", [(32, 32, 3, 32), (3, 32, 7, 1), (2, 48, 3, 1)])
def test_warm_calls_are_the_first_one(
    sizes: tuple[int, int, int, int], ends: bool, dtype: torch.dtype
) -> None:
    """Depthwise calls and those of packed channels, that are launched past the operator."""
    torch.manual_seed(0)
    C, K, taps, groups = sizes
    x = torch.randn(4, C, 40, 36, dtype=torch.float64)
    w = torch.randn(K, C // groups, taps, taps, dtype=torch.float64) / taps
    bias = torch.randn(K, dtype=torch.float64) if ends else None
    expected = torch.nn.functional.conv2d(x, w, bias, 1, 1, 1, groups)
    expected = expected.relu() if ends else expected
    given = [None if t is None else t.to("cuda", dtype) for t in (x, w, bias)]
    limit = 8 * max(torch.finfo(dtype).eps, 1e-3)  # tf32
    with torch.no_grad():
        for _ in range(4):
            poison = [torch.full((1 << size,), torch.nan, device="cuda") for size in range(8, 22)]
            del poison
            found = lc.conv2d(*given, 1, 1, 1, groups, activation="relu" if ends else None)
            assert (found.double().cpu() - expected).abs().max() <= limit * expected.abs().max()
