"""Stride phases that run together: their operands are written before, and readers wait for all."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import layoutconv as lc

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

LAST = torch.channels_last
SIZES = [(64, 7, 2), (128, 14, 32), (256, 28, 16), (512, 7, 64)]  # channels, cells a side, images
STEPS = 12


def integers(*shape: int, dtype: torch.dtype) -> Tensor:
    return torch.randint(-2, 3, shape, device="cuda").to(dtype)


def sparse_filter(C: int, taps: int, dtype: torch.dtype) -> Tensor:
    """A filter with few values, so that sums stay exact."""
    w = integers(C, C, taps, taps, dtype=dtype)
    return (w * (torch.rand(w.shape, device="cuda") < 4 / C / taps)).contiguous(memory_format=LAST)


class Chain:
    """Calls that read at once what the one before wrote: phases among them, and torch's kernels."""

    def __init__(self, C: int, size: int, N: int, dtype: torch.dtype) -> None:
        self.x = integers(N, C, size, size, dtype=dtype).contiguous(memory_format=LAST)
        self.up, self.down, self.one = (sparse_filter(C, taps, dtype) for taps in (3, 3, 1))
        self.bias = integers(C, dtype=dtype)

    def run(self, bias: Tensor, *, waits: bool = False) -> list[Tensor]:
        """Return all results; ``waits``: the GPU is idle before each call."""
        x, found = self.x, list[Tensor]()
        for step in range(STEPS):
            for call in (
                lambda x: lc.conv_transpose2d(x, self.up, bias, 2, 1, 1),
                lambda x: lc.conv2d(x, self.down, bias, 2, 1).clamp(-4, 4),
                lambda x: lc.conv_transpose2d(x, self.one, bias, 2, 0, 1, activation="relu"),
                lambda x: lc.conv2d(x, self.one, None, 2).clamp(-4, 4),
            ):
                if waits:
                    torch.cuda.synchronize()
                x = call(x)
                found.append(x)
            bias.add_(step).remainder_(5)
        torch.cuda.synchronize()
        return found


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("size", SIZES, ids=str)
@torch.no_grad()
def test_results_are_those_of_calls_one_by_one(
    size: tuple[int, int, int], dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    chain = Chain(*size, dtype)
    want = chain.run(chain.bias.clone(), waits=True)
    up = torch.nn.functional.conv_transpose2d(
        chain.x.double(), chain.up.double(), chain.bias.double(), 2, 1, 1
    )
    assert torch.equal(want[0].double(), up)
    for _ in range(3):
        found = chain.run(chain.bias.clone())
        assert all(map(torch.equal, found, want))


@torch.no_grad()
def test_results_in_a_graph_are_those_of_calls_one_by_one() -> None:
    torch.manual_seed(0)
    chain = Chain(128, 14, 8, torch.float16)
    want, bias = chain.run(chain.bias.clone(), waits=True), chain.bias.clone()
    graph, found = torch.cuda.CUDAGraph(), list[Tensor]()
    with torch.cuda.graph(graph):
        x = chain.x
        for _ in range(STEPS):
            x = lc.conv_transpose2d(x, chain.up, bias, 2, 1, 1)
            found.append(x)
            x = lc.conv2d(x, chain.down, bias, 2, 1).clamp(-4, 4)
    for _ in range(3):
        bias.copy_(chain.bias)
        graph.replay()
        torch.cuda.synchronize()
        assert torch.equal(found[0], want[0])
        again = [each.clone() for each in found]
        graph.replay()
        torch.cuda.synchronize()
        assert all(map(torch.equal, found, again))
