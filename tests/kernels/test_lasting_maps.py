"""CTAs that compute several tiles of a kernel map, one after the other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from math import prod
from typing import Any

import cutlass.cute as cute
import pytest
import torch
from layoutconv.kernels import ahead
from layoutconv.kernels.ahead import Ahead
from layoutconv.kernels.lasting_maps import rounds
from layoutconv.kernels.mainloop_sm90 import MainloopSm90
from layoutconv.kernels.tile import REGISTERS, Tile
from layoutconv.kernels.tune import MACHINES

from layoutconv.epilogue import Activation, Bias, Epilogue, Residual, Scale
from layoutconv.gemm_view import GemmView
from layoutconv.sparse import kernel_map_view, tile_taps

from ..machine import Fault, read_cubin
from .launcher import (
    Case,
    check_exact,
    compile_view,
    compiled_view,
    integers,
    poisoned,
    reference,
    run_case,
    storage,
)

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TILE = Tile(64, 64, 64, 4, 1, 2, 128, lasting=True)
PAIR = replace(TILE, m=128, warps_m=8, stages=3)  # of warpgroups


def map_view(
    rows: int, C: int, K: int, taps: tuple[int, ...] = (3, 3, 3), *, scattered: bool = True
) -> GemmView:
    """Over a kernel map whose rows have a few taps, 32 neighbours the same ones; 70 in the middle
    have none."""
    generator = torch.Generator().manual_seed(rows)
    index = torch.randint(0, rows, (prod(taps), rows), generator=generator, dtype=torch.int32)
    there = torch.rand(prod(taps), -(-rows // 32), generator=generator) < 4 / prod(taps)
    index[~there.repeat_interleave(32, dim=1)[:, :rows]] = -1
    index[:, 60:130] = -1
    order = torch.randperm(rows, generator=generator).int() if scattered else None
    return kernel_map_view(index.T, C, K, kernel_size=taps, scatter_index=order)


# With how many CTAs run at once, how many there are then, and how many tiles.
RUN: dict[str, tuple[GemmView, torch.dtype, Tile, int, int, int]] = {
    "one CTA after the other": (map_view(290, 64, 64), F16, TILE, 1, 3, 5),
    "two at once": (map_view(420, 64, 64), BF16, TILE, 2, 5, 7),
    "warpgroups that leave out taps": (map_view(500, 64, 64), F16, PAIR, 1, 3, 4),
    "columns of several tiles": (map_view(170, 64, 136), F16, TILE, 1, 3, 9),
    "columns that end within a tile": (map_view(200, 64, 40), F16, TILE, 1, 3, 4),
    "several k-tiles of a tap": (map_view(270, 128, 64), F16, replace(TILE, stages=3), 1, 3, 5),
    "half lines": (map_view(290, 32, 32), F16, replace(TILE, n=32, k=32, stages=5), 1, 3, 5),
    "taps of several words": (map_view(200, 32, 32, (5, 3, 5)), F16, replace(TILE, n=32, k=32),
                              1, 3, 4),
    "rows in their order": (map_view(290, 64, 64, scattered=False), F16, TILE, 1, 3, 5),
    "a warpgroup of more rows": (
        map_view(500, 32, 32), F16, replace(PAIR, n=32, k=32, warps_m=4), 1, 3, 4
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", RUN)
def test_what_is_multiplied(name: str) -> None:
    view, dtype, tile, most, ctas, tiles = RUN[name]
    compiled = compiled_view(view, dtype, tile, "sm_90a", skip=True)
    case = Case.of(view, dtype)
    ran = run_case(case, compiled, most=most)
    check_exact(case, ran)
    assert -(-view.m // tile.m) * -(-view.n // tile.n) == tiles
    assert ran.launch.grid == (ctas, 1, 1)
    assert ran.launch.shared_bytes == compiled.spec.shared_bytes


def test_taps_that_a_warpgroup_lacks_are_left_out() -> None:
    view, dtype, tile, most, *_ = RUN["warpgroups that leave out taps"]
    case = Case.of(view, dtype)
    ran = run_case(case, compiled_view(view, dtype, tile, "sm_90a", skip=True), most=most)
    plain = replace(tile, lasting=False)
    same = run_case(case, compiled_view(view, dtype, plain, "sm_90a", skip=True))

    def products(run: Any) -> int:
        opcodes = run.stats.opcodes.items()
        return sum(count for name, count in opcodes if name.startswith("wgmma.mma_async"))

    assert products(ran) == products(same)


EPILOGUES = {
    "bias and relu": lambda K: Epilogue((Bias(integers((K,), F32, 2)), Activation("relu"))),
    "scales": lambda K: Epilogue((Scale(integers((K,), F16, 3)), Scale(0.5))),
}


@pytest.mark.parametrize("name", EPILOGUES)
def test_steps_of_an_epilogue(name: str) -> None:
    view = map_view(290, 64, 40)
    case = Case.of(view, F16)
    plain, written = reference(case)
    case.epilogue = EPILOGUES[name](view.n)
    compiled = compiled_view(view, F16, TILE, "sm_90a", skip=True, epilogue=case.epilogue.structure)
    ran = run_case(case, compiled, most=1)
    (column,) = (c.double() for c in case.epilogue.columns)
    want = (plain + column).relu() if name == "bias and relu" else plain * column * 0.5
    assert bool(written.all())
    assert torch.equal(ran.out, want.to(F16))


@pytest.mark.parametrize("epilogue", ["", "bias:float32 relu"])
def test_nothing_spills(epilogue: str) -> None:
    """Of the largest tile: registers and shared memory of a multiprocessor are enough."""
    tile = Tile(128, 256, 64, 8, 1, 4, 128, lasting=True)
    compiled = compile_view(map_view(999, 256, 256), F16, tile, "sm_90a", skip=True,
                            epilogue=epilogue)  # fmt: skip
    (kernel,) = read_cubin(compiled.cubin).values()
    assert (kernel.stack, kernel.opcodes["LDL"], kernel.opcodes["STL"]) == (0, 0, 0)
    assert tile.launched * -(-kernel.registers // 8) * 8 <= REGISTERS
    assert kernel.static_shared + compiled.spec.shared_bytes <= MACHINES["sm_90a"].shared_per_block


# -- how tiles are dealt out -----------------------------------------------------------------------
