"""Batch norms of channels-last images in the machine, sums and activations, beside float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.gpu import row_norm
from layoutconv.nn import dense_batch_norm
from layoutconv.tensors.epilogue_in_torch import activate

from .cloud_launcher import Launches

CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}
EPS = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 4e-6}  # of a result's own size


@pytest.fixture(autouse=True)
def may_launch(simulated: Launches, monkeypatch: pytest.MonkeyPatch) -> Launches:
    """A CPU whose images kernels are launched of."""
    monkeypatch.setattr(dense_batch_norm, "may_launch", lambda input: True)
    simulated.kinds.clear()
    return simulated


def images(seed: int, *shape: int, dtype: torch.dtype = torch.float32, mean: float = 0.0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    x = (torch.randn(shape, generator=random) + mean).to(dtype)
    return x.movedim(1, -1).contiguous().movedim(-1, 1)


def norms(rank: int, C: int, **more: Any) -> tuple[Any, Any]:
    """A norm, with an activation, and the same of torch in float64, without."""
    torch.manual_seed(0)
    ours = getattr(lc.nn, f"BatchNorm{rank}d")(C, momentum=0.25, **more)
    if ours.weight is not None:
        torch.nn.init.normal_(ours.weight)
        torch.nn.init.normal_(ours.bias)
    more.pop("activation", None)
    theirs = getattr(torch.nn, f"BatchNorm{rank}d")(C, momentum=0.25, **more).double()
    theirs.load_state_dict(ours.state_dict())
    return ours, theirs


def step(module: Any, leaves: list[Tensor], call: Any, grad: Tensor) -> list[Tensor]:
    """The result, its gradients, and the buffers after it."""
    leaves = [leaf.detach().requires_grad_() for leaf in leaves]
    y = call(*leaves)
    grads = torch.autograd.grad(y, (*leaves, *module.parameters()), grad)
    return [y.detach(), *grads, *(buffer.clone() for buffer in module.buffers())]


CASES: list[tuple[tuple[int, ...], torch.dtype, str | None, bool]] = [
    ((2, 64, 5, 4), torch.float16, "relu", True),
    ((2, 2048, 2, 2), torch.float16, "relu", True),
    ((3, 256, 3, 3), torch.bfloat16, "relu", False),
    ((1, 96, 3, 4, 5), torch.float32, None, True),
    ((2, 24, 7), torch.float32, "relu", True),
    ((9, 5), torch.float32, None, False),
    ((9, 5), torch.float32, None, True),
    ((2, 64, 5, 4), torch.float16, None, True),
    ((3, 40, 3, 3), torch.bfloat16, None, True),
    ((2, 1, 3, 3), torch.float32, "relu", True),
    ((5, 40, 1, 1), torch.float16, "relu", False),
    ((2, 64, 5, 4), torch.float16, "silu", False),
    ((2, 24, 7), torch.float32, "silu", False),
    ((3, 40, 3, 3), torch.bfloat16, "hardswish", False),
    ((1, 96, 3, 4, 5), torch.float32, "hardswish", False),
    ((2, 2048, 2, 2), torch.float16, "relu6", False),
    ((9, 5), torch.float32, "relu6", False),
]
KINKS = {"relu": (0.0,), "relu6": (0.0, 6.0), "hardswish": (-3.0, 3.0)}


@pytest.fixture(params=["merged by all", "merged apart"])
def apart(request: Any, monkeypatch: pytest.MonkeyPatch) -> bool:
    """True where kernels of their own merge what parts of rows have left, as of large images."""
    if request.param == "merged apart":
        monkeypatch.setattr(row_norm, "LARGE", 1)
        monkeypatch.setattr(row_norm, "MANY_PARTS", 3)
    return bool(request.param == "merged apart")


@pytest.mark.parametrize(("shape", "dtype", "last", "added"), CASES)
@pytest.mark.chessboard
def test_it_is_torchs_in_float64(
    may_launch: Launches,
    apart: bool,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    last: str | None,
    added: bool,
) -> None:
    rank = max(1, len(shape) - 2)
    ours, theirs = norms(rank, shape[1], activation=last)
    x, past, grad = (images(seed, *shape, dtype=dtype, mean=m) for seed, m in enumerate((3, 0, 0)))
    leaves = [x, past] if added else [x]
    before: list[Tensor] = []

    def expected(x: Tensor, past: Any = None) -> Tensor:
        y = theirs(x) if past is None else theirs(x) + past
        before.append(y.detach())
        return y if last is None else activate(y, last)

    found = step(ours, leaves, ours, grad)
    wanted = step(theirs, [leaf.double() for leaf in leaves], expected, grad.double())
    assert len(may_launch.kinds) == (6 if apart else 4)  # half of them forward
    assert found[0].dtype is dtype
    assert found[0].stride() == found[1].stride() == x.stride()
    near = torch.zeros_like(before[0], dtype=torch.bool)
    for kink in KINKS.get(last or "", ()):  # rounding decides which side of it
        near |= (before[0] - kink).abs() < 2e-2
    for place, (one, other) in enumerate(zip(found, wanted, strict=True)):
        if 0 < place <= len(leaves):
            one, other = one.where(~near, 0), other.where(~near, 0)
        limit = 8 * (EPS[dtype] if place <= len(leaves) else 2e-2 if last in KINKS else 1e-4)
        limit *= max(other.abs().max().item(), 1.0)
        torch.testing.assert_close(one.double(), other.double(), rtol=0, atol=limit, msg=f"{place}")
    torch.testing.assert_close(found[-1], wanted[-1])
    torch.testing.assert_close(found[-3].double(), wanted[-3], rtol=1e-3, atol=1e-4)


def test_gradients_of_parameters_where_no_kink_is_near() -> None:
    ours, theirs = norms(2, 48, activation="relu")
    x, grad = images(0, 3, 48, 4, 4), images(1, 3, 48, 4, 4)
    y = theirs(x.double())
    x = x.where(y.abs() > 1e-3, x + 0.05).to(memory_format=torch.channels_last)
    theirs.load_state_dict(ours.state_dict())
    found = step(ours, [x], ours, grad)
    wanted = step(theirs, [x.double()], lambda x: theirs(x).relu(), grad.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("last", ["relu", "relu6", "silu", "hardswish"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.chessboard
def test_at_kinks_and_far_from_0_it_is_torchs(last: str, dtype: torch.dtype) -> None:
    """A weight of 0 has results that are the bias: exactly a kink, or so large that one factor of
    an activation overflows.
    """
    bias = torch.tensor([-1e4, -100.0, -88.5, -6.0, -3.0, 0.0, 3.0, 6.0, 88.5, 100.0, 1e4])
    ours, theirs = norms(2, len(bias), activation=last)
    for module in ours, theirs:
        torch.nn.init.zeros_(module.weight)
        module.bias.data.copy_(bias)
    x, grad = images(0, 2, len(bias), 3, 3, dtype=dtype), images(1, 2, len(bias), 3, 3, dtype=dtype)
    found = step(ours, [x], ours, grad)

    def expected(x: Tensor) -> Tensor:
        y = theirs(x)
        if last != "hardswish":
            return activate(y, last)
        # Its gradient at -3 and 3 is 0 and 1, as torch 2.13 has it.
        return torch.where(y >= 3, y, torch.where(y <= -3, 0.0, y * (y + 3) / 6))

    wanted = step(theirs, [x.double()], expected, grad.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=2e-3, atol=2e-5)


def test_gradients_in_any_memory_are_taken() -> None:
    ours, _ = norms(2, 16, activation="relu")
    x, grad = images(0, 2, 16, 3, 5).requires_grad_(), images(1, 2, 16, 3, 5)
    y = ours(x)
    (last,) = torch.autograd.grad(y, x, grad, retain_graph=True)
    (first,) = torch.autograd.grad(y, x, grad.contiguous(), retain_graph=True)
    assert torch.equal(first, last)
    (of_sum,) = torch.autograd.grad(y.sum(), x, retain_graph=True)  # strides are 0
    (of_ones,) = torch.autograd.grad(y, x, torch.ones_like(y))
    assert torch.equal(of_sum, of_ones)


@pytest.mark.parametrize(
    ("last", "added"),
    [(None, False), (None, True), ("relu", False), ("relu", True), ("silu", False)],
)
def test_writing_to_what_is_saved_is_an_error_as_of_torchs(last: str | None, added: bool) -> None:
    """And writing to what is not, as ``ReLU(inplace=True)`` does, is none; results are saved where
    they are a ReLU's, of sums.
    """
    ours, _ = norms(2, 8, activation=last)
    x = images(0, 2, 8, 3, 3).requires_grad_()
    base = x * 1
    y = ours(base, x) if added else ours(base)
    y.mul_(2)
    if added and last:
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            y.sum().backward()
        return
    (found,) = torch.autograd.grad(y.square().sum(), x, retain_graph=True)
    again = x * 1
    y_again = ours(again, x) if added else ours(again)
    (expected,) = torch.autograd.grad((y_again * 2).square().sum(), x)
    torch.testing.assert_close(found, expected)
    base.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()


@pytest.mark.parametrize(
    ("last", "added"), [("relu", True), ("relu", False), ("silu", False), (None, True)]
)
def test_second_derivatives_and_batches_of_gradients(last: str | None, added: bool) -> None:
    ours, theirs = norms(2, 6, activation=last)
    x, past = images(0, 2, 6, 3, 3), images(1, 2, 6, 3, 3)
    found = []

    def expected(x: Tensor, *past: Tensor) -> Tensor:
        y = sum(past, theirs(x))
        return y if last is None else activate(y, last)

    for module, call in (ours, ours), (theirs, expected):
        dtype = next(module.parameters()).dtype
        leaves = [t.to(dtype).detach().requires_grad_() for t in (x, past)[: 1 + added]]
        wanted = (*leaves, *module.parameters())
        y = call(*leaves)
        grads = torch.autograd.grad(y.square().sum(), wanted, create_graph=True)
        second = torch.autograd.grad(sum(g.square().sum() for g in grads), wanted)
        batch = images(2, 4, 2, 6, 3, 3).to(dtype)
        batched = torch.autograd.grad(call(*leaves), wanted, batch, is_grads_batched=True)
        found.append((*grads, *second, *batched))
    for one, other in zip(*found, strict=True):
        limit = 1e-4 * max(other.abs().max().item(), 1.0)
        torch.testing.assert_close(one.double(), other, rtol=1e-3, atol=limit)


def test_the_gradient_of_a_shortcut_without_a_relu_is_that_of_the_sum() -> None:
    """In its own memory, which nobody writes to: tensors that get it have memory of their own."""
    (ours, _), (other, _) = norms(2, 16), norms(2, 16)
    x, past, more, grad = (images(seed, 2, 16, 3, 5).requires_grad_() for seed in range(4))
    grad = grad.detach()
    before = grad.clone()
    wanted = x, past, *ours.parameters()
    dx, dpast, *of_parameters = torch.autograd.grad(ours(x, past), wanted, grad)
    assert dpast.data_ptr() == grad.data_ptr()
    alone = torch.autograd.grad(ours(x), (x, *ours.parameters()), grad)
    assert all(map(torch.equal, (dx, *of_parameters), alone))
    (ours(x, past) + other(x, more) + past).backward(grad)
    for leaf, times in (past, 2), (more, 1):
        assert torch.equal(leaf.grad, times * before)  # type: ignore[arg-type]
        leaf.grad.add_(1)  # type: ignore[union-attr]
    assert torch.equal(more.grad, before + 1)  # type: ignore[arg-type]
    assert torch.equal(grad, before)


def test_a_shortcut_that_the_norm_is_of_too_gets_both_gradients() -> None:
    ours, theirs = norms(2, 16)
    x, grad = images(0, 2, 16, 3, 5), images(1, 2, 16, 3, 5)
    found = step(ours, [x], lambda x: ours(x, x), grad)
    wanted = step(theirs, [x.double()], lambda x: theirs(x) + x, grad.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other.double(), rtol=1e-4, atol=1e-4)


def test_a_sum_without_a_relu_shares_the_kernels_backward_of_a_norm() -> None:
    x = images(0, 4, 16).contiguous()
    plain = row_norm.Norm(None, None, None, 0.1, 1e-5)
    last, added, both = (
        row_norm.planned(x, plain._replace(**more)).back().kernels.shape
        for more in ({"activation": "relu"}, {"past": x}, {"past": x, "activation": "relu"})
    )
    assert added == row_norm.planned(x, plain).back().kernels.shape
    assert both == replace(last, added=True)
    there = torch.ones(4, dtype=torch.bool)
    masked = row_norm.planned(x, plain._replace(past=x, there=there)).back().kernels.shape
    assert masked == replace(added, masked=True, added=True)


def test_without_a_gradient_it_is_one_pass(may_launch: Launches) -> None:
    ours, theirs = norms(2, 16)
    x = images(0, 2, 16, 3, 3)
    with torch.no_grad():
        y = ours(x)
    assert len(may_launch.kinds) == 2
    torch.testing.assert_close(y.double(), theirs(x.double()), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours.running_var.double(), theirs.running_var)


@pytest.mark.parametrize("activation", ["silu", "leaky_relu", "hardswish", "relu6"])
def test_other_activations_than_a_relu_of_a_sum_run_after_the_kernels(
    may_launch: Launches, activation: str
) -> None:
    ours, theirs = norms(2, 16, activation=activation)
    x, past = images(0, 2, 16, 3, 3), images(1, 2, 16, 3, 3)
    y = ours(x, past)
    assert len(may_launch.kinds) == 2
    function = getattr(torch.nn.functional, activation)
    expected = function(theirs(x.double()) + past)
    torch.testing.assert_close(y.double(), expected, rtol=1e-5, atol=1e-5)


def test_what_kernels_do_not_take_is_torchs(may_launch: Launches) -> None:
    x, past = images(0, 2, 6, 3, 4), images(1, 2, 6, 3, 4)
    ours, theirs = norms(2, 6, activation="relu")
    other = torch._neg_view(past)
    for given, added in (
        (x.contiguous(), past), (x, past.contiguous()), (x, past.double()), (x.double(), past),
        (x, past[:1]), (x, past[..., :1]), (x[..., :2], past[..., :2]), (x, other),
    ):  # fmt: skip
        double = given.dtype is torch.float64
        ours = ours.double() if double else ours.float()
        expected = torch.relu(theirs.to(ours.weight.dtype)(given) + added)
        assert torch.equal(ours(given, added), expected)
    for change in (
        lambda n: n.eval(),
        lambda n: setattr(n, "momentum", None),
        lambda n: setattr(n, "bias", None),
    ):
        ours, theirs = norms(2, 6, activation="relu")
        theirs = theirs.float()
        change(ours)
        change(theirs)
        assert torch.equal(ours(x, past), torch.relu(theirs(x) + past))
        assert torch.equal(ours.running_mean, theirs.running_mean)
        assert ours.num_batches_tracked == theirs.num_batches_tracked
    with pytest.raises(ValueError, match="expected 4D input"):
        ours(x[0])
    ours, _ = norms(2, 6)
    with pytest.raises(ValueError, match="Expected more than 1 value per channel"):
        ours(images(0, 1, 6, 1, 1))
    with pytest.raises(RuntimeError, match="running_mean should contain 4 elements"):
        ours(images(0, 2, 4, 3, 3))
    assert may_launch.kinds == []


def test_transforms_see_torchs_norm(may_launch: Launches) -> None:
    ours, theirs = norms(2, 4, activation="relu", track_running_stats=False)
    x = images(0, 2, 4, 3, 3)
    found = torch.func.grad(lambda x: ours(x).square().sum())(x)
    expected = torch.func.grad(lambda x: theirs(x).relu().square().sum())(x.double())
    assert may_launch.kinds == []
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-4)
