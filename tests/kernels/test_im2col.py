"""A that comes by im2col TMA descriptors: when it does, that it is A, and that TMA rounds tf32."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, gather_fprop_view, wgrad_view
from layoutconv.conv.stored_layouts import interleaved
from layoutconv.kernels.gemm import pipeline, tma_im2col_copy
from layoutconv.kernels.gemm.tma_im2col_copy import TmaIm2colLoad
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tma_im2col import Im2col, im2col, im2col_of_a
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView
from layoutconv.view.operands import row_major
from tools.ptx_sim import tensor_map
from tools.ptx_sim.boxes import elements
from tools.ptx_sim.instructions import tensor_copy

from ..grid_cover import with_deep
from .launcher import (
    Case,
    check_epilogue,
    check_parts,
    check_view_runs,
    compile_view,
    compiled_view,
    located,
    run_case,
    spec_of,
    unspilled,
)
from .mutations import check_fault, put
from .mutations import replace as mutated
from .test_skip import kernel_map
from .test_tma import HALF, WIDE, check_copies, copies
from .tiles import retiled

LINES = ConvProblem((3, 45, 64), (40, 3), padding=((1, 2),))
PLANES = ConvProblem((2, 13, 9, 64), (40, 2, 3), stride=(1, 2), padding=(1, 2), dilation=(3, 1))
VOLUMES = ConvProblem((2, 5, 7, 6, 32), (40, 2, 2, 2), (1, 3, 2), ((1, 0), (2, 3), 1), (2, 2, 1))
GROUPS = ConvProblem((1, 6, 9, 64), (64, 2, 3), padding=1, groups=2)


# -- which pixels ----------------------------------------------------------------------------------


def brought(found: Im2col, m: int, k: int, l: int, tile: tuple[int, int]) -> tuple[Any, Any]:
    """Offsets of what a copy of a tile brings, and which of it is there, by the machine."""
    memory = tensor_map.TensorMap(
        0, "u8",
        (int(found.channels[0]), *(int(mode.extent) for mode in found.modes), int(found.images[0])),
        (*(int(mode.stride) for mode in found.modes), int(found.images[1])),
        element_strides=(1, *(mode.step for mode in found.modes), 1),
        im2col=tensor_map.Im2col(
            tuple(mode.lower for mode in found.modes),
            tuple(int(mode.upper) for mode in found.modes),
            tile[1], tile[0],
        ),
    )  # fmt: skip
    channel, *offsets = found.column(k, l)
    at, inside = elements(memory, (channel, *found.pixel(m)), tuple(offsets))
    return at.reshape(tile), inside.reshape(tile)


def check_brought(
    got: tuple[Any, Any], tables: tuple[Any, Any], row: int, column: int, rows: int
) -> int:
    """Compare what a copy brought of ``rows`` rows and 32 columns with the offsets of a layout, and
    which of them are there; past the last row come zeros. Returns how many are there.
    """
    (at, inside), place = got, (slice(row, row + rows), slice(column, column + 32))
    offset, want = (table[place] for table in tables)
    rest = len(want)
    assert (inside[:rest] == want).all()
    assert (at[:rest] == offset)[want].all()
    assert not inside[rest:].any()
    return int(want.sum())


def random_problem(random: np.random.Generator) -> ConvProblem:
    def some(low: int, high: int, count: int) -> tuple[int, ...]:
        return tuple(map(int, random.integers(low, high, count)))

    rank = int(random.integers(1, 4))
    taps, dilation, stride = some(1, 5, rank), some(1, 4, rank), some(1, 4, rank)
    padding = tuple(zip(some(0, 4, rank), some(0, 4, rank), strict=True))
    reach = [d * (t - 1) + 1 - sum(p) for d, t, p in zip(dilation, taps, padding, strict=True)]
    spatial = [max(1, r) + int(random.integers(0, 6)) for r in reach]
    groups = int(random.integers(1, 3))
    return ConvProblem(
        (int(random.integers(1, 4)), *spatial, 32 * groups), (32 * groups, *taps),
        stride, padding, dilation, groups,
    )  # fmt: skip


def test_a_copy_brings_what_the_layout_says() -> None:
    """Copies of forward passes and gradients start at any row; past the last row come zeros."""
    random, seen = np.random.default_rng(0), 0
    for _ in range(40):
        problem = random_problem(random)
        for view in (fprop_view(problem), *dgrad_views(problem)):
            if not view.k:
                assert im2col(view.a) is None
                continue
            found = im2col(view.a)
            assert found is not None
            assert found.fits
            l, rows = int(random.integers(view.l)), 16
            of_group = view.at(l) if view.l > 1 else view
            offset, there = (t.numpy() for t in located(of_group.a, view.m, view.k))
            m = int(random.integers(view.m))
            for k in random.integers(view.k // 32, size=3) * 32:
                got = brought(found, m, int(k), l, (rows, 32))
                seen += check_brought(got, (offset, there), m, k, rows)
    assert seen > 10**4


def test_a_box_may_be_larger_than_constant_memory() -> None:
    """By padding of more cells than the filter has, in a view whose extents are no arguments."""
    rows = Layout(((12, 3), 64), ((E(1), E(0)), E(2)))  # nine pixels between three of padding
    view = GemmView(
        ComposedLayout(row_major((3, 9, 64)), (0, -1, 0), rows),
        ComposedLayout(row_major((64, 64)), 0, Layout((64, 64), (E(0), E(1)))),
        ComposedLayout(row_major((3, 12, 64)), 0, rows),
    )
    assert im2col_of_a(view, spec_of(view, torch.float16, HALF, "sm_90a")) is not None
    check_view_runs(view, torch.float16, HALF, arch="sm_90a")


def test_which_numbers_are_arguments() -> None:
    """A map is made of extents that differ from call to call, and decided on by none of them."""
    views = [
        fprop_view(ConvProblem((N, H, W, 64), (32, 3, 3), (2, 1), padding=1))
        for N, H, W in ((1, 8, 9), (5, 11, 4))
    ]
    assert len({signature(view) for view in views}) == 1
    ends = [[int(mode.upper) for mode in known(view).modes] for view in views]
    assert ends == [[-1, -2], [-1, -1]]  # rows of an even extent end before the padding


def known(view: GemmView) -> Im2col:
    found = im2col(view.a)
    assert found is not None
    return found


def test_numbers_that_a_map_has_no_room_for_are_of_another_kernel() -> None:
    """Padding behind the tensor is no constant of a kernel: what is too far has a mark."""
    near, far = (
        fprop_view(ConvProblem((1, 4, 4, 4, 64), (32, 1, 1, 1), padding=(0, 0, (0, far))))
        for far in (15, 16)
    )
    assert known(near).fits
    assert not known(far).fits
    assert signature(near) != signature(far)
    assert of_a(near)
    assert not of_a(far)


def of_a(
    view: GemmView, tile: TileConfig = HALF, dtype: torch.dtype = torch.float16, **rest: Any
) -> Any:
    return im2col_of_a(view, spec_of(view, dtype, tile, "sm_90a", **rest))


def corner(near: int, taps: int, rank: int, dilation: int = 1) -> GemmView:
    """A view whose taps are of the last mode, with padding before it."""
    padding = (*(0 for _ in range(rank - 1)), (near, 0))
    filter_ = (32, *(1 for _ in range(rank - 1)), taps)
    dilations = (*(1 for _ in range(rank - 1)), dilation)
    extent = max(1, (taps - 1) * dilation + 1 - near)
    shape = (1, *(2 for _ in range(rank - 1)), extent, 32)
    return fprop_view(ConvProblem(shape, filter_, padding=padding, dilation=dilations))


ROOM = {"1-D": (1, 15, 65535), "2-D": (2, 7, 255), "3-D": (3, 4, 31)}


@pytest.mark.parametrize("name", ROOM)
def test_the_room_that_a_map_has(name: str) -> None:
    rank, bits, reach = ROOM[name]
    assert im2col(corner(1 << bits, 2, rank).a)
    assert not im2col(corner((1 << bits) + 1, 2, rank).a)
    assert im2col(corner(0, 2, rank, reach).a)
    assert not im2col(corner(0, 2, rank, reach + 1).a)


STRIDED = Layout((2, 9, 9, 64), (9 * 9 * 64, 1, 9, 81))
NOT_MAPPED: dict[str, GemmView] = {
    "gathered": gather_fprop_view(
        ConvProblem((1, 3, 3, 64), (64, 3, 3), padding=1),
        torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int32),
    ),
    "images that are named": fprop_view(
        ConvProblem((2, 5, 64), (32, 3)), batch_index=torch.zeros(2, dtype=torch.int32)
    ),
    "a kernel map": kernel_map_view(kernel_map(50, 27, 0.3), 32, 32, kernel_size=(3, 3, 3)),
    "a filter's gradient": wgrad_view(ConvProblem((1, 9, 9, 64), (64, 3, 3))),
    "images first": dgrad_views(ConvProblem((70, 3, 4, 64), (64, 2, 4)), images_first=True)[0],
    "channels far apart": fprop_view(ConvProblem((2, 9, 9, 64), (32, 3, 3)),
                                     activation_layout=STRIDED),
    "channels of two digits": fprop_view(ConvProblem((2, 8, 8, 64), (32, 3, 3)),
                                         activation_layout=interleaved((2, 8, 8, 64), 32)),
    "one image for all": fprop_view(ConvProblem((2, 9, 64), (32, 3)),
                                    activation_layout=Layout((2, 9, 64), (0, 64, 1))),
    "a stride of 9": fprop_view(ConvProblem((2, 19, 64), (32, 3), stride=9)),
    "no taps": dgrad_views(ConvProblem((1, 9, 64), (32, 1), stride=2))[1],
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_MAPPED)
def test_what_no_map_describes(name: str) -> None:
    assert im2col(NOT_MAPPED[name].a) is None


def test_what_a_kernel_does_not_copy_by_a_map() -> None:
    view = fprop_view(LINES)
    assert of_a(view)
    assert of_a(view, retiled(HALF, k=16), torch.float32)
    other = [
        (view, TileConfig((64, 64, 32)), {}),  # no producers
        (view, HALF, {"aligned": (8, 16, 16)}),
        (view, HALF, {"skip": True}),
        (fprop_view(ConvProblem((1, 9, 40), (32, 3))), HALF, {}),  # k-tiles of two taps
        (fprop_view(ConvProblem((1, 9, 80), (32, 1), groups=2)), HALF, {}),  # and of two groups
    ]
    for without, tile, rest in other:
        assert of_a(without, tile, **rest) is None
    wide = widened(view)
    assert wide is not None
    assert of_a(wide, replace(HALF, halo_taps=3))
    assert of_a(fprop_view(ConvProblem((1, 9, 40), (32, 1))))  # zeros behind the last channel


# -- what is run -----------------------------------------------------------------------------------


F16, TF32 = torch.float16, torch.float32
RUN: dict[str, tuple[GemmView, TileConfig, torch.dtype]] = {
    "2-D": (fprop_view(PLANES), HALF, torch.bfloat16),
    "3-D": (fprop_view(VOLUMES), HALF, F16),
    "groups": (fprop_view(GROUPS), HALF, F16),
    "gradient in 1-D": (dgrad_views(replace(LINES, filter=(64, 3)))[0], WIDE, F16),
    "gradient in 2-D": (dgrad_views(replace(PLANES, filter=(64, 2, 3)))[-1], HALF, torch.bfloat16),
    "gradient in 3-D": (dgrad_views(replace(VOLUMES, filter=(64, 2, 3, 2)))[-1], WIDE, F16),
    "one tap, rests of channels": (
        fprop_view(ConvProblem((1, 9, 8, 40), (40, 1, 1), stride=2)), WIDE, F16
    ),
    "tf32": (fprop_view(VOLUMES), retiled(HALF, k=16), TF32),
    "a cluster for a sum": (fprop_view(LINES), replace(WIDE, cluster_k=2), F16),
    "one warp that copies": (fprop_view(VOLUMES), replace(HALF, load=Load.TMA_WARP), F16),
    "more stages than k-tiles": (
        fprop_view(VOLUMES), specialized((64, 64, 32), (4, 1), 8, Load.TMA_WARP, cluster_k=2), F16
    ),
    "one stage, of all of a sum": (
        fprop_view(ConvProblem((2, 9, 8, 64), (40, 1, 1))),
        specialized((64, 128, 64), (4, 1), 1, Load.TMA_WARP),
        F16,
    ),
}  # fmt: skip


DEEP = [
    "3-D", "gradient in 1-D", "gradient in 3-D", "one warp that copies",
]  # fmt: skip


@pytest.mark.parametrize("name", with_deep(RUN, *DEEP))
def test_a_by_maps(name: str) -> None:
    view, tile, dtype = RUN[name]
    check_copies(view, dtype, tile, [1, 1, 0])


@pytest.mark.parametrize(
    ("kind", "dtype", "out"),
    [("int8", torch.int8, torch.int32), ("float8_e4m3fn", torch.float8_e4m3fn, torch.float16)],
)
def test_types_of_8_bits(kind: str, dtype: torch.dtype, out: torch.dtype) -> None:
    view, tile = fprop_view(PLANES), replace(WIDE, stages=3)
    check_copies(view, dtype, tile, [1, 1, 0], out=out, kind=kind)


def test_b_that_threads_turn_beside_an_a_by_maps() -> None:
    """A gradient in tf32, whose filter runs along n."""
    view, tile = dgrad_views(replace(PLANES, filter=(64, 2, 3)))[-1], retiled(HALF, k=16)
    check_copies(view, TF32, tile, [2, 0, 0])  # threads hold two of B


def test_b_by_maps_beside_an_a_of_threads() -> None:
    """In tf32, where k-tiles are of two taps: fragments of A are rounded, B comes rounded."""
    view, tile = fprop_view(ConvProblem((1, 37, 24), (40, 3), padding=1)), retiled(HALF, k=16)
    check_view_runs(view, TF32, tile, arch="sm_90a")
    maps, others, vectors = copies(compiled_view(view, TF32, tile, "sm_90a"))
    assert (maps, others, vectors > 0) == (0, 1, True)


def test_parts_that_are_added_later() -> None:
    view = fprop_view(PLANES)
    assert copies(check_parts(view, F16, HALF, 4)) == [1, 1, 0]  # of 12 k-tiles


@pytest.mark.parametrize("load", [Load.TMA_WARP, Load.CP_ASYNC_WARPGROUP])
def test_an_epilogue_with_statistics(load: Load) -> None:
    """Summed by the warps that had nothing to copy, or by all but one that did."""
    view = fprop_view(LINES)
    check_epilogue(view, F16, replace(WIDE, load=load), "bias statistics")


@pytest.mark.parametrize("dtype", [F16, TF32])
def test_registers_of_a_tile_that_one_warp_copies(dtype: torch.dtype) -> None:
    """Two CTAs share a multiprocessor's, and nothing spills."""
    tile = specialized((128, 128, 128 // dtype.itemsize), (8, 1), 3, Load.TMA_WARP)
    view = fprop_view(ConvProblem((1, 4, 4, 64), (256, 3, 3), padding=1))
    compiled = compile_view(view, dtype, tile, "sm_90a")
    unspilled(compiled, 2)
    assert compiled.spec.ctas_per_sm == 2


@pytest.mark.parametrize("view", [fprop_view(LINES), wgrad_view(replace(LINES, filter=(64, 1)))])
def test_one_stage_is_for_one_k_tile(view: GemmView) -> None:
    with pytest.raises(ValueError, match="expected one k-tile for one stage, got k = "):
        compile_view(view, F16, specialized((128, 64, 64), (4, 1), 1, Load.TMA_WARP), "sm_90a")


def test_one_warp_does_not_copy_vectors() -> None:
    for view in (NOT_MAPPED["gathered"], wgrad_view(ConvProblem((1, 9, 96), (64, 3)))):
        with pytest.raises(ValueError, match="TMA descriptors of A and of B for a producer warp"):
            compile_view(view, F16, replace(WIDE, load=Load.TMA_WARP), "sm_90a")
    with pytest.raises(ValueError, match="a load by producers where warps are specialized"):
        replace(WIDE, load=Load.CP_ASYNC)


# -- maps that round -------------------------------------------------------------------------------


def check_rounding() -> None:
    """Products with ones tell what became of every number: the nearest of tf32, of two the even."""
    C, tile = 32, retiled(HALF, k=32)
    view = fprop_view(ConvProblem((1, 64, C), (C, 1)))
    case = Case.of(view, TF32)
    numbers = torch.randn(64, C, generator=torch.Generator().manual_seed(0))
    words = numbers.view(torch.int32)
    words[::3] = words[::3] & ~0x1FFF | 0x1000  # halfway between two
    nearest = (words + 0xFFF + (words >> 13 & 1) & ~0x1FFF).view(torch.float32)
    truncated = (words & ~0x1FFF).view(torch.float32)
    assert not torch.equal(nearest, truncated)
    of_b = numbers[:C].T.contiguous()
    rounded_b = nearest[:C].T.contiguous()
    one = torch.eye(C)
    compiled = compiled_view(view, TF32, tile, "sm_90a")
    assert copies(compiled) == [1, 1, 0]
    for a, b, want in ((numbers, one, nearest), (one.repeat(2, 1), of_b, rounded_b.T.repeat(2, 1))):
        case.a, case.b = a.view(case.a.shape).clone(), b.view(case.b.shape).clone()
        ran = run_case(case, compiled)
        assert torch.equal(ran.out.view(64, C), want)


def test_numbers_are_rounded_to_nearest() -> None:
    check_rounding()


# -- every guard is needed -------------------------------------------------------------------------

MAPS_THAT_TRUNCATE = put(
    tensor_copy, "encode", lambda x, name: x.view(np.uint32) & ~np.uint32(0x1FFF)
)


def test_what_is_not_rounded_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    MAPS_THAT_TRUNCATE(monkeypatch)
    with pytest.raises(AssertionError):
        check_rounding()


def taps_left_out(column: Any) -> Any:
    return lambda *of: (column(*of)[0], *(0 for _ in column(*of)[1:]))


def one_too_few(upper: Any) -> Any:
    return lambda mode, args: upper(mode, args) - 1


FAULTS = {
    "taps that are left out": mutated(Im2col, "column", taps_left_out),
    "a box that ends too early": mutated(tma_im2col_copy, "_upper", one_too_few),
    "bytes of B alone": put(TmaIm2colLoad, "bytes_of", lambda self, columns: 0),
    "no waiting for a full stage": put(pipeline, "wait_full", lambda mbarrier, phase, fence: None),
}


@pytest.mark.parametrize("name", FAULTS)
def test_without_a_guard_the_machine_finds_a_fault(name: str) -> None:
    check_fault(FAULTS[name], fprop_view(LINES), F16, WIDE, "sm_90a")
