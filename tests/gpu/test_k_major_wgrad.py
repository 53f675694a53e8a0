"""Gradients of filters from K-major copies on a GPU, each way of each problem, against float64."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem, wgrad_view
from layoutconv.gpu import packing_choice
from layoutconv.gpu.packing_choice import multiplied_for, wgrad_packings
from layoutconv.gpu.voxel_runs import voxel_runs
from layoutconv.ops import dense_passes
from layoutconv.ops.dense_passes import PassViews
from layoutconv.ops.epilogue_args import EpilogueArgs

from .. import precision
from ..watched import Watch

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
    reason="there is no Hopper",
)

PROBLEMS = {
    "lines": ConvProblem((3, 1001, 64), (96, 5), padding=2),
    "strided lines": ConvProblem((2, 777, 36), (40, 4), stride=2, padding=1),
    "planes": ConvProblem((4, 28, 28, 128), (64, 3, 3), padding=1),
    "dilated": ConvProblem((2, 19, 23, 68), (132, 3, 2), padding=(3, 1), dilation=(3, 2)),
    "near and far": ConvProblem((2, 17, 9, 32), (256, 2, 3), padding=((0, 1), (2, 0))),
    "strided planes": ConvProblem((5, 15, 14, 64), (128, 3, 3), stride=2, padding=1),
    "one tap": ConvProblem((8, 14, 14, 256), (512, 1, 1)),
    "volumes": ConvProblem((2, 8, 14, 14, 64), (64, 3, 3, 3), padding=1),
    "frames": ConvProblem((1, 6, 30, 26, 96), (192, 3, 1, 1)),
    "small": ConvProblem((64, 7, 7, 512), (512, 3, 3), padding=1),
}


@pytest.fixture(autouse=True)
def in_tf32() -> Iterator[None]:
    with precision.restored():
        torch.backends.cudnn.allow_tf32 = True
        yield


@pytest.mark.parametrize("name", PROBLEMS)
def test_every_way(name: str) -> None:
    problem = PROBLEMS[name]
    generator = torch.Generator("cuda").manual_seed(len(name))
    y, x = (
        torch.randn(shape, device="cuda", generator=generator)
        for shape in (problem.output, problem.activation)
    )
    weight = torch.empty(problem.K, problem.C, *problem.taps, device="cuda", dtype=torch.float64)
    y_, x_ = y.movedim(-1, 1), x.movedim(-1, 1)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    padded = torch.nn.functional.pad(x_.double(), sides)
    none = [0] * problem.rank
    want = torch.ops.aten.convolution_backward(
        y_.double(),
        padded,
        weight,
        None,
        problem.stride,
        none,
        problem.dilation,
        False,
        none,
        1,
        [False, True, False],
    )[1]
    of = multiplied_for(x)
    assert of is not None
    direct, tried = PassViews((wgrad_view(problem),), problem.stored_filter), 0
    for packed in wgrad_packings(problem, of):
        out = torch.full(direct.shape, torch.nan, device="cuda").movedim(-1, 1)
        direct._replace(packed=packed).compute(y_, x_, EpilogueArgs(), out)
        error = (out.double() - want).norm() / want.norm()
        assert error < 1e-3, (packed, float(error))
        for t, how in ((y, packed.a), (x, packed.b)):
            assert torch.equal(voxel_runs(t, how).cpu(), voxel_runs(t.cpu(), how))  # type: ignore[arg-type]
        tried += 1
    assert tried


@pytest.mark.usefixtures("packed_for_any_gain")
def test_memory_starts_at_any_element(watched: Watch) -> None:
    """Gradients of tensors in the middle of others, through the function that users call."""
    dense_passes.forget()
    found = watched("voxel_runs", packing_choice, note=lambda call: call.args[0].data_ptr() % 16)
    memory = torch.randn(2 * 64 * 64 * 512 + 1, device="cuda")
    x = memory[1:].view(2, 64, 64, 512).permute(0, 3, 1, 2)
    w = torch.randn(512, 512, 3, 3, device="cuda", requires_grad=True)
    for _ in range(3):  # by the operator, by a call that is bound, by one that is known
        y = lc.conv2d(x, w, padding=1)
        grad = torch.randn_like(y)
        got = torch.autograd.grad(y, w, grad)[0]
        want = torch.nn.grad.conv2d_weight(x.double(), w.shape, grad.double(), padding=1)
        assert (got.double() - want).norm() < 1e-3 * want.norm()
    assert {0, 4} <= set(found)
    dense_passes.forget()
