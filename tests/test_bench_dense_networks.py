"""The benchmark of dense networks: its sides compute the same, and its rows say what they say."""

from __future__ import annotations

from copy import deepcopy
from importlib import import_module
from typing import Any

import pytest
import torch
from torch import nn

import layoutconv as lc


@pytest.fixture
def bench(load_benchmark: Any) -> Any:
    return load_benchmark("bench_dense_networks")


def small() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 8, 3, stride=2),
        nn.GroupNorm(2, 8), nn.SiLU(), nn.ConvTranspose2d(8, 4, 2, stride=2),
    )  # fmt: skip


@pytest.mark.parametrize("trains", [False, True])
def test_sides_compute_the_same(bench: Any, trains: bool) -> None:
    cases = import_module("dense_networks")
    case = cases.Case("small", small, (2, 3, 9, 8), trains=trains, dtype=torch.bfloat16)
    with torch.set_grad_enabled(trains):
        found = {name: call() for name, call in bench.sides(case, "cpu").items()}
    assert list(found) == ["torch", "channels_last", "ours", "ours graphed"]
    for y in found.values():
        assert bench.relative_error(y, found["torch"]) < bench.TOLERANCE[torch.bfloat16]
    assert found["ours"].movedim(1, -1).is_contiguous()
    net = bench.converted(small().train(trains), case)
    reverted = [type(m) for m in lc.nn.revert(deepcopy(net)).modules()]
    fused = [type(m) for m in net.modules()]
    assert (fused != reverted, isinstance(net[1], nn.BatchNorm2d)) == (True, trains)
    more = bench.sides(case, "cpu", compiled=True)
    assert list(more)[4:] == ["channels_last compiled", "ours compiled"]


def test_a_row_says_ratios_of_torchs_times_to_ours(bench: Any) -> None:
    row = {f"{name} {what}": 2.0 for name in ("torch", "ours") for what in ("ms", "busy ms", "GiB")}
    row |= {"channels_last ms": 3.0, "channels_last GiB": 1.0}
    assert "torch 2.00 (1.00, 2.00 GiB); channels_last 3.00 (1.50, 1.00 GiB); best 1.00" in (
        bench.speed_ups(row)
    )
    row |= {"ours graphed ms": 0.5}
    assert bench.speed_ups(row).endswith("best 1.00; graphed 0.50 (4.00)")
    del row["ours graphed ms"]
    row |= {"ours graph ms": 1.0, "channels_last graph ms": 4.0}
    assert bench.speed_ups(row).endswith("best 1.00; graph 1.00 (4.00)")
    row |= {"ours compiled ms": 2.0, "channels_last compiled ms": 1.0}
    assert bench.speed_ups(row).endswith("; graph 1.00 (4.00); compiled 2.00 (0.50)")


def test_without_a_gpu_it_says_so(bench: Any, capsys: Any) -> None:
    if not torch.cuda.is_available():
        assert bench.main([]) == 2
        assert "no GPU" in capsys.readouterr().err
