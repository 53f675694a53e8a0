"""The kernel that packs lines, in the machine, against torch."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv.packed_channels import LinePacking
from layoutconv.gpu.line_packing import pack_lines
from layoutconv.kernels.pointwise.loaders import packing_vector
from layoutconv.kernels.pointwise.pack_lines import THREADS, build
from tools.ptx_sim import DeviceTensor, Memory, launch_of, run

from .simulated import simulated

# With how many lines: of several CTAs, positions before and behind a line, shorter lines, rows.
PACKINGS = {
    "channels": (LinePacking.resized(3, 4), 2 * THREADS + 5),
    "whole vectors": (LinePacking.resized(5, 16), 50),
    "taps as channels": (LinePacking(27, 5, 6, -3, 9, 16), 11),
    "positions behind the line": (LinePacking(7, 3, 4, -2, 6, 8), 3),
    "shorter": (LinePacking.resized(16, 5), 9),
    "rows of a filter": (LinePacking.resized(3 * 24, 8 * 24), 1),
}


@pytest.mark.parametrize("dtype", [torch.int8, torch.int16, torch.int32], ids=str)
@pytest.mark.parametrize("name", PACKINGS)
@pytest.mark.chessboard
def test_lines_are_packed(name: str, dtype: torch.dtype) -> None:
    packing, lines = PACKINGS[name]
    x = torch.arange(1, lines * packing.length + 1).remainder(120).add(1).to(dtype)
    want = pack_lines(x, packing)
    assert want.view(lines, packing.positions, packing.width)[..., packing.used :].eq(0).all()
    vector = packing_vector(packing.width, x.itemsize)
    function, program = simulated(build, x.itemsize, vector, "sm_80")
    memory, out, ready = Memory(), torch.full_like(want, 77), []
    for tensor, written in ((x, False), (out, True)):
        own = {"writable": written, "output": written}
        address = memory.add(tensor.view(torch.uint8).numpy(), "d" if written else "x", **own)
        dtype_name = str(dtype).removeprefix("torch.")
        ready.append(DeviceTensor(address, tuple(tensor.shape), dtype_name))
    launch = launch_of(program, function, *ready, tuple(packing))
    assert launch.grid == (-(-want.numel() // vector // THREADS), 1, 1)
    run(program, memory, launch.arguments, launch.grid, shared_bytes=launch.shared_bytes)
    assert memory.written(memory.find("d")).all()
    assert torch.equal(out, want)


def test_positions_by_hand() -> None:
    x = torch.arange(1.0, 7).view(1, 6)
    assert pack_lines(x, LinePacking(6, 3, 2, -1, 3, 4)).tolist() == [
        0, 1, 2, 0,
        2, 3, 4, 0,
        4, 5, 6, 0,
    ]  # fmt: skip
    assert pack_lines(x[:0], LinePacking.resized(6, 8)).numel() == 0
