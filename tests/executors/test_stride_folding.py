"""Stride folding: which forward passes use it, and that they compute what the others do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import layoutconv as lc
from layoutconv.base.caches import clear_caches
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.conv.patches import patches_of
from layoutconv.conv.stride_folding import folded_fprop_view, folded_taps
from layoutconv.gpu import folding_choice, select
from layoutconv.gpu.folding_choice import LINE, arranged_fprop, line_of, unfolded
from layoutconv.gpu.packing_choice import multiplied_on
from layoutconv.ops import dense_passes
from layoutconv.planning.channel_padding import has_padded_channels
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.structural_zeros import k_tile_runs, leaves_bounds
from layoutconv.tensors.tensor_checks import as_stored
from layoutconv.tuning.tuned_problems import views_of
from layoutconv.view.gemm_view import GemmView

HALF = multiplied_on(torch.float16, MACHINES["sm_90a"])
LARGE = (2, 64, 64, 64, 32), (64, 3, 3, 3), 2, 1
FOURTHS = {"activation": (8, 64, 64, 64, 16), "stride": 4, "padding": 0}  # of which one is zeros


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_execute_takes_memory_in_that_shape(data: st.DataObject) -> None:
    rank, stride, taps = (data.draw(st.integers(*ends)) for ends in ((1, 3), (2, 4), (1, 6)))
    C, K, near, far = (data.draw(st.integers(*ends)) for ends in ((1, 5), (1, 5), (0, 4), (0, 4)))
    cells = stride * data.draw(st.integers(-(-taps // stride), 5))
    problem = ConvProblem(
        (2, *[5] * (rank - 1), cells, C), (K, *[3] * (rank - 1), taps), stride,
        [*[(1, 1)] * (rank - 1), (near, far)],
    )  # fmt: skip
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 9)))
    x, w = (
        torch.randint(-4, 5, shape, generator=generator).float()
        for shape in (problem.activation, problem.stored_filter)
    )
    view = folded_fprop_view(problem)
    got = lc.execute(view, as_stored(view, x), w)
    assert torch.equal(got, lc.execute(fprop_view(problem), x, w))


@pytest.mark.parametrize(
    ("changes", "want"),
    [
        ({}, True),
        ({"activation": (2, 64, 64, 63, 32)}, False),
        ({"activation": (2, 64, 64, 64, 128)}, False),
        ({"activation": (2, 64, 64, 64, 8)}, False),  # a cell of less than an instruction's block
        ({"activation": (2, 16, 16, 16, 32)}, False),  # few rows
        ({"filter": (192, 3, 3, 3)}, False),  # of several tiles of columns
        ({"filter": (192, 2, 2, 2), "padding": 0}, False),  # whose windows are cells
        ({"filter": (64, 1, 1, 1), "padding": 0}, False),  # most of it zeros
        ({"filter": (64, 7, 7, 7), "padding": 3}, True),
        ({"filter": (128, 7, 7, 7), "padding": 3}, False),
        (FOURTHS | {"filter": (256, 3, 3, 3)}, True),
        (FOURTHS | {"filter": (264, 3, 3, 3)}, False),
        ({"filter": (264, 2, 2, 2), "padding": 0}, False),
        ({"stride": (2, 2, 1)}, False),
        ({"stride": (1, 1, 2)}, True),
        ({"groups": 2}, False),
    ],
    ids=str,
)
def test_which_are_folded(changes: dict[str, Any], want: bool) -> None:
    numbers = dict(zip(("activation", "filter", "stride", "padding"), LARGE, strict=True))
    problem = ConvProblem(**(numbers | changes))
    plain = fprop_view(patches_of(problem).problem)
    found = arranged_fprop(problem, LINE)
    assert found is (folded_fprop_view(problem) if want else plain)
    assert arranged_fprop(problem) is plain
    assert views_of(problem, "fprop", HALF) == (found,)


@settings(max_examples=100, deadline=None)
@given(
    C=st.sampled_from((16, 32, 48, 64)),
    K=st.integers(1, 320),
    steps=st.sampled_from(((2, 2), (2, 3), (2, 5), (2, 7), (3, 4), (3, 5), (4, 3), (4, 7))),
    cells=st.integers(1, 64),
    lines=st.integers(1, 4096),
    near=st.integers(0, 3),
    aligned=st.sampled_from((2, 8, 16)),
)
def test_nothing_outside_the_filter_is_multiplied(
    C: int, K: int, steps: tuple[int, int], cells: int, lines: int, near: int, aligned: int
) -> None:
    """An infinity beside a window would make a number of it that is none."""
    stride, taps = steps
    pads = (0, 0), (min(near, taps - 1), taps - 1)
    problem = ConvProblem((lines, 9, cells * stride, C), (K, 3, taps), (1, stride), pads)
    view, memory = arranged_fprop(problem, LINE), (aligned, 16, 16)
    found = select.choose_kernel(view, torch.float16, MACHINES["sm_90a"], aligned=memory)
    # Channels beyond memory's are zeros in both operands.
    whole = view if has_padded_channels(found.view) else found.view
    assert k_tile_runs(found.view, found.spec) or not leaves_bounds(whole)
    if unfolded(view) and aligned == 16 and stride * folded_taps(problem)[1] > taps:
        assert leaves_bounds(found.view)  # folded lines are worth it where a tile leaves that out


def test_where_lines_are_folded() -> None:
    for arch, want in (("sm_90a", LINE), ("sm_80", 0)):
        machine = MACHINES[arch]
        assert (line_of(torch.bfloat16, machine), line_of(torch.float32, machine)) == (want, 0)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A CPU that folds what Hopper does, however small."""
    monkeypatch.setattr(dense_passes, "line_for", lambda a: LINE)
    monkeypatch.setattr(folding_choice, "ROWS", 1)
    clear_caches()
    yield
    clear_caches()


@pytest.mark.usefixtures("always")
def test_convolutions_of_folded_lines(dense_execute: Any) -> None:
    """The first call, and one whose signature is known; their gradients, and what follows sums."""
    ran, execute = [], dense_passes.execute

    def noted(view: GemmView, *of: Any, **more: Any) -> Any:
        ran.append(view)
        return execute(view, *of, **more)

    dense_execute(noted)
    x = torch.randn(2, 16, 6, 8, requires_grad=True)
    w = torch.randn(24, 16, 3, 3, requires_grad=True)
    bias = torch.randn(24, requires_grad=True)
    for _ in range(2):
        y = lc.conv2d(x, w, bias, stride=2, padding=1, activation="relu", executor="view")
        want = torch.nn.functional.conv2d(x, w, bias, stride=2, padding=1).relu()
        torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
        of = x, w, bias
        grad = torch.randn_like(want)
        found, known = (torch.autograd.grad(t, of, grad) for t in (y, want))
        for mine, theirs in zip(found, known, strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    forward = [view for view in ran if view.n == 24 and view.m == 24]
    assert [view.a.shape[1][0] for view in forward] == [32, 32]
