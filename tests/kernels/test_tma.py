"""B that comes by tensor maps: when it does, that it is B, and CTAs that share it."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import cutlass
import cutlass.cute as cute
import pytest
import torch
from layoutconv.kernels import implicit_gemm, mainloop_sm90
from layoutconv.kernels.structure import index_buffer
from layoutconv.kernels.tensor_map import memory_of_b
from layoutconv.kernels.tile import Tile
from layoutconv.kernels.window import widened

from layoutconv.algebra import E, Layout
from layoutconv.algebra.composed import ComposedLayout
from layoutconv.algebra.int_tuple import flatten
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, gather_fprop_view, wgrad_view
from layoutconv.epilogue import Bias, Epilogue
from layoutconv.gemm_view import GemmView
from layoutconv.sparse import kernel_map_view
from layoutconv.sparse.views import kernel_map_dgrad_view

from ..machine import Fault
from .launcher import (
    Case,
    Compiled,
    check_exact,
    compile_view,
    compiled_view,
    integers,
    located,
    reference,
    run_case,
    spec_of,
)
from .test_skip import kernel_map

WIDE = Tile(64, 64, 64, 4, 1, 2, 128)
HALF = replace(WIDE, k=32, stages=3)
SHARED = replace(HALF, stages=2, sharing=2)

ONE_D = fprop_view(ConvProblem((2, 65, 24), (40, 5), padding=2))  # rests of rows, columns and k
GROUPS = fprop_view(ConvProblem((1, 3, 4, 5, 64), (80, 2, 3, 1), padding=1, groups=2))
STRIDED = dgrad_views(ConvProblem((1, 9, 8, 72), (64, 3, 3), stride=2, padding=1))
MAP: Any = kernel_map_view(kernel_map(100, 27, 0.1), 16, 40, kernel_size=(3, 3, 3))


def mirrored_dgrad(index: Any, C: int, K: int) -> GemmView:
    return kernel_map_dgrad_view(index, K, C, mirrored=True)


def known(view: GemmView | None) -> GemmView:
    assert view is not None
    return view


# Of each view, the leaves of its B: by maps of two to five modes.
MAPPED = {
    "1-D": (ONE_D, WIDE, 2),
    "one row": (fprop_view(ConvProblem((1, 9, 64), (1, 3))), WIDE, 2),
    "groups": (GROUPS, WIDE, 3),
    "taps in another order": (
        known(widened(fprop_view(ConvProblem((1, 9, 9, 32), (40, 3, 3))))), HALF, 4
    ),
    "gradient": (dgrad_views(ConvProblem((1, 9, 72), (64, 3)))[0], WIDE, 3),
    "gradient, one tap": (STRIDED[0], WIDE, 2),
    "gradient of groups": (
        dgrad_views(ConvProblem((1, 9, 9, 128), (64, 3, 5), stride=2, groups=2))[0], HALF, 5
    ),
    "kernel map": (MAP, WIDE, 2),
}  # fmt: skip


@pytest.mark.parametrize("name", MAPPED)
def test_a_map_names_the_elements_of_b(name: str) -> None:
    view, tile, modes = MAPPED[name]
    found = memory_of_b(view, spec_of(view, torch.float16, tile, "sm_90a"))
    assert found is not None
    memory, start = found
    assert len(flatten(memory.shape)) == modes
    for l in range(view.l):
        of_group = view.at(l) if view.l > 1 else view
        offset, there = located(of_group.b, view.n, view.k)
        assert there.all()
        n, k = torch.arange(view.n)[:, None], torch.arange(view.k)[None]
        got = memory(n, k, l) if view.l > 1 else memory(n, k)
        assert torch.equal((start + got).expand_as(offset), offset)


def of_strides(*strides: int, extents: tuple[int, int] = (40, 64)) -> GemmView:
    """A view whose B has these strides along n and k."""
    matrix = Layout(extents, (E(0), E(1)))
    a = ComposedLayout(Layout((9, extents[1])), (0, 0), Layout((9, extents[1]), (E(0), E(1))))
    b = ComposedLayout(Layout(extents, strides), (0, 0), matrix)
    d = ComposedLayout(Layout((9, 40), (40, 1)), (0, 0), Layout((9, 40), (E(0), E(1))))
    return GemmView(a, b, d)


NOT_MAPPED: dict[str, tuple[GemmView, dict[str, Any]]] = {
    "a type that is rounded, and turned": (
        dgrad_views(ConvProblem((1, 9, 96), (64, 3)))[0],
        {"dtype": torch.float32, "tile": replace(WIDE, k=32)},
    ),
    "a start that 16 bytes do not divide": (ONE_D, {"aligned": (16, 8, 16)}),
    "rows that 16 bytes do not divide": (fprop_view(ConvProblem((1, 9, 12), (40, 3))), {}),
    "a loop without producers": (ONE_D, {"tile": Tile(64, 64, 64)}),
    "sizes of calls": (wgrad_view(ConvProblem((1, 9, 9, 64), (64, 3, 3))), {}),
    "k-tiles of several modes": (dgrad_views(ConvProblem((1, 9, 72), (40, 3)))[0], {}),
    "a gathered B": (
        GemmView(ONE_D.a, gather_fprop_view(
            ConvProblem((1, 3, 3, 64), (64, 3, 3), padding=1),
            torch.zeros(9, dtype=torch.int32), torch.zeros(9, dtype=torch.int32),
        ).a, ONE_D.d), {},
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


def maps_read(compiled: Compiled) -> int:
    """Instructions that copy B by a map; there are none of 16 bytes but those of A, if any are."""
    tile, vector = compiled.spec.tile, compiled.spec.vectors[0]
    copies = compiled.ptx.count("cp.async.c")
    found = len(re.findall(r"cp\.async\.bulk\.tensor[^;]*tile", compiled.ptx))
    of_a = 0 if "im2col" in compiled.ptx else tile.copied_rows * tile.k // vector // tile.producers
    of_b = tile.taps * tile.n * tile.k // vector // tile.producers
    assert copies == (of_a if found else of_a + of_b)
    return found


RUN: dict[str, tuple[GemmView, Tile, dict[str, Any]]] = {
    "rests": (ONE_D, WIDE, {}),
    "groups of three axes": (GROUPS, HALF, {}),
    "a gradient, several panels": (STRIDED[1], replace(HALF, n=128, m=128, warps_m=8), {}),
    "taps that tiles lack": (MAP, WIDE, {"skip": True}),
    "parts that are added later": (ONE_D, HALF, {"split": "partial"}),
    "a cluster for a sum": (ONE_D, replace(WIDE, parts=2), {}),
}


@pytest.mark.parametrize("name", RUN)
def test_b_by_maps(name: str) -> None:
    view, tile, rest = RUN[name]
    out = torch.float32 if "split" in rest else torch.float16
    case = Case.of(view, torch.float16, out)
    compiled = compiled_view(view, torch.float16, tile, "sm_90a", out, **rest)
    panels = tile.n // 64 if compiled.spec.along[1] == 0 else 1
    assert maps_read(compiled) == panels
    if "split" in rest:  # the last part has one k-tile less than the first
        ran = run_case(case, compiled, splits=2)
        assert torch.equal(ran.out.double().sum(0), reference(case)[0])
    else:
        check_exact(case, run_case(case, compiled))


def test_b_vector_by_vector() -> None:
    view = dgrad_views(ConvProblem((1, 9, 72), (40, 3)))[0]
    assert maps_read(compile_view(view, torch.float16, WIDE, "sm_90a")) == 0


# -- what CTAs share -------------------------------------------------------------------------------


def test_shared_copies_along_k_and_statistics() -> None:
    """Of three tiles a fourth makes clusters whole: it has no place for rows, nor for sums."""
    case = Case.of(ONE_D, torch.float16)
    bias = integers((40,), torch.float32, 3)
    want = (reference(case)[0] + bias).half().double()
    case.epilogue = Epilogue((Bias(bias),), statistics=True)
    compiled = compiled_view(
        ONE_D, torch.float16, SHARED, "sm_90a", epilogue=case.epilogue.structure
    )
    assert len(re.findall(r"cp\.async\.bulk\.tensor[^;]*multicast", compiled.ptx)) == 1
    ran = run_case(case, compiled)
    assert (ran.launch.grid, ran.launch.cluster) == ((4, 1, 1), (2, 1, 1))
    assert torch.equal(ran.out.double(), want)
    assert ran.statistics is not None
    flat = want.view(-1, 40)
    sums = torch.stack([flat.sum(0), (flat**2).sum(0)])
    assert torch.equal(ran.statistics.double().sum(0), sums)


def test_shared_copies_along_n() -> None:
    """One tile of rows, and two of columns: tiles of a cluster lie one below the other."""
    view = STRIDED[0]
    case = Case.of(view, torch.float16)
    ran = run_case(case, compiled_view(view, torch.float16, SHARED, "sm_90a"))
    check_exact(case, ran)
    assert (ran.launch.grid, ran.launch.cluster) == ((4, 1, 1), (2, 1, 1))


def taps_of_tiles(view: GemmView, rows: int) -> list[int]:
    """Of each tile of so many rows, how many taps some row has."""
    index = index_buffer(view.a)
    assert isinstance(index, torch.Tensor)
    return [int((tile >= 0).any(1).sum()) for tile in index.view(27, -1).split(rows, 1)]


@pytest.mark.parametrize("make", [kernel_map_view, mirrored_dgrad], ids=["forward", "gradient"])
def test_taps_of_tiles_that_share(make: Any) -> None:
    """Both CTAs of a cluster multiply the taps that some row of either has."""
    view = make(kernel_map(150, 27, 0.15), 32, 40)
    alone, both = taps_of_tiles(view, 64), taps_of_tiles(view, 128)
    assert max(both) < 27
    assert any(taps < both[i // 2] for i, taps in enumerate(alone))
    case = Case.of(view, torch.float16)
    ran = run_case(case, compiled_view(view, torch.float16, SHARED, "sm_90a", skip=True))
    check_exact(case, ran)
    assert (ran.launch.grid, ran.launch.cluster) == ((4, 1, 1), (2, 1, 1))


Patch = pytest.MonkeyPatch


def stages_given_back_to_oneself(patch: Patch) -> None:
    alone = mainloop_sm90._arrive
    patch.setattr(mainloop_sm90, "_arrive_at_all", lambda full, tid, told, ctas: alone(full, tid))


def stages_given_back_that_nobody_copies_into(patch: Patch) -> None:
    at_all = mainloop_sm90._arrive_at_all
    always = cutlass.Boolean
    patch.setattr(
        mainloop_sm90, "_arrive_at_all", lambda b, t, told, n: at_all(b, t, always(True), n)
    )


def nobody_waits_for_the_others_barriers(patch: Patch) -> None:
    for name in ("cluster_arrive_relaxed", "cluster_wait"):
        patch.setattr(cute.arch, name, lambda: None)


def a_tile_too_many_is_stored(patch: Patch) -> None:
    patch.setattr(implicit_gemm, "_is_row", lambda m, rows: cutlass.Boolean(True))


@pytest.mark.parametrize(
    "mutation",
    [
        stages_given_back_to_oneself,
        stages_given_back_that_nobody_copies_into,
        nobody_waits_for_the_others_barriers,
        a_tile_too_many_is_stored,
    ],
)
def test_without_a_guard_the_machine_finds_a_fault(
    mutation: Callable[[Patch], None], monkeypatch: Patch
) -> None:
    mutation(monkeypatch)
    case = Case.of(ONE_D, torch.float16)
    case.epilogue = Epilogue(statistics=True)
    compiled = compile_view(ONE_D, torch.float16, SHARED, "sm_90a", epilogue="statistics")
    with pytest.raises((Fault, AssertionError)):
        check_exact(case, run_case(case, compiled))


def test_what_cannot_be_shared() -> None:
    small = dgrad_views(ConvProblem((300, 2, 2, 64), (64, 3, 3), padding=1), images_first=True)[0]
    for view, rest in ((wgrad_view(ConvProblem((1, 9, 64), (64, 3))), {}), (small, {"skip": True})):
        with pytest.raises(ValueError, match="a B that a tensor map describes, of every tap"):
            compile_view(view, torch.float16, SHARED, "sm_90a", **rest)
    for changes, message in (
        ({"sharing": 4}, "by 2 CTAs"),
        ({"producers": 0}, "of warpgroups"),
        ({"parts": 2}, "tiles of B, or sums"),
    ):
        with pytest.raises(ValueError, match=message):
            replace(SHARED, **changes)
