"""B that comes by TMA descriptors: when it does, that it is B, and CTAs that share it."""

from __future__ import annotations

import random
import re
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.algebra import E, Layout
from layoutconv.algebra.composed import ComposedLayout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, gather_fprop_view, wgrad_view
from layoutconv.conv.k_major_filter import k_major_view
from layoutconv.conv.stored_layouts import interleaved_filter
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.planning.tma_tiled import Boxes, memory_of_b
from layoutconv.sparse import kernel_map_view
from layoutconv.sparse.views import kernel_map_dgrad_view
from layoutconv.view.gemm_view import GemmView, locate
from tools.ptx_sim.boxes import elements
from tools.ptx_sim.tensor_map import SIZE, TensorMap, decode

from ..grid_cover import with_deep
from .launcher import (
    Compiled,
    Ran,
    check_parts,
    check_view_runs,
    compile_view,
    compiled_view,
    half_line,
    spec_of,
)
from .test_random import problems
from .test_skip import kernel_map
from .tiles import retiled

F16, F32 = torch.float16, torch.float32

WIDE = specialized((64, 64, 64), (4, 1), 2)
HALF = retiled(WIDE, k=32, stages=3)

ONE_D = fprop_view(ConvProblem((2, 65, 24), (40, 5), padding=2))  # rests of rows, columns and k
GROUPS = fprop_view(ConvProblem((1, 3, 4, 5, 64), (80, 2, 3, 1), padding=1, groups=2))
STRIDED = dgrad_views(ConvProblem((1, 9, 8, 72), (64, 3, 3), stride=2, padding=1))
# Filters of 3x3x3 and of 5x4 over an even and an odd number of cells, strides of 2 and of 3.
BESIDE = dgrad_views(
    ConvProblem((1, 3, 4, 9, 32), (64, 3, 3, 3), stride=2, padding=1), side_by_side=(2,)
)
[THREE] = dgrad_views(ConvProblem((2, 29, 24), (32, 7), stride=3, padding=2), side_by_side=(0,))
BESIDE_IN_GROUPS = dgrad_views(
    ConvProblem((1, 5, 6, 64), (64, 3, 4), stride=2, padding=(0, 1), groups=2), side_by_side=(1,)
)[1]
TAPS_IN_A_BOX = kernel_map_dgrad_view(kernel_map(70, 16, 0.3), 80, 8, kernel_size=(2, 2, 2, 2))
MAP: Any = kernel_map_view(kernel_map(100, 27, 0.1), 16, 40, kernel_size=(3, 3, 3))


def known(view: GemmView | None) -> GemmView:
    assert view is not None
    return view


# Of each view, how many modes of memory a map of its B has.
MAPPED: dict[str, tuple[GemmView, torch.dtype, TileConfig, int]] = {
    "1-D": (ONE_D, F16, WIDE, 2),
    "one row": (fprop_view(ConvProblem((1, 9, 64), (1, 3))), F16, WIDE, 2),
    "groups": (GROUPS, F16, WIDE, 2),
    "taps in another order": (
        known(widened(fprop_view(ConvProblem((1, 9, 9, 32), (40, 3, 3))))), F16, HALF, 2
    ),
    "taps that run backwards": (
        known(widened(dgrad_views(ConvProblem((2, 3, 4, 7, 64), (64, 3, 2, 3), padding=1))[0])),
        F16, HALF, 2,
    ),
    "gradient": (dgrad_views(ConvProblem((1, 9, 72), (64, 3)))[0], F16, WIDE, 2),
    "gradient, one tap": (STRIDED[0], F16, WIDE, 2),
    "gradient of groups": (
        dgrad_views(ConvProblem((1, 9, 9, 128), (64, 3, 5), stride=2, groups=2))[0], F16, HALF, 2
    ),
    "residues beside each other": (BESIDE[0], F16, WIDE, 3),
    "of groups": (BESIDE_IN_GROUPS, F16, HALF, 3),
    "and of a turned filter": (k_major_view(BESIDE[1]), F32, HALF, 4),
    "channels of two digits": (
        fprop_view(
            ConvProblem((1, 2, 9, 9, 64), (40, 2, 3, 3)),
            filter_layout=interleaved_filter((40, 2, 3, 3, 64), 32),
        ), F16, HALF, 2,
    ),
    "kernel map": (MAP, F16, WIDE, 2),
}  # fmt: skip


