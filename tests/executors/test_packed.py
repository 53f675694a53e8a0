"""Passes of packed channels are those of the channels as they lie, by every way of packing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.k_major_wgrad import VoxelRuns
from layoutconv.conv.packed_channels import exchanged
from layoutconv.gpu import packing_choice
from layoutconv.gpu.packing_choice import (
    Multiplied,
    Packed,
    dgrad_packings,
    fprop_packings,
    multiplied_on,
    packed_dgrad,
    packed_fprop,
    packed_wgrad,
    wgrad_packings,
)
from layoutconv.ops.dense_passes import PassViews, in_memory_order
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.planning.machine import MACHINES
from layoutconv.view.gemm_view import GemmView

from ..exact import integers
from .few_channels import few_channels

HALF = multiplied_on(torch.float16, MACHINES["sm_90a"])  # whose vectors are of 8 elements
TF32 = Multiplied(torch.float32, MACHINES["sm_90a"], "tf32")
PROBLEMS = few_channels(taps=4, more=(8, 12, 19, 24), room=5, even=False)


def as_torch(tensor: Tensor) -> Tensor:
    """Memory (N, D, H, W, C) in torch's order of modes."""
    return tensor.movedim(-1, 1)


def every_pass(
    problem: ConvProblem, of: Multiplied = HALF
) -> Iterator[tuple[PassViews, Iterator[Packed], Tensor, Tensor]]:
    x, w, y = (
        integers(*shape, seed=i)
        for i, shape in enumerate((problem.activation, problem.stored_filter, problem.output))
    )
    views: Any = (fprop_view(problem),)
    yield PassViews(views, problem.output), fprop_packings(problem, of), x, w
    views = dgrad_views(problem, empty=False)

    def views_of(K: int) -> tuple[GemmView, ...]:
        return dgrad_views(replace(problem, filter=(K, *problem.taps)), empty=False)

    found = dgrad_packings(problem, views, views_of, of)
    yield PassViews(views, problem.activation, zeroed=True), found, y, w
    views = (wgrad_view(problem),)
    yield PassViews(views, problem.stored_filter), wgrad_packings(problem, of), y, x


@settings(max_examples=40, deadline=None)
@given(problem=PROBLEMS, of=st.sampled_from([HALF, TF32]))
def test_every_packing_computes_the_same(problem: ConvProblem, of: Multiplied) -> None:
    """Sums of small integers are exact in any order."""
    for direct, packings, a, b in every_pass(problem, of):
        a, b = as_torch(a), as_torch(b)
        want, _ = direct.compute(a, b, EpilogueArgs())
        for packed in packings:
            result, _ = direct._replace(packed=packed).compute(a, b, EpilogueArgs())
            torch.testing.assert_close(result, want, rtol=0, atol=0)


def test_what_is_added_meets_no_infinity() -> None:
    """Zeros of the activation meet zeros of the filter, or are in no result."""
    for problem in (
        ConvProblem((1, 6, 7, 3), (8, 3, 3), 2, 1),
        ConvProblem((1, 6, 7, 16), (3, 3, 3), padding=1),
    ):
        for direct, packings, a, b in every_pass(problem):
            a.view(-1)[5], b.view(-1)[7] = torch.inf, -torch.inf
            a, b = as_torch(a), as_torch(b)
            want, _ = direct.compute(a, b, EpilogueArgs())
            for packed in packings:
                result, _ = direct._replace(packed=packed).compute(a, b, EpilogueArgs())
                if packed.exchanged:  # its padding is that of the other operand
                    assert not result.isfinite().all()
                    assert not want.isfinite().all()
                else:
                    torch.testing.assert_close(result, want, rtol=0, atol=0, equal_nan=True)


