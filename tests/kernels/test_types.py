"""Every type of data and of results through the template: exact, accurate, saturating."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.planning.tile import TileConfig
from layoutconv.tensors.epilogue_in_torch import convert

from ..campaign import limits
from ..grid_cover import with_deep
from .launcher import (
    KINDS,
    Case,
    Kind,
    Ran,
    check_exact,
    check_kind_runs,
    check_view_runs,
    compile_view,
    compiled_view,
    reference,
    run_case,
    tile_of,
)
from .test_channels import PASSES, view_of

BY_NAME = {kind.name: kind for kind in KINDS}
FP8 = [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("name", PASSES)
@pytest.mark.parametrize("kind", KINDS, ids=str)
@pytest.mark.chessboard
def test_every_type_in_every_pass(kind: Kind, name: str) -> None:
    number = KINDS.index(kind) + PASSES.index(name)
    problem = ConvProblem((2, 5, 4, 24), (40, 3, 2), stride=(1, 2), padding=1)
    check_kind_runs(view_of(problem, name), kind, tile_of(number, kind))


MIXED = [
    ("float16", torch.bfloat16), ("float16", torch.float32), ("float16", torch.int8),
    ("bfloat16", torch.float8_e5m2), ("tfloat32", torch.float16), ("float32", torch.bfloat16),
    ("float64", torch.float32), ("float64", torch.float64), ("int8", torch.int8),
    ("int8", torch.float32), ("float8_e4m3fn", torch.float8_e4m3fn),
    ("float8_e5m2", torch.float8_e5m2), ("float16", torch.int32),
]  # fmt: skip


ELSEWHERE = [MIXED[i] for i in (1, 2, 7, 12)]  # among epilogues, or below


@pytest.mark.parametrize("mixed", with_deep(MIXED, *ELSEWHERE), ids=str)
def test_results_of_another_type(mixed: tuple[str, torch.dtype]) -> None:
    name, out = mixed
    kind = BY_NAME[name]
    view = fprop_view(ConvProblem((2, 5, 6, 16), (24, 3, 2), padding=1))
    tile = tile_of(MIXED.index((name, out)), kind)
    check_view_runs(view, kind.dtype, tile, arch=max(kind.arch, "sm_89"), out=out, kind=name)


# -- fp32 as three products of tf32 ---------------------------------------------------------------


def ran(case: Case, name: str, out: torch.dtype | None = None) -> Ran:
    kind = BY_NAME[name]
    tile = tile_of(2, kind)
    compiled = compiled_view(
        case.view, kind.dtype, tile, max(kind.arch, "sm_89"), out or kind.out, kind=name
    )
    return run_case(case, compiled)


def normal(view: object, exponents: int = 0) -> Case:
    case = Case.of(view, torch.float32)
    generator = torch.Generator().manual_seed(0)
    for tensor in (case.a, case.b):
        tensor.normal_(generator=generator)
        if exponents:
            powers = torch.randint(-exponents, exponents, tensor.shape, generator=generator)
            tensor *= 2.0**powers
    return case


def error(case: Case, out: Tensor) -> float:
    """The greatest error of a sum, relative to the sum of its products' magnitudes."""
    want, _ = reference(case)
    sizes, _ = reference(Case(case.view, case.a.abs(), case.b.abs(), case.out))
    return ((out.double() - want).abs() / sizes).max().item()


@pytest.mark.parametrize("name", with_deep(PASSES, "dgrad"))
@pytest.mark.parametrize("exponents", [0, 40])
def test_fp32_is_as_accurate_as_fp32(name: str, exponents: int) -> None:
    case = normal(view_of(ConvProblem((2, 9, 32), (24, 3), padding=1), name), exponents)
    assert error(case, ran(case, "float32").out) < 1e-6
    assert error(case, ran(case, "tfloat32").out) > 3e-5  # what the two small products are for


def test_fp32_is_not_less_accurate_than_torch_by_much() -> None:
    case = normal(fprop_view(ConvProblem((1, 40, 96), (24, 1))))
    by_torch = (case.a.view(-1, 96) @ case.b.view(24, 96).T).view(1, 40, 24)
    assert error(case, ran(case, "float32").out) < 4 * error(case, by_torch) + 2**-22


def test_a_product_of_the_longest_remainders_is_within_the_limit_of_campaigns() -> None:
    """The fourth product, of what tensor cores cut off of both factors, is what is lost."""
    case = Case.of(fprop_view(ConvProblem((1, 40, 16), (24, 1))), torch.float32)
    longest = 1 + 8189 * 2.0**-23  # of which the last 13 bits are cut off, and rounded down
    case.a.zero_().view(-1, 16)[:, 3] = longest
    case.b.fill_(longest)
    lost = error(case, ran(case, "float32").out)
    fp32 = limits.arithmetic(torch.float32, tensor_cores=True)
    assert 2**-20 < lost <= fp32.operand


