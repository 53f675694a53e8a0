"""Calls that bypass torch's dispatcher: the operators' bits and errors, and which may not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import layoutconv as lc
from layoutconv.base.memory import allocator
from layoutconv.errors import ArgumentError
from layoutconv.ops import call_cache, dense_calls


@pytest.fixture(autouse=True)
def nothing_kept():
    dense_calls.forget()


@pytest.fixture
def taken(watched) -> list[bool]:
    """Grows by whether a gradient is wanted, with every call that goes past the dispatcher."""
    return watched("run", dense_calls.DenseCall, note=lambda call: call.args[0].wanted)


def both(function: Any) -> tuple[Any, Any]:
    """Return the operator's result, from a first call, and that of a later call."""
    dense_calls.forget()
    return function(), function()


X = torch.randn(2, 6, 5, 7).contiguous(memory_format=torch.channels_last)
W = torch.randn(6, 6, 3, 3).contiguous(memory_format=torch.channels_last)
BIAS, SCALE = torch.randn(2, 6)
NUMBERS = {"stride": (2, 1), "padding": 1}


def convolve(x=X, w=W, **options) -> torch.Tensor:
    return lc.conv2d(x, w, **{**NUMBERS, **options})


def transposed(x=X, w=W, **options) -> torch.Tensor:
    return lc.conv_transpose2d(x, w, **{**NUMBERS, "output_padding": (1, 0), **options})


CALLS = pytest.mark.parametrize("call", [convolve, transposed])
ENDINGS: list[dict[str, Any]] = [
    {},
    {"bias": BIAS},
    {"scale": 0.5, "activation": "gelu", "out_dtype": torch.int8},
    {"bias": BIAS, "scale": SCALE, "activation": "leaky_relu", "slope": 0.3},
    {"bias": BIAS, "residual": True, "activation": "relu"},
]


def with_residual(call: Any, options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "residual": call() + 1} if "residual" in options else options


