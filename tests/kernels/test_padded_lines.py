"""Filter gradients whose channels are rounded up to whole lines: TMA loads both operands."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.conv import ConvProblem, wgrad_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning import legality
from layoutconv.planning.channel_padding import has_padded_channels, padded_lines
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.schedule import Load
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.view.gemm_view import GemmView, locate
from layoutconv.view.operands import row_major, static

from .launcher import (
    Case,
    check_exact,
    check_not_finite,
    compile_spec,
    reference,
    run_case,
)
from .test_tma import copies, known

F16, BF16, F32 = torch.float16, torch.bfloat16, torch.float32
H200 = MACHINES["sm_90a"]
LINE = 64
TILE = specialized((64, 128, 64), (4, 1), 3)
BY_A_WARP = specialized((64, 64, 64), (4, 1), 3, Load.TMA_WARP)
CLUSTER = replace(BY_A_WARP, load=Load.CP_ASYNC_WARPGROUP, cluster_k=2)

S3D = ConvProblem((1, 2, 7, 6, 160), (72, 1, 3, 3), padding=(0, 1, 1))
STRIDED = ConvProblem((2, 9, 9, 80), (40, 3, 3), 2, 1)
UNETR = ConvProblem((1, 3, 4, 5, 48), (48, 3, 3, 3), padding=1)
WAVE = ConvProblem((2, 30, 96), (64, 5), padding=((4, 0),), dilation=1)


def padded(view: GemmView) -> GemmView:
    return known(padded_lines(view, LINE))


def spec_of(view: GemmView, dtype: torch.dtype, tile: TileConfig, out: str = "") -> KernelSpec:
    """The spec of the view without padding: its vectors are those of memory."""
    kind = str(dtype).removeprefix("torch.")
    return KernelSpec.of(view, kind, out or kind, tile, "sm_90a")


def split_rows(view: GemmView) -> GemmView:
    """The view with its filters in two modes."""
    filters = int(view.m)
    a, d = view.a, view.d
    rows, steps = (8, filters // 8), (a.inner.stride[0], E(4) * 8)
    inner_a = Layout((rows, a.inner.shape[1]), (steps, a.inner.stride[1]))
    inner_d = Layout((rows, d.inner.shape[1]), ((E(0), E(0) * 8), d.inner.stride[1]))
    of = ((a, inner_a), (d, inner_d))
    a, d = (ComposedLayout(each.outer, each.offset, inner) for each, inner in of)
    return GemmView(a, view.b, d)


RUN = {
    "two lines and a half": (wgrad_view(S3D), F16, TILE),
    "a stride": (wgrad_view(STRIDED), BF16, BY_A_WARP),
    "less than a line": (wgrad_view(UNETR), F16, BY_A_WARP),
    "a cluster's parts": (wgrad_view(WAVE), BF16, CLUSTER),
    "rows of two modes": (split_rows(wgrad_view(S3D)), F16, BY_A_WARP),
}


@pytest.mark.parametrize("name", RUN)
def test_results_are_exact_and_no_thread_copies(name: str) -> None:
    plain, dtype, tile = RUN[name]
    view, spec = padded(plain), spec_of(plain, dtype, tile)
    legality.check(view, spec)
    kernel, case = compile_spec(view, spec), Case.of(view, dtype)
    ran = run_case(case, kernel)
    check_exact(case, ran)
    assert ran.written.all()
    assert copies(kernel)[2] == 0


def test_slices_of_sums_are_whole() -> None:
    plain = wgrad_view(STRIDED)
    view = padded(plain)
    spec = replace(spec_of(plain, F16, TILE, "float32"), split="partial")
    case = Case.of(view, F16, F32)
    ran = run_case(case, compile_spec(view, spec), splits=3)
    assert ran.written.all()
    assert torch.equal(ran.out.double().sum(0), reference(case)[0])


def test_one_kernel_serves_every_number_of_pixels() -> None:
    first, second = wgrad_view(STRIDED), wgrad_view(replace(STRIDED, activation=(1, 6, 11, 80)))
    kernel = compile_spec(padded(first), spec_of(first, F16, BY_A_WARP))
    case = Case.of(padded(second), F16)
    check_exact(case, run_case(case, kernel))


def test_what_is_not_finite_stays_with_its_channel() -> None:
    """The numbers behind the last channel are those of the next pixel."""
    plain = wgrad_view(UNETR)
    case = Case.of(padded(plain), F16)
    case.b.view(-1, UNETR.C)[7, 0] = torch.inf
    ran = run_case(case, compile_spec(case.view, spec_of(plain, F16, BY_A_WARP)))
    check_not_finite(Case(plain, case.a, case.b, case.out), ran)


@pytest.mark.parametrize("problem", [S3D, STRIDED, UNETR, WAVE])
def test_the_products_are_the_same(problem: ConvProblem) -> None:
    """Padded columns are outside B and D; all others are where they were."""
    plain = wgrad_view(problem)
    view = padded(plain)
    whole = int(view.b.inner.shape[0][0])
    assert (view.m, view.k, view.n * problem.C) == (plain.m, plain.k, plain.n * whole)
    real = torch.arange(view.n) % whole < problem.C
    for layout, before, other, along in (
        (view.b, plain.b, view.k, 0),
        (view.d, plain.d, view.m, 1),
    ):
        found = []
        for of, count in ((layout, view.n), (before, plain.n)):
            shape = (other, count)
            columns, others = torch.arange(count)[None], torch.arange(other)[:, None]
            at, there = locate(of, *((columns, others) if along == 0 else (others, columns)))
            found += [torch.as_tensor(at).expand(shape), torch.as_tensor(there).expand(shape)]
        at, there, want, inside = found
        assert not there[:, ~real].any()
        assert torch.equal(there[:, real], inside)
        assert torch.equal(at[:, real][inside], want[inside])


def test_threads_do_not_copy_padded_lines() -> None:
    plain = wgrad_view(S3D)
    for tile in (TileConfig((64, 64, 32)), BY_A_WARP):
        spec = replace(spec_of(plain, F16, tile), vectors=(4, 4, 4))
        assert legality.reasons(padded(plain), spec)


def test_what_is_not_padded() -> None:
    columns = Layout(((S3D.C, 9),), ((1, 0),))
    for view in (
        wgrad_view(ConvProblem((2, 9, 9, 128), (40, 3, 3))),  # whole lines
        wgrad_view(ConvProblem((2, 9, 9, 24), (40, 3, 3))),  # more than twice as many
        wgrad_view(ConvProblem((2, 9, 9, 96), (64, 1, 1))),  # one tap
        wgrad_view(ConvProblem((2, 9, 9, 192), (64, 3, 3), groups=2)),
        replace(wgrad_view(S3D), columns=columns),
    ):
        assert padded_lines(view, LINE) is None


def test_channels_that_several_modes_move_are_not_padded() -> None:
    """Here a tap is a step of channels: what is behind the last is the next tap's."""
    pixels, memory = static(64, "Q"), row_major((64, 144))
    b = ComposedLayout(memory, 0, Layout(((48, 3), pixels), ((E(1), E(1) * 48), E(0))))
    a = ComposedLayout(row_major((64, 64)), 0, Layout((64, pixels), (E(1), E(0))))
    results = Layout((64, (48, 3)), (E(0), (E(1), E(1) * 48)))
    view = GemmView(a, b, ComposedLayout(row_major((64, 144)), 0, results))
    assert padded_lines(view, LINE) is None


