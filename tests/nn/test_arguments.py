"""Arguments that the functions take: those that torch takes, refused where torch refuses."""

from __future__ import annotations

import os
import time
import tracemalloc
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as theirs

import layoutconv as lc
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.nn import functional as ours

EXAMPLES = int(os.environ.get("LAYOUTCONV_FUZZ_ARGUMENTS", "300"))
NAMES = [f"conv{kind}{rank}d" for kind in ("", "_transpose") for rank in (1, 2, 3)]
SPELLINGS: list[Any] = [lambda n: n, np.int64, np.int32, torch.tensor, lambda n: torch.tensor([n])]
ODD: list[Any] = [0, -1, True, 1.0, 2.5, "2", "same", None, 1j, torch.tensor(1.5), [], {}, object()]


@st.composite
def numbers(draw: Any, rank: int, least: int) -> Any:
    """A number for all modes, one for each, or what is neither."""
    number = st.integers(least, 3)
    kind = draw(st.sampled_from(["one", "each", "each", "of one", "odd", "length", "odd entry"]))
    if kind == "one":
        return draw(st.sampled_from(SPELLINGS))(draw(number))
    if kind == "odd":
        return draw(st.sampled_from(ODD))
    length = {"of one": 1, "length": draw(st.integers(0, 4))}.get(kind, rank)
    found = [draw(number) for _ in range(length)]
    if kind == "odd entry":  # the first: torch lets a bool pass further on
        found[0] = draw(st.sampled_from(ODD))
    elif found and draw(st.booleans()):
        found[-1] = draw(st.sampled_from(SPELLINGS))(found[-1])
    return draw(st.sampled_from([tuple, list]))(found)


