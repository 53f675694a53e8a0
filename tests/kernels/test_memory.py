"""Tensors in other memory through the template: slices, interleaved channels, index buffers."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from layoutconv.algebra import ComposedLayout, E, Layout, make_ordered_layout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.stored_layouts import interleaved, interleaved_filter
from layoutconv.view.gemm_view import GemmView
from layoutconv.view.operands import indexed_rows, row_major, runtime, static

from .launcher import KINDS, Case, check_exact, check_kind_runs, compiled_view, run_case, tile_of

PROBLEM = ConvProblem((2, 5, 6, 16), (24, 3, 2), stride=(1, 2), padding=1)
PASSES = ["fprop", "dgrad", "wgrad"]


def view_of(problem: ConvProblem, name: str, **layouts: Layout) -> GemmView:
    if name == "fprop":
        return fprop_view(problem, **layouts)
    if name == "wgrad":
        return wgrad_view(problem, **layouts)
    return dgrad_views(problem, layouts.pop("filter_layout", None), **layouts)[-1]


def slice_of(shape: tuple[int, ...], larger: tuple[int, ...], every: int = 1) -> Layout:
    """The first elements of a larger tensor, every second cell of a row, say."""
    strides = list(row_major(larger).stride)
    strides[-2] = strides[-2] * every
    return Layout(shape, tuple(strides))


SLICES = {
    "channels of more": {
        "activation_layout": slice_of((2, 5, 6, 16), (2, 5, 6, 40)),
        "output_layout": slice_of((2, 5, 4, 24), (2, 5, 4, 32)),
    },
    "cells of more": {
        "activation_layout": slice_of((2, 5, 6, 16), (3, 9, 7, 16)),
        "output_layout": slice_of((2, 5, 4, 24), (2, 5, 9, 24), every=2),
    },
    "odd distances": {
        "activation_layout": slice_of((2, 5, 6, 16), (2, 5, 6, 19)),
        "output_layout": slice_of((2, 5, 4, 24), (2, 6, 5, 25)),
        "filter_layout": slice_of((24, 3, 2, 16), (24, 3, 3, 18)),
    },
    "channels first": {
        "activation_layout": make_ordered_layout((2, 5, 6, 16), (3, 1, 0, 2)),
        "output_layout": make_ordered_layout((2, 5, 4, 24), (3, 1, 0, 2)),
        "filter_layout": make_ordered_layout((24, 3, 2, 16), (3, 1, 0, 2)),
    },
    "the image fastest": {
        "activation_layout": make_ordered_layout((2, 5, 6, 16), (0, 3, 2, 1)),
        "filter_layout": make_ordered_layout((24, 3, 2, 16), (0, 2, 1, 3)),
    },
}


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", SLICES)
@pytest.mark.chessboard
def test_slices(name: str, pass_: str) -> None:
    number = list(SLICES).index(name) + 5 * PASSES.index(pass_)
    kind = KINDS[number % 3 if name == "channels first" else number % len(KINDS)]
    check_kind_runs(view_of(PROBLEM, pass_, **SLICES[name]), kind, tile_of(number, kind))


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("width", [8, 16])
@pytest.mark.chessboard
def test_interleaved_channels(width: int, pass_: str) -> None:
    """NC/8HW8: channels are two digits, and two modes of memory."""
    problem = ConvProblem((2, 5, 6, 32), (48, 3, 2), padding=1)
    view = view_of(
        problem, pass_,
        activation_layout=interleaved(problem.activation, width),
        filter_layout=interleaved_filter(problem.stored_filter, width),
        output_layout=interleaved(problem.output, width),
    )  # fmt: skip
    number = PASSES.index(pass_) + width // 8
    kind = KINDS[0 if width == 8 else 5]
    check_kind_runs(view, kind, tile_of(number, kind))


# -- index buffers --------------------------------------------------------------------------------

IMAGES = torch.tensor([3, -1, 0, 3, 1], dtype=torch.int32)


@pytest.mark.parametrize("number", range(3))
def test_a_batch_that_an_index_gathers(number: int) -> None:
    """An image twice, one that is absent, one that nothing reads."""
    problem = ConvProblem((5, 4, 5, 8), (16, 3, 3), padding=1, stride=1 + number % 2)
    view = fprop_view(problem, batch_index=IMAGES, images=4)
    kind = KINDS[(3 * number) % len(KINDS)]
    ran = check_kind_runs(view, kind, tile_of(number, kind))
    assert not ran.out[1].any()
    assert torch.equal(ran.out[0], ran.out[3])


def test_a_batch_that_an_index_gathers_from_a_slice() -> None:
    problem = ConvProblem((5, 4, 5, 8), (16, 3, 3), padding=1)
    memory = slice_of((4, 4, 5, 8), (4, 4, 7, 24))
    view = fprop_view(problem, batch_index=IMAGES, images=4, activation_layout=memory)
    check_kind_runs(view, KINDS[0], tile_of(0, KINDS[0]))


def wild(count: int, rows: int, seed: int) -> Tensor:
    """Rows of which some do not exist, -1 or far away."""
    generator = torch.Generator().manual_seed(seed)
    found = torch.randint(0, rows, (count,), generator=generator, dtype=torch.int32)
    found[::5] = -1
    found[3::11] = rows
    found[4::17] = 2**31 - 1
    return found


def experts(m: int, n: int, k: int, rows: int, seed: int = 0) -> GemmView:
    """Rows of weights by an index, as of A: ``D[m, n] = sum_k A[i[m], k] B[j[n], k]``."""

    def gathered(count: int, named: int, letter: str, seed: int) -> ComposedLayout:
        stored = indexed_rows(wild(count, named, seed), runtime(count, f"L{letter}"), named, k)
        return ComposedLayout(stored, 0, Layout((count, k), (E(0), E(1))))

    d = ComposedLayout(row_major((m, n)), 0, Layout((m, n), (E(0), E(1))))
    return GemmView(gathered(m, rows, "a", seed), gathered(n, rows + 3, "b", seed + 1), d)


@pytest.mark.parametrize(("n", "k"), [(40, 64), (72, 24), (7, 5)])
def test_an_index_of_weights(n: int, k: int) -> None:
    number = n % 5
    kind = KINDS[number]
    check_kind_runs(experts(45, n, k, 50), kind, tile_of(number, kind))


def pairs(count: int, C: int, K: int, rows: int, seed: int = 0) -> GemmView:
    """A tap's gradient of a sparse filter: a sum over pairs of rows, both by an index.

    ``D[k, c] = sum_p Y[j[p], k] X[i[p], c]``: neither operand runs along the sum.
    """
    P = runtime(count, "P")

    def gathered(channels: int, letter: str, seed: int) -> ComposedLayout:
        stored = indexed_rows(wild(count, rows, seed), P, runtime(rows, f"rows_{letter}"), channels)
        return ComposedLayout(stored, 0, Layout((channels, P), (E(1), E(0))))

    C, K = static(C, "C"), static(K, "K")
    d = ComposedLayout(row_major((K, C)), 0, Layout((K, C), (E(0), E(1))))
    return GemmView(gathered(K, "y", seed), gathered(C, "x", seed + 1), d)


@pytest.mark.parametrize(
    ("count", "C", "K"),
    [
        (100, 32, 40),
        (37, 72, 8),
        (1, 8, 16),
        (64, 5, 3),
        pytest.param(130, 12, 20, marks=pytest.mark.deep),
    ],
)
def test_a_sum_over_pairs_of_rows(count: int, C: int, K: int) -> None:
    number = count % 7
    kind = KINDS[5 if count == 37 else number % 5]
    check_kind_runs(pairs(count, C, K, 50), kind, tile_of(number, kind))


def test_a_sum_over_pairs_is_an_argument() -> None:
    kind, kernels = KINDS[0], set()
    for count in (3, 32, 97):
        view = pairs(count, 24, 16, 20, seed=count)
        kernels.add(id(compiled_view(view, kind.dtype, tile_of(0, kind))))
        check_kind_runs(view, kind, tile_of(0, kind))
    assert len(kernels) == 1


def test_a_sum_over_pairs_in_parts() -> None:
    kind = KINDS[0]
    view = pairs(150, 24, 16, 60)
    compiled = compiled_view(
        view, kind.dtype, tile_of(0, kind), kind.arch, torch.float32, split="atomic"
    )
    case = Case.of(view, kind.dtype, torch.float32)
    case.out.zero_()
    ran = run_case(case, compiled, splits=3)
    check_exact(case, ran)
