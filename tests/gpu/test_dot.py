"""Depthwise kernels on a GPU, against the CPU executor."""

from __future__ import annotations

import pytest
import torch

from layoutconv.conv import ConvProblem
from layoutconv.ops.execute import execute_cpu
from layoutconv.planning.depthwise_schedule import schedule_dot
from layoutconv.tensors.expected_tensors import expected

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
    from layoutconv.kernels.pointwise.loaders import load_dot

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
        plan = schedule_dot(view, name, name, sm_count=machine.sm_count)
        kernels = load_dot(plan, machine.arch)
        kind_of_sums = getattr(torch, kernels.accumulator)
        workspace = torch.full((kernels.workspace,), torch.nan, dtype=kind_of_sums, device="cuda")
        kernels(a.cuda().view(-1), b.cuda().view(-1), result.view(-1), workspace)
    assert torch.equal(result.cpu(), out)


# Sliding windows and gradients of rows of taps: all sizes of what a thread takes, ragged ones too.
NETWORKS = {
    "ConvNeXt": ConvProblem((4, 56, 56, 96), (96, 7, 7), padding=3, groups=96),
    "ConvNeXt, deep": ConvProblem((4, 7, 7, 768), (768, 7, 7), padding=3, groups=768),
    "EfficientNet": ConvProblem((4, 29, 28, 144), (144, 5, 5), padding=2, stride=2, groups=144),
    "MobileNet": ConvProblem((4, 57, 55, 36), (36, 3, 3), padding=1, stride=2, groups=36),
    "Conformer": ConvProblem((4, 301, 256), (256, 31), padding=15, groups=256),
    "long": ConvProblem((1, 40000, 16), (16, 9), padding=4, groups=16),
    "video": ConvProblem((2, 8, 28, 30, 64), (64, 3, 3, 3), padding=1, groups=64),
    "planes": ConvProblem((2, 8, 28, 30, 62), (62, 1, 5, 5), padding=(0, 2, 2), groups=62),
    "dilated": ConvProblem((2, 32, 32, 256), (256, 3, 3), padding=36, dilation=36, groups=256),
    "columns": ConvProblem((4, 56, 56, 12), (12, 11, 1), padding=(5, 0), groups=12),
}


def exact(found, a_shape, b_shape, dtype):
    """Operands whose sums are exact in fp32, and the result in float64."""
    torch.manual_seed(0)
    a, b = (torch.randint(-2, 3, shape).to(dtype) for shape in (a_shape, b_shape))
    out = torch.full(expected(found[0]).d.shape, torch.nan, dtype=torch.float64)
    for view in found:
        execute_cpu(view, a.double(), b.double(), out)
    return a, b, out


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", NETWORKS)
def test_networks(name, kind):
    import layoutconv as lc

    found = views(NETWORKS[name], kind)
    want = expected(found[0])
    a, b, exactly = exact(found, want.a.shape, want.b.shape, torch.float16)
    for out_dtype in (torch.float16, torch.float32):
        out = torch.full(want.d.shape, torch.nan, dtype=out_dtype, device="cuda")
        for view in found:
            lc.execute(view, a.cuda(), b.cuda(), out)
        assert torch.equal(out.cpu(), exactly.to(out_dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("name", ["ConvNeXt", "MobileNet", "Conformer", "planes"])
def test_epilogues_in_the_kernel(name, dtype):
    import layoutconv as lc
    from layoutconv.view.epilogue import Activation, Bias, Epilogue, Residual, Scale

    found = views(NETWORKS[name], "fprop")
    want = expected(found[0])
    a, b, sums = exact(found, want.a.shape, want.b.shape, dtype)
    channels = want.d.shape[-1]
    scale, bias = (torch.randint(-2, 3, (channels,)).to(dtype) for _ in range(2))
    residual = torch.randint(-4, 5, want.d.shape).to(dtype)
    steps = Scale(scale.cuda()), Bias(bias.cuda()), Residual(residual.cuda(), 2.0)
    epilogue = Epilogue((*steps, Activation("relu")))
    out = torch.full(want.d.shape, torch.nan, dtype=dtype, device="cuda")
    lc.execute(found[0], a.cuda(), b.cuda(), out, epilogue=epilogue)
    values = (sums * scale.double() + bias.double() + 2 * residual.double()).relu()
    assert torch.equal(out.cpu(), values.to(dtype))
