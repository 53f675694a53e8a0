"""Norms of images on a CPU that stands in for a GPU, as tests of several files want them."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from layoutconv.nn import act_norm, fused_batch_norm
from layoutconv.tensors.epilogue_in_torch import activate


@pytest.fixture
def fused_norms(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, bool]]:
    """The batch norms in training that kernels are asked for, and whether something is added;
    operations of torch stand in for kernels.
    """
    found: list[tuple[Any, bool]] = []

    def computed(input: Tensor, module: Any, past: Any, activation: str | None) -> Tensor | None:
        if not module.training:
            return None
        found.append((module, past is not None))
        y = nn.BatchNorm2d.forward(module, input)
        y = y if past is None else y + past
        return y if activation is None else activate(y, activation)

    for room in act_norm, fused_batch_norm:
        monkeypatch.setattr(room, "by_kernels", computed)
    return found


@pytest.fixture
def normalised_by(monkeypatch: pytest.MonkeyPatch) -> Callable[..., list[tuple[Any, ...]]]:
    """A function: every tensor says that it is on a GPU, and the kernels of a module normalise
    none: ``result`` makes what they return of what they are given, which is in the list.
    """

    def stand_in(kernels: ModuleType, result: Callable[..., Any]) -> list[tuple[Any, ...]]:
        found: list[tuple[Any, ...]] = []

        def normalised(*given: Any) -> Any:
            found.append(given)
            return result(*given)

        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(kernels, "normalised", normalised)
        return found

    return stand_in
