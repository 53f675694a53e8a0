"""Numbers in the template: rounding, NaN and infinity, in the simulator."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.planning.tile import TileConfig

from .launcher import (
    DTYPES,
    Case,
    check_exact,
    check_view_runs,
    compiled_view,
    dtype_name,
    half_line,
    run_case,
)

WORDS = {2: torch.int16, 4: torch.int32}


def tile(dtype: torch.dtype) -> TileConfig:
    return TileConfig((32, 32, half_line(dtype)), (2, 1), 2)


def tf32(x: Tensor, *, ties_away: bool) -> Tensor:
    """``x`` rounded to the nearest number with 11 significant bits, in float64."""
    mantissa, exponent = torch.frexp(x.double())
    scaled = mantissa * 2**11
    away = scaled.abs().add(0.5).floor() * scaled.sign()
    return torch.ldexp(away if ties_away else scaled.round(), exponent - 11)


def awkward(count: int) -> Tensor:
    """fp32 numbers of all sizes, most of them far from tf32; ties, and neighbours of ties."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, generator=generator)
    x *= 2.0 ** torch.randint(-100, 100, (count,), generator=generator)
    bits = x.view(torch.int32)
    low = torch.tensor([0x1000, 0x0FFF, 0x1001, 0x1FFF, 0x3000])  # a tie is 0x1000 of 0x2000
    where = torch.arange(0, count, 3)
    bits[where] = (bits[where] & ~0x3FFF) | low[torch.arange(len(where)) % 5].int()
    return x


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("operand", ["a", "b"])
def test_fp32_is_rounded_to_the_nearest_tf32(operand: str, arch: str) -> None:
    # Times the identity, a matrix product shows what became of each number.
    view = fprop_view(ConvProblem((1, 8 if operand == "b" else 40, 8), (8, 1)))
    case = Case.of(view, torch.float32)
    case.a.view(-1, 8).copy_(torch.eye(*case.a.shape[1:]))
    case.b.view(8, 8).copy_(torch.eye(8))
    tensor = getattr(case, operand)
    tensor.copy_(awkward(tensor.numel()).view(tensor.shape))
    ran = run_case(case, compiled_view(view, torch.float32, tile(torch.float32), arch))
    got = ran.out.view(-1, 8) if operand == "a" else ran.out.view(8, 8).T
    # Hopper's instruction rounds ties to even, its predecessors' away from zero.
    want = tf32(tensor.view(-1, 8), ties_away=arch == "sm_80")
    assert torch.equal(got.double(), want)
    assert not torch.equal(want, tensor.view(-1, 8).double())


NANS = {
    torch.float16: [0x7C01, -1, 0x7E00],
    torch.bfloat16: [0x7F81, -1, 0x7FFF],
    torch.float32: [0x7F800001, -1, 0x7FFFFFFF],  # truncated to tf32, the first is an infinity
}


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("operand", ["a", "b"])
def test_nan_and_infinity_reach_the_outputs_that_read_them_and_no_other(
    operand: str, dtype: torch.dtype
) -> None:
    view = fprop_view(ConvProblem((2, 33, 16), (24, 3), padding=1))
    case = Case.of(view, dtype)
    memory = getattr(case, operand).view(-1, 16)
    words = memory.view(WORDS[dtype.itemsize])
    for i, bits in enumerate(NANS[dtype]):
        words[5 * i, i] = bits
    memory[17, 3] = torch.inf
    memory[19, 4] = -torch.inf
    memory[25, 15] = torch.inf
    memory[26, 15] = -torch.inf  # meets the one before
    assert memory.isnan().sum() == 3
    ran = run_case(case, compiled_view(view, dtype, tile(dtype)))
    check_exact(case, ran)
    kinds = ran.out.isnan(), ran.out.isinf(), ran.out.isfinite()
    assert all(kind.any() for kind in kinds)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=dtype_name)
def test_results_are_rounded_once_from_fp32_to_the_nearest(dtype: torch.dtype) -> None:
    # Sums of up to 2^16 times the last place of fp16: ties, and infinities where it ends.
    view = fprop_view(ConvProblem((1, 40, 64), (24, 3), padding=1))
    case = Case.of(view, dtype)
    case.a *= torch.linspace(1, 25, 40).round().to(dtype).view(1, 40, 1)
    case.b *= 7
    check_exact(case, run_case(case, compiled_view(view, dtype, tile(dtype))))
    case.a[:, 20:] *= 32
    ran = run_case(case, compiled_view(view, dtype, tile(dtype)))
    check_exact(case, ran)
    assert ran.out.isinf().any() == (dtype == torch.float16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=dtype_name)
def test_results_in_fp32_of_narrower_data(dtype: torch.dtype) -> None:
    view = fprop_view(ConvProblem((1, 40, 16), (20, 3), padding=1))  # 20: fp32's vectors of four
    check_view_runs(view, dtype, tile(dtype), out=torch.float32)


def test_the_order_in_which_warps_run_does_not_matter() -> None:
    view = fprop_view(ConvProblem((1, 70, 48), (40, 3), padding=1))
    dtype = torch.float16
    case = Case.of(view, dtype)
    case.a += torch.rand(case.a.shape).to(dtype)  # sums that rounding makes depend on their order
    kernel = compiled_view(view, dtype, TileConfig((64, 64, 32)))
    options: list[dict] = [{}, {"seed": 1}, {"seed": 2}, {"independent": False}, {"late": False}]
    first, *others = (run_case(case, kernel, **o).out for o in options)
    assert first.isfinite().all()
    assert all(torch.equal(first, other) for other in others)
