"""Tiles of several groups on a GPU: all three passes against float64, outputs poisoned before."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.gpu.plan import Plan
from layoutconv.gpu.select import choose_kernel
from layoutconv.ops.execute import execute
from layoutconv.planning.group_tile import GroupTile
from layoutconv.tensors.expected_tensors import expected
from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual
from layoutconv.view.gemm_view import GemmView

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

# Channels, groups, cells, stride: ResNeXt-50 32x4d, and RegNets of 8, 16, 24 and 48 channels.
LAYERS = {
    "resnext 56": (128, 32, 56, 1),
    "resnext 56, stride 2": (256, 32, 56, 2),
    "resnext 28": (256, 32, 28, 1),
    "resnext 28, stride 2": (512, 32, 28, 2),
    "resnext 14": (512, 32, 14, 1),
    "resnext 14, stride 2": (1024, 32, 14, 2),
    "resnext 7": (1024, 32, 7, 1),
    "regnet of 8": (104, 13, 28, 1),
    "regnet of 16": (224, 14, 28, 1),
    "regnet of 24": (336, 14, 14, 1),
    "regnet of 48": (432, 9, 14, 1),
}
IMAGES = 5


def problem_of(layer: str) -> ConvProblem:
    channels, groups, cells, stride = LAYERS[layer]
    x, w = (IMAGES, cells, cells, channels), (channels, 3, 3)
    return ConvProblem(x, w, stride, 1, groups=groups)


def views_of(problem: ConvProblem, pass_: str) -> tuple[GemmView, ...]:
    if pass_ == "fprop":
        return (fprop_view(problem),)
    return dgrad_views(problem) if pass_ == "dgrad" else (wgrad_view(problem),)


def integers(shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.randint(-2, 3, shape).to(dtype)


def reference(problem: ConvProblem, pass_: str, a: Any, b: Any) -> torch.Tensor:
    """A pass in float64, by torch: tensors are in the order of memory, (N, *spatial, C)."""
    a, b = (t.double().movedim(-1, 1) for t in (a, b))
    sides = [near for near, _ in problem.padding]
    rest = problem.stride, sides, problem.dilation
    N, *cells, C = problem.activation
    x_shape, w_shape = (N, C, *cells), (problem.K, C // problem.groups, *problem.taps)
    x, w = (torch.zeros(shape, dtype=torch.float64) for shape in (x_shape, w_shape))
    if pass_ == "fprop":
        found = torch.nn.functional.conv2d(a, b, None, *rest, problem.groups)
        return found.movedim(1, -1)
    y, x, w, mask = (a, x, b, (1, 0, 0)) if pass_ == "dgrad" else (a, b, w, (0, 1, 0))
    grads = torch.ops.aten.convolution_backward(
        y, x, w, None, *rest, False, [0, 0], problem.groups, [bool(bit) for bit in mask]
    )
    return grads[mask.index(1)].movedim(1, -1)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("pass_", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("layer", LAYERS)
def test_layers(layer: str, pass_: str, dtype: torch.dtype) -> None:
    """The chosen kernel is exact, and so is the fastest tile of several groups, chosen or not."""
    torch.manual_seed(0)
    problem = problem_of(layer)
    views = views_of(problem, pass_)
    want = expected(views[0])
    a, b = (integers(tuple(operand.shape), dtype) for operand in (want.a, want.b))
    right = reference(problem, pass_, a, b)
    out_dtype = torch.float32 if pass_ == "wgrad" else dtype
    a, b = a.cuda(), b.cuda()
    out = torch.full(tuple(want.d.shape), torch.nan, dtype=out_dtype, device="cuda")
    for view in views:
        execute(view, a, b, out)
    assert torch.equal(out.cpu().double(), right.to(out_dtype).double())
    out.fill_(torch.nan)
    several = 0
    for view in views:
        found = choose_kernel(view, dtype, torch.cuda.current_device(), out_dtype)
        if found.problem.group is None:
            continue
        pairs = sorted(
            found.problem.group.pairs(found.machine, 64 if pass_ == "wgrad" else 1),
            key=lambda pair: found.problem.group.time(*pair, found.machine),
        )
        for tile, splits in pairs[:1]:
            several += isinstance(tile, GroupTile)
            Plan(view, dtype, a.get_device(), out_dtype, tile=tile, splits=splits)(a, b, out)
    if several == len(views):
        assert torch.equal(out.cpu().double(), right.to(out_dtype).double())
    else:
        assert (pass_, dtype) == ("wgrad", torch.float32)


def test_an_epilogue_and_a_neighbour_that_is_not_finite() -> None:
    torch.manual_seed(0)
    problem = problem_of("resnext 56")
    view = fprop_view(problem)
    want = expected(view)
    a, b = (integers(tuple(x.shape), torch.float16).cuda() for x in (want.a, want.b))
    a[..., 4:8] = torch.inf  # group 1
    residual = integers(tuple(want.d.shape), torch.float16).cuda()
    bias = torch.arange(128, dtype=torch.float16).cuda() % 5
    epilogue = Epilogue((Bias(bias), Residual(residual), Activation("relu")))
    out = torch.full(tuple(want.d.shape), torch.nan, dtype=torch.float16, device="cuda")
    chosen = choose_kernel(view, torch.float16, 0, structure=epilogue.structure)
    assert isinstance(chosen.spec.tile, GroupTile)
    execute(view, a, b, out, epilogue=epilogue)
    a[..., 4:8] = 0
    right = reference(problem, "fprop", a.cpu(), b.cpu())
    right = (right + bias.cpu().double() + residual.cpu().double()).relu()
    others = [c for c in range(128) if not 4 <= c < 8]
    assert torch.equal(out.cpu().double()[..., others], right[..., others])
