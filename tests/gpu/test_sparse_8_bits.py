"""Sparse convolutions of int8 and fp8 on a GPU: exact sums, requantised results, every tile."""

from __future__ import annotations

import pytest
import torch

import layoutconv as lc
from layoutconv.sparse import SparseTensor
from layoutconv.tensors.epilogue_in_torch import convert

from ..nn.test_sparse_8_bits import codes
from .test_sparse import MAPS, poisoned  # noqa: F401, a fixture

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

INT8, E4M3 = torch.int8, torch.float8_e4m3fn
CHANNELS = [(16, 16), (32, 48), (64, 64), (128, 128), (256, 256), (96, 40), (5, 7), (24, 8)]
CASES = [
    *(("submanifold", C, K, 1) for C, K in CHANNELS),
    *((name, 64, 32, 1) for name in MAPS),
    ("strided", 64, 32, 2),
]


def sums(found, x, w, groups):
    """Tap by tap in float64."""
    x, w = x.double(), w.double()
    y = x.new_zeros(len(found.outputs), len(w))
    K, C = len(w) // groups, w.shape[-1]
    flat = w.flatten(1, -2)
    for tap in range(found.index.shape[1]):
        sources = found.index[:, tap]
        rows = (sources >= 0).nonzero()[:, 0]
        for g in range(groups):
            k, c = slice(g * K, (g + 1) * K), slice(g * C, (g + 1) * C)
            y[rows, k] += x[sources[rows].long(), c] @ flat[k, tap].T
    return y


@pytest.mark.parametrize("dtype", [INT8, E4M3], ids=str)
@pytest.mark.parametrize(("name", "C", "K", "groups"), CASES, ids=str)
def test_sums_are_exact_and_requantised(name, C, K, groups, dtype):
    found = MAPS[name]()
    most = 127 if dtype == INT8 else 8  # sums of those are exact in fp32, and in fp8's adders
    x = codes(len(found.inputs), C, dtype=dtype, most=most).cuda()
    w = codes(K, *found.taps, C // groups, dtype=dtype, seed=1, most=most // 2).cuda()
    past = codes(len(found.outputs), K, dtype=dtype, seed=2, most=most).cuda()
    want = sums(found, x, w, groups)
    shift = 14 if dtype == INT8 else 4
    scale = 2.0 ** -(torch.arange(K, device="cuda") % 3 + shift).float()
    bias = torch.arange(K, device="cuda") / 4 - 3
    ended = torch.relu(want.float() * scale + bias + past.float())
    given = {"groups": groups, "kernel_map": found}
    tensor = SparseTensor(x, found.inputs)
    wide = torch.int32 if dtype == INT8 else torch.float32
    alpha = lc.Pointwise(
        lambda y, past, by: lc.pointwise.maximum(y + by * past, 0.0),
        sources={"past": past}, values={"by": 0.5},
    )  # fmt: skip
    for _ in range(2):  # the second call is one that is remembered
        y = lc.subm_conv(tensor, w, out_dtype=wide, **given).features
        assert torch.equal(y.double(), want)
        y = lc.subm_conv(
            tensor, w, bias, scale=scale, residual=past, activation="relu", out_dtype=dtype, **given
        ).features
        assert torch.equal(y.float(), convert(ended, dtype).float())
        y = lc.subm_conv(
            tensor, w, bias, scale=scale, activation=alpha, out_dtype=dtype, **given
        ).features
        ended_so = torch.relu(want.float() * scale + bias + past.float() / 2)
        assert torch.equal(y.float(), convert(ended_so, dtype).float())
