"""An infinity and a NaN reach the results that torch's convolutions say, and no neighbours.

Where docs/support.md names an exception, what is torch's is among what is not finite.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import layoutconv as lc
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.gpu.packing_choice import (
    dgrad_packings,
    fprop_packings,
    multiplied_on,
    wgrad_packings,
)
from layoutconv.gpu.phase_choice import COLUMNS, MORE_COLUMNS
from layoutconv.ops.dense_passes import PassViews, dgrad_pass
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.structural_zeros import leaves_bounds
from tests.campaign.dense_reference import Geometry

from .few_channels import few_channels

HALF = multiplied_on(torch.float16, MACHINES["sm_90a"])
PASSES = "fprop", "dgrad", "wgrad"
PROBLEMS = few_channels(taps=3, more=(2, 8, 12), room=4, even=True)


def kind_of(t: Tensor) -> Tensor:
    """0 of a finite number, 1 and 2 of infinities, 3 of NaN."""
    kinds = torch.where(t == torch.inf, 1, torch.where(t == -torch.inf, 2, 0))
    return torch.where(t.isnan(), 3, kinds)


def of_torch(problem: ConvProblem, x: Tensor, w: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The three passes of torch, in float64, of tensors of its order."""
    x, w, y = (t.double().contiguous() for t in (x, w, y))
    conv = getattr(torch.nn.functional, f"conv{problem.rank}d")
    near = [near for near, _ in problem.padding]
    out = conv(x.requires_grad_(), w.requires_grad_(), None, problem.stride, near, problem.dilation)
    return dict(zip(PASSES, (out.detach(), *torch.autograd.grad(out, (x, w), y)), strict=True))


def without_zeros(problem: ConvProblem, x: Tensor, y: Tensor) -> Tensor:
    """The filter's gradient in float64, tap by tap, of the voxels whose cell is no padding."""
    of = problem.spatial, problem.taps, problem.stride, problem.dilation, problem.padding
    return Geometry(*of).wgrad(y.double(), x.double())


def every_pass(problem: ConvProblem) -> Iterator[tuple[str, Any, str]]:
    """The name of each pass, what computes it, and the operand whose zeros others meet."""
    direct = PassViews((fprop_view(problem),), problem.output)
    yield "fprop", direct, ""
    for packed in fprop_packings(problem, HALF):
        yield "fprop", direct._replace(packed=packed), ""
    views = dgrad_views(problem, empty=False)
    direct = PassViews(views, problem.activation, zeroed=True)
    yield "dgrad", direct, ""

    def views_of(K: int) -> Any:
        return dgrad_views(replace(problem, filter=(K, *problem.taps)), empty=False)

    for packed in dgrad_packings(problem, views, views_of, HALF):
        yield "dgrad", direct._replace(packed=packed), ""
    sides = [side for both in problem.padding for side in both]
    numbers = [problem.stride, sides, problem.dilation, 1]
    shapes = problem.output, problem.stored_filter, problem.spatial
    for columns, of in product((COLUMNS, MORE_COLUMNS), (None, HALF)):
        found = dgrad_pass(*shapes, numbers, columns=columns, of=of)
        yield "dgrad", found, "y" if any(map(leaves_bounds, found.views)) else ""
    direct = PassViews((wgrad_view(problem),), problem.stored_filter)
    yield "wgrad", direct, ""
    for packed in wgrad_packings(problem, HALF):
        yield "wgrad", direct._replace(packed=packed), "x" if packed.exchanged else ""


@settings(max_examples=40, deadline=None)
@given(
    problem=PROBLEMS, where=st.sampled_from("xwy"), at=st.integers(0, 10**6),
    value=st.sampled_from([torch.inf, -torch.inf, torch.nan]), seed=st.integers(0, 99),
)  # fmt: skip
@example(ConvProblem((1, 1, 2, 2), (1, 1, 2), 1, ((0, 0), (1, 1))), "y", 0, torch.inf, 0)
@example(ConvProblem((1, 1, 4, 1), (2, 1, 3), (1, 3)), "y", 0, torch.inf, 0)
def test_what_is_not_finite_is_where_torch_has_it(
    problem: ConvProblem, where: str, at: int, value: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    shapes = problem.activation, problem.stored_filter, problem.output
    operands = {
        name: torch.randint(1, 5, shape, generator=generator).float()
        for name, shape in zip("xwy", shapes, strict=True)
    }
    flat = operands[where].view(-1)
    flat[at % len(flat)] = value
    x, w, y = (t.movedim(-1, 1) for t in operands.values())
    want = of_torch(problem, x, w, y)
    given = {"fprop": (x, w), "dgrad": (y, w), "wgrad": (y, x)}
    for name, how, meets in every_pass(problem):
        got = kind_of(how.compute(*given[name], EpilogueArgs())[0])
        expected = kind_of(want[name])
        # torch adds what reaches a cell, kernels also the filter times zeros outside of the output.
        if where == meets or (name, where) == ("dgrad", "w"):
            assert ((got > 0) | (expected == 0)).all(), (name, how)
        # Of exchanged operands it is the output's gradient that is padded, and met with no zero.
        elif (meets, where) == ("x", "y"):
            assert torch.equal(got, kind_of(without_zeros(problem, x, y))), how
        else:
            assert torch.equal(got, expected), (name, how)


@pytest.mark.parametrize("executor", [None, "view"])
@pytest.mark.parametrize("where", ["x", "w", "y"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_grouped_and_depthwise_channels_keep_to_themselves(
    layout: torch.memory_format, where: str, executor: str | None
) -> None:
    """Without padding, also of executors that multiply with zeros outside."""
    for groups, C in ((2, 2), (3, 1), (4, 4)):
        x = torch.ones(2, groups * C, 5, 6).contiguous(memory_format=layout).requires_grad_()
        w = torch.ones(groups * 2, C, 3, 2).contiguous(memory_format=layout).requires_grad_()
        y = torch.ones(2, groups * 2, 3, 5)
        with torch.no_grad():
            {"x": x, "w": w, "y": y}[where][1, -1, 1, 1] = torch.inf
        conv = torch.nn.functional.conv2d(x.double(), w.double(), groups=groups)
        want = conv, *torch.autograd.grad(conv, (x, w), y.double())
        options: Any = {} if executor is None else {"executor": executor}
        made = lc.conv2d(x, w, groups=groups, **options)
        got = made, *torch.autograd.grad(made, (x, w), y)
        for name, a, b in zip(PASSES, got, want, strict=True):
            if executor is None or (name, where) != ("dgrad", "w"):
                assert torch.equal(kind_of(a), kind_of(b)), (groups, name)
