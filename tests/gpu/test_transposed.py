"""Transposed convolutions on a GPU: one launch, poisoned results, against float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional

import layoutconv as lc
from layoutconv.conv import ConvProblem
from layoutconv.gpu.phase_choice import arranged_dgrad, columns_for
from layoutconv.tensors.expected_tensors import expected
from layoutconv.tensors.tensor_checks import columns_of
from layoutconv.view.epilogue import Epilogue

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

CLOSE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 4e-3}
TORCHS = {n: getattr(functional, f"conv_transpose{n}d") for n in (1, 2, 3)}
OURS = {n: getattr(lc, f"conv_transpose{n}d") for n in (1, 2, 3)}

# Shape, channels, taps, stride, padding, padding of the output; launches at most.
LAYERS: dict[str, tuple[Any, ...]] = {
    "U-Net": ((2, 256, 16, 16, 16), 128, 2, 2, 0, 0, 1),
    "U-Net, large": ((2, 64, 64, 64, 64), 32, 2, 2, 0, 0, 1),
    "with cells to spare": ((2, 64, 33, 17), 48, 2, 2, 0, 1, 1),
    "DCGAN": ((64, 512, 4, 4), 256, 4, 2, 1, 0, 1),
    "DCGAN, last": ((64, 64, 32, 32), 3, 4, 2, 1, 0, 1),
    "CenterPoint": ((4, 256, 62, 54), 256, 4, 4, 0, 0, 1),
    "3x3": ((4, 256, 64, 64), 128, 3, 2, 1, 1, 4),
    "patches": ((8, 768, 14, 14), 3, 16, 16, 0, 0, 1),
    "patches of volumes": ((2, 768, 6, 6, 6), 1, 8, 8, 0, 0, 1),
    "HiFi-GAN": ((16, 256, 256), 128, 16, 8, 4, 0, 1),
    "HiFi-GAN, last": ((16, 64, 4096), 32, 4, 2, 1, 0, 1),
    "samples": ((2, 512, 100), 1, 320, 320, 0, 0, 1),
    "MONAI, phases together": ((4, 384, 6, 6, 6), 64, 3, 2, 1, 1, 8),
}


def last(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor with its channels fastest in memory."""
    return tensor.movedim(1, -1).contiguous().movedim(-1, 1)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize("name", LAYERS)
def test_steps_are_those_of_float64(name: str, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    shape, channels, taps, *numbers, launches = LAYERS[name]
    rank = len(shape) - 2
    x = last(torch.randn(shape, device="cuda").to(dtype))
    w = last((torch.randn(shape[1], channels, *[taps] * rank, device="cuda") / 16).to(dtype))
    bias = torch.randn(channels, device="cuda")
    stride, padding, extra = numbers
    sums = TORCHS[rank](x.double(), w.double(), None, stride, padding, extra)
    residual = last(torch.randn_like(sums).to(dtype))
    want = (sums + bias.double().view(-1, *[1] * rank)).relu()
    # Memory that was poisoned is what the allocator gives a call next.
    torch.full((want.numel() * dtype.itemsize,), 0xFF, dtype=torch.uint8, device="cuda")
    call = OURS[rank]
    for _ in range(2):  # the second one is past all checks
        found = call(x, w, bias, stride, padding, extra, activation="relu")
        assert found.isfinite().all()
        assert (found - want).norm() <= CLOSE[dtype] * want.norm()
    both = call(x, w, bias, stride, padding, extra, residual=residual)
    plain = TORCHS[rank](x.double(), w.double(), bias.double(), stride, padding, extra) + residual
    assert (both - plain).norm() <= CLOSE[dtype] * plain.norm()
    more = int(dtype == torch.float32)  # a K-major copy of the filter, where that pays
    assert (
        kernels(lambda: call(x, w, bias, stride, padding, extra, activation="relu"))
        <= launches + more
    )


def kernels(call: Any) -> int:
    """Return how many kernels a call launches."""
    call()
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        call()
        torch.cuda.synchronize()
    events = profile.events() or []
    return sum(event.device_type == torch.autograd.DeviceType.CUDA for event in events)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "problem",
    [
        ConvProblem((2, 16, 16, 32, 64), (128, 2, 2, 2), 2),
        ConvProblem((2, 33, 30, 64), (64, 4, 4), 2, 1),
        ConvProblem((2, 32, 32, 64), (64, 2, 2), 2, groups=2),
    ],
    ids=str,
)
def test_views_write_all_and_sum_by_channel(problem: ConvProblem, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    y = torch.randn(problem.output, device="cuda", dtype=dtype)
    groups = problem.groups
    w = torch.randn(problem.K, *problem.taps, problem.C // groups, device="cuda").to(dtype) / 16
    [view] = arranged_dgrad(problem, columns_for(y), empty=True)
    stored, bias = expected(view), torch.randn(columns_of(view), device="cuda")
    out = torch.full(stored.d.shape, torch.nan, device="cuda", dtype=dtype)
    steps = Epilogue((lc.Bias(bias), lc.Activation("silu")), statistics=True)
    w = w.view(stored.b.shape)
    _, found = lc.execute(view, y.view(stored.a.shape), w, out, epilogue=steps)
    wide = w.view(problem.K, *problem.taps, problem.C // groups).movedim(-1, 1).double()
    images = torch.zeros(problem.N, problem.C, *problem.spatial, device="cuda").double()
    images.requires_grad_()
    conv = getattr(functional, f"conv{problem.rank}d")
    pads = [near for near, _ in problem.padding]
    made = conv(images, wide, None, problem.stride, pads, 1, groups)
    (sums,) = torch.autograd.grad(made, images, y.movedim(-1, 1).double())
    want = functional.silu(sums + bias.double().view(-1, *[1] * problem.rank)).movedim(1, -1)
    got = out.view(want.shape)
    assert (got - want).norm() <= CLOSE[dtype] * want.norm()
    rows = got.double().reshape(-1, problem.C)
    both = torch.stack((rows.sum(0), rows.square().sum(0))).float()
    torch.testing.assert_close(found, both, rtol=1e-3, atol=5e-2)


@pytest.mark.parametrize("dtype", list(CLOSE))
@pytest.mark.parametrize(
    ("shape", "channels", "taps"),
    [((8, 3, 224, 224), 768, 16), ((4, 96, 56, 56), 192, 2), ((1, 1, 96, 96, 96), 768, 8)],
)
def test_a_step_of_a_patch_embedding(
    shape: tuple[int, ...], channels: int, taps: int, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    rank = len(shape) - 2
    x = last(torch.randn(shape, device="cuda").to(dtype))
    w = last((torch.randn(channels, shape[1], *[taps] * rank, device="cuda") / 16).to(dtype))
    conv = getattr(functional, f"conv{rank}d")
    theirs = [t.double().requires_grad_() for t in (x, w)]
    ours = [t.requires_grad_() for t in (x, w)]
    want = conv(*theirs, None, taps)
    got = getattr(lc, f"conv{rank}d")(*ours, None, taps)
    gradient = torch.randn_like(want)
    expected_of = [want, *torch.autograd.grad(want, theirs, gradient)]
    found = [got, *torch.autograd.grad(got, ours, gradient.to(dtype))]
    for a, b in zip(found, expected_of, strict=True):
        assert (a - b).norm() <= CLOSE[dtype] * b.norm()
