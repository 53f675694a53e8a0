"""A layer over a cloud in chunks is the layer over the cloud."""

from __future__ import annotations

import io
from contextlib import redirect_stderr

import numpy as np
import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.sparse import Chunks, SparseTensor, morton_order
from layoutconv.sparse.stream.staging import Staging


def cloud(rank=3, rows=400, seed=0):
    """Cells in no order, a third of a grid of two images, and features of 4 channels."""
    generator = torch.Generator().manual_seed(seed)
    edge = round((3 * rows / 2) ** (1 / rank)) + 1
    shape = tuple(edge + axis for axis in range(rank))
    every = torch.cartesian_prod(torch.arange(2), *map(torch.arange, shape)).int()
    cells = every[torch.randperm(len(every), generator=generator)[:rows]]
    return torch.randn(rows, 4, dtype=torch.float64, generator=generator), cells, shape


LAYERS = {
    "3d": (3, lambda: lc.nn.SubmConv3d(4, 6, 3)),
    "dilated": (3, lambda: lc.nn.SubmConv3d(4, 6, 3, dilation=2, bias=False, activation="relu")),
    "even": (3, lambda: lc.nn.SubmConv3d(4, 6, (2, 3, 4), activation="gelu")),
    "offsets": (3, lambda: lc.nn.SubmConv3d(4, 6, offsets=[(0, 0, 1), (3, -2, 0), (0, 0, 0)])),
    "groups": (3, lambda: lc.nn.SubmConv3d(4, 6, 3, groups=2)),
    "depthwise": (3, lambda: lc.nn.SubmConv3d(4, 4, 3, groups=4)),
    "1d": (1, lambda: lc.nn.SubmConv1d(4, 6, 5)),
    "2d": (2, lambda: lc.nn.SubmConv2d(4, 6, 3)),
    "4d": (4, lambda: lc.nn.SubmConv4d(4, 6, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_in_chunks_is_the_layer(name):
    rank, make = LAYERS[name]
    x, cells, shape = cloud(rank)
    torch.manual_seed(0)
    layer = make().double()
    want = layer(SparseTensor(x, cells, shape, 2)).features.detach()
    for max_rows in (37, 400, 10**6):
        got = lc.nn.stream(layer, x, Chunks(cells, shape, 2, max_rows=max_rows))
        torch.testing.assert_close(got, want)
        assert not got.requires_grad


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_files_go_in_and_out(tmp_path, dtype):
    x, cells, shape = cloud()
    order = morton_order(cells)
    x, cells = x[order].to(dtype), cells[order]
    np.save(tmp_path / "x.npy", x.numpy())
    np.save(tmp_path / "cells.npy", cells.numpy())
    read = {"mmap_mode": "r"}
    features, places = (np.load(tmp_path / f"{name}.npy", **read) for name in ("x", "cells"))
    kind = np.float16 if dtype == torch.float16 else np.float32
    out = np.lib.format.open_memmap(tmp_path / "y.npy", "w+", kind, (len(x), 6))
    layer = lc.nn.SubmConv3d(4, 6, 3).to(dtype)
    chunks = Chunks(places, shape, 2, max_rows=64)
    assert chunks.order is None
    lc.nn.stream(layer, features, chunks, out=out)
    out.flush()
    want = layer(SparseTensor(x, cells, shape, 2)).features.detach()
    torch.testing.assert_close(torch.from_numpy(np.load(tmp_path / "y.npy")), want)


@pytest.mark.parametrize("inference", [False, True])
@pytest.mark.parametrize("ordered", [False, True])
def test_rows_go_through_pieces_and_bits_are_those_of_the_layer(staged, ordered, inference):
    """As on a GPU, through memory of the pieces that it has there, but not pinned."""
    through = staged(Staging("cpu", 3, staged=True, piece_bytes=(100, 400)))
    x, cells, shape = cloud()
    if ordered:
        cells = cells[morton_order(cells)]
    x = x.mul(100).round()
    layer = lc.nn.SubmConv3d(4, 6, 3).double()
    with torch.no_grad():  # sums of integers: the same in any order
        for parameter in layer.parameters():
            parameter.mul_(100).round_()
    want = layer(SparseTensor(x, cells, shape, 2)).features.detach()
    with torch.inference_mode(inference):
        for max_rows in (37, 150, 400):
            chunks = Chunks(cells, shape, 2, max_rows=max_rows)
            assert (chunks.order is None) is (ordered or max_rows == 400)
            assert torch.equal(lc.nn.stream(layer, x, chunks), want)
    assert 1 <= len(through.pieces.made) <= through.pieces.most
    assert max(piece.memory.numel() for piece in through.pieces.made) <= 512


def test_nobody_writes_behind_a_failure(staged):
    alive, made = [], []

    class Watched(Staging):
        def to_host(self, *arguments):
            tasks = super().to_host(*arguments)
            alive.extend(tasks)
            return tasks

    class Failing(lc.nn.SubmConv3d):
        def forward(self, *arguments, **options):
            made.append(1)
            if len(made) == 3:
                raise RuntimeError("the third chunk")
            return super().forward(*arguments, **options)

    staged(Watched("cpu", 3, piece_bytes=(1000, 1000)))  # several, or threads have nothing to do
    x, cells, shape = cloud()
    chunks, layer = Chunks(cells, shape, 2, max_rows=100), Failing(4, 6, 3).double()
    out = torch.zeros(400, 6, dtype=torch.float64)
    with pytest.raises(RuntimeError, match="the third chunk"):
        lc.nn.stream(layer, x, chunks, out=out)
    assert alive
    assert all(task.done() for task in alive)


def test_nothing_in_nothing_out():
    x, cells, shape = cloud()
    layer = lc.nn.SubmConv3d(4, 6, 3).double()
    assert lc.nn.stream(layer, x[:0], Chunks(cells[:0], shape, 2)).shape == (0, 6)


def test_a_terminal_shows_how_far_it_is():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    x, cells, shape = cloud()
    layer, chunks = lc.nn.SubmConv3d(4, 6, 3).double(), Chunks(cells, shape, 2, max_rows=100)
    for progress in (True, False):
        with redirect_stderr(Terminal()) as terminal:
            lc.nn.stream(layer, x, chunks, progress=progress)
        assert ("200/400" in terminal.getvalue()) is progress


def test_what_does_not_fit_is_said():
    x, cells, shape = cloud()
    chunks = Chunks(cells, shape, 2)
    layer = lc.nn.SubmConv3d(4, 6, 3).double()
    for name, error, call in (
        ("layer", ArgumentTypeError, lambda: lc.nn.stream(torch.nn.Linear(4, 6), x, chunks)),
        ("layer", ArgumentError, lambda: lc.nn.stream(lc.nn.SubmConv2d(4, 6, 3), x, chunks)),
        ("chunks", ArgumentTypeError, lambda: lc.nn.stream(layer, x, cells)),
        ("features", ArgumentTypeError, lambda: lc.nn.stream(layer, x.float(), chunks)),
        ("features", ArgumentError, lambda: lc.nn.stream(layer, x[1:], chunks)),
        ("features", ArgumentTypeError, lambda: lc.nn.stream(layer, x.tolist(), chunks)),
        ("out", ArgumentError, lambda: lc.nn.stream(layer, x, chunks, out=x)),
    ):
        with pytest.raises(error, match=f"argument `{name}`"):
            call()
    square = lc.nn.SubmConv3d(4, 4, 3).double()
    with pytest.raises(
        ArgumentError, match="argument `out`: expected memory that does not overlap the features"
    ):
        lc.nn.stream(square, x, chunks, out=x)
