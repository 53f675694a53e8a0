"""Views of few terms compute what the usual views do, and are chosen where threads sum faster."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from hypothesis import given, settings

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view
from layoutconv.conv.few_terms import few_terms_dgrad_view, few_terms_fprop_view
from layoutconv.gpu import few_terms_choice
from layoutconv.gpu.few_terms_choice import few_terms_dgrad, few_terms_fprop
from layoutconv.gpu.packing_choice import multiplied_on
from layoutconv.ops import dense_passes
from layoutconv.ops.dense_passes import dgrad_pass, fprop_pass
from layoutconv.ops.execute import execute
from layoutconv.planning.depthwise_schedule import schedule_dot
from layoutconv.planning.machine import MACHINES

from ..exact import integers
from ..watched import Watch
from .few_channels import few_channels

HALF = multiplied_on(torch.float16, MACHINES["sm_90a"])
LARGE = ConvProblem((2, 128, 128, 128, 3), (32, 1, 1, 1))


@settings(max_examples=40, deadline=None)
@given(problem=few_channels(taps=3, more=(8, 24), room=4, even=False))
def test_both_views_compute_the_same(problem: ConvProblem) -> None:
    """Sums of small integers are exact in any order."""
    x, w, y = (
        integers(*shape, seed=i)
        for i, shape in enumerate((problem.activation, problem.stored_filter, problem.output))
    )
    want = execute(fprop_view(problem), x, w)
    assert torch.equal(execute(few_terms_fprop_view(problem), x, w), want)
    if set(problem.stride) == {1}:
        (usual,) = dgrad_views(problem)
        found = execute(few_terms_dgrad_view(problem), y, w)
        assert torch.equal(found, execute(usual, y, w).view(found.shape))


def test_large_layers_of_up_to_four_channels_are_summed_by_threads() -> None:
    numbers = [1] * 3, [0] * 6, [1] * 3
    for C in (1, 3, 4):
        p = replace(LARGE, activation=(*LARGE.activation[:-1], C))
        found = fprop_pass(p.activation, p.stored_filter, *numbers, of=HALF)
        assert found.by_threads
        assert found.packed is None
        assert found.views == (few_terms_fprop_view(p),)
    turned = ConvProblem((2, 128, 128, 128, 32), (3, 1, 1, 1))
    found = dgrad_pass(turned.output, turned.stored_filter, turned.spatial, [*numbers, 1], of=HALF)
    assert found.views == (few_terms_dgrad_view(turned),)


@pytest.mark.parametrize(
    "other",
    [
        replace(LARGE, activation=(2, 128, 128, 128, 5)),  # more terms
        replace(LARGE, activation=(2, 16, 16, 16, 3)),  # fewer results
        replace(LARGE, filter=(36, 1, 1, 1)),  # no whole vectors
        replace(LARGE, filter=(32, 1, 1, 3), padding=((0, 0), (0, 0), (1, 1))),
        replace(LARGE, stride=(1, 1, 2)),
        replace(LARGE, groups=3, filter=(96, 1, 1, 1)),
    ],
    ids=str,
)
def test_tiles_keep_all_others(other: ConvProblem) -> None:
    assert few_terms_fprop(other, HALF) is None


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("aligned", [16, 4])
def test_kernels_number_all_that_threads_sum(dtype: torch.dtype, aligned: int) -> None:
    """Larger layers keep tiles, which run all but those of 2^31 voxels."""
    of, kind = multiplied_on(dtype, MACHINES["sm_90a"]), str(dtype)[6:]
    taken = []
    for voxels, columns in product((8, 2**20, 2**27, 2**31 - 1, 2**31 + 2), (16, 64, 2**20, 2**22)):
        p = ConvProblem((1, voxels, 3), (columns, 1))
        view = few_terms_fprop(p, of)
        if view is not None:
            schedule_dot(view, kind, kind, (aligned,) * 3)
            taken.append((voxels, columns))
    assert taken == [(8, 2**20), (2**20, 16), (2**20, 64), (2**27, 16)]


def test_threads_count_no_statistics() -> None:
    assert few_terms_fprop(LARGE, HALF) is not None
    assert few_terms_fprop(LARGE, HALF._replace(by_tiles=True)) is None
    assert few_terms_fprop(LARGE, None) is None
    assert few_terms_dgrad(LARGE, HALF) is None  # 32 filters


@pytest.mark.parametrize("transposed", [False, True])
def test_tiles_store_8_bits(
    transposed: bool, watched: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Behind sums of threads, torch would: from a result in 32 bits."""
    monkeypatch.setattr(few_terms_choice, "ELEMENTS", 0)
    monkeypatch.setattr(dense_passes, "multiplied_for", lambda a: HALF)
    chosen = watched("_pays", few_terms_choice, note=lambda call: call.result)
    convolution = lc.conv_transpose2d if transposed else lc.conv2d
    x, w = torch.ones(1, 3, 4, 5).half(), torch.ones(32, 3, 1, 1).half()
    w = w.transpose(0, 1) if transposed else w
    for dtype in (torch.float32, torch.int8):
        dense_passes.forget()
        convolution(x, w, out_dtype=dtype, executor="view")
    dense_passes.forget()
    assert chosen == [True, False]
