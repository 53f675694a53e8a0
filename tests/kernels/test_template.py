"""The template run in the machine, on problems that are awkward rather than large."""

from __future__ import annotations

import re
from itertools import groupby
from typing import Any

import pytest
import torch

from layoutconv import ComposedLayout, CustomStride, E, IndexedGather, Layout
from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view, wgrad_view
from layoutconv.kernels.gemm import mainloop_sm80
from layoutconv.kernels.gemm.mainloop_sm80 import MainloopSm80
from layoutconv.planning.tile import TileConfig
from layoutconv.planning.tile_table import FAMILY
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView, through_coordinates
from layoutconv.view.operands import row_major

from ..grid_cover import with_deep
from .launcher import (
    DTYPES,
    check_view_runs,
    compile_view,
    compiled_apart,
    dtype_name,
    half_line,
)
from .mutations import check_fault, put
from .mutations import replace as mutated

each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)

# (m, n, half lines of k, warps_m, warps_n, stages): the family in small, so that a small problem
# has many CTAs.
SMALL = [(64, 64, 1, 4, 2, 3), (32, 64, 2, 1, 4, 2), (32, 16, 1, 1, 1, 4), (64, 32, 2, 4, 1, 3)]


def small_tile(number: int, dtype: torch.dtype) -> TileConfig:
    m, n, lines, warps_m, warps_n, stages = SMALL[number % len(SMALL)]
    return TileConfig((m, n, lines * half_line(dtype)), (warps_m, warps_n), stages)


def rows(count: int, entries: int, seed: int, absent: float = 0.25) -> torch.Tensor:
    """An index of distinct rows in random order, -1 in places."""
    generator = torch.Generator().manual_seed(seed)
    index = torch.randperm(count, generator=generator)[:entries].int()
    return index.masked_fill(torch.rand(entries, generator=generator) < absent, -1)


DENSE = {
    "1-D": ConvProblem((3, 29, 16), (24, 3), padding=1),
    "2-D": ConvProblem((2, 7, 5, 24), (8, 3, 3), padding=1),
    "3-D": ConvProblem((2, 3, 5, 4, 8), (16, 3, 3, 3), padding=1),
    "no padding": ConvProblem((2, 6, 7, 40), (16, 2, 3)),
    "one tap": ConvProblem((5, 17, 8), (8, 1)),
    "near and far differ": ConvProblem((2, 5, 4, 16), (8, 3, 3), padding=((2, 0), (0, 3))),
    "padding beyond the filter": ConvProblem((1, 3, 4, 8), (24, 2, 3), padding=(4, (5, 3))),
    "stride": ConvProblem((2, 9, 8, 16), (16, 3, 3), stride=(2, 3), padding=1),
    "stride beyond the filter": ConvProblem((2, 11, 9, 8), (8, 2, 1), stride=(4, 5)),
    "dilation": ConvProblem((2, 9, 7, 24), (8, 3, 2), dilation=(2, 3), padding=(2, 1)),
    "all of it": ConvProblem(
        (2, 5, 7, 4, 8), (24, 3, 2, 3), (2, 3, 1), ((1, 0), 2, (0, 4)), (1, 3, 2)
    ),
    "k-tiles that straddle taps": ConvProblem((1, 13, 40), (72, 3), padding=1),
    "blocks of channels": ConvProblem((1, 33, 128), (8, 3), padding=1),
    "whole lines of channels": ConvProblem((1, 5, 7, 64), (24, 2, 2), padding=1),
    "columns beyond the tile": ConvProblem((1, 35, 16), (72, 3), padding=((1, 0),)),
    "32 taps": ConvProblem((1, 5, 9, 8), (8, 4, 8), padding=(2, 3)),
    "35 taps": ConvProblem((1, 6, 8, 8), (8, 5, 7), padding=2),
    "64 taps": ConvProblem((1, 4, 4, 4, 8), (8, 4, 4, 4), padding=(2, 1, (1, 2))),
    "125 taps": ConvProblem((1, 2, 3, 5, 8), (16, 5, 5, 5), padding=2),
    "70 taps in a row": ConvProblem((1, 50, 8), (8, 70), padding=((30, 11),)),
    "digits of taps": ConvProblem(
        (1, 2, 3, 4, 8), (8, 3, 5, 6), (1, 2, 1), ((2, 1), 3, (5, 3)), (1, 1, 2)
    ),
    "a tap of 1": ConvProblem((2, 3, 1, 9, 8), (8, 1, 7, 11), padding=(0, 4, 5)),
    "one pixel": ConvProblem((1, 1, 1, 1, 8), (8, 3, 3, 3), padding=1),
}


