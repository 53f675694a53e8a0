"""Tiles whose rows several taps share, of which TMA descriptors bring A, with its halo, and B."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from layoutconv.algebra.int_tuple import flatten
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.gpu.select import _shared_rows
from layoutconv.kernels.gemm import implicit_gemm
from layoutconv.kernels.gemm.tma_im2col_copy import TmaIm2colLoad, TmaRowsLoad
from layoutconv.planning import tma_im2col
from layoutconv.planning.cost_model import Problem, choose
from layoutconv.planning.halo_reuse import halo_of, widened
from layoutconv.planning.kernel_spec import KernelSpec, vectors_of
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import HALO, TileConfig, specialized
from layoutconv.planning.tile_table import MAPPED_WINDOWS, WINDOWS
from layoutconv.planning.tile_time import rate_of
from layoutconv.planning.tma_im2col import im2col_of_a
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    check_parts,
    compile_view,
    located,
    spec_of,
    unspilled,
)
from .mutations import check_fault, put
from .mutations import replace as mutated
from .test_im2col import brought, random_problem
from .test_tma import check_copies, copies
from .tiles import retiled
from .view_cases import wide

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
TILE = specialized((64, 64, 32), (4, 1), 3, halo_taps=3)
TWO_PIECES = retiled(TILE, m=256, n=32, warps_m=8, stages=2)

PLANES = ConvProblem((3, 7, 9, 32), (24, 3, 3), padding=1)
FAR = ConvProblem((2, 3, 30, 32), (64, 2, 3), padding=(1, (2, 1)), dilation=(1, 2))
VOLUMES = ConvProblem((2, 3, 4, 7, 64), (64, 3, 2, 3), padding=1)
GROUPS = ConvProblem((1, 3, 4, 7, 128), (64, 2, 2, 3), padding=1, groups=2)
FEW = ConvProblem((2, 9, 64), (8, 3), padding=1)
STRADDLING = ConvProblem((1, 3, 9, 8), (40, 2, 3), padding=1)


def gradient(problem: ConvProblem) -> GemmView:
    (view,) = dgrad_views(problem)
    return wide(view)


# -- which pixels, and which taps ------------------------------------------------------------------


@pytest.mark.parametrize("rows", [64, 128, 192, 256])
def test_pieces_cover_the_halo_and_start_where_a_copy_may(rows: int) -> None:
    found = tma_im2col.im2col(fprop_view(PLANES).a)
    assert found is not None
    for halo in range(HALO + 1):
        count, each = replace(found, halo=halo).copies(rows)
        assert each <= tma_im2col.MOST_PIXELS
        assert each % 8 == 0
        assert rows + halo <= count * each <= rows + HALO  # which shared memory has
        assert count == 1 or rows + halo > tma_im2col.MOST_PIXELS


def test_what_copies_bring_is_what_every_tap_multiplies() -> None:
    """Copies bring the rows that are stored, whatever lies between these."""
    random, seen, kinds = np.random.default_rng(1), 0, set()
    for _ in range(60):
        problem = random_problem(random)
        for plain in (fprop_view(problem), *dgrad_views(problem)):
            view = widened(plain)
            if view is None or not view.k:
                continue
            taps = int(view.a.shape[1][-1])
            tile = replace((TILE, TWO_PIECES)[seen % 2], halo_taps=taps)
            spec, window = spec_of(view, F16, tile, "sm_90a"), halo_of(view, tile)
            found = im2col_of_a(view, spec)
            if found is None:  # taps as far apart as an offset of the map could not say
                assert window.halo >= 32
                continue
            (tap,) = {d.value > 0 for d in flatten(view.b.inner.stride[1])[-1:]}
            kinds.add((tap, view.d.inner.stride[0][0].value > 1))
            l, m = int(random.integers(view.l)), int(random.integers(view.m))
            k = int(random.integers(window.columns // 32)) * 32
            count, each = found.copies(tile.m)
            pieces = [brought(found, m + i * each, k, l, (each, 32)) for i in range(count)]
            at, inside = (np.concatenate(part) for part in zip(*pieces, strict=True))
            of_group = view.at(l) if view.l > 1 else view
            offset, there = (t.numpy() for t in located(of_group.a, view.m, view.k))
            stored = located(of_group.d, view.m, 1)[1].numpy()[m : m + tile.m, 0]
            for tap in range(taps):
                first = k + tap * window.columns
                rows = slice(tap * window.rows, tap * window.rows + len(stored))
                want = there[m : m + tile.m, first : first + 32][stored]
                assert (inside[rows][stored] == want).all()
                of_view = offset[m : m + tile.m, first : first + 32][stored]
                assert (at[rows][stored][want] == of_view[want]).all()
                seen += int(want.sum())
    assert seen > 10**4
    # Taps run forwards or backwards; lines of a gradient with a stride have gaps between cells.
    assert kinds == {(True, False), (False, False), (False, True)}


# -- what is run -----------------------------------------------------------------------------------

# With how many instructions copy A, and B. Further ones are in test_warpgroups.
RUN: dict[str, tuple[GemmView, TileConfig, torch.dtype, list[int]]] = {
    "rows of two pieces": (wide(fprop_view(PLANES)), TWO_PIECES, F16, [2, 3, 0]),
    "a gradient, rows of two pieces": (gradient(FAR), TWO_PIECES, BF16, [2, 3, 0]),
    "k-tiles of a line": (wide(fprop_view(FEW)), retiled(TILE, k=64, stages=2), F16, [1, 3, 0]),
    "one warp, fewer pixels than a tile": (
        wide(fprop_view(FEW)), replace(TILE, load=Load.TMA_WARP), BF16, [1, 3, 0]
    ),
    "tf32": (wide(fprop_view(FEW)), retiled(TILE, k=16, stages=2), F32, [1, 3, 0]),
    "k-tiles of two taps, in tf32": (
        wide(fprop_view(STRADDLING)), retiled(TILE, k=16), F32, [0, 0, 3]
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", with_deep(RUN, "rows of two pieces", "k-tiles of a line"))
def test_windows(name: str) -> None:
    view, tile, dtype, want = RUN[name]
    check_copies(view, dtype, tile, want)


@pytest.mark.parametrize(
    ("aligned", "want"), [((8, 16, 16), [0, 3, 6]), ((16, 8, 16), [1, 0, 12])], ids=["A", "B"]
)
def test_one_operand_that_threads_copy(aligned: tuple[int, int, int], want: list[int]) -> None:
    view = wide(fprop_view(FEW))
    check_copies(view, F16, TILE, want, aligned=aligned)


def test_parts_that_are_added_later() -> None:
    view = wide(fprop_view(FEW))
    assert copies(check_parts(view, F16, TILE, 2)) == [1, 3, 0]


@pytest.mark.parametrize("shape", WINDOWS, ids=str)
def test_nothing_spills(shape: tuple[int, int, int, int]) -> None:
    """Tiles of the family do not spill; where one warp copies, more CTAs fit."""
    (m, n, *warps), (_, stages) = shape, WINDOWS[shape]
    view = wide(fprop_view(ConvProblem((2, 9, 9, 9, 64), (n, 3, 3, 3), padding=1)))
    load = Load.TMA_WARP if shape == (128, 64, 4, 1) else Load.CP_ASYNC_WARPGROUP
    tile = specialized((m, n, 32), warps, stages, load, halo_taps=3)
    compiled = compile_view(view, F16, tile, "sm_90a")
    kernel = unspilled(compiled, tile.ctas_per_sm)
    room = MACHINES["sm_90a"].smem_per_cta
    assert kernel.static_shared + compiled.spec.smem_bytes <= room


# -- which problems --------------------------------------------------------------------------------


def shared_rows(problem: ConvProblem, direction: Any, **changes: Any) -> dict[str, Any]:
    """Return what a plan knows of taps that share rows, on an H200 unless ``changes`` differ."""
    (view,) = [direction(problem)] if direction is fprop_view else direction(problem)
    arch, kind = changes.get("arch", "sm_90a"), changes.get("kind", "float16")
    vectors, along = vectors_of(view, kind, kind, changes.get("aligned", (16, 16, 16)))
    return _shared_rows(view, KernelSpec(kind, kind, TILE, arch, vectors, along))


@pytest.mark.parametrize(
    ("problem", "direction", "changes", "want"),
    [
        (PLANES, fprop_view, {}, True),
        (FAR, dgrad_views, {}, True),
        (GROUPS, dgrad_views, {}, True),
        (PLANES, fprop_view, {"kind": "tfloat32"}, True),
        (FAR, dgrad_views, {"kind": "tfloat32"}, False),  # threads turn the filter
        (PLANES, fprop_view, {"arch": "sm_80"}, False),
        (PLANES, fprop_view, {"aligned": (8, 16, 16)}, False),
        (STRADDLING, fprop_view, {}, False),
    ],
)
def test_which_problems_have_tiles_that_maps_bring(
    problem: ConvProblem, direction: Any, changes: dict[str, Any], want: bool
) -> None:
    found = shared_rows(problem, direction, **changes)
    assert (found["halo_taps"], found["tma_halo"]) == (3, want)


def test_the_model_expects_more_of_what_maps_bring() -> None:
    problem = Problem(10**6, 64, 576, 64, "float16", 2, halo_taps=3, halo_growth=1.02, tma=True)
    by_maps = replace(problem, tma_halo=True)
    for (m, n, *warps), (*_, stages) in MAPPED_WINDOWS.items():
        if not stages:  # of two taps alone
            continue
        tile = specialized((m, n, 32), warps, stages, Load.TMA_WARP, halo_taps=3)
        by_threads = replace(tile, stages=4, load=Load.CP_ASYNC_WARPGROUP)
        if (m, n, *warps) in WINDOWS:
            assert rate_of(by_maps, tile) > rate_of(problem, by_threads)
        assert rate_of(by_maps, tile) == rate_of(replace(by_maps, dtype="tfloat32"), tile)
    for found, load in ((by_maps, Load.TMA_WARP), (problem, Load.CP_ASYNC_WARPGROUP)):
        tile, _ = choose(found, MACHINES["sm_90a"])
        assert (tile.halo_taps, tile.load) == (3, load)


# -- every guard is needed -------------------------------------------------------------------------


def one_piece_twice(corner: Any) -> Any:
    return lambda self, k, panel, piece: corner(self, k, panel, 0)


def one_tap_for_all(known: Any) -> Any:
    return lambda *of: known(*of)._replace(columns=0)


FAULTS = {
    "bytes of rows alone": (
        put(TmaIm2colLoad, "bytes_of", lambda self, columns: 64 * 64), wide(fprop_view(FEW)), TILE
    ),
    "pieces that start in any row": (
        put(tma_im2col, "PERIOD", 1), wide(fprop_view(PLANES)), TWO_PIECES
    ),
    "one piece twice": (
        mutated(TmaRowsLoad, "corner", one_piece_twice), gradient(FAR), TWO_PIECES
    ),
    "one tap of B for all": (
        mutated(implicit_gemm, "halo_of", one_tap_for_all),
        gradient(replace(FEW, filter=(32, 3))), TILE
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FAULTS)
def test_without_a_guard_the_machine_finds_a_fault(name: str) -> None:
    mutation, view, tile = FAULTS[name]
    check_fault(mutation, view, F16, tile, "sm_90a")
