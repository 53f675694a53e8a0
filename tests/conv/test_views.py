"""Views of dense convolutions: every element of every operand, against a plain loop nest."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layoutconv.conv import ConvProblem, fprop_view, gather_fprop_view
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.testing.problems import conv_problems
from layoutconv.view.gemm_view import GemmView

from .loops import flat, ranges, table


def input_cells(problem: ConvProblem) -> list[list[tuple[int, ...] | None]]:
    """By loops: the cell that GEMM row (image, voxel) reads at GEMM column tap, None if padding."""
    result = []
    for n, *voxel in ranges(problem.N, *problem.output_spatial):
        row = []
        for tap in ranges(*problem.taps):
            cell = [
                v * s - near + t * d
                for v, s, (near, _), t, d in zip(
                    voxel, problem.stride, problem.padding, tap, problem.dilation, strict=True
                )
            ]
            there = all(0 <= c < e for c, e in zip(cell, problem.spatial, strict=True))
            row.append((n, *cell) if there else None)
        result.append(row)
    return result


def check_sizes(view: GemmView, problem: ConvProblem) -> None:
    m = len(input_cells(problem))
    taps = len(list(ranges(*problem.taps)))
    assert (view.m, view.n, view.k) == (m, problem.K, taps * problem.C)


@settings(max_examples=60, deadline=None)
@given(problem=conv_problems())
def test_fprop_view_is_the_loop_nest(problem):
    view = fprop_view(problem)
    check_sizes(view, problem)
    C, shape = problem.C, problem.activation
    assert table(view.a, view.m, view.k) == [
        [-1 if cell is None else flat((*cell, c), shape) for cell in row for c in range(C)]
        for row in input_cells(problem)
    ]
    assert table(view.b, view.n, view.k) == [
        [
            flat((k, *tap, c), (*problem.filter, C))
            for tap in ranges(*problem.taps)
            for c in range(C)
        ]
        for k in range(problem.K)
    ]
    assert table(view.d, view.m, view.n) == [
        [flat((*voxel, k), problem.output) for k in range(problem.K)]
        for voxel in ranges(problem.N, *problem.output_spatial)
    ]


@settings(max_examples=60, deadline=None)
@given(problem=conv_problems(), seed=st.integers(0, 99), absent=st.sampled_from([0.0, 0.5, 1.0]))
def test_gather_fprop_view_is_the_loop_nest(problem, seed, absent):
    torch.manual_seed(seed)

    def index(cells: int) -> torch.Tensor:
        rows = torch.randperm(cells + 3)[:cells].int()
        return rows.masked_fill(torch.rand(cells) < absent, -1)

    grid, C = problem.activation[:-1], problem.C
    outputs = problem.output[:-1]
    gather, scatter = index(len(list(ranges(*grid)))), index(len(list(ranges(*outputs))))
    rows = {"in_rows": len(gather) + 3, "out_rows": len(scatter) + 3}
    view = gather_fprop_view(problem, gather, scatter, **rows)
    check_sizes(view, problem)

    def stored(cell, c: int) -> int:
        row = -1 if cell is None else int(gather[flat(cell, grid)])
        return -1 if row < 0 else row * C + c

    if view.m:
        assert table(view.a, view.m, view.k) == [
            [stored(cell, c) for cell in row for c in range(C)] for row in input_cells(problem)
        ]
        assert table(view.d, view.m, view.n) == [
            [row * problem.K + k if row >= 0 else -1 for k in range(problem.K)]
            for row in scatter.tolist()
        ]


def test_either_index_may_be_left_out():
    problem = ConvProblem((1, 4, 2), (3, 3), padding=1)
    dense, index = fprop_view(problem), torch.arange(4, dtype=torch.int32)
    gathered, scattered = gather_fprop_view(problem, index), gather_fprop_view(problem, None, index)
    assert (gathered.d, scattered.a) == (dense.d, dense.a)
    assert gather_fprop_view(problem) == dense


def test_printing_is_the_notation_of_the_literature():
    problem = ConvProblem(
        (2, 6, 6, 6, 64), (128, 3, 3, 3), stride=(2, 1, 1), padding=(1, 0, 0), dilation=(1, 2, 1)
    )
    assert fprop_view(problem).describe() == "\n".join(
        [
            "A: (N,D,H,W,C):(D*H*W*C,H*W*C,W*C,C,1) o (0,-1,0,0,0) o "
            "((Q,P,Z,N),(C,S,R,T)):((1@3,1@2,2@1,1@0),(1@4,1@3,2@2,1@1))",
            "B: (K,T,R,S,C):(T*R*S*C,R*S*C,S*C,C,1) o 0 o (K,(C,S,R,T)):(1@0,(1@4,1@3,1@2,1@1))",
            "D: (N,Z,P,Q,K):(Z*P*Q*K,P*Q*K,Q*K,K,1) o 0 o ((Q,P,Z,N),K):((1@3,1@2,1@1,1@0),1@4)",
            "runtime: N=2 D=6 H=6 W=6 Z=3 P=2 Q=4",
            "static: C=64 K=128 T=3 R=3 S=3",
        ]
    )


def test_printing_a_gathered_grid():
    cells = torch.zeros(2, 4, 4, dtype=torch.int32)
    view = gather_fprop_view(ConvProblem((2, 4, 4, 8), (16, 3, 3), padding=1), cells, cells)
    assert str(view.a) == (
        "(in_rows,C):(C,1) o 0 o (N*H*W,C):(gather*1@0,1@1) o 0 o (N,H,W,C):(H*W@0,W@0,1@0,1@1)"
        " o (0,-1,-1,0) o ((Q,P,N),(C,S,R)):((1@2,1@1,1@0),(1@3,1@2,1@1))"
    )
    assert str(view.d) == (
        "(out_rows,K):(K,1) o 0 o (N*P*Q,K):(gather*1@0,1@1) o 0 o (N,P,Q,K):(P*Q@0,Q@0,1@0,1@1)"
        " o 0 o ((Q,P,N),K):((1@2,1@1,1@0),1@3)"
    )


def test_errors_name_the_argument():
    problem = ConvProblem((1, 4, 2), (3, 3), padding=1)
    index = torch.arange(4, dtype=torch.int32)
    with pytest.raises(
        ArgumentTypeError, match=r"`gather_index`: expected .* int32, got torch.int"
    ):
        gather_fprop_view(problem, index.long())
    with pytest.raises(ArgumentTypeError, match=r"`scatter_index`: expected .* int32, got list"):
        gather_fprop_view(problem, None, [0, 1, 2, 3])
    with pytest.raises(
        ArgumentError, match=r"`gather_index`: expected N\*W = 4 entries, got shape"
    ):
        gather_fprop_view(problem, index[:3])
    with pytest.raises(ArgumentError, match=r"`scatter_index`: expected N\*Q = 4 entries, got sha"):
        gather_fprop_view(problem, None, index[:3])
    with pytest.raises(ArgumentError, match=r"`in_rows`: expected a number of rows >= 0, got -1"):
        gather_fprop_view(problem, index, in_rows=-1)
