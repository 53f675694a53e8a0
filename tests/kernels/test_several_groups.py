"""Tiles of several groups: block-diagonal products from one patch of A, in the machine."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.gpu.select import choose_kernel
from layoutconv.kernels.compile.build import build
from layoutconv.planning import legality
from layoutconv.planning.group_tile import GroupTile, group_vectors, make_group_tile
from layoutconv.planning.group_view import GroupView
from layoutconv.planning.kernel_spec import KernelSpec
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual
from layoutconv.view.gemm_view import GemmView

from ..grid_cover import with_deep
from .launcher import (
    Case,
    Compiled,
    check_exact,
    compile_spec,
    dtype_name,
    integers,
    reference,
    run_case,
)
from .view_cases import conv

NAMES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "tfloat32"}


@dataclass(frozen=True)
class Tried:
    """A problem with a tile: groups of a CTA, warps, and a box of rows; of which pass, what data.

    ``pass_``: "fprop", or "dgrad" and the number of a residue.
    """

    problem: ConvProblem
    groups: int
    warps: tuple[int, int]
    box: tuple[int, ...]
    dtype: torch.dtype = torch.float16
    pass_: str = "fprop"

    @property
    def view(self) -> GemmView:
        if self.pass_ == "fprop":
            return fprop_view(self.problem)
        return dgrad_views(self.problem)[int(self.pass_.removeprefix("dgrad"))]


TRIED = {
    "4": Tried(conv((2, 5, 6, 32), (32, 3, 3), 8), 8, (2, 2), (4, 4, 1)),
    "4, more groups than a CTA's": Tried(conv((1, 4, 5, 40), (40, 3, 2), 10), 8, (2, 1), (8, 4, 1)),
    "4, tf32": Tried(
        conv((1, 7, 5, 16), (16, 3, 3), 4, dilation=2, padding=2),
        4,
        (2, 1),
        (4, 4, 1),
        torch.float32,
    ),
    "4, lines of an atom": Tried(conv((1, 7, 17, 16), (16, 3, 3), 4), 4, (2, 1), (16, 4, 1)),
    "8, two lines an atom": Tried(
        conv((1, 9, 11, 16), (16, 3, 3), 2, stride=2), 2, (2, 1), (8, 8, 1)
    ),
    "8": Tried(conv((2, 5, 6, 32), (32, 3, 3), 4), 4, (2, 2), (4, 4, 1), torch.bfloat16),
    "8, three of two": Tried(conv((1, 5, 6, 24), (24, 3, 3), 3), 2, (2, 1), (6, 5, 1)),
    "8 to 16": Tried(conv((1, 7, 5, 16), (32, 3, 3), 2), 2, (2, 1), (4, 4, 1)),
    "16 to 4, one mode": Tried(conv((3, 17, 64), (16, 5), 4, padding=2), 4, (2, 1), (16, 2)),
    "8, three modes": Tried(conv((1, 4, 4, 5, 16), (16, 2, 3, 3), 2), 2, (2, 1), (4, 4, 2, 1)),
    "12": Tried(conv((1, 6, 5, 72), (72, 1, 3), 6), 4, (4, 1), (8, 4, 1)),
    "16": Tried(conv((1, 6, 5, 48), (48, 3, 3), 3), 2, (2, 2), (4, 8, 1), torch.bfloat16),
    "24": Tried(conv((1, 6, 5, 72), (72, 2, 2), 3), 2, (4, 1), (4, 8, 1)),
    "32, stride 2": Tried(conv((2, 7, 5, 64), (64, 3, 3), 2, stride=2), 2, (2, 2), (4, 4, 2)),
    "48, two images": Tried(conv((2, 4, 5, 96), (96, 1, 3), 2), 1, (4, 1), (4, 4, 2)),
    "4, dgrad": Tried(conv((1, 6, 5, 32), (32, 3, 3), 8), 8, (2, 2), (4, 8, 1), pass_="dgrad0"),
    "8, dgrad": Tried(conv((1, 6, 5, 32), (64, 3, 3), 4), 4, (2, 2), (4, 8, 1), pass_="dgrad0"),
    "12, dgrad": Tried(conv((1, 6, 5, 24), (24, 3, 1), 2), 2, (4, 1), (8, 8, 1), pass_="dgrad0"),
    "4, dgrad, tf32": Tried(
        conv((1, 6, 5, 16), (16, 3, 3), 4), 4, (2, 1), (4, 8, 1), torch.float32, "dgrad0"
    ),
    "8, dgrad of stride 2": Tried(
        conv((1, 7, 9, 32), (32, 3, 3), 4, stride=2), 4, (2, 2), (4, 8, 1), pass_="dgrad3"
    ),
}


def spec_of(tried: Tried, out: str, epilogue: str = "") -> KernelSpec:
    of = GroupView.of(tried.view)
    assert of is not None
    kind = NAMES[tried.dtype]
    vectors, along = group_vectors(of, kind, out)
    tile = make_group_tile(of, tried.groups, tried.warps, tried.box, along_b=along[1])
    return KernelSpec(kind, out, tile, "sm_80", vectors, along, epilogue)


@cache
def compiled(tried: Tried, out: torch.dtype, epilogue: str = "") -> Compiled:
    spec = spec_of(tried, dtype_name(out), epilogue)
    return compile_spec(tried.view, spec)


DEEP = [
    "8, two lines an atom", "8 to 16", "8, three modes", "16", "24", "48, two images", "8, dgrad",
    "12, dgrad",
]  # fmt: skip


@pytest.mark.parametrize("name", with_deep(TRIED, *DEEP))
def test_products(name: str) -> None:
    tried = TRIED[name]
    case = Case.of(tried.view, tried.dtype)
    ran = run_case(case, compiled(tried, tried.dtype))
    check_exact(case, ran)


@pytest.mark.parametrize("name", ["4", "8, three of two", "12", "4, dgrad"])
def test_infinities_stay_in_their_group(name: str) -> None:
    """Group 1 alone has an infinity and a NaN in A, and one in B: all others are as they were."""
    tried = TRIED[name]
    case = Case.of(tried.view, tried.dtype)
    size = case.a.shape[-1] // tried.problem.groups
    case.a[..., size] = torch.inf
    case.a.view(-1, case.a.shape[-1])[3, size + 1] = torch.nan
    rows = tried.problem.K // tried.problem.groups
    case.b[rows + 1] = -torch.inf
    ran = run_case(case, compiled(tried, tried.dtype))
    check_exact(case, ran)
    of_group = ran.out.unflatten(-1, (tried.problem.groups, -1)).movedim(-2, 0)
    assert not of_group[1].isfinite().all()
    assert of_group[[0, *range(2, tried.problem.groups)]].isfinite().all()


def test_an_epilogue() -> None:
    """A bias for every channel of every group, a residual and an activation; 40 of 64 columns."""
    tried = TRIED["4, more groups than a CTA's"]
    case = Case.of(tried.view, torch.float16, torch.float32)
    residual = integers(tuple(case.out.shape), torch.float32, 5)
    bias = integers((40,), torch.float32, 3)
    case.epilogue = Epilogue((Bias(bias), Residual(residual, 2.0), Activation("relu")))
    ran = run_case(case, compiled(tried, torch.float32, case.epilogue.structure))
    sums, _ = reference(case)
    assert torch.equal(ran.out.double(), (sums + bias + 2 * residual).relu())
    assert ran.written.all()


def test_a_bias_alone() -> None:
    tried = TRIED["8"]
    case = Case.of(tried.view, tried.dtype)
    case.epilogue = Epilogue((Bias(integers((32,), torch.float32, 3)),))
    ran = run_case(case, compiled(tried, tried.dtype, case.epilogue.structure))
    sums, _ = reference(case)
    assert torch.equal(ran.out.double(), sums + case.epilogue.vectors[0])


# -- which tile is chosen --------------------------------------------------------------------------


def chosen(problem: ConvProblem, structure: str = "", machine: str = "sm_90a") -> Any:
    view = fprop_view(problem)
    return choose_kernel(view, torch.float16, MACHINES[machine], structure=structure)


@pytest.mark.parametrize("machine", MACHINES)
def test_few_channels_a_group_share_a_tile(machine: str) -> None:
    """ResNeXt-50 32x4d, and RegNets of 8, 24 channels a group."""
    for channels, groups, cells in ((128, 32, 56), (256, 32, 28), (512, 32, 14), (440, 55, 7),
                                    (120, 5, 56), (888, 37, 14)):  # fmt: skip
        problem = conv((64, cells, cells, channels), (channels, 3, 3), groups)
        found = chosen(problem, machine=machine)
        assert isinstance(found.spec.tile, GroupTile), problem
        assert not legality.reasons(found.view, found.spec, MACHINES[machine].smem_per_cta)
    many = conv((64, 28, 28, 512), (512, 3, 3), 2)
    assert not isinstance(chosen(many, machine=machine).spec.tile, GroupTile)


def test_what_stays_with_tiles_of_one_group() -> None:
    """Statistics, odd channels, channels of a group that lie apart, taps without end."""
    problem = conv((64, 56, 56, 128), (128, 3, 3), 32)
    assert isinstance(chosen(problem, "bias:float16 relu").spec.tile, GroupTile)
    for other, structure in (
        (problem, "statistics"),
        (conv((64, 56, 56, 96), (96, 3, 3), 16), ""),  # 6 channels a group
        (conv((64, 56, 56, 128), (128, 7, 7), 32, padding=3), ""),
    ):
        assert not isinstance(chosen(other, structure).spec.tile, GroupTile)


def test_tiles_that_a_view_cannot_have() -> None:
    tried = TRIED["8"]
    spec = spec_of(tried, "bfloat16")
    assert isinstance(spec.tile, GroupTile)
    for changed, words in (
        (replace(spec, tile=replace(spec.tile, patch=(4, 4, 1))), "a patch and a filter"),
        (replace(spec, dtype="float64", out_dtype="float64"), "float16, bfloat16, tfloat32"),
        (replace(spec, epilogue="statistics"), "no statistics"),
        (replace(spec, split="partial"), "whole sums"),
    ):
        with pytest.raises(UnsupportedViewError, match=words):
            build(tried.view, changed)
    with pytest.raises(ValueError, match="a power of two for columns"):
        replace(spec.tile, mma=(32, 48, 32))
    with pytest.raises(UnsupportedViewError, match="groups side by side"):
        build(fprop_view(conv((1, 5, 6, 32), (32, 3, 3), 1)), spec)