@st.composite
def calls(draw: Any) -> tuple[str, list[Any], dict[str, Any]]:
    """A function's name, its tensors, and its numbers."""
    name = draw(st.sampled_from(NAMES))
    rank, transposed = int(name[-2]), "transpose" in name
    groups, into, out = draw(st.sampled_from([(1, 2, 3), (2, 4, 2), (3, 3, 3), (1, 1, 1)]))
    spatial = [draw(st.integers(1, 6)) for _ in range(rank)]
    taps = [draw(st.integers(1, 3)) for _ in range(rank)]
    of_filter = [into, out // groups] if transposed else [out, into // groups]
    batch = draw(st.sampled_from([[2], [1], []]))
    shapes = [[*batch, into, *spatial], [*of_filter, *taps], [out]]
    if draw(st.integers(0, 9)) == 0:  # a shape that is wrong
        wrong = shapes[draw(st.integers(0, 2))]
        at = draw(st.integers(0, len(wrong) - 1))
        wrong[at : at + 1] = draw(st.sampled_from([[], [7], [1, 1]]))
    tensors = [torch.ones(shape) for shape in shapes]
    if draw(st.booleans()):
        tensors[2] = None  # type: ignore[call-overload]
    given: dict[str, Any] = {}
    if draw(st.booleans()):
        given["stride"] = draw(numbers(rank, 1))
    if draw(st.booleans()):
        words = st.sampled_from(["same", "valid", "full", "SAME"])
        given["padding"] = draw(words if draw(st.integers(0, 3)) == 0 else numbers(rank, 0))
    if draw(st.booleans()):
        given["dilation"] = draw(numbers(rank, 1))
    if transposed and draw(st.booleans()):
        given["output_padding"] = draw(numbers(rank, 0))
    odd = [0, -1, 5, 1.0, "1", None, np.int64(groups), torch.tensor(groups)]
    given["groups"] = draw(st.sampled_from([groups] * 12 + odd))
    return name, tensors, given


def verdict(function: Any, tensors: list[Any], given: dict[str, Any]) -> tuple[Any, str]:
    """The shape and the dtype of what comes out, or None; and why it is None."""
    try:
        y = function(*tensors, **given)
    except (TypeError, ValueError, RuntimeError) as error:
        return None, str(error)
    return (tuple(y.shape), y.dtype), ""


# What ours take, or refuse, by their documents: cells of output padding that the far padding has,
# results without cells (torch takes some), and a dilation of 0 (torch takes it of one tap).
BEYOND = "output padding must be smaller", "an output of 1 cell or more", "`dilation`: expected ev"


@pytest.mark.filterwarnings("ignore:Using padding=.same.")
@settings(max_examples=EXAMPLES, deadline=None)
@given(calls())
def test_arguments_are_taken_and_refused_as_torch_does(call):
    name, tensors, numbers = call
    expected, theirs_says = verdict(getattr(theirs, name), tensors, numbers)
    found, ours_says = verdict(getattr(ours, name), tensors, numbers)
    assume(not any(text in theirs_says + ours_says for text in BEYOND))
    assert found == expected, (theirs_says, ours_says)
    if found is None:
        assert ours_says.startswith("argument `"), ours_says


# -- numbers without an end ------------------------------------------------------------------------


def at_once(function: Any, *inputs: Any, **options: Any) -> Any:
    """Call a function, and check that it takes less than two seconds and 2 MB of Python memory."""
    tracemalloc.start()
    before = time.monotonic()
    try:
        return function(*inputs, **options)
    finally:
        seconds, (_, most) = time.monotonic() - before, tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert seconds < 2
        assert most < 2 << 20


def small(name: str, taps: int = 2) -> list[Tensor]:
    rank = int(name[-2])
    return [
        torch.randn(2, 4, *(6, 5, 4)[:rank], dtype=torch.float64).requires_grad_(),
        torch.randn(4, 4, *[taps] * rank, dtype=torch.float64).requires_grad_(),
        torch.randn(4, dtype=torch.float64).requires_grad_(),
    ]


def assert_alike(mine: Tensor, expected: Tensor, inputs: list[Tensor]) -> None:
    torch.testing.assert_close(mine, expected)
    grad = torch.randn_like(expected)
    torch.testing.assert_close(
        at_once(torch.autograd.grad, mine, inputs, grad),
        torch.autograd.grad(expected, inputs, grad),
    )


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("stride", [2**20, 2**30, 2**62])
@pytest.mark.parametrize("name", NAMES[:3])
def test_a_stride_beyond_the_input_is_one_window(name, stride, groups):
    x, w, bias = small(name)
    inputs = [x, w.detach()[:, : 4 // groups].requires_grad_(), bias]
    for _ in range(2):  # a call that was made before, too
        mine = at_once(getattr(ours, name), *inputs, stride=stride, padding=1, groups=groups)
        expected = getattr(theirs, name)(*inputs, stride=2**20, padding=1, groups=groups)
        assert_alike(mine, expected, inputs)


@pytest.mark.parametrize("name", NAMES)
def test_a_dilation_of_one_tap_is_of_any_size(name):
    inputs = small(name, 1)
    mine = at_once(getattr(ours, name), *inputs, dilation=2**62)
    assert_alike(mine, getattr(theirs, name)(*inputs), inputs)


@pytest.mark.parametrize("groups", [1, 4])
@pytest.mark.parametrize("fused", [False, True])
def test_a_transposed_stride_far_beyond_the_filter(groups, fused):
    """Most cells are in no window: what follows the sums is all that they have."""
    x, w, bias = small("conv1d")
    x, w = x.detach()[..., :2].requires_grad_(), w.detach()[:, : 4 // groups].requires_grad_()
    inputs = [x, w, bias] if fused else [x, w]
    stride, options, after = 2**14 + 1, {"groups": groups, "padding": 1}, {}
    for _ in range(2):
        expected = theirs.conv_transpose1d(*inputs, stride=stride, **options)
        if fused:
            after = {"residual": torch.randn_like(expected), "activation": "tanh"}
            expected = torch.tanh(expected + after["residual"])
        mine = at_once(ours.conv_transpose1d, *inputs, stride=stride, **options, **after)
        assert_alike(mine, expected, inputs)


@pytest.mark.parametrize("number", [2**63, 2**70, -(2**70)])
@pytest.mark.parametrize("which", ["stride", "padding", "dilation", "groups", "output_padding"])
@pytest.mark.parametrize("name", NAMES)
def test_numbers_beyond_64_bits_are_refused(name, which, number):
    if which == "output_padding" and "transpose" not in name:
        pytest.skip("only transposed convolutions have one")
    rank = int(name[-2])
    last = [*[1] * (rank - 1), number]
    given = [number] if which == "groups" else [number, [number] * rank, last]
    for value in given:
        with pytest.raises(ArgumentError, match=f"`{which}`"):
            at_once(getattr(ours, name), *small(name), **{which: value})


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("conv1d", {"padding": 2**62}),
        ("conv2d", {"padding": (2**40, 2**40)}),
        ("conv3d", {"padding": 2**62, "stride": 2}),
        ("conv_transpose1d", {"stride": 2**62}),
        ("conv_transpose2d", {"dilation": 2**40}),
        ("conv_transpose3d", {"stride": 2**31, "output_padding": 2**30}),
    ],
)
def test_results_beyond_all_memory_are_refused(name, given):
    for tensors in (small(name), [t.detach() for t in small(name)]):
        with pytest.raises(ArgumentError, match="fewer than 2\\^60 elements in the output"):
            at_once(getattr(ours, name), *tensors, **given)


@pytest.mark.parametrize("name", NAMES)
def test_padding_that_is_an_array_is_refused_by_name(name):
    for array in (np.array([1] * int(name[-2])), torch.tensor([1, 1, 1])):
        with pytest.raises(ArgumentTypeError, match=r"argument `padding`: expected integers"):
            at_once(getattr(ours, name), *small(name), padding=array)


def test_results_beyond_all_addresses_are_torchs_error():
    x, w, bias = small("conv_transpose1d")
    for inputs in ([x, w], [x, w, bias]):
        with pytest.raises(RuntimeError, match=r"memory|overflow"):
            at_once(ours.conv_transpose1d, *inputs, stride=2**46)


# -- tensors of other kinds ------------------------------------------------------------------------


def others(tensor: Tensor) -> list[Tensor]:
    nested = torch.nested.nested_tensor(list(tensor.detach()))
    jagged = torch.nested.nested_tensor(list(tensor.detach()), layout=torch.jagged)
    found = [nested, jagged, tensor.detach().to_sparse()]
    return found if tensor.dim() < 2 else [*found, tensor.detach().flatten(1).to_sparse_csr()]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("which", [0, 1, 2])
@pytest.mark.parametrize("name", NAMES)
def test_nested_and_sparse_tensors_are_refused(name, which):
    """Cold, and after a call that was kept."""
    inputs = small(name)
    for _ in range(2):
        for other in others(inputs[which]) if which < 2 else [inputs[2].detach().to_sparse()]:
            given = [*inputs]
            given[which] = other
            with pytest.raises(ArgumentTypeError, match=r"of torch\.strided layout"):
                at_once(getattr(ours, name), *given)
        getattr(ours, name)(*inputs)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8, torch.complex64])
@pytest.mark.parametrize("name", NAMES)
def test_meta_tensors_say_shape_type_and_order(name, dtype):
    inputs = [t.detach().to(dtype) for t in small(name)]
    inputs = inputs[:2] if dtype == torch.int8 else inputs
    y = getattr(ours, name)(*inputs, stride=2, padding=1)
    on_meta = at_once(getattr(ours, name), *[t.to("meta") for t in inputs], stride=2, padding=1)
    assert on_meta.is_meta
    assert (on_meta.shape, on_meta.dtype, on_meta.stride()) == (y.shape, y.dtype, y.stride())
    one = at_once(getattr(ours, name), *[t.to("meta") for t in (inputs[0][0], *inputs[1:])])
    assert one.shape == getattr(ours, name)(inputs[0][0], *inputs[1:]).shape


@pytest.mark.parametrize("name", NAMES)
def test_gradients_of_meta_tensors(name):
    inputs = [t.detach().to("meta").requires_grad_() for t in small(name)]
    y = getattr(lc, name)(*inputs, activation="gelu", scale=2)
    for grad, of in zip(torch.autograd.grad(y.sum(), inputs), inputs, strict=True):
        assert (grad.shape, grad.dtype, grad.device) == (of.shape, of.dtype, of.device)