def test_what_follows_the_sums_is_as_before() -> None:
    problem = ConvProblem((2, 9, 8, 3), (16, 3, 3), 2, 1)
    direct, packings, x, w = next(every_pass(problem))
    ending = EpilogueArgs(torch.arange(16.0), activation="relu")
    want, sums = direct.compute(as_torch(x), as_torch(w), ending, statistics=True)
    for packed in packings:
        found = direct._replace(packed=packed)
        result, found_sums = found.compute(as_torch(x), as_torch(w), ending, statistics=True)
        assert torch.equal(result, want)
        assert torch.equal(found_sums, sums)  # type: ignore[arg-type]


def test_sums_of_many_channels_are_k_major_where_that_pays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    many, few = (ConvProblem((n, 64, 64, 512), (512, 3, 3), padding=1) for n in (2, 256))
    found = packed_wgrad(many, [wgrad_view(many)], TF32)
    assert found is not None
    assert isinstance(found.a, VoxelRuns)
    assert packed_wgrad(many, [wgrad_view(many)], HALF) is None  # wgmma reads 16 bits either way
    # Of one tap, copies take what they save; of many images, too much memory.
    taps = ConvProblem((2, 64, 64, 512), (512, 1, 1))
    assert packed_wgrad(taps, [wgrad_view(taps)], TF32) is None
    assert packed_wgrad(few, [wgrad_view(few)], TF32) is None
    monkeypatch.setattr(packing_choice, "WORKSPACE", 1 << 40)
    assert packed_wgrad(few, [wgrad_view(few)], TF32) is not None


def of_width(problem: ConvProblem) -> Callable[[int], tuple[GemmView, ...]]:
    return lambda K: dgrad_views(replace(problem, filter=(K, *problem.taps)))


@pytest.mark.parametrize(("K", "width"), [(546, 576), (36, 64), (42, 64)])
def test_odd_channels_become_whole_k_tiles_in_tf32(K: int, width: int) -> None:
    """TMA loads k-tiles of one tap; threads take 1.5 to 1.9 times as long for those that span
    taps.
    """
    problem = ConvProblem((16, 38, 38, 512), (K, 3, 3), padding=1)
    found = packed_dgrad(problem, dgrad_views(problem), of_width(problem), TF32)
    assert found is not None
    assert found.k_major
    assert found.shapes[0][-1] == found.shapes[1][0] == width


