"""Legality: what it accepts compiles and computes, and what the chooser offers it accepts.

``LAYOUTCONV_CAMPAIGN=500`` runs so many examples of each law; the default is for every commit.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.gpu import select
from layoutconv.gpu.folding_choice import arranged_fprop
from layoutconv.gpu.phase_choice import MORE_COLUMNS, arranged_dgrad
from layoutconv.kernels.gemm.implicit_gemm import ImplicitGemm
from layoutconv.planning import legality
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.sparse import kernel_map_view
from layoutconv.view.gemm_view import GemmView

from .draws import draws
from .launcher import Case, check_exact, compiled_view, half_line, run_case, spec_of
from .test_skip import kernel_map

F16, BF16, F32, I8 = torch.float16, torch.bfloat16, torch.float32, torch.int8
PLANE = ConvProblem((2, 5, 7, 32), (40, 3, 3), padding=1)
VIEWS: dict[str, GemmView] = {
    "fprop": fprop_view(PLANE),
    "fprop of 64": fprop_view(ConvProblem((1, 9, 64), (64, 3), padding=1)),
    "dgrad": dgrad_views(ConvProblem((1, 9, 8, 24), (32, 3, 3), stride=2, padding=1))[0],
    "wgrad": wgrad_view(ConvProblem((2, 45, 64), (40, 3), padding=1)),
    "odd channels": fprop_view(ConvProblem((1, 19, 6), (10, 3))),
    "kernel map": kernel_map_view(kernel_map(90, 27, 0.3), 32, 40, kernel_size=(3, 3, 3)),
}
WIDE = {name: wide for name, view in VIEWS.items() if (wide := widened(view)) is not None}


@st.composite
def tiles(draw: st.DrawFn, view: GemmView, dtype: torch.dtype, arch: str) -> TileConfig | None:
    """A tile of any choices, mostly of lines as long as shared memory has them; or None where the
    choices do not fit each other."""

    def one(*of: Any) -> Any:
        return draw(st.sampled_from(of))

    taps = int(view.a.shape[1][-1]) if view in WIDE.values() else 1
    hopper = arch == "sm_90a" and dtype != torch.float64 and (taps > 1 or one(True, False))
    k = one(*2 * (half_line(dtype), 2 * half_line(dtype)), 16)
    m, n = one(32, 64, 64, 96, 128, 192), one(16, 32, 64, 64, 128, 48)
    cluster_k = one(1, 1, 2, 4) if arch == "sm_90a" else 1
    try:
        if not hopper:
            warps = one((1, 1), (2, 2), (2, 2), (1, 4), (4, 1), (2, 1))
            return TileConfig((m, n, k), warps, one(2, 3, 4), halo_taps=taps, cluster_k=cluster_k)
        warps, stages = one((4, 1), (4, 1), (8, 1), (4, 2)), one(1, 2, 3, 4)
        m = max(m, 16 * warps[0])
        kind = one("specialized", "specialized", "TMA", "TMA", "persistent", "ping-pong")
        if kind in ("specialized", "TMA"):
            load = Load.TMA_WARP if kind == "TMA" else one(*list(Load)[1:3])
            return specialized((m, n, k), warps, stages, load, halo_taps=taps, cluster_k=cluster_k)
        k_tiles = -(-view.k // taps // k)
        return persistent(
            (m, n, k), warps, stages, pingpong=kind == "ping-pong", halo_taps=taps,
            b_resident=one(0, 0, k_tiles, k_tiles + 1),
        )  # fmt: skip
    except ValueError:
        return None


@settings(
    max_examples=draws(12),
    deadline=None,
    derandomize=not draws(0),
    suppress_health_check=list(HealthCheck),
)
@given(data=st.data())
def test_what_is_legal_compiles_and_is_right(data: st.DataObject) -> None:
    arch = data.draw(st.sampled_from(["sm_80", "sm_90a", "sm_90a"]), "arch")
    wide = data.draw(st.booleans(), "halo reuse")
    view = data.draw(st.sampled_from(list((WIDE if wide else VIEWS).values())), "view")
    dtype = data.draw(st.sampled_from([F16, F16, BF16, F32, torch.float64, I8]), "dtype")
    tile = data.draw(tiles(view, dtype, arch), "tile")
    if tile is None or (dtype == I8 and view in (VIEWS["wgrad"], VIEWS["dgrad"])):
        return
    out = torch.int32 if dtype == I8 else data.draw(st.sampled_from([dtype, F32]), "out")
    out = dtype if dtype == torch.float64 else out
    of = view, dtype, tile, arch, out
    if legality.reasons(view, spec_of(*of), MACHINES[arch].smem_per_cta):
        with pytest.raises(UnsupportedViewError, match="expected"):
            legality.check(view, spec_of(*of), MACHINES[arch].smem_per_cta)
        return
    case = Case.of(view, dtype, out)
    check_exact(case, run_case(case, compiled_view(*of)))


@settings(max_examples=draws(40), deadline=None, derandomize=not draws(0))
@given(
    cells=st.lists(st.sampled_from((14, 28, 33, 56)), min_size=1, max_size=3),
    images=st.sampled_from((1, 8, 64)),
    C=st.sampled_from((8, 12, 16, 24, 32, 40, 64, 128)),
    K=st.sampled_from((8, 12, 24, 32, 40, 64, 128, 256)),
    taps=st.lists(st.sampled_from((1, 2, 3, 5)), min_size=3, max_size=3),
    numbers=st.sampled_from(((1, 0, 1), (1, 1, 1), (1, 2, 2), (2, 1, 1), (3, 1, 1))),
    structure=st.sampled_from(("", "statistics", "bias:float32 relu", "residual:float16")),
    dtype=st.sampled_from([F16, F32, I8]),
    arch=st.sampled_from(["sm_80", "sm_86", "sm_90a"]),
)
def test_what_the_chooser_offers_is_legal(
    cells: list[int], images: int, C: int, K: int, taps: list[int],
    numbers: tuple[int, int, int], structure: str, dtype: torch.dtype, arch: str,
) -> None:  # fmt: skip
    """Its first pick, so that nothing is asked twice, and a kernel takes it."""
    problem = ConvProblem((images, *cells, C), (K, *taps[: len(cells)]), *numbers)
    views = [arranged_fprop(problem, 64 // dtype.itemsize), *arranged_dgrad(problem, MORE_COLUMNS)]
    views = views[:1] if dtype == I8 else [*views, wgrad_view(problem)]
    machine = MACHINES[arch]
    for view in views:
        if view.k and view.m:
            found = select.choose_kernel(view, dtype, machine, structure=structure)
            assert legality.reasons(found.view, found.spec, machine.smem_per_cta) == []
            first = next(iter(ranked(found.problem, machine)))
            assert found.spec.tile == first[0]
            ImplicitGemm(found.view, found.spec)


def test_the_next_best_tile_runs_where_the_first_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as after a change of the table: the model knows sizes, legality knows the view."""
    machine, asked = MACHINES["sm_90a"], list[TileConfig]()
    true = legality.reasons

    def reasons(view: GemmView, spec: Any, limit: int | None = None) -> list[str]:
        asked.append(spec.tile)
        return true(view, spec, limit) if len(asked) > 2 else ["another tile"]

    monkeypatch.setattr(legality, "reasons", reasons)
    found = select.choose_kernel(fprop_view(PLANE), F16, machine)
    best = [tile for tile, _ in islice(ranked(found.problem, machine), 3)]
    assert [*asked[:2], found.spec.tile] == best


def test_errors_name_the_tile_what_was_expected_and_what_came() -> None:
    tile = specialized((64, 64, 64), (4, 1), 1, Load.TMA_WARP)
    with pytest.raises(UnsupportedViewError) as caught:
        legality.check(VIEWS["fprop"], spec_of(VIEWS["fprop"], F16, tile, "sm_90a"))
    assert str(caught.value) == f"{tile!r}: expected one k-tile for one stage, got k = 288"
    few = replace(tile, stages=9)
    spec = spec_of(VIEWS["fprop of 64"], F16, few, "sm_90a")
    [reason] = legality.reasons(VIEWS["fprop of 64"], spec, 99 << 10)
    assert reason == f"{99 << 10} bytes of shared memory at most, got {spec.smem_bytes}"
