"""Convolutions of few terms, in the simulator: every element of a result is a thread's own sum."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv import ConvProblem
from layoutconv.conv.few_terms import few_terms_dgrad_view, few_terms_fprop_view

from .test_dot import check, epilogue_of

PROBLEMS = {
    "one channel": ConvProblem((2, 12, 21, 1), (16, 3, 3), padding=1),
    "one channel, in 3-D, stride 2": ConvProblem((1, 5, 6, 7, 1), (8, 3, 3, 3), 2, 1),
    "one voxel": ConvProblem((3, 4, 5, 1), (32, 1, 1)),
    "three channels, one voxel": ConvProblem((3, 35, 3), (24, 1)),
    "two channels, dilated": ConvProblem((2, 9, 2), (8, 3), 1, 2, 2),
    "columns of no vector": ConvProblem((2, 9, 1), (7, 3), padding=1),
    "more columns than a CTA takes": ConvProblem((1, 5, 1), (520, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_forward(name: str, dtype: torch.dtype) -> None:
    (plan,) = check((few_terms_fprop_view(PROBLEMS[name]),), dtype)
    shape = plan.products.shape
    assert (shape.vector > 1) == (name != "columns of no vector")
    assert not shape.vectors[0]
    assert shape.stored
    assert name != "one channel" or shape.tile > 1  # it has threads enough


@pytest.mark.parametrize("taps", [1, 3])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
def test_gradients_of_few_filters(dtype: torch.dtype, taps: int) -> None:
    p = ConvProblem((2, 5, 6, 16), (3, taps, taps), padding=taps // 2)
    (plan,) = check((few_terms_dgrad_view(p),), dtype)
    assert plan.products.shape.stored


def test_what_is_infinite_stays_with_its_voxel() -> None:
    check((few_terms_fprop_view(PROBLEMS["three channels, one voxel"]),), torch.float32,
          infinite="a")  # fmt: skip


@pytest.mark.parametrize("aligned", [(2, 2, 2), (4, 8, 8)])
def test_what_memory_starts_at(aligned: tuple[int, int, int]) -> None:
    check((few_terms_fprop_view(PROBLEMS["one channel"]),), torch.float16, aligned=aligned)


def test_results_of_another_type() -> None:
    check((few_terms_fprop_view(PROBLEMS["one channel"]),), torch.float16, torch.float32)


def test_epilogues() -> None:
    view = few_terms_fprop_view(PROBLEMS["one channel"])
    check((view,), torch.float16, epilogue=epilogue_of(view, torch.float16))
