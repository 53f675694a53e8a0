"""torch's FlopCounterMode counts our convolutions as it counts its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import layoutconv as lc


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
