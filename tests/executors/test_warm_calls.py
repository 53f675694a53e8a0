"""Warm calls: which kernels they run, and how little they do before that.

Kernels are stood in for by a function that notes what it gets; microseconds differ from machine to
machine, so that calls of Python and of C are counted in their place.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.gpu import map_views
from layoutconv.nn.sparse import subm_conv
from layoutconv.ops import dense_calls, sparse_calls
from layoutconv.ops.epilogue_args import EpilogueArgs
from layoutconv.sparse import Coordinates, submanifold_map

from .. import precision
from .addresses import tensor_at

launched: list[Any] = []


def stand_in(view: Any, spec: Any) -> Callable[..., None]:
    def kernel(a: int, b: int, d: Tensor, *rest: Any) -> None:
        launched.append((spec, a, b, d.data_ptr(), *rest))

    return kernel


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, gpu):
    launched.clear()
    dense_calls.forget()
    sparse_calls.forget()
    gpu.like("sm_90a")
    gpu.loads(stand_in)
    gpu.says(device_count=1)
    gpu.runs_kernels()
    gpu.cuts_no_sum()
    yield
    dense_calls.forget()
    sparse_calls.forget()


def memory_of(*shape: int, dtype: torch.dtype = torch.float16, shift: int = 0) -> Tensor:
    """A tensor in the order of channels_last, some elements into memory of its own."""
    N, C, *modes = shape
    held = torch.randn(shift + torch.Size(shape).numel()).to(dtype)
    return held[shift:].view(N, *modes, C).movedim(-1, 1)


X, W, BIAS = memory_of(1, 16, 4, 4, 4), memory_of(16, 16, 3, 3, 3), torch.randn(16).half()
CELLS = torch.tensor([[0, i, j, 0] for i in range(3) for j in range(3)], dtype=torch.int32)
CLOUD = lc.SparseTensor(torch.randn(9, 16).half(), CELLS, (4, 4, 4), batch_size=1)
FILTER = torch.randn(16, 3, 3, 3, 16).half()


def counted(call: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """The calls of Python and of C that a warm call makes, by names; kernels are no part of it."""
    for _ in range(3):
        call()
    return counted_once(call)


def counted_once(call: Callable[[], Any]) -> tuple[list[str], list[str]]:
    """The calls of Python and of C that the next call makes."""
    before, python, c = len(launched), [], []

    def note(frame: Any, event: str, argument: Any) -> None:
        if event == "call" and frame.f_code.co_name != "kernel":
            python.append(frame.f_code.co_name)
        elif event == "c_call" and frame.f_code.co_name not in ("kernel", "counted_once"):
            c.append(argument.__name__)

    gc.collect()
    gc.disable()  # what it collects of other tests may call Python
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    assert len(launched) == before + 1
    return python, c


FROZEN = lc.nn.Conv3d(16, 16, 3, padding=1, dtype=torch.float16).requires_grad_(False)
SPARSE = lc.nn.SubmConv3d(16, 16, 3, dtype=torch.float16).requires_grad_(False)
MAP = submanifold_map(CLOUD.coordinates)


@pytest.mark.parametrize(
    ("call", "most"),
    [
        (lambda: lc.conv3d(X, W, padding=1), 7),
        (lambda: lc.conv3d(X, W, BIAS, padding=1, activation="relu", residual=X), 10),
        (lambda: FROZEN(X), 15),
        (lambda: subm_conv(CLOUD, FILTER, kernel_map=MAP), 15),
        (lambda: SPARSE(CLOUD, kernel_map=MAP), 23),
    ],
    ids=["conv3d", "with an ending", "module", "sparse", "sparse module"],
)
def test_how_much_a_warm_call_does(call, most):
    """Calls of Python take about 0.1 us each: one more is to be worth it."""
    python, c = counted(call)
    assert len(python) <= most, python
    assert len(c) <= most + 5, c
    with torch.autograd.profiler.profile() as seen:
        call()
    assert [event.name for event in seen.function_events] == []  # not even for memory


@pytest.mark.parametrize("sparse", [False, True])
def test_how_much_a_warm_backward_pass_does(sparse):
    """Gradients are found as calls are: two launches, and no operator of torch for a dense one."""
    x, w = (t.clone().requires_grad_() for t in (CLOUD.features if sparse else X, FILTER))
    if sparse:
        cloud = lc.SparseTensor(x, CLOUD.coordinates)
        call = lambda: subm_conv(cloud, w, kernel_map=MAP).features  # noqa: E731
    else:
        w = W.clone().requires_grad_()
        call = lambda: lc.conv3d(x, w, padding=1)  # noqa: E731
    y = call()
    grad = torch.randn_like(y)
    for _ in range(3):
        torch.autograd.grad(call(), (x, w), grad)
    y, before, seen = call(), len(launched), []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "layoutconv" in frame.f_code.co_filename.split("/"):
            seen.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        torch.autograd.grad(y, (x, w), grad)
    finally:
        sys.setprofile(None)
    assert len(launched) == before + 2
    assert len(seen) <= (22 if sparse else 14), seen
    with torch.autograd.profiler.profile() as profile:
        torch.autograd.grad(call(), (x, w), grad)
    operators = [e.name for e in profile.function_events if e.name.startswith("aten::")]
    assert sparse or operators == []


def test_how_much_a_call_over_a_new_map_does():
    """A call over a new map does what a warm one does, makes a view, and fits a plan to it."""
    maps = []
    for _ in range(4):
        cells = Coordinates(CELLS.clone(), (4, 4, 4), 1)
        x = lc.SparseTensor(CLOUD.features, cells)
        found = submanifold_map(cells)
        found.start()
        maps.append((x, found))
    for x, found in maps[:-1]:
        subm_conv(x, FILTER, kernel_map=found)
    x, found = maps[-1]
    python, c = counted_once(lambda: subm_conv(x, FILTER, kernel_map=found))
    assert len(python) <= 52, python
    assert len(c) <= 48, c


def test_what_a_call_over_a_new_map_launches_is_what_a_view_of_its_own_would():
    """A second cloud of a size makes no views, yet launches the same, forward and backward."""
    w = FILTER.clone().requires_grad_()

    def step(rows: int) -> list[Any]:
        cells = torch.tensor([[0, i, j, 0] for i in range(4) for j in range(4)], dtype=torch.int32)
        x = lc.SparseTensor(torch.ones(rows, 16).half().requires_grad_(), cells[:rows], (4,) * 3, 1)
        found = submanifold_map(x.coordinates)
        launched.clear()
        subm_conv(x, w, kernel_map=found).features.sum().backward()
        mine = found.index, found.pairs(32).outputs, found.pairs(32).inputs
        starts = {index.data_ptr(): name for name, index in enumerate(mine)}
        return [
            (spec, [None if i is None else starts[i] for i in rest[:3]], *rest[3:])
            for spec, _, _, _, *rest in launched
        ]

    for rows in (15, 15, 13, 13):
        step(rows)
    got = [step(rows) for rows in (15, 13)]
    sparse_calls.forget()
    map_views.forget()
    step(14)
    for rows, launches in zip((15, 13), got, strict=True):
        map_views.forget()
        want = step(rows)  # of new kinds, so that each is planned for its own view
        assert len(launches) == len(want) == 3
        for one, other in zip(launches, want, strict=True):
            assert one[:2] == other[:2]
            assert tuple(one[2]) == tuple(other[2])
            assert one[3:] == other[3:]


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("new", [False, True])
def test_float32_is_multiplied_as_torch_says_at_the_time(sparse, new):
    if new and not precision.NEW:
        pytest.skip("this torch has allow_tf32 alone")
    x, w = X.float(), W.float()
    cloud, filter = CLOUD.float(), FILTER.float()
    with precision.restored():
        for allowed in (True, True, False, True, False):
            if new:
                torch.backends.cudnn.conv.fp32_precision = "tf32" if allowed else "ieee"
            else:
                torch.backends.cudnn.allow_tf32 = allowed
            for _ in range(2):
                _ = subm_conv(cloud, filter, kernel_map=MAP) if sparse else lc.conv3d(x, w)
            assert not launched or launched[-1][0].dtype == ("tfloat32" if allowed else "float32")
        assert launched


def test_where_memory_starts_is_looked_at_every_time():
    tensors = [memory_of(1, 16, 4, 4, 4, shift=shift) for shift in (0, 1, 0, 4, 2)]
    lc.conv3d(tensors[0], W)
    for x, vector in zip(tensors, (8, 1, 8, 4, 2), strict=True):
        lc.conv3d(x, W)
        spec, start, *_ = launched[-1]
        assert start == x.data_ptr()
        assert spec.vectors[0] == vector


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_so_is_where_a_residual_starts(dtype):
    """It is read at the offsets of D, in elements: 4 of float32 are aligned as 4 of float16 are."""
    spread = dtype.itemsize // 2
    for shift, vector in ((0, 8), (4, 4), (1, 1), (8, 8), (2, 2), (0, 8)):
        residual = memory_of(1, 16, 4, 4, 4, dtype=dtype, shift=shift)
        assert residual.data_ptr() % 64 == shift * 2 * spread
        for _ in range(2):
            lc.conv3d(X, W, padding=1, residual=residual)
        spec, *_ = launched[-1]
        assert spec.vectors[2] == vector


def test_memory_that_a_parameter_was_given_anew_is_looked_at():
    """The object stays, and what it is like does not."""
    weight = torch.nn.Parameter(W.clone(), requires_grad=False)
    for _ in range(2):
        lc.conv3d(X, weight)
    before = len(launched)
    weight.data = W.contiguous()
    assert weight.shape == W.shape
    for _ in range(2):
        lc.conv3d(X, weight)
    _, _, start, *_ = launched[-1]
    assert len(launched) == before + 1
    assert start != weight.data_ptr()  # of a copy in the order of memory
    weight.data = W.float()
    with pytest.raises(lc.errors.ArgumentError, match="weight"):
        lc.conv3d(X, weight)


COLUMNS = {
    "contiguous": lambda: torch.randn(16).half(),
    "every second": lambda: torch.randn(32).half()[::2],
    "a column": lambda: torch.randn(16, 3).half()[:, 1],
    "one for all": lambda: torch.randn(1).half().expand(16),
}


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("which", ["bias", "scale", "both"])
def test_kernels_read_columns_that_are_contiguous(sparse, which):
    """A kernel gets an address, and reads the 16 numbers from there on: those of the call."""
    names = ["bias", "scale"] if which == "both" else [which]

    def convolve(columns: dict[str, Tensor]) -> Tensor:
        if sparse:
            return subm_conv(CLOUD, FILTER, kernel_map=MAP, **columns).features
        return lc.conv3d(X, W, padding=1, **columns)

    used = set()
    for kind in COLUMNS:
        columns = {name: COLUMNS[kind]() for name in names}
        packed = {name: column.clone() for name, column in columns.items()}
        expected = [packed[name] for name in ("scale", "bias") if name in packed]
        sparse_calls.forget() if sparse else dense_calls.forget()
        result = convolve(packed)  # by the operator, which leaves a call to be found
        for _ in range(3):
            before = len(launched)
            y = convolve(columns)
            if len(launched) == before:
                assert torch.equal(y, result)
                continue
            used.add(kind)
            found = [tensor_at(at, torch.float16, (16,), (1,)) for at in launched[-1][-3]]
            assert len(found) == len(expected)
            assert all(map(torch.equal, found, expected))
    assert "contiguous" in used


def test_the_input_may_be_the_residual():
    for _ in range(3):
        lc.conv3d(X, W, BIAS, padding=1, residual=X)
    assert len(launched) == 2


def test_a_plan_makes_its_device_the_current_one_where_there_are_several(gpu):
    current, entered = [-1], []

    class Device:
        def __init__(self, index: int) -> None:
            self.index = index

        def __enter__(self) -> None:
            entered.append(self.index)
            current.append(self.index)

        def __exit__(self, *_: Any) -> None:
            current.pop()

    gpu.says(device_count=2, current_device=lambda: current[-1], device=Device)
    x = memory_of(1, 16, 4, 4, 5)  # whose view has no plan
    for _ in range(2):
        lc.conv3d(x, W)
    assert not entered
    current[0] = 1  # tensors of the CPU say -1
    lc.conv3d(x, W)
    assert entered == [-1]
    assert current == [1]
    assert len(launched) == 2


def test_what_is_computed_of_parameters_is_what_a_module_uses():
    module = lc.nn.Conv3d(16, 16, 3, dtype=torch.float16).requires_grad_(False)
    for _ in range(2):
        module(X)
    _, _, start, *_ = launched[-1]
    assert start == module.weight.data_ptr()

    class Other(torch.nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return W

    torch.nn.utils.parametrize.register_parametrization(module, "weight", Other(), unsafe=True)
    for _ in range(2):
        module(X)
    assert launched[-1][2] == W.data_ptr()
    swapped = {"parametrizations.weight.original": W, "bias": BIAS}
    for _ in range(2):
        torch.func.functional_call(module, swapped, (X,))
    assert launched[-1][-3] == (BIAS.data_ptr(),)


def test_what_follows_a_dot_product_over_a_map_is_left_to_the_operator():
    """One row, and a channel of its own for each group: launches finish no such sums."""
    cells = torch.zeros(1, 4, dtype=torch.int32)
    cloud = lc.SparseTensor(torch.randn(1, 4).half(), cells, (2, 2, 2), batch_size=1)
    found, w = submanifold_map(cloud.coordinates), torch.ones(4, 3, 3, 3, 1).half()
    for activation, is_known in ((None, True), ("relu", False)):
        out, ending = torch.empty(1, 4).half(), EpilogueArgs(activation=activation)
        sparse_calls.remember(found, 4, (cloud.features, w), ending, out)
        known = sparse_calls.find(found, (4, activation, 0.01), None, cloud.features, w)
        assert (known is not None) is is_known


def test_a_function_of_a_user_is_handed_its_tensors() -> None:
    """After bias and residual: addresses per column and like D, and the numbers, of every call."""
    low, by = torch.randn(16), {"by": 0.5}
    for call, like in (
        (lambda **o: lc.conv3d(X, W, BIAS, padding=1, **o), memory_of(1, 16, 4, 4, 4)),
        (lambda **o: lc.subm_conv(CLOUD, FILTER, BIAS, **o), torch.randn(9, 16).half()),
    ):
        skip = like.clone()
        step = lc.Pointwise(
            lambda x, low, by, skip: x * by + low * skip, {"low": low}, {}, {"skip": skip}, by
        )
        for _ in range(2):
            call(residual=like, activation=step)
            *_, numbers, columns, sources, statistics = launched[-1]
            assert columns == (BIAS.data_ptr(), low.data_ptr())
            assert sources == (like.data_ptr(), skip.data_ptr())
            assert [float(n) for n in numbers] == [1.0, 0.5]
            assert statistics is None
        python, _ = counted(partial(call, residual=like, activation=step))
        assert len(python) <= 60, python
