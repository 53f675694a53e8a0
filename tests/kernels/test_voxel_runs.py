"""The kernel that makes runs over voxels, in the machine, against torch."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv import ConvProblem
from layoutconv.conv.k_major_wgrad import KMajorWgrad, VoxelRuns, k_major_wgrads
from layoutconv.gpu.k_major_copy import runs_of
from layoutconv.gpu.voxel_runs import voxel_runs
from layoutconv.kernels.pointwise.voxel_runs import SIDE, build
from tools.ptx_sim import DeviceTensor, Memory, launch_of, run

from .simulated import simulated

PROBLEMS = [
    ConvProblem((2, 9, 20), (8, 3), padding=1),
    ConvProblem((3, 5, 7, 68), (132, 3, 2), stride=(1, 2), padding=((1, 0), 2), dilation=(1, 2)),
    ConvProblem((1, 4, 3, 6, 4), (72, 2, 3, 3), padding=1),
    ConvProblem((2, 3, 5, 4, 12), (4, 1, 3, 1), stride=(2, 1, 1)),
]


FILTERS = [(72, 3, 3, 12), (8, 1, 132)]


def every() -> list[VoxelRuns]:
    found: list[KMajorWgrad] = [each for p in PROBLEMS for each in k_major_wgrads(p)]
    of_filters = [runs for shape in FILTERS if (runs := runs_of(shape)) is not None]
    return list(dict.fromkeys([*(how for each in found for how in (each.a, each.b)), *of_filters]))


@pytest.mark.parametrize("how", every(), ids=lambda r: f"{r.source}-{r.taps}-{r.runs}")
@pytest.mark.chessboard
def test_runs_are_those_of_torch(how: VoxelRuns) -> None:
    function, program = simulated(build, "sm_80")
    x = torch.arange(1.0, 1 + torch.Size(how.source).numel()).view(how.source)
    want = voxel_runs(x, how)
    memory, out, ready = Memory(), torch.full_like(want, 77), []
    for tensor, written in ((x, False), (out, True)):
        own = {"writable": written, "output": written}
        address = memory.add(tensor.view(-1).numpy(), "d" if written else "x", **own)
        ready.append(DeviceTensor(address, (tensor.numel(),), "float32"))
    launch = launch_of(program, function, *ready, how.numbers)
    runs, C, taps, width = how.shape
    assert launch.grid == (-(-(runs * width) // SIDE) * taps, -(-C // SIDE), 1)
    run(program, memory, launch.arguments, launch.grid, shared_bytes=launch.shared_bytes)
    assert memory.written(memory.find("d")).all()
    assert torch.equal(out, want)
