"""Depthwise kernels on a GPU, against the CPU executor."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv import ConvProblem
from layoutconv.ops.execute import execute_cpu
from layoutconv.tensors.tensor_checks import expected

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")


def views(p: ConvProblem, kind: str):
    from layoutconv.conv import depthwise_views

    made = {
        "fprop": depthwise_views.depthwise_fprop_view,
        "dgrad": depthwise_views.depthwise_dgrad_views,
        "wgrad": depthwise_views.depthwise_wgrad_view,
    }[kind](p)
    return made if isinstance(made, tuple) else (made,)


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("C", [1, 3, 5, 12, 64, 320])
@pytest.mark.parametrize(
    "more",
    [
        {"padding": 1},
        {"padding": ((0, 2), (1, 0)), "stride": (2, 3)},
        {"dilation": 2, "padding": 2},
    ],
)
def test_passes(kind, dtype, C, more):
    from layoutconv.gpu.machines import machine_of
    from layoutconv.kernels.pointwise.depthwise import load_dot

    machine = machine_of(torch.cuda.current_device())
    problem = ConvProblem((3, 33, 38, C), (C, 3, 3), groups=C, **more)
    found = views(problem, kind)
    want = expected(found[0])
    torch.manual_seed(0)
    a, b = (
        torch.randint(-4, 5, operand.shape).to(dtype) for operand in (want.a, want.b)
    )  # integers: exact in every order, but for the last rounding
    out = torch.full(want.d.shape, torch.nan, dtype=dtype)
    result = out.cuda()
    for view in found:
        execute_cpu(view, a, b, out)
        name = str(dtype)[6:]
        kernels = load_dot(view, name, name, machine.arch, multiprocessors=machine.sm_count)
        kind_of_sums = getattr(torch, kernels.accumulator)
        workspace = torch.full((kernels.workspace,), torch.nan, dtype=kind_of_sums, device="cuda")
        kernels(a.cuda().view(-1), b.cuda().view(-1), result.view(-1), workspace)
    assert torch.equal(result.cpu(), out)