@pytest.mark.parametrize("name", ["float32", "float64", "float8_e5m2", "float8_e4m3fn"])
def test_infinity_and_nan_reach_the_outputs_that_read_them_and_no_other(name: str) -> None:
    kind = BY_NAME[name]
    view = fprop_view(ConvProblem((2, 33, 16), (24, 3), padding=1))
    case = Case.of(view, kind.dtype, torch.float32 if name != "float64" else torch.float64)
    cells = case.a.double().view(-1, 16)
    cells[3, 5] = torch.nan
    if name != "float8_e4m3fn":  # which has no infinity
        cells[17, 3], cells[40, 9] = torch.inf, -torch.inf
    case.a = cells.view(case.a.shape).to(kind.dtype)
    want, _ = reference(case)
    out = ran(case, name, case.out.dtype).out.double()
    finite = want.isfinite()
    assert torch.equal(out.isfinite(), finite)
    assert torch.equal(out[finite], want[finite])
    assert torch.equal(out.isnan(), want.isnan())
    assert torch.equal(out[out.isinf()], want[out.isinf()])


# -- integers and the ends of types ---------------------------------------------------------------


def test_sums_of_int8_are_exact_up_to_the_greatest() -> None:
    view = fprop_view(ConvProblem((1, 40, 256), (24, 3)))
    case = Case.of(view, torch.int8, torch.int32)
    case.a.fill_(-128)
    case.b[::2] = -128
    case.b[1::2] = 127
    out = ran(case, "int8").out
    assert (out[..., ::2] == 128 * 128 * 768).all()
    assert (out[..., 1::2] == -128 * 127 * 768).all()
    case.out = case.out.to(torch.int8)
    saturated = ran(case, "int8", torch.int8).out
    assert (saturated[..., ::2] == 127).all()
    assert (saturated[..., 1::2] == -128).all()
    check_exact(case, ran(case, "int8", torch.int8))


def beyond(dtype: torch.dtype) -> Tensor:
    """fp16 numbers around every tie and the ends of a type, and those that have no value in it."""
    generator = torch.Generator().manual_seed(0)
    special = [torch.nan, torch.inf, -torch.inf, 0.0, -0.0, 65504.0, -65504.0]
    if dtype.is_floating_point:
        codes = torch.arange(256, dtype=torch.int16).to(torch.uint8).view(dtype).double()
        held = codes[codes.isfinite()].unique()
        near = torch.cat([held, (held[1:] + held[:-1]) / 2])
        greatest = torch.finfo(dtype).max
        near = torch.cat([near, greatest * torch.tensor([1 + 2**-5, 1 + 2**-4, 1.25, 1.5])])
        near = near[near.abs() <= 65504]
        near = torch.cat([near, near * (1 + 2**-9), near * (1 - 2**-9)])
    else:
        near = torch.arange(-140, 140, 0.5)
    random = 100 * torch.randn(200, generator=generator)
    return torch.cat([torch.tensor(special).double(), near.double(), random.double()]).half()


@pytest.mark.parametrize("dtype", [*FP8, torch.int8, torch.int32, torch.bfloat16], ids=str)
def test_a_number_becomes_the_nearest_of_a_type_and_stays_within_it(dtype: torch.dtype) -> None:
    # A product of one channel with 1 shows what becomes of each number.
    numbers = beyond(dtype)
    view = fprop_view(ConvProblem((1, len(numbers), 1), (8, 1)))
    case = Case.of(view, torch.float16, dtype)
    case.a.copy_(numbers.view(case.a.shape))
    case.b.fill_(1.0)
    got = ran(case, "float16", dtype).out[0]
    want = convert(numbers.float(), dtype)
    for column in got.unbind(1):
        torch.testing.assert_close(column.double(), want.double(), rtol=0, atol=0, equal_nan=True)


# -- tiles that a type cannot have ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "tile", "message"),
    [
        (
            "float64",
            TileConfig((32, 32, 8), (2, 1), 2),
            "multistage tile with a multiple of 4",
        ),
        ("tfloat32", TileConfig((32, 16, 16), (1, 1), 2), "a multiple of 128 bytes, got 64"),
        ("float16", TileConfig((16, 32, 32), (1, 1), 2), "a multiple of 64 bytes, got 32"),
        ("float16", TileConfig((32, 32, 16), (1, 1), 2), "k of 32 or 64"),
    ],
)
def test_a_tile_that_a_type_cannot_have_is_refused(
    name: str, tile: TileConfig, message: str
) -> None:
    view = view_of(ConvProblem((2, 5, 24), (40, 3), padding=1), "wgrad")
    kind = BY_NAME[name]
    with pytest.raises(ValueError, match=message):
        compile_view(view, kind.dtype, tile, kind.arch, kind.out, kind=name)
