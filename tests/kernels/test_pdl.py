"""Programmatic dependent launch: kernels wait for their predecessor before they touch memory."""

from __future__ import annotations

import re

import pytest
import torch

from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView

from .launcher import Compiled, compiled_view
from .test_skip import kernel_map

MEMORY = r"(ld|st|red|atom)\.(\w+\.)*global|cp\.async\.c[ag]|cp\.async\.bulk"
WAIT, START = "griddepcontrol.wait", "griddepcontrol.launch_dependents"

INDEX = kernel_map(150, 9, 0.5)
PROBLEM = ConvProblem((2, 9, 9, 64), (64, 3, 3), padding=1)
HOPPER, AMPERE = specialized((64, 64, 64), (4, 1), 3), TileConfig((64, 64, 64), stages=2)
CASES: dict[str, tuple[GemmView, TileConfig]] = {
    "fprop": (fprop_view(PROBLEM), HOPPER),
    "wgrad": (wgrad_view(PROBLEM), HOPPER),
    "kernel map": (kernel_map_view(INDEX, 64, 64, kernel_size=(3, 3), in_rows=150), HOPPER),
    "mma.sync": (fprop_view(PROBLEM), AMPERE),
}


def compiled(name: str, arch: str) -> Compiled:
    view, tile = CASES[name]
    return compiled_view(view, torch.float16, tile, arch)


@pytest.mark.parametrize("name", CASES)
def test_memory_is_touched_after_the_wait(name: str) -> None:
    ptx = compiled(name, "sm_90a").ptx
    first = re.search(MEMORY, ptx)
    assert first is not None
    assert ptx.count(WAIT) == ptx.count(START) == 1
    assert ptx.index(WAIT) < first.start() < ptx.index(START)


def test_an_ampere_has_no_dependents() -> None:
    assert "griddepcontrol" not in compiled("mma.sync", "sm_80").ptx
