"""A cloud that is streamed through a GPU has the bits of the layer on the whole of it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import layoutconv as lc
from layoutconv.errors import ArgumentError
from layoutconv.sparse import Chunks, SparseTensor, morton_order
from layoutconv.sparse.stream import staging

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

SHAPE = (24, 30, 28)
CHANNELS = 16


def cloud():
    """About 6,000 cells in any order; integers, whose sums are exact in fp16 in every order."""
    generator = torch.Generator().manual_seed(0)
    cells = (torch.rand(3, *SHAPE, generator=generator) < 0.1).nonzero().int()
    cells = cells[torch.randperm(len(cells), generator=generator)]
    return torch.randint(-3, 4, (len(cells), CHANNELS), generator=generator).half(), cells


def layer_and_result(x, cells):
    layer = lc.nn.SubmConv3d(CHANNELS, CHANNELS, 3, device="cuda", dtype=torch.float16)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.copy_(torch.randint(-1, 2, parameter.shape, generator=generator))
        whole = SparseTensor(x.cuda(), cells.cuda(), SHAPE, 3)
        return layer, layer(whole).features.cpu()


@pytest.mark.parametrize("max_rows", [500, 1700, 10**5])
@pytest.mark.parametrize("given", ["in any order", "in order", "pinned", "to pinned"])
def test_bits_are_those_of_the_layer(given, max_rows, staged):
    staged(staging.Staging("cuda:0", 4, piece_bytes=(1 << 12, staging.PIECE_BYTES[1])))
    x, cells = cloud()
    out = torch.full((len(x), CHANNELS), torch.nan, dtype=torch.float16)
    if given != "in any order":
        order = morton_order(cells)
        x, cells = x[order], cells[order]
    if given == "pinned":
        x, cells = x.pin_memory(), cells.pin_memory()
    if given == "to pinned":
        out = out.pin_memory()
    layer, want = layer_and_result(x, cells)
    for _ in range(3):
        chunks = Chunks(cells, SHAPE, 3, max_rows=max_rows, device="cuda")
        assert torch.equal(lc.nn.stream(layer, x, chunks, out=out.fill_(torch.nan)), want)


@pytest.mark.parametrize("max_rows", [500, 10**5])
def test_what_is_wrong_with_cells_is_said(max_rows):
    _, cells = cloud()
    for wrong, said in (((0, 0, 30, 0), "in row 70"), (cells[7].tolist(), "in rows 7 and 70")):
        bad = cells.clone()
        bad[70] = torch.tensor(wrong)
        with pytest.raises(ArgumentError, match=f"argument `coords`: .* {said}"):
            Chunks(bad, SHAPE, 3, max_rows=max_rows, device="cuda")


def test_streams_and_threads_side_by_side():
    x, cells = cloud()
    layer, want = layer_and_result(x, cells)

    def run(number):
        with torch.cuda.stream(torch.cuda.Stream()):
            chunks = Chunks(cells, SHAPE, 3, max_rows=1000 + number, device="cuda")
            return lc.nn.stream(layer, x, chunks)

    torch.cuda.synchronize()
    with ThreadPoolExecutor(4) as threads:
        for got in threads.map(run, range(12)):
            assert torch.equal(got, want)


def test_pinned_memory_is_bounded_and_kept():
    x, cells = cloud()
    layer, _ = layer_and_result(x, cells)
    pieces = staging.staging("cuda").pieces
    for _ in range(2):
        lc.nn.stream(layer, x, Chunks(cells, SHAPE, 3, max_rows=700, device="cuda"))
    assert 1 <= len(pieces.made) <= pieces.most
    assert all(piece.memory.is_pinned() for piece in pieces.made)
    assert all(piece.memory.numel() <= staging.PIECE_BYTES[1] for piece in pieces.made)
    assert staging.staging("cuda").pieces is pieces