@CALLS
@pytest.mark.parametrize("ending", ENDINGS, ids=[" ".join(e) or "none" for e in ENDINGS])
@pytest.mark.parametrize("groups", [1, 2, 6])
@pytest.mark.parametrize("contiguous", [False, True])
def test_the_same_bits(call, ending, groups, contiguous, taken):
    x, w = X, W[:, : 6 // groups]
    if contiguous:  # in torch's order, which is copied
        x, w = x.contiguous(), w.contiguous()
    ending = with_residual(lambda: call(x, w, groups=groups), ending)
    taken.clear()
    first, later = both(lambda: call(x, w, groups=groups, **ending))
    assert taken == [False]
    assert torch.equal(first, later)
    assert first.stride() == later.stride()
    assert first.dtype == later.dtype


@CALLS
@pytest.mark.parametrize("ending", ENDINGS[:2] + ENDINGS[3:], ids=lambda e: " ".join(e) or "none")
def test_the_same_gradients(call, ending, taken):
    """Gradients of first and of second order are the same, of everything that has one."""
    ending = with_residual(call, ending)
    taken.clear()
    tensors = {"x": X, "w": W, **{k: v for k, v in ending.items() if k in ("bias", "residual")}}

    def step() -> list[torch.Tensor]:
        inputs = {k: t.clone().double().requires_grad_() for k, t in tensors.items()}
        scale = {"scale": SCALE.double()} if "scale" in ending else {}
        y = call(**{**ending, **inputs, **scale})
        grads = torch.autograd.grad(y.square().sum(), inputs.values(), create_graph=True)
        total = sum(g.square().sum() for g in grads)
        return [y, *grads, *torch.autograd.grad(total, inputs.values())]

    for a, b in zip(*both(step), strict=True):
        assert torch.equal(a, b)
    assert taken == [True]


@pytest.mark.parametrize("bias", [None, BIAS])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_autograd_has_torchs_own_convolution(bias, dtype):
    """Where it is all of a call, of the first one as well: both gradients are one call of C++."""
    x, w = (t.clone().to(dtype).requires_grad_() for t in (X, W))
    bias = None if bias is None else bias.to(dtype)
    for _ in range(2):
        y = convolve(x, w, bias=bias, padding=((1, 0), (2, 3)))
        names, node = [], y.grad_fn
        while node is not None and len(names) < 4:
            names.append(node.name())
            node = node.next_functions[0][0] if node.next_functions else None
        assert "ConvolutionBackward0" in names
        assert y.movedim(1, -1).is_contiguous()
    padded = torch.nn.functional.pad(x, (2, 3, 1, 0))
    expected = torch.nn.functional.conv2d(padded, w, bias, NUMBERS["stride"])
    torch.testing.assert_close(y, expected)
    for found, want in zip(
        *(torch.autograd.grad(z.sum(), (x, w)) for z in (y, expected)), strict=True
    ):
        torch.testing.assert_close(found, want)


@CALLS
def test_dtypes(call, taken):
    for dtype in (torch.float16, torch.bfloat16, torch.float64, torch.int8, torch.float8_e4m3fn):
        taken.clear()
        x, w = (t.mul(3).to(dtype) for t in (X, W))
        first, later = both(lambda x=x, w=w: call(x, w))
        assert torch.equal(first, later)
        assert taken == [False]


def test_cells_that_no_window_covers_are_zero(taken, monkeypatch):
    """New memory is full of NaN here."""

    def full_of_nan(*of: Any) -> Any:
        make = allocator(*of)
        return lambda: make().fill_(torch.nan)

    monkeypatch.setattr(dense_calls, "allocator", full_of_nan)
    first, later = both(lambda: lc.conv_transpose2d(X, W[:, :, :1, :1], stride=3))
    assert torch.equal(first, later)
    assert taken == [False]


def test_a_module_is_a_call_too(taken):
    for module in (lc.nn.Conv2d(6, 4, 3, activation="relu"), lc.nn.ConvTranspose2d(6, 4, 3)):
        with torch.inference_mode():
            first, later = both(lambda module=module: module(X))
        assert torch.equal(first, later)
        assert torch.equal(*both(lambda module=module: module(X)))
    assert taken == [False, True] * 2


@pytest.mark.parametrize(
    "wrong",
    [
        {"x": X[:, :5]}, {"x": X[0, 0]}, {"x": X.double()}, {"x": X.numpy()}, {"x": X.to("meta")},
        {"w": W[:5, :5]}, {"w": W[0]}, {"w": W.double()}, {"w": W.to("meta")},
        {"bias": BIAS[:5]}, {"bias": BIAS.double()}, {"bias": 1.0},
        {"scale": SCALE[:5]}, {"scale": True}, {"residual": X}, {"groups": 1.0}, {"groups": True},
        {"stride": (2.0, 1)}, {"stride": (2, True, 1)}, {"stride": "2"}, {"padding": 1.0},
        {"padding": True, "stride": (2.0, 1)}, {"padding": ((1, 1.0), 1)}, {"dilation": 0},
        {"activation": "swish"}, {"out_dtype": torch.int32}, {"out_dtype": "torch.float32"},
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", [{}, {"bias": BIAS, "scale": SCALE}], ids=["none", "some"])
@CALLS
def test_the_same_errors(call, ending, wrong):
    """After the same call without the mistake, and after calls equal to it but for types."""

    def caught() -> tuple[type, str]:
        with pytest.raises((ArgumentError, TypeError, ValueError, RuntimeError)) as found:
            call(**{**ending, "groups": 1, "dilation": 1, **wrong})
        return found.type, str(found.value)

    first = caught()
    call()
    for bias in (BIAS, None):
        for numbers in ({}, {"stride": (2, 1)}, {"padding": ((1, 1), 1)}):
            for scale in (SCALE, 1, 1.0):
                call(bias=bias, scale=scale, **numbers)
                call(bias=bias, scale=scale, groups=1, dilation=1, **numbers)
    assert caught() == first


class Noted(TorchDispatchMode):
    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        return function(*args, **(kwargs or {}))


class Own(torch.Tensor):
    pass


def vmapped() -> torch.Tensor:
    return torch.vmap(convolve)(X[None])[0]


def dual() -> torch.Tensor:
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(convolve(forward_ad.make_dual(X, X))).tangent


def differentiated() -> torch.Tensor:
    return torch.func.vjp(convolve, X)[0]


def compiled() -> torch.Tensor:
    return torch.compile(convolve, backend="eager", fullgraph=True)(X)


def autocast() -> torch.Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return convolve()


def faked() -> torch.Tensor:
    with FakeTensorMode() as mode:
        return convolve(mode.from_tensor(X), mode.from_tensor(W))


def dispatched() -> torch.Tensor:
    with Noted():
        return convolve()


def traced() -> torch.Tensor:
    return make_fx(lambda x: convolve(x))(X)(X)


def subclassed() -> torch.Tensor:
    return convolve(X.as_subclass(Own))


def negated() -> torch.Tensor:
    x = torch.complex(X, -X).conj().imag  # X, lazily negated
    assert x.is_neg()
    for _ in range(2):
        y = convolve(x)
    return y


@pytest.mark.parametrize(
    "function",
    [compiled, autocast, faked, dispatched, traced, subclassed, negated],
)
def test_what_torch_has_to_see_takes_the_operator(function, taken):
    expected = convolve()
    convolve()
    assert taken == [False]
    found = function()
    assert taken == [False]
    if function is not faked:
        tolerance = 0.1 if function is autocast else 1e-5
        torch.testing.assert_close(
            found.as_subclass(torch.Tensor), expected, check_dtype=function is not autocast,
            atol=tolerance, rtol=tolerance,
        )  # fmt: skip


class Seen(TorchFunctionMode):
    """Notes the functions of torch, and those like them, that are called."""

    def __init__(self) -> None:
        self.functions: list[Any] = []

    def __torch_function__(self, function, types, args=(), kwargs=None):
        self.functions.append(function)
        return function(*args, **(kwargs or {}))


def test_what_looks_at_functions_sees_ours(taken):
    """After calls that were kept, too: those go past everything."""
    expected = convolve(activation="relu")
    convolve(activation="relu")
    with Seen() as seen:
        assert torch.equal(convolve(activation="relu"), expected)
        transposed()
    assert lc.conv2d in seen.functions
    assert lc.conv_transpose2d in seen.functions
    found = convolve(X.as_subclass(Own), activation="relu")
    assert type(found) is Own
    assert torch.equal(found.as_subclass(torch.Tensor), expected)


@pytest.mark.parametrize("transform", [vmapped, dual, differentiated])
def test_transforms_are_seen(transform, taken):
    expected = convolve()
    convolve()
    taken.clear()
    torch.testing.assert_close(transform(), expected)
    assert not taken


def test_a_gradient_that_is_wanted_is_recorded(taken):
    convolve()
    w = W.clone().requires_grad_()
    for _ in range(2):
        assert convolve(w=w).requires_grad
        with torch.no_grad():
            assert not convolve(w=w).requires_grad
    assert sorted(taken) == [False, True]
    taken.clear()
    scale = SCALE.clone().requires_grad_()
    for options in ({"activation": "silu"}, {"scale": scale}, {"scale": 2.0}):
        for _ in range(2):
            assert convolve(w=w, **options).requires_grad
    assert not taken


def test_signatures_are_not_kept_without_end(monkeypatch, taken):
    monkeypatch.setattr(call_cache.dense, "most_entries", 4)
    for size in range(3, 9):
        assert torch.equal(*both(lambda size=size: convolve(X[..., :size])))
    for size in range(3, 9):
        convolve(X[..., :size])
        assert len(call_cache.dense) <= 4
