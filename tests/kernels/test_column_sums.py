"""Sums of columns in the machine, as the executor launches them, beside float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from layoutconv.gpu.column_sums import MANY_PARTS, column_sums, takes
from layoutconv.planning.norm_schedule import PARTS, schedule

from .cloud_launcher import Launches, few

DTYPES = torch.float16, torch.bfloat16, torch.float32
HALF_AN_ULP = {torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8, torch.float32: 2.0**-24}


def check(x: torch.Tensor, dtype: torch.dtype) -> None:
    """Sums of integers are exact in fp32, and rounded once."""
    assert takes(x, dtype)
    found = column_sums(x, dtype)
    expected = x.double().sum(0)
    assert found.dtype is dtype
    assert ((found.double() - expected).abs() <= expected.abs() * HALF_AN_ULP[dtype]).all()


@few
@given(st.integers(1, 700), st.integers(1, 70), st.sampled_from(DTYPES), st.sampled_from(DTYPES))
def test_sums_are_exact_and_rounded_once(
    simulated: Launches, rows: int, columns: int, dtype: torch.dtype, out: torch.dtype
) -> None:
    simulated.seed = rows
    random = torch.Generator().manual_seed(columns)
    check(torch.randint(-9, 10, (rows, columns), generator=random).to(dtype), out)


@pytest.mark.parametrize("seed", range(1, 5))
def test_many_parts_are_merged_in_one_order(simulated: Launches, seed: int) -> None:
    """Whatever CTAs run first: bits of sums that are not exact."""
    x = torch.randn(3000, 24, generator=torch.Generator().manual_seed(0)).half()
    simulated.seed = 0
    first = column_sums(x, torch.float32)
    simulated.seed = seed
    assert torch.equal(column_sums(x, torch.float32), first)
    assert torch.allclose(first.double(), x.double().sum(0), rtol=0, atol=1e-3)


def test_infinities_and_nans_stay_in_their_columns(simulated: Launches) -> None:
    x = torch.zeros(300, 8)
    x[7, 1], x[200, 2], x[3, 3], x[4, 3] = torch.inf, torch.nan, torch.inf, -torch.inf
    found = column_sums(x, torch.float32)
    assert found[[0, 4, 5, 6, 7]].eq(0).all()
    assert found[1] == torch.inf
    assert found[2:4].isnan().all()


@pytest.mark.parametrize(("rows", "columns"), [(1 << 20, 32), (200_000, 96), (1 << 22, 8)])
def test_a_large_matrix_has_many_parts(rows: int, columns: int) -> None:
    few, many = schedule(rows, columns, 8), schedule(rows, columns, 8, MANY_PARTS)
    assert few.parts <= PARTS < many.parts <= MANY_PARTS
    for cut in few, many:
        assert (cut.parts - 1) * cut.share < rows <= cut.parts * cut.share


def test_other_tensors_are_left_to_torch() -> None:
    x = torch.zeros(16, 8)
    assert takes(x, torch.float16)
    for other in (x.double(), x.int(), x[:0], x[:, :0], x.T, x[None], x.flatten()[1:9].view(2, 4)):
        assert not takes(other, torch.float32)
    assert not takes(x, torch.float64)
