"""Sums of products of int8 are exact on the CPU: at the lengths where fp32 ceases to hold them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views, wgrad_view
from layoutconv.ops import dense_calls
from layoutconv.tensors.epilogue_in_torch import accumulator_dtype

# 1,025 products of (-128)^2, or 1,024 and a one, are the first that 24 bits do not hold.
LENGTHS = [1023, 1024, 1025, 1026, 1535, 1536, 2048, 2049, 3000, 4095, 4096, 4097]

Way = Callable[[Tensor, Tensor], Tensor]


def _wgrad(x: Tensor, w: Tensor) -> Tensor:
    """Summed over voxels: of one channel on either side."""
    problem = ConvProblem((1, len(x), 1), (1, 1))
    return lc.execute(wgrad_view(problem), x.view(1, -1, 1), w.view(1, -1, 1))


def _dgrad(x: Tensor, w: Tensor) -> Tensor:
    problem = ConvProblem((1, 1, 1), (len(x), 1))
    [view] = dgrad_views(problem)
    return lc.execute(view, x.view(1, 1, -1), w.view(-1, 1, 1))


def _twice(x: Tensor, channels: int = 1) -> Tensor:
    """The same numbers for two groups, (1, 2 * channels, the rest)."""
    return torch.cat([x.view(1, channels, -1)] * 2, 1)


WAYS: dict[str, Way] = {
    "channels": lambda x, w: lc.conv1d(x.view(1, -1, 1), w.view(1, -1, 1)),
    "taps": lambda x, w: lc.conv1d(x.view(1, 1, -1), w.view(1, 1, -1)),
    "groups": lambda x, w: lc.conv1d(
        _twice(x, len(x)), _twice(w, len(w)).view(2, -1, 1), groups=2
    ),
    "depthwise": lambda x, w: lc.conv1d(_twice(x), _twice(w).view(2, 1, -1), groups=2),
    "transposed": lambda x, w: lc.conv_transpose1d(x.view(1, -1, 1), w.view(-1, 1, 1)),
    "dgrad": _dgrad,
    "wgrad": _wgrad,
}  # fmt: skip


def assert_exact(way: Way, x: Tensor, w: Tensor) -> None:
    expected = int((x.long() * w.long()).sum())
    for _ in range(2):  # cold and warm
        y = way(x, w)
        assert y.dtype == torch.int32
        assert set(y.flatten().tolist()) == {expected}


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("way", WAYS)
def test_the_largest_odd_sums(way, length):
    """The one comes first, in the middle and last: no order of summing hides that it is lost."""
    dense_calls.forget()
    for at in (0, length // 2, length - 1):
        x = torch.full((length,), -128, dtype=torch.int8)
        w = x.clone()
        x[at], w[at] = 1, 1
        assert_exact(WAYS[way], x, w)
        assert_exact(WAYS[way], x, -w.clamp(min=-127))  # and negative ones


@settings(max_examples=30, deadline=None)
@given(st.sampled_from(sorted(WAYS)), st.integers(1, 5000), st.integers(0, 2**31))
def test_sums_of_any_length(way, length, seed):
    """Sums of large numbers of one sign are exact at any length."""
    generator = torch.Generator().manual_seed(seed)
    x, w = torch.randint(-128, -119, (2, length), generator=generator, dtype=torch.int8)
    assert_exact(WAYS[way], x, w)


def test_the_type_of_sums_holds_the_largest():
    for length in range(1, 5000):
        largest = length * 2**14
        assert accumulator_dtype(torch.int8, length) == torch.float64 or largest <= 2**24, length
