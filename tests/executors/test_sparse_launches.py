"""The operator of sparse convolutions as graphs call it: launches kept for clouds that are new.

Kernels are stood in for by a function that notes what it gets.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv.errors import ArgumentError
from layoutconv.gpu.plan import execute_gpu
from layoutconv.ops import sparse_calls, sparse_operators
from layoutconv.ops.sparse_operators import MapTensors
from layoutconv.sparse import Coordinates, KernelMap, strided_map, submanifold_map
from layoutconv.tensors.tensor_checks import allocate, check_epilogue, check_tensors

C, K = 16, 32
launched: list[Any] = []


def stand_in(view: Any, spec: Any) -> Callable[..., None]:
    def kernel(a: int, b: int, d: Tensor, *rest: Any) -> None:
        launched.append((spec, a, b, tuple(d.shape), d.stride(), d.dtype, *rest))

    return kernel


@pytest.fixture
def execute_by(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any], None]:
    """A function: another one takes the place of ``lc.execute`` in operators of clouds."""
    return partial(monkeypatch.setattr, sparse_operators, "execute")


@pytest.fixture(autouse=True)
def no_gpu(
    monkeypatch: pytest.MonkeyPatch, gpu: Any, execute_by: Callable[[Any], None]
) -> Iterator[None]:
    launched.clear()
    sparse_calls.forget()
    gpu.like("sm_90a")
    gpu.loads(stand_in)
    gpu.says(device_count=1)
    gpu.runs_kernels()
    monkeypatch.setattr(sparse_operators, "_stands_in", True)
    execute_by(on_gpu)
    gpu.cuts_no_sum()
    yield
    sparse_calls.forget()


MAPS: dict[str, Callable[[Coordinates], KernelMap]] = {
    "submanifold": lambda cells: submanifold_map(cells, 3),
    "strided": lambda cells: strided_map(cells, 3, 2, 1),
}
ENDINGS: list[set[str]] = [
    set(),
    {"bias", "activation"},
    {"bias", "scale", "residual", "activation"},
    {"out_dtype"},
]


def arguments(
    name: str, ending: set[str], transposed: bool, rows: int, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call on a cloud of its own, whose map no view is kept with."""
    torch.manual_seed(seed)
    cells = Coordinates.of_keys(torch.randperm(12**3)[:rows], (12,) * 3, 1)
    found = MAPS[name](cells)
    made = sparse_operators.tables(found, (C, K), gradients=True)
    maps = MapTensors(*(t.clone(memory_format=torch.preserve_format) for t in made))
    sides = len(found.inputs), len(found.outputs)
    (read, written), channels = (sides[::-1], C) if transposed else (sides, K)
    x = torch.randn(read, K if transposed else C).half()
    options = {
        "bias": torch.randn(channels).half(), "scale": torch.rand(channels),
        "residual": torch.randn(written, channels).half(), "activation": "relu",
        "out_dtype": torch.float32,
    }  # fmt: skip
    numbers = 1, transposed, found.mirrored
    return (x, FILTER, *maps, written, *numbers), {k: options[k] for k in ending}


FILTER = torch.randn(K, 3, 3, 3, C, generator=torch.Generator().manual_seed(0)).half()
operator = torch.ops.layoutconv.sparse_conv
GRADIENT = torch.ops.layoutconv.sparse_wgrad


def on_gpu(
    view: Any,
    a: Tensor,
    b: Tensor,
    out: Tensor | None = None,
    *,
    epilogue: Any = None,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``execute`` of tensors that a GPU computes with."""
    out = allocate(view, a, out_dtype) if out is None else out
    check_tensors(view, a, b, out)
    if epilogue is not None:
        check_epilogue(view, epilogue, a)
    return execute_gpu(view, a, b, out, epilogue)


def refuse(*_: Any, **__: Any) -> None:
    raise AssertionError("a call that is known was checked again")


def call(
    given: tuple[Any, ...], named: dict[str, Any], operator: Any = operator
) -> tuple[Tensor, list[Any]]:
    """The result of the operator, and what its kernels got."""
    launched.clear()
    return operator(*given, **named), launched[:]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ending", ENDINGS, ids=lambda e: " ".join(sorted(e)) or "none")
@pytest.mark.parametrize("name", MAPS)
def test_a_new_cloud_launches_what_a_first_call_does(name, ending, transposed, execute_by):
    calls = [arguments(name, ending, transposed, rows, rows) for rows in (500, 501, 640)]
    want = []
    for one in calls:
        sparse_calls.forget()
        want.append(call(*one))
    sparse_calls.forget()
    for rows in 520, 530:
        call(*arguments(name, ending, transposed, rows, rows))
    execute_by(refuse)
    for one, (y, kernels) in zip(calls, want, strict=True):
        found, again = call(*one)
        assert len(again) == 1
        assert again == kernels
        assert (found.shape, found.stride(), found.dtype) == (y.shape, y.stride(), y.dtype)


@pytest.mark.parametrize("name", MAPS)
def test_a_filters_gradient_launches_what_a_first_call_does(name, execute_by):
    def of(rows: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (x, _, *maps), _ = arguments(name, set(), False, rows, rows)
        y = torch.randn(maps[7], K).half()
        return (y, x, *maps[:7], [3, 3, 3], 1, maps[-1]), {}

    calls, want = [of(rows) for rows in (500, 501, 640)], []
    for one in calls:
        sparse_calls.forget()
        want.append(call(*one, GRADIENT))
    sparse_calls.forget()
    for rows in 520, 530:
        call(*of(rows), GRADIENT)
    execute_by(refuse)
    for one, (dw, kernels) in zip(calls, want, strict=True):
        found, again = call(*one, GRADIENT)
        assert len(again) == 1
        assert again == kernels
        assert (found.shape, found.dtype) == (dw.shape, dw.dtype)


def test_what_is_kept_serves_no_call_that_is_wrong():
    given, named = arguments("submanifold", {"residual"}, False, 300, 0)
    for _ in range(2):
        call(given, named)
    x, w, index, *rest = given
    for wrong, of in (
        ((x, w, index[:299], *rest), named),
        ((x, w, index[:, :26], *rest), named),
        ((x, w[..., :8], index, *rest), named),
        ((x, w.float(), index, *rest), named),
        (given, {"residual": named["residual"][:299]}),
        (given, {"bias": torch.ones(31).half()}),
    ):
        with pytest.raises(ArgumentError):
            call(wrong, of)
        assert not launched


def test_one_row_and_what_is_not_contiguous_take_the_checks():
    given, named = arguments("submanifold", set(), False, 300, 0)
    x, w, *rest = given
    turned = x.T.contiguous().T
    want = call(given, named)[1]
    for _ in range(3):
        (kernel,) = call((turned, w, *rest), named)[1]
        assert kernel[1] not in (x.data_ptr(), turned.data_ptr())  # a copy
    alone = arguments("submanifold", set(), False, 1, 0)
    assert call(*alone)[0].shape == (1, K)
    assert call(given, named)[1] == want


def test_what_is_kept_holds_no_tensor():
    given, named = arguments("strided", {"bias", "residual"}, False, 300, 0)
    alive = [weakref.ref(t) for t in (*given[:6], *named.values()) if t is not FILTER]
    for _ in range(3):
        call(given, named)
    launched.clear()
    del given, named
    gc.collect()
    assert not [one for one in alive if one() is not None]
