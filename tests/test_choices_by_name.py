"""Arguments that are one of some names: an array, a list, a dict or another name is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import layoutconv as lc
from layoutconv.base.devices import choose_device
from layoutconv.compat.spconv.pytorch.weights import to_krsc
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.errors import ArgumentError
from layoutconv.gpu.explain import explain
from layoutconv.sparse import NuScenes, ScanNet, SemanticKitti, SparseTensor

CLOUD = SparseTensor.from_dense(torch.ones(1, 2, 2, 2, 1))
IMAGE, FILTER = torch.ones(1, 2, 4, 4), torch.ones(2, 2, 3, 3)
VIEW = fprop_view(ConvProblem((1, 4, 4, 8), (8, 3, 3)))
POINTS = torch.rand(5, 3)
CALLS: dict[str, tuple[str, Callable[[Any], object]]] = {
    "conv2d": ("activation", lambda x: lc.conv2d(IMAGE, FILTER, activation=x)),
    "SubmConv3d": ("activation", lambda x: lc.nn.SubmConv3d(1, 1, 3, activation=x)),
    "sparse_global_pool": ("mode", lambda x: lc.nn.sparse_global_pool(CLOUD, x)),
    "reduce_cells": ("reduction", lambda x: lc.nn.reduce_cells(torch.ones(8), CLOUD, x)),
    "voxelize": ("reduce", lambda x: lc.voxelize(POINTS, 0.5, reduce=x)),
    "explain": ("arch", lambda x: explain(VIEW, torch.float16, x)),
    "precompile": ("arch", lambda x: lc.precompile(print, arch=x)),
    "render": ("format", lambda x: lc.draw(lc.Layout(4)).render(x)),
    "to_krsc": ("layout", lambda x: to_krsc(torch.ones(1, 1, 1, 1, 1), x)),
    "choose_device": ("device", choose_device),
    "SemanticKitti": ("split", lambda x: SemanticKitti(".", x)),
    "ScanNet": ("split", lambda x: ScanNet(".", x)),
    "NuScenes": ("split", lambda x: NuScenes(".", x)),
}


@pytest.mark.parametrize("wrong", [np.zeros(2), ["max"], {}, "nonsense"], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_what_is_none_of_the_names_is_refused(name: str, wrong: Any) -> None:
    argument, call = CALLS[name]
    with pytest.raises(ArgumentError, match=f"^argument `{argument}`: expected .*, got "):
        call(wrong)


@pytest.mark.parametrize("place", ["body", "past", "activation"])
def test_a_residual_is_made_of_modules(place: str) -> None:
    modules = {"body": torch.nn.Identity(), place: torch.ones(1)}
    with pytest.raises(ArgumentError, match=f"`{place}`: expected a torch.nn.Module, got Tensor"):
        lc.nn.Residual(**modules)  # type: ignore[arg-type]