@pytest.mark.parametrize("dtype", [F16, BF16])
def test_the_model_pads_where_loads_by_threads_are_slow(dtype: torch.dtype) -> None:
    """Layers of S3D and of Inception v3, whose gradients threads loaded."""
    pads = {
        ConvProblem((8, 4, 14, 14, 160), (320, 1, 3, 3), padding=(0, 1, 1)): True,
        ConvProblem((32, 17, 17, 160), (192, 1, 7), padding=(0, 3)): True,
        ConvProblem((8, 4, 14, 14, 192), (320, 1, 3, 3), padding=(0, 1, 1)): False,
        ConvProblem((16, 65536, 32), (32, 7), padding=15, dilation=5): False,  # twice the columns
    }
    for problem, wants in pads.items():
        chosen = choose_kernel(wgrad_view(problem), dtype, H200)
        assert has_padded_channels(chosen.view) == wants
        assert chosen.problem.tma == (wants or problem.C == 192)


def test_epilogues_and_other_gpus_see_no_padding() -> None:
    view = wgrad_view(ConvProblem((8, 4, 14, 14, 160), (320, 1, 3, 3), padding=(0, 1, 1)))
    for machine, structure in ((MACHINES["sm_80"], ""), (H200, "scale,n0")):
        chosen = choose_kernel(view, F16, machine, structure=structure)
        assert not has_padded_channels(chosen.view)