def boxes(view: GemmView, dtype: torch.dtype, tile: TileConfig) -> Boxes | None:
    return memory_of_b(view, spec_of(view, dtype, tile, "sm_90a"))


def check_a_box(view: GemmView, found: Boxes, along: int, crd: tuple[int, ...], size: int) -> None:
    """Check that a simulated copy brings B from an element on, and zeros past the last column.

    Rows past the last may be anything: they are in no column of D.
    """
    memory, ends = found.layout.outer, (view.n, view.k)
    strides = tuple(stride * size for stride in memory.stride[1:])
    of_map = TensorMap(0, {2: "f16", 4: "f32"}[size], memory.shape, strides, found.box)
    brought = elements(of_map, found.corner(*crd))
    at, inside = (t.reshape(found.rows, found.box[0]) for t in brought)
    if along == 0:
        at, inside = at.T, inside.T
    n, k = (
        torch.arange(first, max(first, min(first + extent, end)))
        for first, extent, end in zip(crd, at.shape, ends, strict=False)
    )
    group = (torch.tensor(l) for l in crd[2:])
    offset, there = (torch.as_tensor(t) for t in locate(view.b, n[:, None], k[None], *group))
    offset, there = (t.expand(len(n), len(k)).numpy() for t in (offset, there))
    assert (inside[: len(n), : len(k)] == there).all()
    assert (at[: len(n), : len(k)] // size == offset)[there].all()
    assert not inside[: len(n), len(k) :].any()


def check_boxes(
    view: GemmView, dtype: torch.dtype, tile: TileConfig, count: int | None = None
) -> Any:
    """So many tiles of B, or all; returns what is known of them."""
    found, spec = boxes(view, dtype, tile), spec_of(view, dtype, tile, "sm_90a")
    if found is None:
        return None
    sides = [found.rows, found.rows]
    sides[spec.along[1]] = found.box[0]
    groups = [range(view.l)] if len(view.b.shape) > 2 else []
    last = -(-view.k // tile.k) * tile.k  # which a kernel asks for
    every = list(product(range(0, view.n, sides[0]), range(0, last, sides[1]), *groups))
    some = every if count is None else random.Random(0).sample(every, min(count, len(every)))
    for crd in [every[-1], *some]:
        check_a_box(view, found, spec.along[1], crd, dtype.itemsize)
    return found


@pytest.mark.parametrize("name", MAPPED)
def test_a_map_names_the_elements_of_b(name: str) -> None:
    view, dtype, tile, modes = MAPPED[name]
    found = check_boxes(view, dtype, tile)
    assert found is not None
    assert len(found.box) == modes


@settings(max_examples=150, deadline=None)
@given(data=st.data(), dtype=st.sampled_from([F16, F32]))
def test_every_tile_of_b_is_a_box(data: st.DataObject, dtype: torch.dtype) -> None:
    """Tiles of B are boxes in forward passes and gradients, even with residues side by side."""
    problem = data.draw(problems(16 // dtype.itemsize))
    problem = replace(problem, filter=(data.draw(st.sampled_from([24, 32, 64])), *problem.taps))
    n, lines = (data.draw(st.sampled_from(s)) for s in ([32, 64, 128], [1, 2]))
    tile = specialized((64, n, lines * half_line(dtype)), (4, 1), 2)
    assert check_boxes(fprop_view(problem), dtype, tile, 8)
    modes = [i for i, dilation in enumerate(problem.dilation) if dilation == 1]
    beside = tuple(i for i in modes if data.draw(st.booleans(), f"residues of mode {i}"))
    views = [view for view in dgrad_views(problem, side_by_side=beside) if view.k]
    of_lines = not any(problem.stride[i] > 1 for i in beside if i < problem.rank - 1)
    C = problem.C
    for view in views[-2:]:
        read = view if dtype == F16 else k_major_view(view)
        whole = dtype == F16 or view.n == C or C % n == 0 or n % C == 0
        expected = problem.K % tile.k == 0 and of_lines and whole
        assert check_boxes(read, dtype, tile, 8) or not expected


def of_strides(*strides: int, extents: tuple[int, int] = (40, 64)) -> GemmView:
    """A view whose B has these strides along n and k."""
    matrix = Layout(extents, (E(0), E(1)))
    a = ComposedLayout(Layout((9, extents[1])), (0, 0), Layout((9, extents[1]), (E(0), E(1))))
    b = ComposedLayout(Layout(extents, strides), (0, 0), matrix)
    d = ComposedLayout(Layout((9, 40), (40, 1)), (0, 0), Layout((9, 40), (E(0), E(1))))
    return GemmView(a, b, d)


_GATHER = gather_fprop_view(
    ConvProblem((1, 3, 3, 64), (64, 3, 3), padding=1),
    torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int32),
)  # fmt: skip
GATHERED_B = GemmView(
    _GATHER.b, _GATHER.a, ComposedLayout(Layout((64, 9)), 0, Layout((64, 9), (E(0), E(1))))
)


NOT_MAPPED: dict[str, tuple[GemmView, dict[str, Any]]] = {
    "residues of two modes beside each other": (
        dgrad_views(ConvProblem((1, 9, 9, 16), (64, 3, 3), 2, 1), side_by_side=(0, 1))[0], {}
    ),
    "taps two apart in a k-tile": (
        dgrad_views(ConvProblem((1, 9, 72), (32, 3), stride=2, padding=1))[1], {}
    ),
    "a rest of k, and behind it another group": (
        dgrad_views(ConvProblem((1, 9, 64), (48, 1), groups=2))[0], {}
    ),
    "a type that is rounded, and turned": (
        dgrad_views(ConvProblem((1, 9, 96), (64, 3)))[0],
        {"dtype": torch.float32, "tile": retiled(WIDE, k=32)},
    ),
    "a start that 16 bytes do not divide": (ONE_D, {"aligned": (16, 8, 16)}),
    "rows that 16 bytes do not divide": (fprop_view(ConvProblem((1, 9, 12), (40, 3))), {}),
    "a loop without producers": (ONE_D, {"tile": TileConfig((64, 64, 64))}),
    "sizes of calls": (wgrad_view(ConvProblem((1, 9, 9, 64), (64, 3, 3))), {}),
    "k-tiles of several modes": (dgrad_views(ConvProblem((1, 9, 72), (40, 3)))[0], {}),
    "a gathered B": (
        GATHERED_B, {},
    ),
    "a stride of 2^40 bytes": (of_strides(1 << 39, 1), {}),
    "no distance between rows": (of_strides(0, 1), {}),
}  # fmt: skip


@pytest.mark.parametrize("name", NOT_MAPPED)
def test_what_no_map_describes(name: str) -> None:
    view, changes = NOT_MAPPED[name]
    of = {"dtype": torch.float16, "tile": WIDE, "arch": "sm_90a", **changes}
    assert memory_of_b(view, spec_of(view, **of)) is None
    longest = of_strides((1 << 39) - 8, 1)
    assert memory_of_b(longest, spec_of(longest, torch.float16, WIDE, "sm_90a")) is not None


# -- what is run -----------------------------------------------------------------------------------


def copies(compiled: Compiled) -> list[int]:
    """Count the copies by im2col TMA descriptors, by others, and vector by vector."""
    kinds = r"cp\.async\.bulk\.tensor[^;]*im2col", r"cp\.async\.bulk\.tensor[^;]*tile", r"async\.c"
    return [len(re.findall(kind, compiled.ptx)) for kind in kinds]


def check_copies(
    view: GemmView, dtype: torch.dtype, tile: TileConfig, want: list[int], **rest: Any
) -> Ran:
    """Check what a kernel of sm_90a computes, and the numbers of its :func:`copies`."""
    ran = check_view_runs(view, dtype, tile, arch="sm_90a", **rest)
    assert copies(compiled_view(view, dtype, tile, "sm_90a", **rest)) == want
    return ran


def maps_read(compiled: Compiled) -> int:
    """Instructions that copy B by a map; there are none of 16 bytes but those of A, if any are."""
    tile, vector = compiled.spec.tile, compiled.spec.vectors[0]
    copies = compiled.ptx.count("cp.async.c")
    found = len(re.findall(r"cp\.async\.bulk\.tensor[^;]*tile", compiled.ptx))
    of_a = (
        0 if "im2col" in compiled.ptx else tile.a_rows * tile.k // vector // tile.producer_threads
    )
    of_b = tile.halo_taps * tile.n * tile.k // vector // tile.producer_threads
    assert copies == (of_a if found else of_a + of_b)
    return found


RUN: dict[str, tuple[GemmView, TileConfig, dict[str, Any]]] = {
    "rests": (ONE_D, WIDE, {}),
    "groups of three axes": (GROUPS, HALF, {}),
    "a gradient, several panels": (STRIDED[1], retiled(HALF, n=128, m=128, warps_m=8), {}),
    "taps that tiles lack": (MAP, WIDE, {"skip": True}),
    "parts that are added later": (ONE_D, HALF, {"split": "partial"}),
    "a cluster for a sum": (ONE_D, replace(WIDE, cluster_k=2), {}),
    "a box of taps that continue each other": (TAPS_IN_A_BOX, retiled(HALF, n=128, k=32), {}),
}


@pytest.mark.parametrize("name", with_deep(RUN, "rests"))
def test_b_by_maps(name: str) -> None:
    view, tile, rest = RUN[name]
    if "split" in rest:  # the last part has one k-tile less than the first
        compiled = check_parts(view, F16, tile, 2)
    else:
        check_view_runs(view, F16, tile, arch="sm_90a", **rest)
        compiled = compiled_view(view, F16, tile, "sm_90a", **rest)
    panels = tile.n // 64 if compiled.spec.along[1] == 0 else 1
    assert maps_read(compiled) == panels


SHARING_ROWS = replace(HALF, halo_taps=2)
RUN_BESIDE: dict[str, tuple[GemmView, TileConfig, torch.dtype]] = {
    "one warp": (BESIDE[3], replace(WIDE, load=Load.TMA_WARP), torch.bfloat16),
    "a stride of 3, two tiles of columns": (THREE, HALF, F16),
    "groups": (BESIDE_IN_GROUPS, retiled(HALF, m=128, warps_m=8), F16),
    "taps that share rows, one warp": (
        known(widened(BESIDE[0])), retiled(SHARING_ROWS, k=64, stages=1, load=Load.TMA_WARP), F16
    ),
    "a stride of 3, three taps that share rows": (
        known(widened(THREE)), replace(HALF, halo_taps=3), torch.bfloat16
    ),
    "in tf32": (k_major_view(BESIDE[0]), retiled(HALF, k=16, stages=2), F32),
    "in tf32, taps that share rows": (
        known(widened(k_major_view(BESIDE[1]))), retiled(SHARING_ROWS, k=16), F32
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", with_deep(RUN_BESIDE, "groups", "in tf32"))
def test_residues_beside_each_other(name: str) -> None:
    """Both operands by maps, and that of B is what the boxes say."""
    view, tile, dtype = RUN_BESIDE[name]
    ran = check_copies(view, dtype, tile, [1, tile.halo_taps, 0])
    found = boxes(view, dtype, tile)
    assert found is not None
    memory, size = found.layout.outer, dtype.itemsize
    maps = [decode(raw) for raw in ran.launch.arguments if len(raw) == SIZE]
    (of_b,) = [made for made in maps if made.im2col is None]
    assert (of_b.shape, of_b.box) == (memory.shape, found.box)
    assert of_b.strides == tuple(stride * size for stride in memory.stride[1:])


def test_b_vector_by_vector() -> None:
    view = dgrad_views(ConvProblem((1, 9, 72), (40, 3)))[0]
    assert maps_read(compile_view(view, torch.float16, WIDE, "sm_90a")) == 0
