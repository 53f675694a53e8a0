"""Kernel maps of large clouds on a GPU, against sorting and searching with torch."""

from __future__ import annotations

from itertools import product
from math import prod

import pytest
import torch

pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")

from layoutconv.kernels.maps.build_map import HashTable
from layoutconv.kernels.maps.output_coords import reached
from layoutconv.sparse.maps.row_orders import by_taps
from layoutconv.sparse.maps.taps import Taps

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

DEVICE = "cuda"
ROWS = 200_000
# Grids of about 4 cells a row: most taps have a neighbour or two, and none has all.
GRIDS = [(2, 400_000), (2, 650, 620), (2, 40, 100, 101), (3, 12, 20, 30, 41)]


def cloud(grid, seed=0, beyond=0, again=0.0, rows=ROWS):
    """Rows in random order: distinct cells of a grid, or some outside it and some twice."""
    generator = torch.Generator().manual_seed(seed)
    if not beyond and not again:
        keys = torch.randperm(prod(grid), generator=generator)[:rows]
        cells = torch.stack(torch.unravel_index(keys, grid), 1)
    else:
        columns = [torch.randint(-beyond, e + beyond, (rows,), generator=generator) for e in grid]
        cells = torch.stack(columns, 1)
        copies = torch.rand(rows, generator=generator) < again
        source = torch.randint(0, rows, (int(copies.sum()),), generator=generator)
        cells[copies] = cells[source]
    return cells.int().to(DEVICE)


def keys_of(cells, grid):
    """Keys of int64 (..., 1 + rank), -1 outside the grid."""
    extents = torch.tensor(grid, device=cells.device)
    inside = ((cells >= 0) & (cells < extents)).all(-1)
    key = cells[..., 0]
    for axis, extent in enumerate(grid[1:], 1):
        key = key * extent + cells[..., axis]
    return torch.where(inside, key, -1)


def searched(indices, grid, centres, stride, offsets):
    """By a stable sort: of rows of one cell, the first that a search from the left finds."""
    keys, order = torch.sort(keys_of(indices.long(), grid), stable=True)
    index = torch.empty(len(offsets), len(centres), dtype=torch.int32, device=indices.device)
    scale = torch.tensor((1, *stride), device=indices.device)
    for t, offset in enumerate(offsets):
        moved = torch.tensor((0, *offset), device=indices.device)
        wanted = keys_of(centres.long() * scale + moved, grid)
        place = torch.searchsorted(keys, wanted).clamp_(max=len(keys) - 1)
        found = (keys[place] == wanted) & (wanted >= 0)
        index[t] = torch.where(found, order[place], -1).int()
    return index.T


