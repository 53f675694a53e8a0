"""Gradients of the inputs in tf32, of a K-major filter, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.gpu import filter_choice, launch
from layoutconv.nn.sparse import subm_conv
from layoutconv.ops import sparse_operators as operators
from layoutconv.sparse import Coordinates, submanifold_map

from .. import precision
from ..watched import Watch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="there is no Hopper",
)


@pytest.fixture(autouse=True)
def copies(watched: Watch) -> Iterator[list[int]]:
    """The filters that are copied, by where they start."""
    with precision.restored():
        torch.backends.cudnn.allow_tf32 = True
        owners = filter_choice, launch, operators
        yield watched("k_major_copy", *owners, note=lambda call: call.args[0].data_ptr())


def close(got: Tensor, want: Tensor) -> bool:
    return bool((got.double() - want).norm() <= 1e-3 * want.norm())


@pytest.mark.parametrize(
    ("shape", "K", "taps", "options"),
    [
        ((4, 128, 64, 64), 128, (3, 3), {"padding": 1}),
        ((4, 64, 128, 128), 256, (3, 3), {"padding": 1, "stride": 2}),
        ((2, 96, 16, 16, 32), 100, (3, 3, 3), {"padding": 2, "dilation": 2}),
        ((8, 128, 64, 64), 256, (3, 3), {"padding": 1, "groups": 2}),
        ((2, 512, 9001), 300, (3,), {"padding": (1,)}),
        ((8, 258, 64, 64), 132, (3, 3), {"stride": (1, 3)}),
    ],
    ids=["2d", "strided", "3d, dilated", "grouped", "1d", "ragged"],
)
def test_dense_gradients(
    shape: Any, K: int, taps: Any, options: dict[str, Any], copies: list[int]
) -> None:
    torch.manual_seed(0)
    conv: Any = getattr(lc, f"conv{len(taps)}d")
    x = torch.randn(shape, device="cuda").requires_grad_()
    w = torch.randn(K, shape[1] // options.get("groups", 1), *taps, device="cuda").requires_grad_()
    for _ in range(2):
        y = conv(x, w, **options)
        grad = torch.randn_like(y)
        got = torch.autograd.grad(y, x, grad, create_graph=True)[0]
    assert len(copies) == 2
    exact: Any = getattr(torch.nn.functional, f"conv{len(taps)}d")
    in_double = exact(x.double(), w.double(), **options)
    want = torch.autograd.grad(in_double, x, grad.double(), create_graph=True)[0]
    assert close(got.detach(), want.detach())
    again = torch.autograd.grad((got * x).sum(), w)[0]
    assert close(again, torch.autograd.grad((want * x).sum(), w)[0].double())


def test_a_graph_turns_the_filter_that_is_there_when_it_is_replayed(copies: list[int]) -> None:
    x, w = torch.randn(8, 128, 64, 64, device="cuda"), torch.randn(128, 96, 3, 3, device="cuda")
    x, w = (t.contiguous(memory_format=torch.channels_last) for t in (x, w))
    bias = torch.randn(96, device="cuda")
    call = lambda: lc.conv_transpose2d(x, w, bias, padding=1)  # noqa: E731
    for _ in range(3):
        call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = call()
    assert len(copies) == 4
    for _ in range(2):
        w.copy_(torch.randn_like(w))
        graph.replay()
        assert torch.equal(out, call())
        want = torch.conv_transpose2d(x.double(), w.double(), bias.double(), padding=1)
        assert close(out, want)


def test_compiled(copies: list[int]) -> None:
    x = torch.randn(4, 128, 64, 64, device="cuda").requires_grad_()
    w = torch.randn(128, 128, 3, 3, device="cuda")
    want = torch.autograd.grad(lc.conv2d(x, w, padding=1).sum(), x)[0]
    compiled = torch.compile(lc.conv2d, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(x, w, padding=1).sum(), x)[0]
    assert torch.equal(got, want)
    assert len(copies) == 2


@pytest.mark.parametrize("groups", [1, 2])
def test_sparse_gradients(groups: int, copies: list[int]) -> None:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(128, 3, 3, 3, 128 // groups, device="cuda", dtype=torch.float64)
    for rows in (20000, 20000, 11000, 300):
        keys = torch.randperm(2 * 32**3, generator=generator)[:rows]
        found = submanifold_map(Coordinates.of_keys(keys.cuda(), (32,) * 3, 2))
        features = torch.randn(rows, 128, device="cuda", dtype=torch.float64)
        seed = torch.randn(rows, 128, device="cuda", dtype=torch.float64)
        gradients = []
        for dtype in (torch.float64, torch.float32, torch.float32):
            leaf = features.to(dtype).requires_grad_()
            x = lc.SparseTensor(leaf, found.inputs)
            y = subm_conv(x, w.to(dtype), kernel_map=found, groups=groups).features
            gradients.append(torch.autograd.grad(y, leaf, seed.to(dtype))[0])
        want, *got = gradients
        assert all(close(one, want) for one in got)
        assert len(copies) == 2 * (rows > 10000)
        copies.clear()
