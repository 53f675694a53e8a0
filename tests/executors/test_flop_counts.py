"""torch's FlopCounterMode counts dense convolutions as its own, and the pairs of sparse ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import layoutconv as lc
from layoutconv.sparse import SparseTensor

CELLS = [[0, 0, 0], [0, 0, 1], [0, 2, 2], [1, 1, 0], [1, 1, 2], [1, 2, 1]]


def counted(function: Callable[..., Any], *arguments: Any) -> int:
    with FlopCounterMode(display=False) as counter:
        function(*arguments)
    return int(counter.get_total_flops())


def step(net: torch.nn.Module, x: torch.Tensor) -> None:
    net(x.clone().requires_grad_()).sum().backward()


@pytest.mark.parametrize("rank", [1, 2, 3])
@pytest.mark.parametrize("name", ["Conv", "ConvTranspose"])
def test_passes_are_counted_as_torchs(rank: int, name: str) -> None:
    options: dict[str, Any] = {"stride": 2, "padding": 1}
    ours, theirs = (getattr(of, f"{name}{rank}d")(4, 6, 3, **options) for of in (lc.nn, torch.nn))
    x = torch.randn(2, 4, *(9, 7, 5)[:rank])
    for _ in range(2):  # a call that is found again, too
        assert counted(ours, x) == counted(theirs, x) > 0
    assert counted(step, ours, x) == counted(step, theirs, x)


def test_groups_and_statistics() -> None:
    x = torch.randn(2, 8, 9, 7)
    conv = lc.nn.Conv2d(8, 12, 3, groups=2)
    forward = 2 * 2 * 12 * 7 * 5 * 9 * 4
    assert counted(conv, x) == forward
    assert counted(step, conv, x) == 3 * forward
    numbers = (conv.weight, (1, 1), (0,) * 4, (1, 1), 2)
    found = torch.ops.layoutconv.conv_fprop_statistics
    assert counted(found, x, *numbers) == forward


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize("name", ["SubmConv2d", "SparseConv2d", "SparseConvTranspose2d"])
def test_sparse_passes_count_the_pairs_of_their_map(name: str, groups: int) -> None:
    net = getattr(lc.nn, name)(4, 8, 3, groups=groups)
    coords = torch.tensor(CELLS, dtype=torch.int32)
    x = SparseTensor(torch.randn(len(coords), 4, requires_grad=True), coords, (3, 4), 2)

    # As many as the taps of ones add up, over rows of ones.
    ones = getattr(lc.nn, name)(1, 1, 3, bias=False)
    torch.nn.init.ones_(ones.weight)
    pairs = int(ones(x.replace(torch.ones(len(coords), 1))).features.sum())
    forward = 2 * pairs * 8 * 4 // groups
    for _ in range(2):
        assert counted(net, x) == forward > 0
    assert counted(lambda: net(x).features.sum().backward()) == 3 * forward


def test_an_index_without_data_counts_every_tap() -> None:
    with torch.device("meta"):
        x, w, none = torch.empty(6, 4), torch.empty(8, 3, 4), torch.empty(0, dtype=torch.int32)
        maps = torch.empty(6, 3, dtype=torch.int32), *[none] * 6
    assert counted(torch.ops.layoutconv.sparse_conv, x, w, *maps, 6) == 2 * 18 * 8 * 4
