"""Offsets beyond 32 bits, in files that are holes but for a few rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.planning.kernel_key import index_buffer, runtime_integers
from layoutconv.planning.tile import TileConfig
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView
from tools.ptx_sim import DeviceTensor, Memory, launch_of, run

from .launcher import compiled_view, integers

C = K = 8
TILE = TileConfig((32, 16, 32), (2, 1), 2)
COUNT = 2**28 + 1000  # rows of 8 fp16: the last ones begin beyond 2^31 elements and 2^32 bytes


@pytest.fixture
def holes(tmp_path: Path) -> list[np.memmap]:
    """Two arrays of zeros, (COUNT, 8), that take no memory."""
    arrays = []
    for name in ("a", "d"):
        path = tmp_path / name
        with path.open("wb") as file:
            file.truncate(COUNT * C * 2)
        arrays.append(np.memmap(path, np.int16, "r+", shape=(COUNT, C)))
    return arrays


def launch(view: GemmView, a: np.ndarray, b: torch.Tensor, d: np.ndarray, last: bool) -> None:
    """Run all CTAs, or only the ``last``; rows of A and D are 8 fp16 as words."""
    memory = Memory()
    buffers = [index_buffer(layout) for layout in (view.a, view.b, view.d)]
    shape = (1, *d.shape) if last else d.shape
    arrays = a, b.view(torch.int16).numpy(), d
    at = [memory.add(array, name) for name, array in zip("abd", arrays, strict=True)]
    tensors = *at[:2], DeviceTensor(at[2], shape, "float16")
    indices = [None if i is None else memory.add(i.numpy()) for i in buffers]
    kernel = compiled_view(view, torch.float16, TILE)
    integers = (1, 0, *runtime_integers(view).values())
    nothing = (None,) * 4
    asked = launch_of(kernel.program, kernel.function, *tensors, *indices, integers, *nothing)
    ctas = [(asked.grid[0] - 1, 0, 0)] if last else None
    run(
        kernel.program, memory, asked.arguments, asked.grid,
        shared_bytes=asked.shared_bytes, ctas=ctas,
    )  # fmt: skip


def words(x: torch.Tensor) -> np.ndarray:
    return x.half().view(torch.int16).numpy()


def halves(x: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.array(x)).view(torch.float16).double()


def test_rows_of_an_index_buffer(holes: list[np.memmap]) -> None:
    a, d = holes
    top, b = integers((500, C), torch.float16, 0), integers((K, 3, C), torch.float16, 1)
    a[-500:] = words(top)
    m = 70
    entries = torch.randint(COUNT - 500, COUNT, (m, 3), dtype=torch.int32)
    scatter = torch.arange(COUNT - m, COUNT, dtype=torch.int32)
    view = kernel_map_view(
        entries, C, K, kernel_size=(3,), in_rows=COUNT, scatter_index=scatter, out_rows=COUNT
    )
    launch(view, a, b, d, last=False)
    read = top.double()[entries.long() - (COUNT - 500)]
    want = torch.einsum("mtc,ktc->mk", read, b.double())
    assert torch.equal(halves(d[-m:]), want)
    assert not d[-m - 100 : -m].any()


def test_cells_of_a_dense_tensor(holes: list[np.memmap]) -> None:
    a, d = holes
    top, b = integers((500, C), torch.float16, 0), integers((K, 3, C), torch.float16, 1)
    a[-500:] = words(top)
    view = fprop_view(ConvProblem((1, COUNT, C), (K, 3), padding=1))
    launch(view, a, b, d, last=True)
    rows = COUNT % TILE.m or TILE.m
    padded = torch.nn.functional.pad(top.double().T, (0, 1))[:, -rows - 2 :]
    want = torch.einsum("cwt,ktc->wk", padded.unfold(1, 3, 1), b.double())
    assert torch.equal(halves(d[-rows:]), want)
    assert not d[-rows - 100 : -rows].any()