DEEP = [
    "2-D", "3-D", "no padding", "near and far differ", "stride", "dilation",
    "k-tiles that straddle taps", "columns beyond the tile", "70 taps in a row", "a tap of 1",
]  # fmt: skip


@pytest.mark.parametrize("name", with_deep(DENSE, *DEEP))
def test_dense(name: str) -> None:
    number = list(DENSE).index(name)
    dtype = DTYPES[number % 3]
    check_view_runs(fprop_view(DENSE[name]), dtype, small_tile(number, dtype))


@pytest.mark.parametrize("C", with_deep([4, 12, 20], 20))
def test_fp32_has_vectors_of_four(C: int) -> None:
    view = fprop_view(ConvProblem((2, 5, 7, C), (C, 3, 3), padding=1))
    check_view_runs(view, torch.float32, small_tile(C // 4, torch.float32))


def grid(problem: ConvProblem, gather: bool, scatter: bool, seed: int = 0) -> GemmView:
    """A grid whose cells lie in random order, some absent; tensors have rows that none names."""
    cells, outputs = (
        torch.Size(extents[:-1]).numel() for extents in (problem.activation, problem.output)
    )
    return gather_fprop_view(
        problem,
        rows(cells + 3, cells, seed) if gather else None,
        rows(outputs + 5, outputs, seed + 1) if scatter else None,
        in_rows=cells + 3 if gather else None,
        out_rows=outputs + 5 if scatter else None,
    )


GRIDS = {
    "1-D": ConvProblem((2, 31, 24), (16, 3), padding=1),
    "2-D": ConvProblem((2, 5, 7, 16), (72, 3, 2), stride=(1, 2), padding=((2, 0), 1)),
    "3-D": ConvProblem((1, 4, 3, 5, 8), (24, 3, 3, 3), padding=1, dilation=(1, 1, 2)),
    "no padding": ConvProblem((2, 4, 6, 4, 64), (8, 2, 3, 2)),
    "75 taps": ConvProblem((1, 3, 4, 3, 8), (8, 3, 5, 5), padding=2),
}


@pytest.mark.parametrize("name", with_deep(GRIDS, "1-D", "3-D"))
def test_grid(name: str) -> None:
    number = list(GRIDS).index(name) + 1
    dtype = DTYPES[number % 3]
    check_view_runs(grid(GRIDS[name], True, True), dtype, small_tile(number, dtype))


@pytest.mark.parametrize("name", with_deep(GRIDS, "no padding", "75 taps"))
@pytest.mark.parametrize("gather", [True, False], ids=["gather", "scatter"])
@pytest.mark.chessboard
def test_grid_with_one_index(name: str, gather: bool) -> None:
    number = list(GRIDS).index(name) + gather
    dtype = DTYPES[number % 3]
    check_view_runs(grid(GRIDS[name], gather, not gather), dtype, small_tile(number, dtype))


def kernel_map(m: int, taps: int, in_rows: int, seed: int = 0, absent: float = 0.4) -> Any:
    generator = torch.Generator().manual_seed(seed)
    entries = torch.randint(0, in_rows, (m, taps), generator=generator, dtype=torch.int32)
    entries.masked_fill_(torch.rand(m, taps, generator=generator) < absent, -1)
    entries[m // 2 : m // 2 + 3] = -1  # rows without any neighbour: zeros are written
    return entries


ORDERS = {
    "tap-major": lambda e: e.T.contiguous().T,
    "row-major": lambda e: e.contiguous(),
    "rows of a larger map": lambda e: torch.nn.functional.pad(e.T, (0, 5))[:, : len(e)].T,
    "every other row": lambda e: e.repeat_interleave(2, 0)[::2],
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(
    ("C", "K", "taps"), [(16, 24, (2, 3, 3)), (40, 8, (3,)), (64, 72, (1, 3)), (8, 8, (5, 5, 3))]
)
@pytest.mark.chessboard
def test_kernel_map(C: int, K: int, taps: tuple[int, ...], order: str) -> None:
    entries = ORDERS[order](kernel_map(67, torch.Size(taps).numel(), 50))
    view = kernel_map_view(entries, C, K, kernel_size=taps, in_rows=50)
    number = list(ORDERS).index(order) + C // 8
    dtype = DTYPES[number % 3]
    check_view_runs(view, dtype, small_tile(number, dtype))


@each_dtype
def test_kernel_map_with_a_scatter_index(dtype: torch.dtype) -> None:
    view = kernel_map_view(
        kernel_map(70, 9, 40), 24, 24, kernel_size=(3, 3), in_rows=40,
        scatter_index=rows(90, 70, 3), out_rows=90,
    )  # fmt: skip
    check_view_runs(view, dtype, small_tile(0, dtype))


@pytest.mark.parametrize("block", [1, 8])
def test_columns_that_an_index_places(block: int) -> None:
    """D[index[n // block], m, n % block]: an index of the columns, of one or of a vector."""
    M, C, blocks = 70, 24, 40 // block
    named = CustomStride(IndexedGather(rows(blocks + 3, blocks, 2)), E(0))
    memory = ComposedLayout(
        row_major((blocks + 3, M, block)), 0, Layout((blocks, M, block), (named, E(1), E(2)))
    )
    first = Layout((M, (block, blocks)), (E(1), (E(2), E(0))))
    a, b = (
        ComposedLayout(row_major((size, C)), 0, Layout((size, C), (E(0), E(1)))) for size in (M, 40)
    )
    view = GemmView(a, b, ComposedLayout(memory, 0, first))
    ran = check_view_runs(view, torch.float16, small_tile(block, torch.float16))
    assert not ran.written.all()


WILD = torch.tensor([-1, -2, -(2**31), 2**31 - 1, 2**30, -(2**30), 10, 11], dtype=torch.int32)


@each_dtype
@pytest.mark.parametrize("in_rows", [10, 0])
@pytest.mark.chessboard
def test_rows_that_do_not_exist_read_as_zeros_and_are_not_written(
    in_rows: int, dtype: torch.dtype
) -> None:
    wild = WILD.repeat(20)[:70]
    gather, scatter = wild.clone(), wild.clone()
    gather[::3] = torch.arange(len(gather[::3]), dtype=torch.int32) % 12  # 10 and 11 are none
    scatter[4:14] = torch.randperm(10).int()
    problem = ConvProblem((2, 35, 8), (16, 3), padding=1)
    view = gather_fprop_view(problem, gather, scatter, in_rows=in_rows, out_rows=10)
    ran = check_view_runs(view, dtype, small_tile(1, dtype))
    assert ran.written.all()
    taps = wild.repeat(9)[: 70 * 9].view(70, 9)
    view = kernel_map_view(taps, 8, 8, kernel_size=(3, 3), in_rows=in_rows)
    check_view_runs(view, dtype, small_tile(2, dtype))


LARGE = [
    (256, 32, 4, 1), (256, 8, 4, 1), (256, 16, 4, 1), (128, 64, 2, 2), (64, 128, 2, 2),
    (256, 64, 4, 1), (128, 128, 2, 2), (128, 256, 2, 4),
]  # fmt: skip


@pytest.mark.parametrize("shape", with_deep(FAMILY, *LARGE), ids=str)
def test_tiles_of_the_family(shape: tuple[int, int, int, int]) -> None:
    number = list(FAMILY).index(shape)
    dtype = DTYPES[number % 3]
    m, n, warps_m, warps_n = shape
    tile = TileConfig((m, n, (1 + number % 2) * half_line(dtype)), (warps_m, warps_n))
    problem = ConvProblem((1, m + 9, 16), (n + 8, 3), padding=1)  # a rest of every kind of tile
    view = grid(problem, True, True) if number // 2 % 2 else fprop_view(problem)
    ran = check_view_runs(view, dtype, tile)
    assert ran.launch.grid == (4, 1, 1)
    assert ran.launch.shared_bytes == tile.smem_bytes(dtype.itemsize, dtype.itemsize)


@pytest.mark.parametrize(
    "dtype", with_deep([torch.float16, torch.float32], torch.float32), ids=dtype_name
)
def test_copies_before_fragments(dtype: torch.dtype) -> None:
    """A tile that fills a thread's registers, with masks of three digits."""
    half = half_line(dtype)
    problem = ConvProblem((1, 5, 6, 7, half), (40, 3, 4, 3), padding=(1, 2, 1))
    check_view_runs(fprop_view(problem), dtype, TileConfig((256, 64, half), (4, 1), 4))


# -- copies that are spread over k-blocks ----------------------------------------------------------

WHOLE_LINES = TileConfig((64, 32, 64), (2, 1))  # four k-blocks
OF_MANY_K_TILES = {
    "a k-tile for each tap": fprop_view(ConvProblem((1, 7, 11, 64), (40, 2, 3), padding=1)),
    "gathered, k-tiles of two taps": grid(ConvProblem((1, 7, 9, 40), (24, 3, 3)), True, True),
    "operands that run along rows": wgrad_view(ConvProblem((1, 17, 19, 24), (40, 1, 2))),
    "vectors of 2 bytes": fprop_view(ConvProblem((1, 5, 7, 45), (27, 3, 3), padding=1)),
    "fewer k-tiles than stages": fprop_view(ConvProblem((1, 70, 64), (8, 1))),
}


@pytest.mark.parametrize("blocks", [range(1, 3), range(3)], ids=str)
@pytest.mark.parametrize("name", OF_MANY_K_TILES)
@pytest.mark.chessboard
def test_copies_that_are_spread(name: str, blocks: range, monkeypatch: pytest.MonkeyPatch) -> None:
    put(MainloopSm80, "copied", lambda self, k_blocks: blocks)(monkeypatch)
    single = name == "vectors of 2 bytes"  # which two warps would be compiled for seconds to copy
    tile = TileConfig((64, 32, 64), (4, 1)) if single else WHOLE_LINES
    with compiled_apart():
        check_view_runs(OF_MANY_K_TILES[name], torch.float16, tile)


@pytest.mark.parametrize(
    "dtype", with_deep([torch.float16, torch.bfloat16], torch.bfloat16), ids=dtype_name
)
def test_the_tile_whose_copies_are_spread(dtype: torch.dtype) -> None:
    view = grid(ConvProblem((1, 23, 13, 64), (100, 2, 3), padding=1), True, True)
    check_view_runs(view, dtype, TileConfig((256, 128, 64), (4, 2)))


@pytest.mark.parametrize(
    ("dtype", "tile", "runs"),
    [
        (torch.float16, TileConfig((256, 128, 64), (4, 2)), 3),
        (torch.float16, TileConfig((256, 128, 32), (4, 2)), 1),  # of two k-blocks
        pytest.param(torch.float16, TileConfig((128, 256, 64), (2, 4)), 1, marks=pytest.mark.deep),
        (torch.float32, TileConfig((256, 128, 32), (4, 2)), 1),
    ],
    ids=str,
)
def test_which_copies_are_spread(dtype: torch.dtype, tile: TileConfig, runs: int) -> None:
    """Runs of copies between products: those before the loop, and of the loop."""
    view = fprop_view(ConvProblem((1, 3, 5, 7, 64), (256, 3, 3, 3), padding=1))
    ptx = compile_view(view, dtype, tile).ptx
    kinds = re.findall(r"^\s*(?:@\S+ )?(cp\.async\.cg|mma\.sync)", ptx, re.MULTILINE)
    assert [kind for kind, _ in groupby(kinds)] == ["cp.async.cg", "mma.sync"] * runs


def test_a_share_that_nobody_copies_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    put(MainloopSm80, "copied", lambda self, k_blocks: range(1, 3))(monkeypatch)
    first = mutated(mainloop_sm80, "_share", lambda share: lambda *of: share(*of)[:1])
    view = OF_MANY_K_TILES["a k-tile for each tap"]
    check_fault(first, view, torch.float16, WHOLE_LINES, "sm_80")


@each_dtype
@pytest.mark.parametrize("strides", [(40, 1), (1, 24)], ids=["row by row", "column by column"])
@pytest.mark.chessboard
def test_three_plain_layouts(dtype: torch.dtype, strides: tuple[int, int]) -> None:
    """A product of matrices as anybody writes it."""
    b = Layout((24, 40), strides)
    view = GemmView(Layout((37, 40), (40, 1)), b, Layout((37, 24), (24, 1)))
    check_view_runs(through_coordinates(view), dtype, small_tile(0, dtype))
