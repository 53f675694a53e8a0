"""Sparse convolutions of int8 and fp8: exact sums, requantised results, residuals of 8 bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.sparse import Coordinates, KernelMap, SparseTensor, strided_map, submanifold_map
from layoutconv.tensors.epilogue_in_torch import convert

from .clouds import cloud

INT8, E4M3, E5M2 = torch.int8, torch.float8_e4m3fn, torch.float8_e5m2
MAPS = {
    "submanifold": lambda x: submanifold_map(x.coordinates, 3),
    "strided": lambda x: strided_map(x.coordinates, 3, 2, 1),
    "inverse": lambda x: strided_map(x.coordinates, 2, 2).inverse,
    "transposed": lambda x: lc.sparse.transposed_map(x.coordinates, 3, 2, 1),
    "set": lambda x: submanifold_map(x.coordinates, offsets=[(0, 0), (1, -1), (0, 2)]),
}


def codes(*shape: int, dtype: torch.dtype, seed: int = 0, most: int = 127) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-most, most + 1, shape, generator=generator).to(dtype)


def sums(found: KernelMap, x: Tensor, w: Tensor, groups: int = 1) -> Tensor:
    """Tap by tap in float64, where a tap that is absent adds nothing."""
    x, w = x.double(), w.double()
    y = x.new_zeros(len(found.outputs), len(w))
    K, C = len(w) // groups, w.shape[-1]
    flat = w.flatten(1, -2)
    for tap, sources in enumerate(found.index.T):
        rows = (sources >= 0).nonzero()[:, 0]
        for g in range(groups):
            k, c = slice(g * K, (g + 1) * K), slice(g * C, (g + 1) * C)
            y[rows, k] += x[sources[rows].long(), c] @ flat[k, tap].T
    return y


def convolved(found: KernelMap, x: Tensor, w: Tensor, **options: object) -> Tensor:
    function = lc.subm_conv if found.inputs is found.outputs else lc.sparse_conv
    with torch.no_grad():
        return function(SparseTensor(x, found.inputs), w, kernel_map=found, **options).features


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("name", MAPS)
def test_int8_is_exact_in_int32_and_requantised_in_the_epilogue(name: str, groups: int) -> None:
    x = cloud(2, 16)
    found: KernelMap = MAPS[name](x)
    a = codes(len(found.inputs), 16, dtype=INT8)
    w = codes(12, *found.taps, 16 // groups, dtype=INT8, seed=1)
    want = sums(found, a, w, groups)
    scale, bias = 2.0 ** -torch.arange(6, 18).float(), torch.arange(-6, 6.0)
    past = codes(len(found.outputs), 12, dtype=INT8, seed=2)
    finished = torch.relu(want.float() * scale + bias + past.float())
    ending = {"scale": scale, "bias": bias, "residual": past, "activation": "relu"}
    for _ in range(2):  # with every check, and as a call that was kept
        y = convolved(found, a, w, groups=groups)
        assert y.dtype == torch.int32
        assert torch.equal(y.double(), want)
        y = convolved(found, a, w, groups=groups, out_dtype=INT8, **ending)
        assert torch.equal(y, finished.round().clamp(-128, 127).to(INT8))


def test_a_row_without_neighbours_is_the_bias() -> None:
    found = submanifold_map(Coordinates(torch.tensor([[0, 0], [0, 9]]).int(), (10,), 1), 2)
    found.index[found.index >= 0] = -1
    x, w, bias = codes(2, 4, dtype=INT8), codes(3, 2, 4, dtype=INT8), torch.tensor([2.5, -0.5, 300])
    y = convolved(found, x, w, bias=bias, scale=0.5, out_dtype=INT8)
    assert y.tolist() == [[2, 0, 127]] * 2


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
@pytest.mark.parametrize("name", ["submanifold", "strided"])
def test_fp8_is_summed_in_fp32_and_saturates(name: str, dtype: torch.dtype) -> None:
    x = cloud(2, 16)
    found = MAPS[name](x)
    a = codes(len(found.inputs), 16, dtype=dtype, most=16)  # sums of these are exact in fp32
    w = codes(8, *found.taps, 16, dtype=dtype, seed=1, most=8)
    past = codes(len(found.outputs), 8, dtype=dtype, seed=2, most=16)
    want = sums(found, a, w)
    for _ in range(2):
        assert torch.equal(convolved(found, a, w, out_dtype=torch.float32).double(), want)
        y = convolved(found, a, w, scale=4.0, residual=past, out_dtype=dtype)
        assert torch.equal(y.float(), convert((4 * want + past.double()).float(), dtype).float())
    assert convolved(found, a, w).dtype == torch.float16


def test_a_function_of_a_users_own_reads_8_bits() -> None:
    x = cloud(2, 16)
    found = MAPS["submanifold"](x)
    a, w = codes(len(x), 16, dtype=INT8), codes(8, 3, 3, 16, dtype=INT8, seed=1)
    for dtype in (INT8, E4M3):
        past = codes(len(x), 8, dtype=dtype, seed=2, most=16)
        step = lc.Pointwise(
            lambda y, past, alpha: lc.pointwise.maximum(y + alpha * past, 0.0),
            sources={"past": past}, values={"alpha": 0.5},
        )  # fmt: skip
        want = (sums(found, a, w).float() / 1024 + past.float() / 2).relu()
        for _ in range(2):
            y = convolved(found, a, w, scale=2.0**-10, activation=step, out_dtype=INT8)
            assert torch.equal(y, convert(want, INT8))
    twice = lc.Pointwise(lambda y: y + y)
    assert convolved(found, a, w, activation=twice).dtype == torch.int32
    y = convolved(found, a.to(E4M3), w.to(E4M3), activation=twice)
    assert y.dtype == torch.float16


def test_what_there_is_not_of_8_bits_is_refused() -> None:
    x = cloud(2, 4)
    found = MAPS["submanifold"](x)
    a, w = codes(len(x), 4, dtype=INT8), codes(4, 3, 3, 4, dtype=INT8)
    with pytest.raises(ArgumentError, match=r"`groups`.*depthwise"):
        convolved(found, a, w[..., :1], groups=4)
    bias = torch.zeros(4, requires_grad=True)
    with pytest.raises(ArgumentError, match=r"`bias`.*inference only"):
        lc.subm_conv(x.replace(a), w, bias)
    with pytest.raises(ArgumentError, match=r"`input`.*inference only"):
        lc.subm_conv(x.replace(a.to(E4M3).requires_grad_()), w.to(E4M3))
    with pytest.raises(ArgumentError, match=r"`weight`.*torch.int8, the dtype of the features"):
        convolved(found, a, w.float())
    with pytest.raises(ArgumentError, match=r"`residual`.*residual of torch.int8"):
        convolved(found, a, w, residual=a.to(E4M3))
    with pytest.raises(ArgumentError, match=r"`input`.*int8, float8_e4m3fn or float8_e5m2"):
        convolved(found, a.to(torch.int16), w)
    twice = Coordinates(torch.zeros(2, 3).int(), (4, 4), 1, repeated=True)
    with pytest.raises(ArgumentError, match=r"`input`.*distinct cells where the input is"):
        lc.subm_conv(SparseTensor(a[:2], twice), w)
