"""Numbers of columns are loaded before the last products are waited for, and held."""

from __future__ import annotations

from typing import Any

import cutlass.cute as cute
import pytest
import torch

from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.kernels.gemm.epilogue.held_columns import HeldColumns
from layoutconv.planning.schedule import KernelSchedule
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.view.epilogue import Bias, Epilogue, Scale

from .launcher import Case, compile_view, run_case
from .mutations import replace
from .test_epilogue import check, numbers
from .tiles import retiled

F16 = torch.float16
TWO_TILES = fprop_view(
    ConvProblem((2, 9, 9, 64), (136, 1, 1))
)  # of columns, the second part-filled
TILE = persistent((64, 128, 64), (4, 1), 2)
KINDS = {
    "a tile each": specialized((64, 128, 64), (4, 1), 3),
    "persistent": TILE,
    "ping-pong": retiled(TILE, n=64, schedule=KernelSchedule.PINGPONG, stages=3),
    "multistage": TileConfig((64, 128, 32), (2, 2), 3),
}
WAIT = {"multistage": "cp.async.wait_group"}


def case_of(*steps: Any) -> Case:
    case = Case.of(TWO_TILES, F16)
    case.epilogue = Epilogue(steps)
    return case


def compiled_of(case: Case, tile: TileConfig) -> Any:
    arch = "sm_90a" if tile.warp_specialized else "sm_80"
    return compile_view(TWO_TILES, F16, tile, arch, epilogue=case.epilogue.structure)


@pytest.mark.parametrize("name", KINDS)
def test_a_bias_is_loaded_before_the_last_wait(name: str) -> None:
    case = case_of(Bias(numbers(136)))
    compiled = compiled_of(case, KINDS[name])
    lines = compiled.ptx.splitlines()
    waits = WAIT.get(name, "wgmma.wait_group.sync.aligned")
    last = max(at for at, line in enumerate(lines) if waits in line)
    loads = [at for at, line in enumerate(lines) if "ld.global.b32" in line]
    held = [at for at in loads if at < last]
    assert len(held) >= 16, (len(held), len(loads))
    assert not [at for at in loads if at > last]
    check(case, run_case(case, compiled, **({"most": 1} if KINDS[name].persistent else {})))


def test_more_than_there_are_registers_for_is_loaded_behind_it() -> None:
    case = case_of(Bias(numbers(136)), Scale(2.0 ** numbers(136).clamp(-1, 1)))
    compiled = compiled_of(case, KINDS["a tile each"])
    lines = compiled.ptx.splitlines()
    last = max(at for at, line in enumerate(lines) if "wgmma.wait_group" in line)
    assert [at for at, line in enumerate(lines) if "ld.global.b32" in line and at > last]
    check(case, run_case(case, compiled))


@pytest.mark.parametrize("name", ["persistent", "ping-pong"])
def test_columns_of_another_tile_are_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def of_the_first(fetch: Any) -> Any:
        return lambda self, n0, at: fetch(self, cute.arch.block_idx()[1], at)

    replace(HeldColumns, "fetch", of_the_first)(monkeypatch)
    case = case_of(Bias(numbers(136)))
    with pytest.raises(AssertionError):
        check(case, run_case(case, compiled_of(case, KINDS[name]), most=1))
