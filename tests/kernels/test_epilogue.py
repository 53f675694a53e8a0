"""Steps before the store, in the machine, against their definition in torch on exact sums."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, gather_fprop_view
from layoutconv.kernels.gemm.epilogue.smem_store import BATCH
from layoutconv.planning.tile import TileConfig, specialized
from layoutconv.tensors.epilogue_in_torch import activate, apply_steps, column_statistics, convert
from layoutconv.view.epilogue import (
    ACTIVATIONS,
    Activation,
    Bias,
    Clamp,
    Epilogue,
    EpilogueStep,
    Residual,
    Scale,
)
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    KINDS,
    Case,
    Kind,
    Ran,
    compiled_view,
    integers,
    reference,
    run_case,
    tile_of,
)

Make = Callable[
    [int, Sequence[int]], Sequence[EpilogueStep]
]  # of the number of columns, the shape of D
BY_NAME = {kind.name: kind for kind in KINDS}

PROBLEM = ConvProblem((2, 5, 6, 24), (40, 3, 2), padding=1)
ODD = ConvProblem((2, 5, 6, 5), (7, 3, 3), padding=1)
GROUPS = ConvProblem((1, 7, 6, 12), (30, 2, 3), padding=1, groups=3)


def scattered() -> GemmView:
    """Rows in another order, of which some are not written and some are of no row."""
    cells = torch.randperm(77, generator=torch.Generator().manual_seed(0)).int()
    cells[::4] = -1
    problem = ConvProblem((1, 7, 11, 16), (40, 2, 3), padding=((0, 1), 1))
    return gather_fprop_view(problem, None, cells, out_rows=81)


VIEWS = {
    "fprop": fprop_view(PROBLEM),
    "odd channels": fprop_view(ODD),
    "groups": fprop_view(GROUPS),
    "scattered": scattered(),
    "a residue": dgrad_views(ConvProblem((2, 9, 6, 16), (24, 3, 3), stride=2, padding=1))[1],
    "columns beyond the tile": fprop_view(ConvProblem((1, 9, 16), (72, 3), padding=1)),
}


def run(
    view: GemmView, kind: Kind, steps: Make, *, out: Any = None, statistics: bool = False,
    number: int = 0,
) -> tuple[Case, Ran]:  # fmt: skip
    case = Case.of(view, kind.dtype, out or kind.out)
    epilogue = Epilogue(tuple(steps(view.l * view.n, case.out.shape)), statistics=statistics)
    case.epilogue = epilogue
    arch = max(kind.arch, "sm_89")
    return case, run_case(case, case.compiled(tile_of(number, kind), arch, kind=kind.name))


def expected(case: Case) -> tuple[Tensor, Tensor]:
    """Return what is stored, (rows, columns), and where, by the definition of the steps."""
    sums, written = reference(case)
    columns = case.view.l * case.view.n
    sources = [source.double().reshape(-1, columns) for source in case.epilogue.sources]
    rows = apply_steps(case.epilogue.steps, sums.reshape(-1, columns), slice(None), sources)
    return convert(rows, case.out.dtype), written.reshape(-1, columns)


def check(case: Case, ran: Ran, rtol: float = 0.0, atol: float = 0.0) -> None:
    want, written = expected(case)
    got = ran.out.reshape(want.shape)
    assert torch.equal(ran.written.reshape(want.shape), written)
    torch.testing.assert_close(
        got.double()[written], want.double()[written], rtol=rtol, atol=atol, equal_nan=True
    )
    if case.epilogue.statistics:
        assert ran.statistics is not None
        assert ran.statistics.isfinite().all()  # every CTA writes a part for each of its columns
        stored = torch.where(written, got.double(), 0.0)
        sums = column_statistics(stored)
        torch.testing.assert_close(
            ran.statistics.double().sum(0), sums.double(), rtol=1e-6, atol=1e-6
        )


# -- steps with small integers and powers of two: exact in every type -----------------------------


def numbers(count: int, dtype: torch.dtype = torch.float32, seed: int = 5) -> Tensor:
    return integers((count,), dtype, seed)


STEPS: dict[str, Make] = {
    "scale": lambda n, s: [Scale(0.5)],
    "scale of columns": lambda n, s: [Scale(2.0 ** numbers(n).clamp(-2, 2))],
    "bias": lambda n, s: [Bias(numbers(n))],
    "bias of fp16": lambda n, s: [Bias(numbers(n, torch.float16))],
    "bias of bf16": lambda n, s: [Bias(numbers(n, torch.bfloat16))],
    "residual": lambda n, s: [Residual(integers(s, torch.float32, 3))],
    "residual of fp16": lambda n, s: [Residual(integers(s, torch.float16, 3), -2.0)],
    "residual of bf16": lambda n, s: [Residual(integers(s, torch.bfloat16, 3), 0.5)],
    "residual of int8": lambda n, s: [Residual(integers(s, torch.int8, 3), 3.0)],
    "relu": lambda n, s: [Activation("relu")],
    "leaky relu": lambda n, s: [Activation("leaky_relu", 0.25)],
    "clamp": lambda n, s: [Clamp(-3.0, 17.0)],
    "half a clamp": lambda n, s: [Clamp(float("-inf"), 5.0)],
    "bias and relu": lambda n, s: [Bias(numbers(n)), Activation("relu")],
    "relu and bias": lambda n, s: [Activation("relu"), Bias(numbers(n))],
    "two biases": lambda n, s: [
        Bias(numbers(n, torch.float16)), Scale(2.0), Bias(numbers(n, torch.float32, 6))
    ],
    "alpha and beta": lambda n, s: [Scale(2.0), Residual(integers(s, torch.float16, 3), -0.5)],
    "two residuals": lambda n, s: [
        Residual(integers(s, torch.float16, 3), 2.0),
        Activation("relu"),
        Residual(integers(s, torch.float32, 4), -1.0),
    ],
    "all of them": lambda n, s: [
        Scale(0.25), Bias(numbers(n)), Scale(2.0 ** numbers(n).clamp(-1, 1)),
        Residual(integers(s, torch.bfloat16, 3), 4.0), Activation("leaky_relu", 0.5),
        Clamp(-20.0, 90.0), Bias(numbers(n, torch.float16, 7)),
    ],
}  # fmt: skip


DEEP = [
    "scale of columns", "bias", "residual", "residual of fp16", "residual of bf16", "relu",
    "leaky relu", "clamp", "half a clamp",
]  # fmt: skip


@pytest.mark.parametrize("name", with_deep(STEPS, *DEEP))
def test_steps(name: str) -> None:
    number = list(STEPS).index(name)
    kind = KINDS[(3 * number + 1) % len(KINDS)]
    view = list(VIEWS.values())[number % len(VIEWS)]
    out = torch.float64 if kind.dtype == torch.float64 else torch.float32
    case, ran = run(
        view, kind, STEPS[name], out=out, statistics=number % 3 == 0 and out == torch.float32,
        number=number,
    )  # fmt: skip
    check(case, ran)


OUTS = [torch.float16, torch.bfloat16, torch.int8, torch.int32, torch.float8_e4m3fn]


# Types whose every number is converted in ``test_types``.
CONVERTED = torch.bfloat16, torch.int32, torch.float8_e4m3fn


@pytest.mark.parametrize("out", with_deep([*OUTS, torch.float8_e5m2], *CONVERTED), ids=str)
@pytest.mark.parametrize("by_row", [False, True], ids=["of columns", "of rows"])
@pytest.mark.chessboard
def test_results_are_converted_after_the_last_step(out: torch.dtype, by_row: bool) -> None:
    number = OUTS.index(out) if out in OUTS else 5
    name = "all of them" if by_row else "two biases"
    kind = KINDS[(5 * number + by_row) % len(KINDS)]
    kind = BY_NAME["tfloat32"] if kind.dtype == torch.float64 else kind
    view = list(VIEWS.values())[(number + by_row) % 4]
    case, ran = run(view, kind, STEPS[name], out=out, number=number + by_row)
    check(case, ran)


# -- statistics -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", with_deep(VIEWS, "fprop"))
def test_statistics_are_sums_of_what_is_stored(name: str) -> None:
    number = list(VIEWS).index(name)
    kind = KINDS[number % 2]
    out = [torch.float16, torch.float32, torch.bfloat16][number % 3]
    steps = STEPS["bias and relu" if number % 2 else "residual"]
    case, ran = run(VIEWS[name], kind, steps, out=out, statistics=True, number=number)
    check(case, ran)
    tile = tile_of(number, kind)
    assert ran.statistics is not None
    assert ran.statistics.shape == (-(-case.view.m // tile.m), 2, case.view.l * case.view.n)


def test_statistics_without_a_step() -> None:
    case, ran = run(VIEWS["fprop"], KINDS[0], lambda n, s: [], statistics=True)
    check(case, ran)


def test_statistics_are_of_rounded_values() -> None:
    """Statistics are of what is stored, not of what was computed: in int8, these differ widely."""
    _, ran = run(
        VIEWS["fprop"], KINDS[0], lambda n, s: [Scale(0.3)], out=torch.int8, statistics=True
    )
    stored = ran.out.double().reshape(-1, 40)
    assert ran.statistics is not None
    assert torch.equal(ran.statistics.double().sum(0)[0], stored.sum(0))


# -- activations, which round ---------------------------------------------------------------------

LINE = torch.cat(
    [
        torch.linspace(-9, 9, 145),
        torch.tensor([0.0, -0.0, 100.0, -100.0, 6e4, -6e4, 1e-7, -1e-7]),
        torch.tensor([torch.nan, torch.inf, -torch.inf]),
    ]
).half()


def of_the_line() -> Case:
    """Products of one channel with 1, which show what becomes of each number of the line."""
    view = fprop_view(ConvProblem((1, len(LINE), 1), (4, 1)))
    case = Case.of(view, torch.float16, torch.float32)
    case.a.copy_(LINE.view(case.a.shape))
    case.b.fill_(1.0)
    return case


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_that_of_torch_on_the_whole_line(name: str) -> None:
    case = of_the_line()
    case.epilogue = Epilogue((Activation(name, 0.2),))
    got = run_case(case, case.compiled(tile_of(0, KINDS[0]))).out[0]
    want = activate(LINE.double(), name, 0.2)
    for column in got.unbind(1):
        torch.testing.assert_close(column.double(), want, rtol=2e-6, atol=2e-6, equal_nan=True)


MORE_DEEP = [
    "relu", "leaky_relu", "gelu_tanh", "silu", "hardswish",
]  # fmt: skip


@pytest.mark.parametrize("name", with_deep(ACTIVATIONS, *MORE_DEEP))
def test_an_activation_between_other_steps(name: str) -> None:
    number = ACTIVATIONS.index(name)
    kind = KINDS[number % len(KINDS)]
    view = list(VIEWS.values())[number % len(VIEWS)]

    def steps(n: int, shape: Sequence[int]) -> list[EpilogueStep]:
        found: list[EpilogueStep] = [
            Scale(0.03), Bias(torch.linspace(-1, 1, n)), Activation(name, 0.2), Clamp(-1.5, 2.0)
        ]  # fmt: skip
        if number % 2:
            found.insert(2, Residual(integers(shape, torch.float16, 3), 0.1))
        return found

    case, ran = run(view, kind, steps, out=torch.float32, number=number)
    check(case, ran, rtol=5e-6, atol=5e-6)


def test_nan_and_infinity_through_a_clamp() -> None:
    case = of_the_line()
    for low, high in ((-1.0, 2.0), (-torch.inf, 3.0), (2.0, torch.inf)):
        case.epilogue = Epilogue((Clamp(low, high),))
        got = run_case(case, case.compiled(tile_of(0, KINDS[0]))).out[0, :, 0]
        want = LINE.float().clamp(low, high)
        torch.testing.assert_close(got, want, rtol=0, atol=0, equal_nan=True)


def test_numbers_are_arguments_of_a_kernel() -> None:
    """One kernel for all scales and slopes: what is compiled has names alone."""
    kernels = set()
    for scale, slope in ((0.5, 0.25), (4.0, -2.0)):
        steps = [Scale(scale), Activation("leaky_relu", slope)]
        case, ran = run(VIEWS["fprop"], KINDS[0], lambda n, s, steps=steps: steps)
        check(case, ran)
        compiled = compiled_view(
            case.view, torch.float16, tile_of(0, KINDS[0]), "sm_89", torch.float16,
            kind="float16", epilogue=case.epilogue.structure,
        )  # fmt: skip
        kernels.add(id(compiled))
    assert len(kernels) == 1


@pytest.mark.parametrize(
    ("structure", "dtype", "instruction"),
    [
        ("bias:float16 relu", torch.float16, "cvt.rn.relu.f16x2.f32"),
        ("bias:float16 residual:float16 relu", torch.bfloat16, "cvt.rn.relu.bf16x2.f32"),
        ("residual:float16 relu", torch.float8_e4m3fn, "cvt.rn.satfinite.relu.e4m3x2.f32"),
        ("residual:float16", torch.float8_e4m3fn, "cvt.rn.satfinite.e4m3x2.f32"),
    ],
)
def test_results_are_converted_once_and_a_relu_with_them(
    structure: str, dtype: torch.dtype, instruction: str
) -> None:
    tile = TileConfig((64, 64, 64), (2, 2), 2)
    view = fprop_view(ConvProblem((1, 9, 9, 64), (64, 3, 3)))
    ptx = compiled_view(view, dtype, tile, "sm_89", dtype, epilogue=structure).ptx
    pairs = tile.m * tile.n // (2 * tile.threads)
    assert re.findall(r"\bcvt\.\S+x2\.f32\b", ptx) == [instruction] * pairs
    assert not re.search(r"\b(max|selp)\b\S*f32", ptx)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_a_residual_is_asked_for_before_rows_are_stored(arch: str) -> None:
    """No load passes a store, so that each would be waited for: 20 of 80 microseconds on an H200,
    of 96 channels where a CTA has an SM to itself.
    """
    tile = specialized((64, 64, 64), (4, 1), 2)
    tile = tile if arch == "sm_90a" else TileConfig((64, 64, 64), (2, 2), 2)
    view = fprop_view(ConvProblem((1, 9, 9, 64), (64, 3, 3)))
    structure = "bias:float16 residual:float16 relu"
    ptx = compiled_view(view, torch.float16, tile, arch, epilogue=structure).ptx
    vectors = tile.m * tile.n // 8 // tile.mma_threads
    order = "".join(kind[0] for kind in re.findall(r"\b(ld|st)\.global\.v4\S*", ptx))
    assert order[-2 * vectors :] == (BATCH * "l" + BATCH * "s") * (vectors // BATCH)
