"""Sums over pixels, whose operands come by im2col TMA descriptors: gradients of filters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from layoutconv.algebra import Layout
from layoutconv.conv import ConvProblem, wgrad_view
from layoutconv.conv.stored_layouts import interleaved
from layoutconv.kernels.gemm.tma_im2col_copy import TmaSumLoad
from layoutconv.planning.kernel_key import signature
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tma_im2col import im2col_of_a, im2col_of_b, is_mapped, pixels_of
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    check_parts,
    check_view_runs,
    compile_view,
    compiled_view,
    located,
    spec_of,
    unspilled,
)
from .mutations import check_fault
from .mutations import replace as mutated
from .test_im2col import FAULTS, HALF, WIDE, brought, check_brought, random_problem
from .test_tma import check_copies, copies
from .tiles import retiled

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32

LINES = ConvProblem((3, 45, 64), (40, 2), padding=((1, 1),))  # 138 pixels
PLANES = ConvProblem((2, 9, 7, 64), (72, 1, 3), stride=(2, 1), padding=(1, 2), dilation=(1, 2))
VOLUMES = ConvProblem((2, 5, 7, 6, 128), (64, 2, 2, 1), (1, 3, 2), ((1, 0), (2, 3), 1), (2, 2, 1))
GROUPS = ConvProblem((1, 6, 9, 128), (48, 2, 3), padding=1, groups=2)


# -- which pixels ----------------------------------------------------------------------------------


def test_a_copy_brings_what_the_layout_says() -> None:
    """Copies of both operands start at any pixel; past the last pixel come zeros."""
    random, seen, depth = np.random.default_rng(0), 0, 16
    for _ in range(30):
        view = wgrad_view(random_problem(random))
        l = int(random.integers(view.l))
        of_group = view.at(l) if view.l > 1 else view
        operands = (of_group.a, view.m), (of_group.b, view.n)
        for found, (layout, rows) in zip(pixels_of(view, (0, 0)), operands, strict=True):
            assert found is not None
            assert found.fits
            offset, there = (t.numpy().T for t in located(layout, rows, view.k))
            k = int(random.integers(view.k))
            for first in random.integers(rows // 32, size=3) * 32:
                got = brought(found, k, int(first), l, (depth, 32))
                seen += check_brought(got, (offset, there), k, first, depth)
    assert seen > 10**4


def of_both(view: GemmView, dtype: torch.dtype = F16, tile: TileConfig = WIDE, **rest: Any) -> Any:
    """Return whether im2col TMA descriptors bring A, and whether they bring B."""
    spec = spec_of(view, dtype, tile, "sm_90a", **rest)
    found = im2col_of_a(view, spec) is not None, im2col_of_b(view, spec) is not None
    assert is_mapped(view, spec) == all(found)
    return found


STRIDED = Layout((1, 9, 9, 64), (9 * 9 * 64, 1, 9, 81))
WHICH: dict[str, tuple[GemmView, dict[str, Any], tuple[bool, bool]]] = {
    "whole lines": (wgrad_view(PLANES), {}, (True, True)),
    "groups": (wgrad_view(GROUPS), {}, (True, True)),
    "rests of channels": (wgrad_view(ConvProblem((1, 9, 40), (24, 1))), {}, (True, True)),
    "lines of two taps": (wgrad_view(ConvProblem((1, 9, 96), (24, 3))), {}, (True, False)),
    "no producers": (wgrad_view(PLANES), {"tile": TileConfig((64, 64, 32))}, (False, False)),
    "vectors of 8 bytes": (wgrad_view(PLANES), {"aligned": (16, 8, 16)}, (True, False)),
    "few filters": (wgrad_view(ConvProblem((1, 9, 64), (4, 3))), {}, (False, True)),
    "a stride of 9": (wgrad_view(ConvProblem((1, 19, 64), (8, 3), stride=9)), {}, (True, False)),
    "channels of two digits": (
        wgrad_view(
            ConvProblem((1, 8, 8, 64), (64, 3, 3)),
            activation_layout=interleaved((1, 8, 8, 64), 32),
        ), {}, (True, False),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHICH)
def test_which_operands_maps_bring(name: str) -> None:
    view, rest, want = WHICH[name]
    assert of_both(view, **rest) == want


def test_numbers_that_a_map_has_no_room_for_are_of_another_kernel() -> None:
    near, far = (
        wgrad_view(ConvProblem((1, 4, 4, 4, 64), (64, 1, 1, 1), padding=(0, 0, (0, far))))
        for far in (15, 16)
    )
    assert signature(near, (0, 0)) != signature(far, (0, 0))
    assert (of_both(near), of_both(far)) == ((True, True), (True, False))
    sizes = [wgrad_view(ConvProblem((N, H, 9, 64), (64, 3, 3))) for N, H in ((1, 8), (5, 11))]
    assert len({signature(view, (0, 0)) for view in sizes}) == 1


# -- what is run -----------------------------------------------------------------------------------


# With how many panels a k-tile has.
RUN: dict[str, tuple[ConvProblem, TileConfig, torch.dtype, int]] = {
    "1-D, rests of pixels and of rows": (LINES, WIDE, F16, 2),
    "2-D, rests of columns": (PLANES, retiled(WIDE, n=128, warps_n=2), BF16, 3),
    "3-D, two lines of a tap": (VOLUMES, HALF, F16, 2),
    "groups": (GROUPS, HALF, F16, 2),
    "one tap, rests of channels": (ConvProblem((2, 9, 8, 40), (40, 1, 1), stride=2), WIDE, F16, 2),
    "a cluster for a sum": (LINES, replace(HALF, cluster_k=2), F16, 2),
    "more stages than k-tiles": (LINES, specialized((64, 64, 64), (4, 1), 8), F16, 2),
    "one warp that copies": (PLANES, retiled(HALF, m=128, warps_m=8, load=Load.TMA_WARP), F16, 3),
}  # fmt: skip


DEEP = "one warp that copies", "one tap, rests of channels", "more stages than k-tiles"


@pytest.mark.parametrize("name", with_deep(RUN, *DEEP))
def test_both_by_maps(name: str) -> None:
    problem, tile, dtype, panels = RUN[name]
    view = wgrad_view(problem)
    check_copies(view, dtype, tile, [panels, 0, 0])


def test_b_of_threads_beside_an_a_by_maps() -> None:
    view = wgrad_view(ConvProblem((2, 21, 32), (40, 3), padding=1))
    check_view_runs(view, F16, HALF, arch="sm_90a")
    maps, others, vectors = copies(compiled_view(view, F16, HALF, "sm_90a"))
    assert (maps, others, vectors > 0) == (1, 0, True)


def test_a_gradient_that_is_a_slice() -> None:
    """The gaps in the memory of a slice are not read."""
    view = wgrad_view(
        ConvProblem((3, 5, 64), (40, 3), padding=((1, 2),)),
        output_layout=Layout((3, 6, 40), (9 * 56, 56, 1)),
    )
    check_copies(view, F16, HALF, [2, 0, 0])


@pytest.mark.parametrize("splits", [3, 4])
def test_parts_that_are_added_later(splits: int) -> None:
    """A sum of 5 k-tiles is split: the last part has one of them, or none."""
    view = wgrad_view(LINES)
    assert copies(check_parts(view, F16, HALF, splits)) == [2, 0, 0]


@pytest.mark.parametrize(
    ("tile", "resident"),
    [
        (specialized((128, 256, 64), (8, 1), 4), 1),
        (specialized((128, 128, 64), (8, 1), 3, Load.TMA_WARP), 2),
    ],
)
def test_nothing_spills(tile: TileConfig, resident: int) -> None:
    """Whatever a panel's channel and tap, and the pixels of a k-tile, take of registers."""
    view = wgrad_view(ConvProblem((2, 9, 9, 9, 128), (192, 3, 3, 3), stride=2, padding=1))
    compiled = compile_view(view, F16, tile, "sm_90a", F32, split="partial")
    assert copies(compiled) == [(tile.m + tile.n) // 64, 0, 0]
    unspilled(compiled, resident)
    assert compiled.spec.ctas_per_sm == resident


# -- every guard is needed -------------------------------------------------------------------------


def of_the_first_k_tile(corner: Any) -> Any:
    return lambda self, first_k, *of: corner(self, 0, *of)


OF_SUMS = {
    **{name: FAULTS[name] for name in ("taps that are left out", "a box that ends too early")},
    "the same pixels for every k-tile": mutated(TmaSumLoad, "corner", of_the_first_k_tile),
}


@pytest.mark.parametrize("name", OF_SUMS)
def test_without_a_guard_the_machine_finds_a_fault(name: str) -> None:
    check_fault(OF_SUMS[name], wgrad_view(LINES), F16, WIDE, "sm_90a")
