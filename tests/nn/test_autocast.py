"""Dense convolutions under autocast: known calls lower their operands, and give the same bits."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.base.caches import clear_caches
from layoutconv.cpu import gathered_passes
from layoutconv.errors import ArgumentTypeError
from layoutconv.ops import dense_passes

from ..watched import Watch

DTYPES = torch.float16, torch.bfloat16
CALLS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "conv2d": lambda x, w: lc.conv2d(x, w, None, 2, 1),
    "relu": lambda x, w: lc.conv2d(x, w, torch.ones(6), 1, "same", activation="relu"),
    "wide": lambda x, w: lc.conv2d(x, w, out_dtype=torch.float32),
    "transposed": lambda x, w: lc.conv_transpose2d(x, w.transpose(0, 1), stride=2),
    "silu": lambda x, w: lc.conv2d(x, w, scale=0.5, activation="silu"),
}


def operands(dtype: torch.dtype = torch.float32) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(0)
    x = torch.randn(2, 4, 7, 6, generator=random).to(memory_format=torch.channels_last)
    w = torch.randn(6, 4, 3, 3, generator=random).to(memory_format=torch.channels_last)
    return x.to(dtype).requires_grad_(), w.requires_grad_()


def by_hand(call: Any, dtype: torch.dtype, x: Tensor, w: Tensor) -> list[Tensor]:
    y = call(x.to(dtype), w.to(dtype))
    return [y.detach(), *torch.autograd.grad(y.float().square().sum(), (x, w))]


@pytest.mark.parametrize("given", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CALLS)
def test_every_call_has_the_bits_of_lowered_operands(name: str, given: torch.dtype) -> None:
    """Its dtype changes between calls; backward passes run inside of it, and outside. Rounded once
    more, gradients of filters have them.
    """
    call, (x, w) = CALLS[name], operands(given)
    for dtype in (*DTYPES, *DTYPES, DTYPES[1]):
        expected = by_hand(call, dtype, x, w)
        with torch.autocast("cpu", dtype):
            y = call(x, w)
            inside = torch.autograd.grad(y.float().square().sum(), (x, w), retain_graph=True)
        outside = torch.autograd.grad(y.float().square().sum(), (x, w))
        for dx, dw in inside, outside:
            assert dw.dtype is torch.float32
            for one, other in zip((y.detach(), dx, dw.to(dtype).float()), expected, strict=True):
                assert one.dtype is other.dtype
                assert torch.equal(one, other)


@pytest.mark.parametrize("name", ["conv2d", "relu", "wide", "transposed"])
@pytest.mark.parametrize("dtype", DTYPES)
def test_gradients_of_filters_are_not_rounded(name: str, dtype: torch.dtype) -> None:
    """To 16 bits, where a filter has 32, from the first call on: sums beyond float16 are finite."""
    call, (x, w) = CALLS[name], operands()
    low, filter = (t.detach().to(dtype).double() for t in (x, w))
    y = call(low, filter.requires_grad_())
    cotangent = torch.full_like(y, 32768.0)
    (exact,) = torch.autograd.grad(y, filter, cotangent)
    assert exact.abs().max() > 65504
    for _ in range(3):
        with torch.autocast("cpu", dtype):
            y = call(x, w)
        (found,) = torch.autograd.grad(y, w, cotangent.to(y.dtype))
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-5 * 65504)


def test_a_filter_in_16_bits_has_a_gradient_in_16_bits() -> None:
    x, w = operands(torch.bfloat16)
    w = w.detach().bfloat16().requires_grad_()
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            y = lc.conv2d(x, w)
        assert torch.autograd.grad(y.sum(), w)[0].dtype is torch.bfloat16


def test_without_gradients_and_with_some() -> None:
    x, w = operands()
    expected = lc.conv2d(x.bfloat16(), w.bfloat16())
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
            assert torch.equal(lc.conv2d(x, w), expected)
        with torch.autocast("cpu", torch.bfloat16):
            y = lc.conv2d(x.detach(), w)
        assert torch.equal(y, expected)
        (dw,) = torch.autograd.grad(y.sum(), w)
        assert dw.dtype is torch.float32


def test_second_derivatives() -> None:
    x, w = operands()
    found = []
    for _ in range(3):
        with torch.autocast("cpu", torch.bfloat16):
            y = lc.conv2d(x, w, activation="relu")
        first = torch.autograd.grad(y.float().square().sum(), (x, w), create_graph=True)
        found.append(torch.autograd.grad(sum(g.square().sum() for g in first), (x, w)))
    y = lc.conv2d(x.bfloat16(), w.bfloat16(), activation="relu")
    first = torch.autograd.grad(y.float().square().sum(), (x, w), create_graph=True)
    expected = torch.autograd.grad(sum(g.square().sum() for g in first), (x, w))
    for grads in found:
        for one, other in zip(grads, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2 * other.abs().max().item())


def frames(step: Callable[[], None]) -> int:
    """The calls of Python of a warm step."""
    for _ in range(4):
        step()
    count = 0

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal count
        count += event == "call" and "layoutconv" in frame.f_code.co_filename

    sys.setprofile(note)
    try:
        step()
    finally:
        sys.setprofile(None)
    return count


def test_a_warm_step_takes_as_few_calls_as_one_of_lowered_tensors() -> None:
    x, w = operands()
    low = x.detach().half().requires_grad_(), w.detach().half().requires_grad_()

    def plain() -> None:
        lc.conv2d(*low, activation="relu").float().sum().backward()

    def lowered() -> None:
        with torch.autocast("cpu", torch.float16):
            y = lc.conv2d(low[0], w, activation="relu")
        y.float().sum().backward()

    assert frames(lowered) <= frames(plain) + 2


@pytest.mark.parametrize("call", [lc.conv2d, lc.conv_transpose2d])
def test_what_is_no_tensor_is_refused_as_without(call: Any) -> None:
    x, w = operands()
    for given, name in ((x, [1.0]), "weight"), (([1.0], w), "input"):
        with (
            torch.autocast("cpu", torch.bfloat16),
            pytest.raises(ArgumentTypeError, match=f"`{name}`: expected a torch tensor, got list"),
        ):
            call(*given)
        assert not torch.is_autocast_enabled("cpu")


def test_a_result_that_is_held_does_not_hold_the_filter() -> None:
    x, leaf = operands()
    for _ in range(3):
        w = leaf * 2
        with torch.autocast("cpu", torch.bfloat16):
            y = lc.conv2d(x, w, activation="relu")
        y.sum().backward()
        alive = weakref.ref(w)
        del w
        gc.collect()
        assert alive() is None
        assert y.grad_fn is not None


UNKEPT: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "a single image": lambda x, w: lc.conv2d(x[0], w),
    "numbers that no key has": lambda x, w: lc.conv2d(x, w, stride=torch.Size((2, 1))),
    "a bias that is no column": lambda x, w: lc.conv2d(x, w, torch.ones(12, dtype=x.dtype)[::2]),
    "a gradient that torch takes": lambda x, w: lc.conv2d(x, w, activation="gelu"),
    "traced": lambda x, w: torch.jit.trace(lambda x, w: lc.conv2d(x, w), (x, w))(x, w),
}


@pytest.mark.parametrize("name", UNKEPT)
def test_calls_that_are_not_kept_compute_once(name: str, watched: Watch) -> None:
    x, w = operands(torch.bfloat16)
    expected = UNKEPT[name](x, w.bfloat16())
    counts = watched("compute", dense_passes.TorchPass)
    for _ in range(2):
        counts.clear()
        with torch.autocast("cpu", torch.bfloat16):
            y = UNKEPT[name](x, w)
        assert torch.equal(y, expected)
        assert len(counts) == (6 if name == "traced" else 1)  # a trace is checked by tracing again
        assert torch.autograd.grad(y.float().sum(), w)[0].dtype is torch.float32


CELLS = torch.tensor([[0, y, x] for y in range(4) for x in range(y, 6)], dtype=torch.int32)
SPARSE: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "sums": lambda x, w: on_cells(x, w),
    "bias": lambda x, w: on_cells(x, w, torch.ones(6)),
    "relu": lambda x, w: on_cells(x, w, None, activation="relu"),
    "a bias that is no column": lambda x, w: on_cells(x, w, torch.ones(12)[::2]),
    "an activation without a gradient": lambda x, w: on_cells(x, w, activation="gelu"),
    "one row": lambda x, w: on_cells(x[:1], w),
    "a scale": lambda x, w: on_cells(x, w, scale=0.5),
    "the features as a residual": lambda x, w: on_cells(x, w[:4], residual=x),
    "a tensor twice": lambda x, w: on_cells(x, w, ONES, scale=ONES),
}
ONES = torch.ones(6)
KEPT = "sums", "bias", "relu", "the features as a residual"


def on_cells(x: Tensor, w: Tensor, *others: Any, **options: Any) -> Tensor:
    cells = lc.sparse.Coordinates(CELLS[: len(x)], (4, 6), 1)
    return lc.subm_conv(lc.SparseTensor(x, cells), w, *others, **options).features


@pytest.mark.parametrize("name", SPARSE)
def test_first_calls_of_clouds_are_recorded_as_later_ones(name: str, watched: Watch) -> None:
    """They save the same tensors, so that a checkpoint may repeat them, and have the same bits; a
    call that is not kept computes once.
    """
    call, random = SPARSE[name], torch.Generator().manual_seed(0)
    counts = watched("forward", gathered_passes)
    x = torch.randn(len(CELLS), 4, generator=random).bfloat16().requires_grad_()
    w = torch.randn(6, 3, 3, 4, generator=random).requires_grad_()
    clear_caches()
    seen, saved = list[Any](), list[Tensor]()

    def save(tensor: Tensor) -> Tensor:
        saved.append(tensor)
        return tensor

    hooks = torch.autograd.graph.saved_tensors_hooks
    for _ in range(3):
        saved.clear()
        counts.clear()
        with hooks(save, lambda tensor: tensor), torch.autocast("cpu", torch.bfloat16):
            y = call(x, w)
        assert len(counts) == 1 + (name in KEPT and not seen)
        grads = () if "gradient" in name else torch.autograd.grad(y.float().square().sum(), (x, w))
        seen.append((len(saved), y.grad_fn.name() if name in KEPT else "", y.detach(), *grads))  # type: ignore[union-attr]
    for count, node, *tensors in seen[1:]:
        assert (count, node) == seen[0][:2]
        assert all(map(torch.equal, tensors, seen[0][2:]))
    assert seen[0][1] == ("RecordedBackward" if name in KEPT else "")


@pytest.mark.parametrize("name", ["depthwise", "autocast of GPUs is on, too"])
def test_layers_of_clouds_that_are_never_kept_compute_once(name: str) -> None:
    """Neither torch's sums of depthwise layers nor calls that torch has to see are ever kept."""
    depthwise = name == "depthwise"
    x = torch.randn(len(CELLS), 4).bfloat16().requires_grad_()
    w = torch.randn(4, 3, 3, 1 if depthwise else 4).requires_grad_()
    computed = 0

    def note(frame: Any, event: str, _: Any) -> None:
        nonlocal computed
        computed += event == "call" and frame.f_code.co_name == "_checked"

    torch.set_autocast_enabled("cuda", not depthwise)
    sys.setprofile(note)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            y = on_cells(x, w, groups=4 if depthwise else 1)
    finally:
        sys.setprofile(None)
        torch.set_autocast_enabled("cuda", False)
    assert computed == 1
    assert y.requires_grad


@pytest.mark.usefixtures("guards_in_python")
def test_layers_of_clouds_compute_once_where_torch_has_no_guards(watched: Watch) -> None:
    """Guards in Python do not hold under autocast: what is kept is never found."""
    clear_caches()
    counts = watched("forward", gathered_passes)
    x, w = torch.randn(len(CELLS), 4).bfloat16(), torch.randn(6, 3, 3, 4).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        for calls in 1, 2, 3:
            assert on_cells(x, w).requires_grad
            assert len(counts) == calls
    clear_caches()


def test_arguments_of_layers_of_clouds_are_checked_first() -> None:
    x, w = torch.randn(len(CELLS), 4).requires_grad_(), torch.randn(6, 3, 3, 4).requires_grad_()
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentTypeError, match="`slope`"):
        on_cells(x, w, activation="leaky_relu", slope="0.1")
    x = x.detach().bfloat16()
    for name, wrong in {"bias": [1.0] * 6, "scale": "1", "residual": [0.0]}.items():
        with torch.autocast("cpu", torch.bfloat16), pytest.raises(ArgumentTypeError, match=name):
            on_cells(x, w, **{name: wrong})
    assert torch.is_grad_enabled()
    assert not torch.is_autocast_enabled("cpu")
