"""Plans that call kernels, here functions on the CPU: memory, numbers, parts of sums."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

import layoutconv as lc
from layoutconv import Layout
from layoutconv.algebra import ComposedLayout, E
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.cpu.cpu_executor import execute_cpu
from layoutconv.errors import ArgumentTypeError
from layoutconv.gpu import plan as gpu_plan
from layoutconv.gpu import select
from layoutconv.gpu.depthwise_plan import _StridedPart
from layoutconv.gpu.folding_choice import LINE, arranged_fprop
from layoutconv.gpu.phase_choice import MORE_COLUMNS, arranged_dgrad
from layoutconv.kernels.gemm.implicit_gemm import ImplicitGemm
from layoutconv.ops import dense_calls, dense_passes
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.tensors.expected_tensors import expected
from layoutconv.view.epilogue import Activation, Bias, Epilogue, EpilogueStep, Residual, Scale
from layoutconv.view.gemm_view import GemmView

from .addresses import tensor_at


class StandIn:
    """A kernel that computes on the CPU, and takes what the template takes: memory above all."""

    def __init__(self, view: GemmView, spec: Any) -> None:
        self.view, self.spec = view, spec

    def __call__(self, a: int, b: int, d: Tensor, *rest: Any) -> None:
        launched.append(self.spec)
        want = expected(self.view)
        *_, integers, numbers, columns, sources, _statistics = rest
        assert d.dim() == len(want.d.shape)
        assert str(d.dtype) == f"torch.{self.spec.out_dtype}"
        kind = getattr(torch, self.spec.dtype.replace("tfloat", "float"))
        x, w = (tensor_at(t, kind, s.shape, s.stride) for t, s in ((a, want.a), (b, want.b)))
        out = d.as_strided(want.d.shape, want.d.stride)
        epilogue = self._epilogue(list(numbers or ()), list(columns or ()), list(sources or ()))
        parts, size = integers[:2]
        assert size == out.numel()
        if self.spec.split == "atomic":
            out += execute_cpu(self.view, x, w, torch.empty_like(out))
            return
        execute_cpu(self.view, x, w, out, epilogue)
        if parts > 1:  # of which the first has it all
            d.view(-1)[size:] = 0
            assert d.numel() == parts * size

    def _epilogue(
        self, numbers: list[float], columns: list[int], sources: list[int]
    ) -> Epilogue | None:
        want = expected(self.view).d

        def of_d(address: int, name: str) -> Tensor:
            return tensor_at(address, getattr(torch, name), want.shape, want.stride)

        def column(address: int, name: str) -> Tensor:
            kind = getattr(torch, name)
            return tensor_at(address, kind, (self.view.n * self.view.l,), (1,))

        steps: list[EpilogueStep] = []
        for word in self.spec.epilogue.split():
            kind, _, tensor = word.partition(":")
            if kind == "scale":
                steps.append(Scale(column(columns.pop(0), tensor) if tensor else numbers.pop(0)))
            elif kind == "bias":
                steps.append(Bias(column(columns.pop(0), tensor)))
            elif kind == "residual":
                steps.append(Residual(of_d(sources.pop(0), tensor), numbers.pop(0)))
            else:
                steps.append(Activation(kind, numbers.pop(0) if kind == "leaky_relu" else 0.01))
        assert numbers == columns == sources == []
        return Epilogue(tuple(steps)) if steps else None


launched: list[Any] = []


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch, gpu):
    def adder(like: Tensor, result: Tensor, pieces: int) -> Callable[[Tensor, Tensor], None]:
        def add(workspace: Tensor, out: Tensor) -> None:
            assert len(workspace) == like.numel() == pieces * len(out)
            assert out.data_ptr() & 15 == result.data_ptr() & 15
            out.copy_(workspace.view(pieces, -1).sum(0))

        return add

    launched.clear()
    dense_calls.forget()
    gpu.like("sm_90a")
    gpu.loads(StandIn)
    gpu.says(current_device=-1)
    gpu.runs_kernels()
    monkeypatch.setattr(gpu_plan, "adder", adder)
    monkeypatch.setattr(dense_calls, "_takes_memory", lambda found, *_: not found.by_threads)
    yield
    dense_calls.forget()


def integers(*shape: int, dtype: torch.dtype = torch.float16) -> Tensor:
    """Numbers whose sums are exact, in the order of channels_last."""
    t = torch.randint(-2, 3, shape).to(dtype)
    return t.movedim(1, -1).contiguous().movedim(-1, 1) if len(shape) > 1 else t


X, W = integers(2, 16, 9, 8), integers(16, 16, 3, 3)
TALL = integers(1, 512, 4, 8, 8), integers(64, 512, 3, 3, 3)  # few rows, long sums
ENDINGS: list[dict[str, Any]] = [
    {},
    {"bias": integers(16)},
    {"scale": 0.5, "activation": "leaky_relu", "slope": 0.25},
    {"bias": integers(16, dtype=torch.float32), "scale": integers(16), "activation": "relu"},
    {"residual": True, "bias": integers(16)},
]


def twice(call: Any) -> Sequence[Tensor]:
    """By the operator, and by plans."""
    return call(), call()


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda e: " ".join(e) or "none")
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
@pytest.mark.parametrize("order", ["channels last", "channels first", "unaligned"])
def test_calls_launch_what_the_operators_compute(ending, transposed, wanted, order):
    convolve = lc.conv_transpose2d if transposed else lc.conv2d
    x, w = X, W
    if order == "channels first":
        x, w = x.contiguous(), w.contiguous()
    if order == "unaligned":
        memory = torch.cat((torch.zeros(1).half(), X.movedim(1, -1).flatten()))[1:]
        x = memory.view(2, 9, 8, 16).movedim(-1, 1)
        assert x.data_ptr() % 16 == 2
    options = {"stride": 2, "padding": 1, **ending}
    if "residual" in options:
        options["residual"] = integers(*convolve(x, w, stride=2, padding=1).shape)
    w = w.detach().requires_grad_(wanted)
    operator, call = twice(lambda: convolve(x, w, **options))
    assert launched  # also where autograd records the operator, whose pass is a call
    assert torch.equal(operator, call)
    assert operator.stride() == call.stride()
    assert call.requires_grad is wanted
    aligned = {spec.vectors[0] for spec in launched}
    assert aligned <= ({1} if order == "unaligned" else {8})


GRADIENTS = {
    "like the result": lambda shape: integers(*shape),
    "channels first": lambda shape: integers(*shape).contiguous(),
    "of a sum": lambda shape: torch.ones(()).half().expand(shape),
    "unaligned": lambda shape: integers(*shape[:1], shape[1] + 1, *shape[2:])[:, 1:],
}


@pytest.mark.parametrize("order", GRADIENTS)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_gradients_launch_what_the_operators_compute(order, transposed, ends):
    """From the second time on they are calls, whatever the memory of the gradient is like."""
    convolve = lc.conv_transpose2d if transposed else lc.conv2d
    x, w, bias = (t.detach().clone().requires_grad_() for t in (X, W, integers(16)))
    options = {"bias": bias, "activation": "relu"} if ends else {}
    leaves = (x, w, bias) if ends else (x, w)

    def step() -> tuple[Tensor, ...]:
        y = convolve(x, w, stride=2, padding=1, **options)
        return torch.autograd.grad(y, leaves, grad)

    grad = GRADIENTS[order](convolve(x, w, stride=2, padding=1).shape)
    dense_calls.forget()
    launched.clear()
    first = step()  # all by operators
    assert launched == []
    step()
    launched.clear()
    for _ in range(2):
        for operator, call in zip(first, step(), strict=True):
            assert torch.equal(operator, call)
            assert operator.stride() == call.stride()
    assert len(launched) == 2 * (2 + len(dense_passes.pass_of(*_dgrad_of(x, w)).views))


def _dgrad_of(x: Tensor, w: Tensor) -> tuple[Any, ...]:
    """The pass of several views: the result of a transposed convolution, or a gradient."""
    y = torch.empty(2, 16, 5, 4).half()
    return "dgrad", y, w, (x.shape[2:], (2, 2), (1, 1, 1, 1), (1, 1), 1, None)


@pytest.mark.parametrize("ending", ENDINGS, ids=lambda e: " ".join(e) or "none")
def test_operators_are_calls_from_the_second_time_on(ending: dict[str, Any]) -> None:
    """As graphs of torch.compile call them, with and without arguments at their defaults."""
    numbers = [2, 2], [1, 1, 1, 1], [1, 1]
    ending = {name: value for name, value in ending.items() if name != "residual"}
    if "scale" in ending:
        ending["scale"] = integers(16)
    ops = torch.ops.layoutconv
    y = integers(2, 16, 5, 4)
    for operator in (
        lambda: ops.conv_fprop(X, W, *numbers, 1, None, **ending),
        lambda: ops.conv_dgrad(y, W, X.shape[2:], *numbers, **ending),
        lambda: ops.conv_wgrad(y, X, W.shape[2:], *numbers),
    ):
        launched.clear()
        first = operator()
        assert launched == []
        call = operator()
        assert launched
        assert torch.equal(first, call)
        assert first.stride() == call.stride()
    launched.clear()
    leaf = W.clone().requires_grad_()
    recorded = [ops.conv_fprop(X, leaf, *numbers) for _ in range(2)]
    assert len(launched) == 1  # the first has another key: torch excludes autograd below it
    assert all(one.grad_fn is not None and torch.equal(one, recorded[0]) for one in recorded)


def test_gradients_of_gradients_are_recorded_calls():
    x, w = (t.detach().double().requires_grad_() for t in (X, W))
    found = []
    for _ in range(3):
        y = lc.conv2d(x, w, padding=1)
        [dx] = torch.autograd.grad(y.square().sum(), x, create_graph=True)
        found.append(torch.autograd.grad(dx.square().sum(), (x, w)))
    launched.clear()
    z = torch.nn.functional.conv2d(x, w, padding=1)
    [dz] = torch.autograd.grad(z.square().sum(), x, create_graph=True)
    want = torch.autograd.grad(dz.square().sum(), (x, w))
    for each in found:
        assert all(map(torch.equal, each, want))


def test_a_result_that_no_tap_reaches_launches_nothing():
    """A transposed convolution whose one cell lies between those that its filter writes."""
    x, w = integers(2, 16, 1, 4), integers(16, 8, 1, 1)
    options = {"stride": (2, 1), "padding": ((1, 0), 0), "output_padding": (1, 0)}
    operator, call = twice(lambda: lc.conv_transpose2d(x, w, **options))
    assert operator.shape == (2, 8, 1, 4)
    assert not operator.any()
    assert torch.equal(operator, call)
    assert launched == []


def test_sums_in_parts():
    operator, call = twice(lambda: lc.conv3d(*TALL, padding=1))
    assert [spec.split for spec in launched] == ["partial"]
    assert launched[0].out_dtype == "float32"
    assert torch.equal(operator, call)


@pytest.mark.parametrize("atomic", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int8, torch.float8_e4m3fn])
def test_sums_that_saturate_are_in_one_part(dtype, atomic):
    view = fprop_view(ConvProblem((1, 4, 8, 8, 512), (64, 3, 3, 3), padding=1))
    a, b = (t.movedim(1, -1) for t in TALL)
    out = torch.empty(1, 4, 8, 8, 64, dtype=dtype)
    want = execute_cpu(view, a, b, torch.empty_like(out))
    narrow = dtype.itemsize == 1
    for splits in (None, 3):
        plan = gpu_plan.Plan(view, a.dtype, -1, dtype, atomic=atomic, splits=splits)
        assert (plan.splits == 1) is narrow
        if dtype is not torch.float8_e4m3fn:  # which kernels get as bytes
            plan(a, b, out.zero_())
            assert torch.equal(out, want)


def test_a_plain_product_has_a_plan() -> None:
    """Its layouts are memory alone: the plan reads them through coordinates."""
    a, b, d = Layout((300, 256), (256, 1)), Layout((192, 256), (256, 1)), Layout((300, 192))
    plan = gpu_plan.Plan(GemmView(a, b, d), torch.float16, -1, bind=False)
    assert (plan.spec.vectors, plan.spec.along, plan.splits) == ((8, 8, 1), (1, 1), 1)


def test_taps_share_rows_unless_these_are_more_than_a_kernel_counts() -> None:
    """Lines of one cell become lines of three."""

    def plan(rows: int) -> gpu_plan.Plan:
        problem = ConvProblem((1, rows, 1, 32), (32, 1, 3), padding=(0, 1))
        return gpu_plan.Plan(fprop_view(problem), torch.float16, -1, bind=False)

    assert [plan(rows).problem.halo_taps for rows in (2**20, 2**31 // 3, 2**31 // 3 + 1)] == [
        3,
        3,
        1,
    ]
    assert plan(2**31 // 3 + 1).tile.halo_taps == 1
    wide = gpu_plan.Plan(
        fprop_view(ConvProblem((1, 64, 64, 64, 64), (64, 3, 3, 3), padding=1)),
        torch.float16, -1, bind=False,
    )  # fmt: skip
    assert wide.tile.halo_taps == 3


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("name", ["sm_80", "sm_86"])
def test_a_machine_without_fp8_is_refused(gpu, name, dtype):
    specs: list[Any] = []
    gpu.like(name)
    gpu.loads(lambda view, spec: specs.append(spec))
    view = fprop_view(ConvProblem((8, 64, 64, 128), (64, 3, 3), padding=1))
    kind = str(dtype).removeprefix("torch.")
    message = f"`a`: expected a GPU of compute capability 8.9 or more for {kind}, got one of 8."
    with pytest.raises(ArgumentTypeError, match=message):
        gpu_plan.Plan(view, dtype, -1, torch.float16)
    assert specs == []
    gpu.like("sm_89")
    gpu_plan.Plan(view, dtype, -1, torch.float16)
    assert [spec.dtype for spec in specs] == [kind]


@settings(max_examples=150, deadline=None)
@given(
    cells=st.lists(st.sampled_from((14, 28, 33, 56, 64)), min_size=1, max_size=3),
    images=st.sampled_from((1, 8, 64)),
    C=st.sampled_from((8, 16, 24, 32, 40, 64, 128)),
    K=st.sampled_from((8, 24, 32, 40, 64, 128, 256)),
    taps=st.lists(st.sampled_from((1, 2, 3, 5)), min_size=3, max_size=3),
    numbers=st.sampled_from(((1, 0, 1), (1, 1, 1), (1, 2, 2), (2, 1, 1), (3, 1, 1))),
    structure=st.sampled_from(("", "statistics", "bias:float32 relu", "residual:float16")),
)
@example([64, 28, 28], 64, 40, 40, [1, 1, 5], (1, 0, 1), "")  # k-tiles of more than a tap
@example([100, 100], 8, 24, 32, [1, 5], (1, 2, 2), "statistics")
def test_a_kernel_takes_the_tile_that_the_model_picks(
    cells: list[int],
    images: int,
    C: int,
    K: int,
    taps: list[int],
    numbers: tuple[int, int, int],
    structure: str,
) -> None:
    """A kernel refuses tiles that a view does not suit: nobody should be given one."""
    problem = ConvProblem((images, *cells, C), (K, *taps[: len(cells)]), *numbers)
    views = arranged_fprop(problem, LINE), *arranged_dgrad(problem, MORE_COLUMNS)
    for view in views:
        if view.k and view.m:
            found = select.choose_kernel(
                view, torch.float16, MACHINES["sm_90a"], structure=structure
            )
            ImplicitGemm(found.view, found.spec)


@pytest.mark.parametrize("step", [0, 1, 2, 3])
@pytest.mark.parametrize("offset", range(-15, 8))
def test_places_of_sums_without_rows_are_those_in_bounds(offset: int, step: int) -> None:
    """D is cut at its front, at its end, or everywhere."""
    C, P = 3, 5
    problems = Layout((1, 2, (C, P)), (0, 1, (2, 2 * C)))
    written = Layout((1, 1, (C, P)), (E(0), E(0), (E(1), step * E(0))))
    d = ComposedLayout(Layout((6, C), (C, 1)), (offset, 0), written)
    place = _StridedPart.of_view(GemmView(problems, problems, d))
    kept = [p for p in range(P) if 0 <= offset + step * p < 6]
    found = place.of(torch.arange(6 * C))
    assert found.tolist() == [[C * (offset + step * p) + c for c in range(C)] for p in kept]


@pytest.mark.parametrize("offset", [-4, -3, -2, -1, 1, 2, 3, 4])
def test_columns_are_cut_all_at_once_or_refused(offset: int) -> None:
    problems = Layout((1, 2, (3, 5)), (0, 1, (2, 6)))
    written = Layout((1, 1, (3, 5)), (E(0), E(0), (E(1), E(0))))
    view = GemmView(
        problems, problems, ComposedLayout(Layout((5, 3), (3, 1)), (0, offset), written)
    )
    if abs(offset) >= 3:
        assert not _StridedPart.of_view(view).of(torch.arange(15)).numel()
        return
    with pytest.raises(UnsupportedViewError, match="3 columns of D in whole loops"):
        _StridedPart.of_view(view)