CHOICES: dict[str, tuple[ConvProblem, Callable[[ConvProblem], Packed | None]]] = {
    "a stem": (
        ConvProblem((64, 224, 224, 3), (64, 7, 7), 2, 3),
        lambda p: packed_fprop(p, [fprop_view(p)], HALF),
    ),
    "the filter of a stem": (
        ConvProblem((2, 64, 64, 64, 5), (32, 3, 3, 3), 1, 1),
        lambda p: packed_wgrad(p, [wgrad_view(p)], HALF),
    ),
    "the filter of a head": (
        ConvProblem((1, 512, 512, 128), (3, 3, 3), 1, 1),
        lambda p: packed_wgrad(p, [wgrad_view(p)], HALF),
    ),
    "the input of a head": (
        ConvProblem((2, 128, 128, 128, 64), (2, 1, 1, 1)),
        lambda p: packed_dgrad(p, dgrad_views(p), of_width(p), HALF),
    ),
    "the input of a stem": (
        ConvProblem((2, 64, 64, 64, 3), (32, 3, 3, 3), 1, 1),
        lambda p: packed_dgrad(p, dgrad_views(p), of_width(p), HALF),
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_few_channels_are_packed_where_that_pays(name: str) -> None:
    problem, choose = CHOICES[name]
    assert choose(problem) is not None
    # Of a few cells, launches take longer than what they save.
    cells = [2 * span for span in problem.spans]
    assert choose(ConvProblem((1, *cells, problem.C), problem.filter, problem.stride)) is None


def test_channels_that_fill_vectors_are_left_alone() -> None:
    problem = ConvProblem((64, 56, 56, 64), (64, 3, 3), 1, 1)
    assert not [*fprop_packings(problem, HALF), *wgrad_packings(problem, HALF)]
    assert not [*dgrad_packings(problem, dgrad_views(problem), of_width(problem), HALF)]


def test_odd_filters_of_too_many_cells_are_not_copied() -> None:
    """Copies have fewer than 2^31 elements, in either gradient."""
    few, many = (ConvProblem((n, 512, 512, 64), (33, 1, 1)) for n in (64, 256))
    assert packed_wgrad(few, [wgrad_view(few)], HALF) is not None
    assert packed_wgrad(many, [wgrad_view(many)], HALF) is None
    assert packed_dgrad(many, dgrad_views(many), of_width(many), HALF) is None


def test_filters_of_too_many_elements_are_not_padded() -> None:
    """A padded filter is one line of a copy, of fewer than 2^31 elements."""
    few, many = (ConvProblem((256, 4, 4, C), (1023, 3, 3), padding=1) for C in (1 << 17, 1 << 18))
    found = packed_dgrad(few, dgrad_views(few), of_width(few), TF32)
    assert found is not None
    assert found.k_major
    assert packed_dgrad(many, dgrad_views(many), of_width(many), TF32) is None


def test_channels_of_too_many_ctas_are_not_copied_to_runs() -> None:
    """A grid's second mode has 65,535 CTAs of 64 channels at most."""
    few, many = (ConvProblem((1, 8, 128), (K, 8)) for K in (65535 * 64, 65536 * 64))
    assert packed_wgrad(few, [wgrad_view(few)], TF32) is not None
    assert packed_wgrad(many, [wgrad_view(many)], TF32) is None


@pytest.mark.parametrize("of", [HALF, TF32], ids=["fp16", "tf32"])
def test_fewer_filters_than_rows_of_an_instruction_are_exchanged(of: Multiplied) -> None:
    """They become columns, if the sums are long; the results are the same."""
    decoder = ConvProblem((2, 96, 96, 96, 96), (48, 3, 3, 3), padding=1)
    for K, is_exchanged in ((48, True), (64, False)):
        problem = replace(decoder, filter=(K, 3, 3, 3))
        found = packed_wgrad(problem, [wgrad_view(problem)], of)
        assert (found is not None and found.exchanged) == is_exchanged
    short = ConvProblem((32, 14, 14, 128), (32, 3, 3), padding=1)
    assert packed_wgrad(short, [wgrad_view(short)], of) is None
    *_, (direct, packings, y, x) = every_pass(ConvProblem((2, 6, 7, 40), (24, 3, 2), padding=1), of)
    want, _ = direct.compute(as_torch(y), as_torch(x), EpilogueArgs())
    [packed] = [packed for packed in packings if packed.exchanged]
    found_too, _ = direct._replace(packed=packed).compute(as_torch(y), as_torch(x), EpilogueArgs())
    assert torch.equal(found_too, want)


def test_what_is_not_exchanged() -> None:
    assert exchanged(ConvProblem((1, 9, 32), (3, 3), stride=2)) is None
    assert exchanged(ConvProblem((1, 9, 32), (3, 3), padding=3)) is None
    assert exchanged(ConvProblem((1, 9, 32), (4, 3), groups=2)) is None


def test_results_are_in_the_memory_of_the_caller() -> None:
    """Each pass writes to the caller's memory, even a filter's gradient, summed elsewhere first."""
    problem = ConvProblem((2, 6, 7, 16), (3, 3, 2), padding=((0, 1), (1, 1)))
    *_, (direct, packings, y, x) = every_pass(problem)
    for packed in packings:
        out = torch.full(problem.stored_filter, torch.nan).movedim(-1, 1)
        found = direct._replace(packed=packed)
        result, _ = found.compute(as_torch(y), as_torch(x), EpilogueArgs(), out)
        assert result is out
        assert in_memory_order(out).is_contiguous()
        assert out.isfinite().all()
