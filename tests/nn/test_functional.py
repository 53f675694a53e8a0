"""Convolutions as functions: torch's results and gradients, and what is refused."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as theirs

import layoutconv as lc
from layoutconv.conv import ConvProblem
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn import functional as ours

from ..conv.loops import problems


def agree(mine, expected, *inputs: torch.Tensor) -> None:
    """Results and gradients of all inputs are equal."""
    torch.testing.assert_close(mine, expected)
    grad = torch.randn_like(expected)
    for a, b in zip(
        torch.autograd.grad(mine, inputs, grad), torch.autograd.grad(expected, inputs, grad)
    , strict=True):  # fmt: skip
        torch.testing.assert_close(a, b)


def torch_tensors(problem: ConvProblem) -> list[torch.Tensor]:
    """Input, weight and bias with torch's shapes, in torch's memory."""
    shapes = (
        (problem.N, problem.C, *problem.spatial),
        (problem.K, problem.C, *problem.taps),
        (problem.K,),
    )
    return [torch.randn(s, dtype=torch.float64).requires_grad_() for s in shapes]


@settings(max_examples=50, deadline=None)
@given(problem=problems(), biased=st.booleans(), seed=st.integers(0, 99))
def test_convolution_is_torch_convolution(problem, biased, seed):
    torch.manual_seed(seed)
    x, w, bias = torch_tensors(problem)
    inputs = (x, w, bias) if biased else (x, w)
    sides = [side for pair in reversed(problem.padding) for side in pair]
    mine = getattr(ours, f"conv{problem.rank}d")(
        *inputs, stride=problem.stride, padding=problem.padding, dilation=problem.dilation
    )
    padded = torch.nn.functional.pad(x, sides)
    expected = getattr(theirs, f"conv{problem.rank}d")(
        padded, *inputs[1:], stride=problem.stride, dilation=problem.dilation
    )
    agree(mine, expected, *inputs)


@settings(max_examples=50, deadline=None)
@given(problem=problems(), data=st.data())
def test_transposed_convolution_is_torch_transposed_convolution(problem, data):
    rank = problem.rank
    padding = [near for near, _ in problem.padding]
    extra = [
        data.draw(st.sampled_from([e for e in range(max(s, d)) if e // s * s <= near]))
        for s, d, near in zip(problem.stride, problem.dilation, padding, strict=True)
    ]
    x = torch.randn(problem.N, problem.K, *problem.spatial, dtype=torch.float64)
    w = torch.randn(problem.K, problem.C, *problem.taps, dtype=torch.float64)
    bias = torch.randn(problem.C, dtype=torch.float64)
    inputs = [t.requires_grad_() for t in (x, w, bias)]
    arguments = problem.stride, padding, extra, 1, problem.dilation
    conv = getattr(ours, f"conv_transpose{rank}d")
    spans = [d * (t - 1) + 1 for d, t in zip(problem.dilation, problem.taps, strict=True)]
    modes = zip(problem.spatial, problem.stride, padding, spans, extra, strict=True)
    if any((e - 1) * s - 2 * p + span + o < 1 for e, s, p, span, o in modes):
        with pytest.raises(ArgumentError, match="`padding`: expected an output of 1 cell or more"):
            conv(*inputs, *arguments)
        return
    expected = getattr(theirs, f"conv_transpose{rank}d")(*inputs, *arguments)
    agree(conv(*inputs, *arguments), expected, *inputs)


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@pytest.mark.parametrize("padding", ["same", "valid", 2, (0, 1)])
@pytest.mark.parametrize("taps", [(3, 4), (1, 2)])
def test_spellings_of_padding(padding, taps):
    x, w, _ = torch_tensors(ConvProblem((2, 9, 8, 3), (4, *taps)))
    for dilation in (1, 2):
        expected = theirs.conv2d(x, w, padding=padding, dilation=dilation)
        agree(ours.conv2d(x, w, padding=padding, dilation=dilation), expected, x, w)


def test_memory_is_channels_last_and_other_orders_are_made_right():
    x, w, _ = torch_tensors(ConvProblem((2, 5, 6, 7, 3), (4, 3, 3, 3)))
    y = ours.conv3d(x, w)
    assert y.is_contiguous(memory_format=torch.channels_last_3d)
    for change in (
        lambda t: t.contiguous(memory_format=torch.channels_last_3d),
        lambda t: t.transpose(2, 4).contiguous().transpose(2, 4),
        lambda t: t.repeat_interleave(2, dim=-1)[..., ::2],
    ):
        assert torch.equal(ours.conv3d(change(x), change(w)), y)


def test_one_image_without_a_batch():
    x, w, bias = torch_tensors(ConvProblem((1, 7, 6, 3), (4, 3, 3)))
    assert torch.equal(ours.conv2d(x[0], w, bias), ours.conv2d(x, w, bias)[0])
    assert torch.equal(ours.conv_transpose2d(x[0], w.mT.transpose(0, 1)), ours.conv_transpose2d(
        x, w.mT.transpose(0, 1))[0])  # fmt: skip


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_whole_graph_compiles(dynamic):
    def net(x, w, v, bias):
        y = torch.relu(ours.conv2d(x, w, bias, 2, "valid"))
        return ours.conv_transpose2d(y, v, None, (2, 2), 1, output_padding=1).sum(dim=1)

    x, w, bias = torch_tensors(ConvProblem((2, 9, 7, 3), (4, 3, 3)))
    v = torch.randn(4, 2, 3, 3, dtype=torch.float64).requires_grad_()
    compiled = torch.compile(net, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    agree(compiled(x, w, v, bias), net(x, w, v, bias), x, w, v, bias)
    larger = torch.randn(3, 3, 11, 8, dtype=torch.float64).requires_grad_()
    agree(compiled(larger, w, v, bias), net(larger, w, v, bias), larger, w, v, bias)


def test_autocast_of_mixed_types():
    x, w, bias = (t.float() for t in torch_tensors(ConvProblem((2, 5, 3), (4, 3))))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = ours.conv1d(x.bfloat16(), w, bias)
        expected = theirs.conv1d(x.bfloat16(), w, bias)
    assert y.dtype == expected.dtype == torch.bfloat16
    torch.testing.assert_close(y, expected, atol=0.05, rtol=0.02)


X, W = torch.randn(2, 3, 8), torch.randn(4, 3, 3)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"input": X[0, 0]}, ArgumentError, "argument `input`: expected (N, C) or (C,) and 1 spa"),
        ({"input": X.numpy()}, ArgumentTypeError, "`input`: expected a torch tensor, got ndarray"),
        ({"input": X.long(), "weight": W.long()}, ArgumentTypeError, "expected float16, bfloat16"),
        ({"weight": W[0]}, ArgumentError, "`weight`: expected 2 modes of channels and 1 of taps"),
        ({"weight": W[:, :2]}, ArgumentError, "`weight`: expected 3 channels in mode 1, as in the"),
        ({"weight": W.double()}, ArgumentTypeError, "`weight`: expected torch.float32, as the in"),
        ({"weight": W.to("meta")}, ArgumentError, "`weight`: expected cpu, where the input is"),
        ({"weight": torch.randn(4, 3, 9)}, ArgumentError, "`filter`: expected a filter that fits"),
        ({"bias": W[:3, 0, 0]}, ArgumentError, "`bias`: expected shape (4,), an entry per channel"),
        ({"stride": 0}, ArgumentError, "`stride`: expected every entry >= 1, got 0"),
        ({"stride": (1, 2)}, ArgumentError, "`stride`: expected an int, or 1 ints"),
        ({"padding": -1}, ArgumentError, "`padding`: expected every side >= 0, got -1"),
        ({"padding": "full"}, ArgumentError, "`padding`: expected 'same', 'valid' or numbers, got"),
        ({"padding": "same", "stride": 2}, ArgumentError, "`padding`: expected 'same' with a str"),
        ({"dilation": 0.5}, ArgumentTypeError, "`dilation`: expected integers, got 0.5"),
        ({"groups": 3}, ArgumentError, "`groups`: expected 1, as grouped convolutions are not"),
    ],
)  # fmt: skip
def test_errors_name_the_argument(arguments, error, message):
    with pytest.raises(error) as caught:
        lc.conv1d(**{"input": X, "weight": W, **arguments})
    assert message in str(caught.value)
