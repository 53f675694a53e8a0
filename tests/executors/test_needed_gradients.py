"""Backward passes of bound calls compute the gradients that are asked for, and no others."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import layoutconv as lc
from layoutconv.base.caches import clear_caches
from layoutconv.ops import dense_calls, recorded
from layoutconv.ops.formulas import PassRunner


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The names of the passes that backward passes run."""
    ran: list[str] = []

    def noted(name, run):
        def call(*args):
            ran.append(name)
            return run(*args)

        return call

    of = dense_calls._CALLS
    runner = PassRunner(*(noted(name, getattr(of, name)) for name in PassRunner._fields))
    monkeypatch.setattr(dense_calls, "_CALLS", runner)
    clear_caches()
    yield ran
    clear_caches()


def operands(bias: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    shapes = (2, 3, 5, 6), (4, 3, 3, 3), *([(4,)] if bias else [])
    return [torch.randn(shape).double().requires_grad_() for shape in shapes]


def convolve(x, w, b=None):
    lc.conv2d(x, w, b, padding=1, executor="view")  # the operator
    return lc.conv2d(x, w, b, padding=1, executor="view")  # what was kept of it


@pytest.mark.parametrize(
    ("bias", "wanted", "ran"),
    [
        (True, (0,), ["dgrad"]),
        (False, (0,), ["dgrad"]),
        (True, (0, 1), ["dgrad", "wgrad"]),
        # The error that a leaf is asked for leaves all to be computed.
        (True, (2,), ["dgrad", "wgrad"]),
        (False, (1,), ["dgrad", "wgrad"]),
    ],
)
def test_nothing_else_is_computed(passes, bias, wanted, ran):
    tensors = operands(bias)
    want = torch.autograd.grad(
        torch.nn.functional.conv2d(*tensors, padding=1).sin().sum(), [tensors[i] for i in wanted]
    )
    y = convolve(*tensors)
    assert y.grad_fn.name() == "RecordedBackward"
    got = torch.autograd.grad(y.sin().sum(), [tensors[i] for i in wanted])
    torch.testing.assert_close(got, want)
    assert passes == ran


@pytest.mark.parametrize("bias", [True, False])
def test_training_has_all(passes, bias):
    tensors = operands(bias)
    for _ in range(2):
        want = torch.autograd.grad(
            torch.nn.functional.conv2d(*tensors, padding=1).sin().sum(), tensors
        )
        got = torch.autograd.grad(convolve(*tensors).sin().sum(), tensors)
        torch.testing.assert_close(got, want)
        convolve(*tensors).sin().sum().backward()
        torch.testing.assert_close(tuple(t.grad for t in tensors), want)
        for tensor in tensors:
            tensor.grad = None
    assert passes == ["dgrad", "wgrad"] * 4


def test_some_leaves_of_a_backward_pass(passes):
    x, w, b = operands()
    convolve(x, w, b).sum().backward(inputs=[w])
    assert w.grad is not None
    assert x.grad is b.grad is None


def test_a_call_asks_until_that_is_an_error(passes, monkeypatch):
    asked: list[object] = []

    def noted(node: object) -> bool:
        asked.append(node)
        raise RuntimeError("a leaf")

    monkeypatch.setattr(recorded, "comes_to", noted)
    tensors = operands()
    for _ in range(3):
        assert all(g is not None for g in torch.autograd.grad(convolve(*tensors).sum(), tensors))
    assert len(asked) == 1
