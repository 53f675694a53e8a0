"""The kernels of maps that a pack asks for: those that operators launch, run in the simulator."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from layoutconv.base.caches import clear_caches
from layoutconv.deploy.map_kernels import OPERATORS, asker
from layoutconv.deploy.program import target_of
from layoutconv.kernels.maps import per_rank
from layoutconv.planning.machine import MACHINES
from layoutconv.sparse.maps.map_operators import _numbers
from layoutconv.sparse.maps.taps import Taps
from layoutconv.testing import stand_in

from ..stand_ins import Gpu
from .cloud_launcher import cloud

GRID = [1, 6, 6]
CELLS = cloud(3, 20, (1, 6, 6))
NEAR, STRIDED = _numbers(Taps.centred(2, 3)), _numbers(Taps.strided(2, 3, stride=2, padding=1))
INDEX = torch.tensor([[1, -1], [0, 1], [-1, 2]], dtype=torch.int32)
CALLS = {
    "submanifold": ("neighbours", CELLS, GRID, False, False, CELLS, NEAR, True),
    "of checked cells": ("neighbours", CELLS, GRID, True, False, CELLS[:7], STRIDED, False),
    "strided": ("reached_cells", CELLS, GRID, False, False, STRIDED, [3, 3], None, False),
    "of a capacity": ("reached_cells", CELLS, GRID, True, False, STRIDED, [3, 3], 16, False),
    "transposed": ("reached_cells", CELLS, GRID, True, False, STRIDED, [12, 12], None, True),
    "of a large grid": (
        "reached_cells", CELLS, [1, 2**15, 2**15], True, False, STRIDED, [2**14] * 2, None, False,
    ),
    "inverse": ("reversed_index", INDEX, 3),
    "sorted": ("by_taps", INDEX, [2]),
}  # fmt: skip


def forbidden(*_: Any) -> None:
    raise AssertionError("asked of a GPU")


@pytest.mark.parametrize("name", CALLS)
def test_they_are_those_that_the_operator_launches(
    name: str, launches: Any, monkeypatch: pytest.MonkeyPatch, gpu: Gpu
) -> None:
    operator, *arguments = CALLS[name]
    target = target_of(f"layoutconv.{operator}.default")
    expected = target(*arguments)
    kept: Any = torch.Tensor
    monkeypatch.setattr(
        kept, "is_cuda", property(lambda tensor: tensor.dtype not in stand_in.INDICES)
    )
    gpu.says(get_device_properties=forbidden, is_current_stream_capturing=False)
    like = replace(MACHINES["sm_90a"], sm_count=launches.ctas)
    asked: list[Any] = []
    monkeypatch.setattr(per_rank, "load_per_rank", lambda kernel, arch: asked.append(kernel.key))
    asker(f"layoutconv.{operator}.default", like)(*arguments)

    clear_caches(kernels=True)  # tables of taps were written over

    assert per_rank.launch is launches  # as before
    launches.keys.clear()
    with monkeypatch.context() as patch:
        patch.setattr(stand_in, "INDICES", ())
        found = target(*arguments)
    assert launches.keys
    assert asked == launches.keys
    torch.testing.assert_close(found, expected)  # it was the GPU's path, to its end


def test_every_operator_that_makes_a_map_is_tried() -> None:
    assert {f"layoutconv.{operator}.default" for operator, *_ in CALLS.values()} == set(OPERATORS)
