"""Warm calls of depthwise passes, and of packed channels: launches alone, and right results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.conv import ConvProblem
from layoutconv.conv.depthwise_views import depthwise_fprop_view
from layoutconv.errors import ArgumentTypeError
from layoutconv.gpu import depthwise_plan
from layoutconv.gpu.depthwise_plan import DotPlan, launches_alone
from layoutconv.gpu.packing_choice import multiplied_on
from layoutconv.ops import dense_calls, dense_passes
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.ops.execute import execute_cpu
from layoutconv.planning.machine import MACHINES
from layoutconv.tensors.expected_tensors import expected

from .addresses import tensor_at
from .test_warm_calls import (
    BIAS,
    counted,
    launched,
    memory_of,
)
from .test_warm_calls import no_gpu as no_gpu  # of every test here too


class OnCpu:
    """Stands in for the kernels of a depthwise view: their sums, and notes of what they read."""

    computes = True
    workspace, accumulator = 0, "float32"

    def __init__(self, view: Any) -> None:
        self.view, self.want = view, expected(view)

    def __call__(self, a: Tensor, b: Tensor, out: Tensor, workspace: Any, reads: Any) -> None:
        launched.append(reads)
        if not self.computes:  # while calls are counted
            return
        a, b, d = (
            t.as_strided(of.shape, of.stride)
            for t, of in ((a, self.want.a), (b, self.want.b), (out, self.want.d))
        )
        execute_cpu(self.view, a, b, d)


def entered(call: Callable[[], Any]) -> list[str]:
    """The Python functions that a call enters, whose kernels compute nothing."""
    OnCpu.computes = False
    try:
        python, _ = counted(call)
    finally:
        OnCpu.computes = True
    return python


DEPTHWISE = memory_of(16, 1, 3, 3)
PLANE = memory_of(2, 16, 6, 5)


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_a_warm_depthwise_call_is_a_launch(transposed, ends, monkeypatch):
    monkeypatch.setattr(depthwise_plan, "schedule_dot", lambda view, *_: view)
    monkeypatch.setattr(
        "layoutconv.kernels.pointwise.loaders.load_dot", lambda view, _: OnCpu(view)
    )
    function = lc.conv_transpose2d if transposed else lc.conv2d
    numbers = {"padding": 1, "groups": 16}
    want = function(PLANE, DEPTHWISE, executor="view", **numbers)  # of the first call: an operator
    if ends:
        like = torch.empty_like(want)
        numbers |= {"bias": BIAS, "residual": like, "activation": "leaky_relu", "slope": 0.25}
    call = lambda: function(PLANE, DEPTHWISE, **numbers)  # noqa: E731
    for _ in range(3):
        found = call()
    assert torch.equal(found, want)  # the stand-in adds nothing
    python = entered(call)
    assert len(python) <= 16, python
    vectors, sources = (launched[-1][1:]) if ends else (None, None)
    if ends:
        ending = EpilogueArgs(BIAS, None, like, "leaky_relu", 0.25, None).epilogue()
        assert ending is not None
        assert list(launched[-1][0]) == list(ending.numbers)
        assert (vectors, sources) == ((BIAS.data_ptr(),), (like.data_ptr(),))
    else:
        assert launched[-1] == (None, None, None)
    x = PLANE.clone(memory_format=torch.contiguous_format)  # another order of memory: copied
    assert torch.equal([function(x, DEPTHWISE, **numbers) for _ in range(2)][1], want)


def test_depthwise_epilogues_that_torch_applies_are_no_launch():
    view = depthwise_fprop_view(ConvProblem((2, 6, 5, 16), (16, 3, 3), padding=1, groups=16))
    assert launches_alone(view, torch.float16, ends=True)
    assert not launches_alone(view, torch.int8, ends=False)
    empty = depthwise_fprop_view(ConvProblem((2, 1, 1, 16), (16, 3, 3), padding=1, groups=16))
    assert launches_alone(empty, torch.float16, ends=False)


@pytest.fixture
def packing(monkeypatch, gpu, packed_for_any_gain):
    """Channels are packed wherever they can be, and kernels of them computed on the CPU."""
    of = multiplied_on(torch.float16, MACHINES["sm_90a"])
    monkeypatch.setattr(dense_passes, "multiplied_for", lambda a: of)
    gpu.loads(on_cpu)


@pytest.mark.usefixtures("packing")
def test_a_warm_call_of_packed_channels_is_their_copies_and_a_launch():
    x, w = memory_of(1, 3, 9, 12), memory_of(16, 3, 3, 3)
    want = torch.nn.functional.conv2d(x.double(), w.double(), None, 2, 1)
    made = dense_passes.pass_of("fprop", x, w, ((2, 2), (1, 1, 1, 1), (1, 1), 1, None))
    assert made.packed is not None
    for _ in range(3):
        found = lc.conv2d(x, w, None, 2, 1)
        torch.testing.assert_close(found.double(), want, atol=2e-2, rtol=2e-3)
    call = dense_calls.find(("conv", 2, 2, 1, 1, 1, None, None, 0.01), None, x, w)
    assert call.launch is not None
    python = entered(lambda: lc.conv2d(x, w, None, 2, 1))
    names = {"pack_lines", "_by_torch", "operands", "find", "run"}
    assert names <= {*python}
    assert not {"compute", "execute", "execute_gpu", "check_tensors", "check_dense_operands"} & {
        *python
    }


@pytest.mark.parametrize("channels", [(3, 16), (16, 3)], ids=["packed", "exchanged"])
@pytest.mark.usefixtures("packing")
def test_a_packed_gradient_of_the_filter_is_found_and_finished(channels):
    """Its views write other memory, which calls bring to the result as the operator does."""
    C, K = channels
    x, w = memory_of(2, C, 9, 12), memory_of(K, C, 3, 3).requires_grad_()
    y = lc.conv2d(x, w, padding=1)
    grad = memory_of(*y.shape)
    made = dense_passes.pass_of("wgrad", grad, x, ((3, 3), (1, 1), (1,) * 4, (1, 1), 1, None))
    assert made.packed is not None
    assert made.packed.exchanged is (K < C)
    want = torch.nn.grad.conv2d_weight(x.double(), w.shape, grad.double(), padding=1)
    for _ in range(3):
        launched.clear()
        [found] = torch.autograd.grad(lc.conv2d(x, w, padding=1), w, grad)
        torch.testing.assert_close(found.double(), want, atol=5e-2, rtol=5e-3)
    assert len(launched) == 2  # forward, and the gradient: no operator


def on_cpu(view: Any, spec: Any) -> Callable[..., None]:
    want = expected(view)

    def kernel(a: int, b: int, d: Tensor, *rest: Any) -> None:
        launched.append(spec)
        if not OnCpu.computes:
            return
        x, w = (
            tensor_at(t, torch.float16, s.shape, s.stride) for t, s in ((a, want.a), (b, want.b))
        )
        execute_cpu(view, x, w, d.as_strided(want.d.shape, want.d.stride))

    return kernel


def test_types_without_a_depthwise_kernel_are_refused_as_such():
    view = depthwise_fprop_view(ConvProblem((2, 6, 5, 16), (16, 3, 3), padding=1, groups=16))
    with pytest.raises(ArgumentTypeError, match=r"as of a depthwise convolution, got torch\.int8"):
        DotPlan(view, torch.int8, 0, torch.int8, MACHINES["sm_90a"])
