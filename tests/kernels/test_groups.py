"""A product for every group: the third mode of views through the template, in the machine."""

from __future__ import annotations

from itertools import product

import pytest
import torch

from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.view.gemm_view import GemmView
from layoutconv.view.operands import row_major

from ..grid_cover import with_deep
from .launcher import (
    KINDS,
    Case,
    check_epilogue,
    check_kind_runs,
    compiled_view,
    run_case,
    tile_of,
)
from .test_channels import PASSES, view_of

PROBLEMS = {
    "2 groups": ConvProblem((2, 5, 6, 32), (48, 3, 2), padding=1, groups=2),
    "3 groups of few channels": ConvProblem((1, 9, 12), (6, 3), stride=2, padding=1, groups=3),
    "odd groups": ConvProblem((1, 4, 5, 15), (21, 2, 3), padding=((1, 0), 1), groups=3),
    "a channel a group": ConvProblem((1, 5, 4, 6), (6, 3, 3), padding=1, groups=6),
    "two filters a channel": ConvProblem((1, 11, 5), (10, 3), dilation=2, padding=2, groups=5),
}


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.chessboard
def test_groups(name: str, pass_: str) -> None:
    number = list(PROBLEMS).index(name) + 5 * PASSES.index(pass_)
    kind = KINDS[number % len(KINDS)]
    problem = PROBLEMS[name]
    ran = check_kind_runs(view_of(problem, pass_), kind, tile_of(number, kind))
    assert ran.launch.grid[2] == problem.groups


def test_a_bias_of_every_group() -> None:
    """Columns of all groups are the channels of D, side by side."""
    view = fprop_view(PROBLEMS["odd groups"])
    of = view, torch.float16, tile_of(0, KINDS[0])
    check_epilogue(*of, "bias relu statistics", arch="sm_80", out=torch.float32)


def batch(count: int, m: int, n: int, k: int, order: tuple[int, int]) -> GemmView:
    """A batch of matrix products; ``order`` is the mode that runs along memory in A and in B."""

    def operand(rows: int, along: int) -> ComposedLayout:
        strides = (k, 1) if along else (1, rows)
        memory = Layout((count, rows, k), (rows * k, *strides))
        return ComposedLayout(memory, 0, Layout((rows, k, count), (E(1), E(2), E(0))))

    d = ComposedLayout(row_major((count, m, n)), 0, Layout((m, n, count), (E(1), E(2), E(0))))
    return GemmView(operand(m, order[0]), operand(n, order[1]), d)


@pytest.mark.parametrize("order", with_deep(product((1, 0), repeat=2), (1, 1), (0, 0)), ids=str)
def test_a_batch_of_matrix_products(order: tuple[int, int]) -> None:
    for number, (m, n, k) in enumerate(((40, 24, 56), (33, 8, 7))):
        kind = KINDS[2 * number + order[0]]
        ran = check_kind_runs(batch(3, m, n, k, order), kind, tile_of(number, kind))
        assert ran.written.all()


def test_groups_are_one_kernel_whatever_the_image() -> None:
    views = [fprop_view(ConvProblem((N, 5, 8), (16, 3), padding=1, groups=2)) for N in (1, 3)]
    kind = KINDS[0]
    kernels = {id(compiled_view(view, kind.dtype, tile_of(0, kind))) for view in views}
    assert len(kernels) == 1
    for view in (*views, *dgrad_views(ConvProblem((1, 5, 8), (16, 2), stride=2, groups=2))):
        check_kind_runs(view, kind, tile_of(0, kind))


def test_a_group_reads_no_other_group() -> None:
    """NaN in the channels of one group stays in its outputs."""
    problem = PROBLEMS["2 groups"]
    for number, view in enumerate((fprop_view(problem), wgrad_view(problem))):
        kind = KINDS[number]
        case = Case.of(view, kind.dtype, kind.out)
        channels = case.a.shape[-1] // 2
        case.a[..., :channels] = torch.nan
        compiled = compiled_view(
            view, kind.dtype, tile_of(number, kind), kind.arch, kind.out, kind=kind.name
        )
        got = run_case(case, compiled).out
        first = got[..., :24] if number == 0 else got[:24]
        second = got[..., 24:] if number == 0 else got[24:]
        assert first.isnan().any()
        assert second.isfinite().all()