def box(rank, size):
    return list(product(range(-(size // 2), size - size // 2), repeat=rank))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("stride", [1, 2, 3])
def test_search(grid, stride):
    rank = len(grid) - 1
    for beyond, again in ((0, 0.0), (1, 0.2)):
        indices = cloud(grid, 1, beyond, again)
        centres = cloud(tuple(-(-extent // stride) for extent in grid), 2, 2, 0.1)
        offsets = box(rank, 3 if rank < 4 else 2)
        table = HashTable(indices, grid[1:], grid[0])
        got = table.search(centres, (stride,) * rank, offsets)
        assert got.stride() == (1, len(centres))
        assert torch.equal(got, searched(indices, grid, centres, (stride,) * rank, offsets))
        assert (got >= 0).any()


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("beyond", "again"), [(0, 0.0), (1, 0.0), (0, 0.2), (2, 0.2)])
def test_half_of_a_mirrored_filter(grid, beyond, again):
    rank = len(grid) - 1
    indices = cloud(grid, 3, beyond, again)
    offsets = box(rank, 3)
    table = HashTable(indices, grid[1:], grid[0])
    own = table.search_own(offsets)
    assert torch.equal(own, table.search(indices, (1,) * rank, offsets))
    assert torch.equal(own, searched(indices, grid, indices, (1,) * rank, offsets))
    assert own.stride() == (1, len(indices))


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize(("stride", "size", "dilation"), [(1, 3, 1), (2, 3, 1), (1, 3, 3)])
def test_sorted_rows_are_those_of_the_cpu(grid, stride, size, dilation):
    rank = len(grid) - 1
    indices = cloud(grid, 4, 1, 0.1)
    centres = cloud(tuple(-(-extent // stride) for extent in grid), 2, 1)
    offsets = [tuple(dilation * c for c in tap) for tap in box(rank, size)]
    table = HashTable(indices, grid[1:], grid[0])
    index = table.search(centres, (stride,) * rank, offsets)
    want, want_order = by_taps(index.cpu(), (size,) * rank)
    taps = Taps((size,) * rank, tuple(offsets), (stride,) * rank)
    sorted_at_once = table.search_sorted(centres, taps)
    for got, got_order in (sorted_at_once, by_taps(index, (size,) * rank)):
        assert torch.equal(got_order.cpu(), want_order)
        assert torch.equal(got.cpu(), want)
        assert got.stride() == (1, len(centres))


@pytest.mark.parametrize("grid", GRIDS)
def test_status(grid):
    table = HashTable(cloud(grid), grid[1:], grid[0])
    assert table.status.tolist() == [0, 0]
    indices = cloud(grid, 5)
    indices[7] = -1  # padding
    for row, other in ((150_000 % len(indices), 3), (len(indices) - 1, 4)):
        indices[row] = indices[other]
    table = HashTable(indices, grid[1:], grid[0])
    assert table.status.tolist() == [150_000 % len(indices) + 1, 0]
    indices[[199, 1000], 1] = torch.tensor([grid[1], -1], dtype=torch.int32, device=DEVICE)
    assert HashTable(indices, grid[1:], grid[0]).status[1] == 200


@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("stride", "size"), [(1, 3), (2, 3), (2, 2), (3, 2)])
@pytest.mark.parametrize("as_bits", [True, False])
def test_reached(grid, transposed, stride, size, as_bits):
    rank = len(grid) - 1
    indices = cloud(grid, 6, 1, 0.1)
    offsets = box(rank, size)
    factor = stride if transposed else 1
    out = (grid[0], *(-(-extent * factor // (1 if transposed else stride)) for extent in grid[1:]))
    found = []
    for offset in offsets:
        moved = torch.tensor(offset, device=indices.device)
        x = indices[:, 1:].long()
        if transposed:
            y, meets = x * stride + moved, torch.ones(len(x), dtype=torch.bool, device=x.device)
        else:
            y = (x - moved).div(stride, rounding_mode="floor")
            meets = (y * stride + moved == x).all(1)
        found.append(keys_of(torch.cat((indices[:, :1].long(), y), 1)[meets], out))
    keys = torch.cat(found).unique()
    want = torch.stack(torch.unravel_index(keys[keys >= 0], out), 1).int()
    arguments = indices, (stride,) * rank, offsets, out[1:], out[0]
    cells, count = reached(*arguments, transposed=transposed, as_bits=as_bits)
    assert int(count) == len(want)
    assert torch.equal(cells, want)
    for capacity in (len(want) - 1000 % len(want), len(want) + 1000):
        cells, count = reached(*arguments, capacity, transposed=transposed, as_bits=as_bits)
        assert int(count) == len(want)
        kept = min(capacity, len(want))
        assert torch.equal(cells[:kept], want[:kept])
        assert cells[kept:].unique(dim=0).tolist() == [[-1, *[0] * rank]] * (capacity > kept)


def test_bits_of_a_large_grid_are_sorted_keys():
    grid = (2, 90, 1100, 1300)  # 16,000 blocks of bits
    indices = cloud((2, 90, 40, 1300), 12)
    for transposed, capacity in product((False, True), (None, 10**6, 7 * 10**6)):
        arguments = indices, (1, 1, 1), box(3, 3), grid[1:], grid[0], capacity
        found = [
            reached(*arguments, transposed=transposed, as_bits=as_bits) for as_bits in (True, False)
        ]
        for ours, want in zip(*found, strict=True):
            assert torch.equal(ours, want)


def everything(indices, grid, offsets):
    table = HashTable(indices, grid[1:], grid[0])
    coarse = tuple(-(-extent // 2) for extent in grid[1:])
    stride = (2,) * len(coarse)
    cells, count = reached(indices, stride, offsets, coarse, grid[0], len(indices))
    down = table.search(cells, stride, offsets)
    taps = Taps((len(offsets),), tuple(offsets), (1,) * len(coarse))
    sorted_at_once = table.search_sorted(indices, taps)
    return table.status, table.search_own(offsets), cells, count, down, *sorted_at_once


def test_the_same_bits_in_every_run():
    grid = GRIDS[2]
    for again in (0.0, 0.3):
        indices = cloud(grid, 8, 0, again)
        first = everything(indices, grid, box(3, 3))
        for _ in range(10):
            for a, b in zip(everything(indices, grid, box(3, 3)), first, strict=True):
                assert torch.equal(a, b)


def test_nothing_waits_and_a_graph_captures_it():
    grid = GRIDS[2]
    indices = cloud(grid, 9)
    everything(indices, grid, box(3, 3))  # compiles, and copies the offsets
    torch.cuda.set_sync_debug_mode("error")
    try:
        everything(indices, grid, box(3, 3))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = everything(indices, grid, box(3, 3))
    indices.copy_(cloud(grid, 10))
    graph.replay()
    for a, b in zip(captured, everything(indices, grid, box(3, 3)), strict=True):
        assert torch.equal(a, b)


def test_streams_and_replays_wait_for_nobody_else():
    """CTAs wait for each other: those of one call, whatever else the GPU does at that time."""
    grid, taps = GRIDS[2], Taps.centred(3)

    def found(indices):
        table = HashTable(indices, grid[1:], grid[0])
        return *table.search_sorted(indices, taps), table.status

    clouds = [cloud(grid, seed, again=0.1 * seed) for seed in range(3)]
    want = [found(indices) for indices in clouds]
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = found(clouds[0])
    streams = [torch.cuda.Stream() for _ in clouds[1:]]
    torch.cuda.synchronize()
    for _ in range(20):
        got = []
        for stream, indices in zip(streams, clouds[1:], strict=True):
            with torch.cuda.stream(stream):
                got.append(found(indices))
        graph.replay()
        torch.cuda.synchronize()
        for a, b in zip((captured, *got), want, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("rows", [1, 31, 1000, 60_000, 1_200_000])
def test_clouds_of_any_size(rows):
    """Clouds of fewer rows than CTAs, of one chunk for each CTA, and of several."""
    grid = (2, 100, 120, 110)
    indices = cloud(grid, rows, rows=rows)
    table = HashTable(indices, grid[1:], grid[0])
    got = table.search_sorted(indices, Taps.centred(3))
    index = HashTable(indices, grid[1:], grid[0]).search_own(box(3, 3))
    for a, b in zip(got, by_taps(index.cpu(), (3, 3, 3)), strict=True):
        assert torch.equal(a.cpu(), b)


@pytest.mark.parametrize("size", [1 << 12, 1 << 16])
def test_extents_that_are_greater_change_nothing(size):
    """To 2^31 blocks, which is what keys of 32 bits are for, and beyond."""
    grid, offsets = GRIDS[2], box(3, 3)
    indices = cloud(grid, 11, 0, 0.2)
    found = []
    for shape in (grid[1:], (size,) * 3):
        table = HashTable(indices, shape, grid[0])
        found.append((*table.search_sorted(indices, Taps.centred(3)), table.status))
        found[-1] += (HashTable(indices, shape, grid[0]).search_own(offsets),)
    for a, b in zip(*found, strict=True):
        assert torch.equal(a, b)
