"""Functions of users in kernels, in the interpreter, against the same written in torch by hand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv import pointwise as pw
from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.planning.halo_reuse import widened
from layoutconv.planning.legality import reasons
from layoutconv.planning.schedule import KernelSchedule
from layoutconv.planning.tile import TileConfig, persistent, specialized
from layoutconv.tensors.epilogue_in_torch import convert
from layoutconv.view.epilogue import Bias, Epilogue, Pointwise
from layoutconv.view.gemm_view import GemmView

from .launcher import (
    KINDS,
    Case,
    Kind,
    compile_view,
    integers,
    located,
    read,
    run_case,
    spec_of,
    tile_of,
)
from .test_epilogue import VIEWS

BY_NAME = {kind.name: kind for kind in KINDS}
F16, F32 = torch.float16, torch.float32


@dataclass(frozen=True)
class Use:
    """A function as a user writes it, and as torch has it, of what is at every place."""

    function: Callable[..., Any]
    in_torch: Callable[..., Tensor]
    columns: Mapping[str, torch.dtype] = field(default_factory=dict)
    rows: Mapping[str, torch.dtype] = field(default_factory=dict)
    sources: Mapping[str, torch.dtype] = field(default_factory=dict)
    values: Mapping[str, float] = field(default_factory=dict)
    rounds: bool = False


def bumps(x: Any) -> Any:
    near = pw.exp(-0.01 * abs(x)) + pw.log(1.0 + x * x) + pw.rsqrt(1.0 + x**2)
    return near + pw.erf(x / 16) + pw.tanh(0.1 * x)


def bumps_in_torch(x: Tensor) -> Tensor:
    near = (-0.01 * x.abs()).exp() + (1 + x * x).log() + (1 + x * x).rsqrt()
    return near + (x / 16).erf() + (0.1 * x).tanh()


USES = {
    "a clamp with a learned threshold": Use(
        lambda x, threshold: pw.minimum(x, threshold),
        lambda x, threshold, **_: torch.minimum(x, threshold),
        columns={"threshold": F32},
    ),
    "numbers and two columns": Use(
        lambda x, low, high, slope: pw.where(x < low, low + slope * (x - low), pw.minimum(x, high)),
        lambda x, low, high, slope, **_: torch.where(
            x < low, low + slope * (x - low), torch.minimum(x, high)
        ),
        columns={"low": F16, "high": torch.bfloat16},
        values={"slope": 0.25},
    ),
    "a checkerboard": Use(
        lambda x, row, column: pw.where((row + column) % 2 == 0, x, -x),
        lambda x, row, column: torch.where((row + column) % 2 == 0, x, -x),
    ),
    "columns alone": Use(
        lambda x, column: pw.where((column >= 3) & ~(column == 5), x * 2, column),
        lambda x, row, column: torch.where((column >= 3) & (column != 5), x * 2, column.double()),
    ),
    "a number for each row": Use(
        lambda x, weight, skip: weight * x + skip,
        lambda x, weight, skip, **_: weight * x + skip,
        rows={"weight": F32},
        sources={"skip": F16},
    ),
    "two tensors like D": Use(
        lambda x, gate, skip: pw.maximum(x * gate, skip) - abs(gate),
        lambda x, gate, skip, **_: torch.maximum(x * gate, skip) - gate.abs(),
        sources={"gate": F32, "skip": F16},
    ),
    "rows by blocks": Use(
        lambda x, row: x + (row // 7 - 3) // 2,
        lambda x, row, column: x + torch.div(row // 7 - 3, 2, rounding_mode="floor"),
    ),
    "functions that round": Use(bumps, lambda x, **_: bumps_in_torch(x), rounds=True),
    "roots": Use(
        lambda x: pw.sqrt(abs(x)) + pw.floor(x / 3) + pw.sigmoid(x / 8),
        lambda x, **_: x.abs().sqrt() + (x / 3).float().floor().double() + (x / 8).sigmoid(),
        rounds=True,
    ),
}


def step_of(use: Use, view: GemmView, case: Case) -> Pointwise:
    shapes = (
        (use.columns, (view.l * view.n,)), (use.rows, (view.m,)), (use.sources, case.out.shape)
    )  # fmt: skip
    seeds = iter(range(20, 40))
    tensors = (
        {name: integers(tuple(shape), dtype, next(seeds)) for name, dtype in of.items()}
        for of, shape in shapes
    )
    return Pointwise(use.function, *tensors, use.values)


def oracle(use: Use, case: Case, step: Pointwise) -> tuple[Tensor, Tensor]:
    """D after a function of each result, place by place, and which elements of it are written."""
    view, out = case.view, case.out.double().flatten()
    written = torch.zeros(out.shape, dtype=torch.bool)
    row, first = torch.arange(view.m)[:, None], 0
    for l in range(view.l):
        one = view.at(l) if len(view.a.shape) > 2 else view
        sums = read(one.a, case.a, one.m, one.k) @ read(one.b, case.b, one.n, one.k).T
        offset, valid = located(one.d, one.m, one.n)
        column = first + torch.arange(one.n)[None]
        named: dict[str, Any] = {"row": row, "column": column, **use.values}
        named |= {name: t.double()[column] for name, t in step.columns.items()}
        named |= {name: t.double()[row] for name, t in step.rows.items()}
        named |= {name: t.double().flatten()[offset] for name, t in step.sources.items()}
        found = use.in_torch(sums, **named).expand(sums.shape)
        out[offset[valid]], written[offset[valid]] = found[valid], True
        first += one.n
    return out.view(case.out.shape), written.view(case.out.shape)


def check_use(
    name: str, view: GemmView, kind: Kind, tile: TileConfig, arch: str = "sm_89", out: Any = None,
    **options: Any,
) -> None:  # fmt: skip
    use, case = USES[name], Case.of(view, kind.dtype, out or kind.out)
    step = step_of(use, view, case)
    case.epilogue = Epilogue((step,))
    compiled = compile_view(
        view, kind.dtype, tile, arch, case.out.dtype, kind=kind.name,
        epilogue=case.epilogue.structure,
    )  # fmt: skip
    ran = run_case(case, compiled, **options)
    want, written = oracle(use, case, step)
    assert torch.equal(ran.written, written)
    tolerance = 1e-5 if use.rounds else 0.0
    torch.testing.assert_close(
        ran.out[written].double(), convert(want[written], case.out.dtype).double(),
        rtol=tolerance, atol=tolerance,
    )  # fmt: skip


@pytest.mark.parametrize("name", USES)
def test_a_function(name: str) -> None:
    number = list(USES).index(name)
    kind = KINDS[(3 * number + 2) % len(KINDS)]
    view = list(VIEWS.values())[number % len(VIEWS)]
    out = torch.float64 if kind.dtype == torch.float64 else F32
    check_use(name, view, kind, tile_of(number, kind), max(kind.arch, "sm_89"), out)


PLANE = ConvProblem((3, 7, 9, 64), (40, 3, 3), padding=1)
PINGPONG = replace(persistent((64, 64, 64), (4, 1), 2), schedule=KernelSchedule.PINGPONG)
CLUSTER = specialized((64, 64, 64), (4, 1), 3, cluster_k=2)


@pytest.mark.parametrize("name", ["a clamp with a learned threshold", "columns alone"])
def test_registers_of_a_ping_pong_consumer(name: str) -> None:
    check_use(name, fprop_view(PLANE), BY_NAME["float16"], PINGPONG, "sm_90a", most=2)


@pytest.mark.parametrize("name", ["a checkerboard", "a number for each row", "columns alone"])
def test_rows_that_a_cluster_finishes(name: str) -> None:
    check_use(name, fprop_view(PLANE), BY_NAME["float16"], CLUSTER, "sm_90a")


def test_a_persistent_kernel() -> None:
    tile = persistent((64, 64, 64), (4, 1), 2)
    check_use("a number for each row", fprop_view(PLANE), BY_NAME["float16"], tile, "sm_90a",
              most=2)  # fmt: skip


def test_between_other_steps() -> None:
    """Tensors and numbers of several steps are each step's own."""
    view, kind = wgrad_view(ConvProblem((2, 6, 7, 16), (24, 3, 2))), BY_NAME["float16"]
    case = Case.of(view, F16, F32)
    bias, low, high = (integers((view.n,), F32, seed) for seed in (1, 2, 3))
    steps = (
        Pointwise(lambda x, low, by: pw.maximum(x, by * low), {"low": low}, values={"by": 2.0}),
        Bias(bias),
        Pointwise(lambda x, high, by: pw.minimum(x, high) * by, {"high": high}, values={"by": 0.5}),
    )
    case.epilogue = Epilogue(steps)
    compiled = compile_view(view, F16, tile_of(0, kind), "sm_89", F32,
                            epilogue=case.epilogue.structure)  # fmt: skip
    use = Use(
        steps[0].function,
        lambda x, **_: torch.minimum(torch.maximum(x, 2 * low) + bias, high) * 0.5,
    )
    want, _ = oracle(use, case, Pointwise(lambda x: x))
    assert torch.equal(run_case(case, compiled).out.double(), want)


def test_halo_taps_have_no_rows_of_d() -> None:
    view = widened(fprop_view(PLANE))
    assert view is not None
    tile = specialized((128, 64, 32), (8, 1), 2, halo_taps=3)
    for name, refused in (("a checkerboard", True), ("columns alone", False)):
        case = Case.of(view, F16)
        structure = Epilogue((step_of(USES[name], view, case),)).structure
        spec = spec_of(view, F16, tile, "sm_90a", epilogue=structure)
        assert any("ask for no row" in why for why in reasons(view, spec)) == refused


def test_a_ping_pong_consumer_takes_no_rows() -> None:
    view = fprop_view(PLANE)
    structure = Epilogue((step_of(USES["a checkerboard"], view, Case.of(view, F16)),)).structure
    spec = spec_of(view, F16, PINGPONG, "sm_90a", epilogue=structure)
    assert any("steps of no row" in why for why in reasons(view, spec))
