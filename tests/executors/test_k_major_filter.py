"""Which passes read a K-major filter, and that they compute what the others do.

A GPU is stood in for by the CPU: kernels are its executor, on the memory that they are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.base.caches import clear_caches
from layoutconv.conv import ConvProblem
from layoutconv.gpu import filter_choice as room
from layoutconv.gpu import map_views
from layoutconv.gpu import plan as gpu_plan
from layoutconv.gpu.filter_choice import worth_k_major
from layoutconv.gpu.packing_choice import multiplied_on
from layoutconv.nn.sparse import subm_conv
from layoutconv.ops import dense_calls, dense_passes, sparse_calls
from layoutconv.ops import sparse_operators as operators
from layoutconv.ops.execute import execute_cpu
from layoutconv.planning.kernel_key import runtime_integers
from layoutconv.planning.kernel_spec import vectors_of
from layoutconv.planning.machine import MACHINES
from layoutconv.sparse import Coordinates, submanifold_map
from layoutconv.tensors.expected_tensors import expected
from layoutconv.tuning.tuned_problems import views_of
from layoutconv.view.gemm_view import GemmView

from .. import precision
from ..stand_ins import Gpu
from ..watched import Watch
from .addresses import tensor_at

# Views of kernels, where the filters that they got start, and these.
ran: list[tuple[GemmView, int, Tensor]] = []


def kernel_of(view: GemmView, spec: Any) -> Callable[..., None]:
    want = expected(view)

    def kernel(a: int, b: int, d: Tensor, *rest: Any) -> None:
        integers = rest[3]
        x, w = (
            tensor_at(t, torch.float32, s.shape, s.stride) for t, s in ((a, want.a), (b, want.b))
        )
        if (*integers,)[2 + spec.concurrent :] != (*runtime_integers(view).values(),):
            ran.append((view, b, torch.empty(0)))
            return  # of another cloud, whose index buffers are not the view's
        ran.append((view, b, w.clone()))
        execute_cpu(view, x, w, d.as_strided(want.d.shape, want.d.stride))

    return kernel


def in_one_part(plan: gpu_plan.Plan, a: int, b: int, out: Tensor) -> None:
    plan._kernel(a, b, out, *plan._given)


@pytest.fixture(autouse=True)
def hopper(monkeypatch: pytest.MonkeyPatch, gpu: Gpu, copied_from: Any) -> Iterator[None]:
    ran.clear()
    for module in (dense_calls, sparse_calls, map_views):
        module.forget()
    gpu.like("sm_90a")
    gpu.loads(kernel_of)
    gpu.says(device_count=1)
    gpu.runs_kernels()
    monkeypatch.setattr(gpu_plan.Plan, "_run_in_parts", in_one_part)
    copied_from(32, 1 << 12)
    with precision.restored():
        torch.backends.cudnn.allow_tf32 = True
        yield
    for module in (dense_calls, sparse_calls, map_views):
        module.forget()


def is_k_major(view: GemmView) -> bool:
    return vectors_of(view, "tfloat32", "float32")[1] == (1, 1)


def integers(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-3, 4, shape, generator=generator).float()


def reference(x: Tensor, w: Tensor, **options: Any) -> Tensor:
    function = (torch.conv_transpose1d, torch.conv_transpose2d)[x.dim() - 3]
    return function(x.double(), w.double(), **options).float()


# -- the rule ------------------------------------------------------------------------------------


def test_how_much_work_pays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    vae, filter = 16 * 64 * 64, (256, 3, 3, 3, 256)
    assert worth_k_major(vae, filter)
    assert worth_k_major(8192, filter)  # unet_16
    assert worth_k_major(64 * 14 * 14, (256, 3, 3, 256))  # resnet_14
    assert worth_k_major(16 * 2 * 7 * 7, (512, 3, 3, 3, 512))  # the last layers of r3d_18
    assert not worth_k_major(511, (4096, 3, 3, 3, 512))  # a large filter for few rows
    assert not worth_k_major(12544, (112, 1, 1, 256))  # a launch for little work
    assert worth_k_major(24576, (128, 1, 1, 128))  # exactly enough
    assert not worth_k_major(24575, (128, 1, 1, 128))
    assert not worth_k_major(1605632, (16, 1, 1, 32))  # rows of half a line
    assert worth_k_major(401408, (24, 1, 1, 144))
    assert worth_k_major(vae, filter, over_map=True)
    assert not worth_k_major(2047, (4096, 3, 3, 3, 512), over_map=True)
    assert not worth_k_major(65536, (32, 3, 3, 3, 32), over_map=True)
    assert not worth_k_major(vae, (255, 3, 3, 3, 256))  # vectors of 16 bytes in every group
    assert worth_k_major(vae, (256, 3, 3, 3, 64), 4)
    assert not worth_k_major(vae, (24, 3, 3, 3, 256), 4)


@pytest.mark.parametrize(
    ("change", "k_major"),
    [
        ({}, True),
        ({"dtype": torch.float16}, False),
        ({"dtype": torch.float64}, False),
        ({"precision": "fp32"}, False),
        ({"machine": "sm_80"}, False),
        ({"machine": "sm_89"}, False),
        ({"on_gpu": False}, False),
        ({"rows": 31}, False),
        ({"products": 1 << 20}, False),
    ],
    ids=lambda value: str(value),
)
def test_the_executor_turns_under_the_rule_alone(
    change: dict[str, Any],
    k_major: bool,
    copied_from: Any,
    gpu: Gpu,
    dense_execute: Any,
) -> None:
    seen: list[tuple[GemmView, Tensor]] = []

    def note(view: GemmView, a: Tensor, b: Tensor, out: Tensor, **_: Any) -> None:
        seen.append((view, b))

    clear_caches()  # of passes under another rule
    dense_execute(note)
    machine = change.get("machine", "sm_90a")
    gpu.like(machine)
    torch.backends.cudnn.allow_tf32 = change.get("precision") != "fp32"
    gpu.runs_kernels(change.get("on_gpu", True))
    copied_from(32, change.get("products", 1 << 12))
    dtype, rows = change.get("dtype", torch.float32), change.get("rows", 32)
    y, w = torch.ones(1, rows, 8, dtype=dtype), torch.ones(8, 3, 16, dtype=dtype)
    dense_passes.dgrad(y.mT, w.mT, [rows], [1], [1, 1], [1])
    [(view, b)] = seen
    assert is_k_major(view) is k_major
    assert b.stride() == ((1, 8, 24) if k_major else w.stride())
    dense_passes.fprop(torch.ones(1, rows, 16, dtype=dtype).mT, w.mT, [1], [1, 1], [1])
    assert seen[-1][1].stride() == w.stride()  # which runs along the sum


# -- dense ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [1, 2])
def test_gradients_of_any_order_and_under_compile(
    stride: int, monkeypatch: pytest.MonkeyPatch, watched: Watch
) -> None:
    copies = watched("k_major_copy", room)
    # Tensors of the CPU, so that views run by its executor: what is not known of a call.
    monkeypatch.setattr(dense_calls, "devices", SimpleNamespace(runs_kernels=lambda tensor: False))
    x, w = integers(2, 4, 9, 8).requires_grad_(), integers(8, 4, 3, 3, seed=1).requires_grad_()

    def step(conv: Any) -> list[Tensor]:
        y = conv(x, w, stride=stride, padding=1)
        dx, dw = torch.autograd.grad((y * y).sum(), (x, w), create_graph=True)
        return [y, dx, dw, *torch.autograd.grad((dx * dx).sum() + dw.sum(), (x, w))]

    want = step(torch.conv2d)
    for _ in range(2):
        for one, other in zip(step(lc.conv2d), want, strict=True):
            assert torch.equal(one, other)
    assert copies
    before = len(copies)
    y = torch.compile(lc.conv2d, backend="aot_eager", fullgraph=True)(
        x, w, stride=stride, padding=1
    )
    assert torch.equal(torch.autograd.grad((y * y).sum(), x)[0], want[1])
    assert len(copies) == before + 1  # for all residues, and for the first order


def test_warm_calls_turn_what_they_are_given() -> None:
    x, w = (integers(*s).movedim(-1, 1) for s in ((2, 6, 5, 8), (8, 3, 3, 12)))
    bias = integers(12)
    for stride in (1, 2):
        for w_now in (w, w, w + 1, w.clone()):
            want = reference(x, w_now, stride=stride, padding=1)
            assert torch.equal(lc.conv_transpose2d(x, w_now, stride=stride, padding=1), want)
    views = [view for view, _, _ in ran]
    assert len(views) == 3 * (1 + 4)  # the first call of each is the operator's
    assert all(map(is_k_major, views))
    assert len({start for _, start, _ in ran[-4:]}) == 1  # of all residues
    torch.backends.cudnn.allow_tf32 = False
    ran.clear()
    want = reference(x, w, stride=2, padding=1)
    assert torch.equal(lc.conv_transpose2d(x, w, stride=2, padding=1), want)
    assert ran[0][1] == w.data_ptr()
    torch.backends.cudnn.allow_tf32 = True
    for _ in range(2):
        lc.conv_transpose2d(x, w, bias, stride=2, padding=1)
    assert is_k_major(ran[-1][0])


def test_a_warm_filter_of_torchs_own_order_and_one_of_float16() -> None:
    x, w = integers(2, 8, 40), integers(8, 12, 3)
    for _ in range(3):
        assert torch.equal(lc.conv_transpose1d(x, w), reference(x, w))
    assert is_k_major(ran[-1][0])
    for _ in range(2):
        lc.conv_transpose1d(x.half(), w.half())
    assert not is_k_major(ran[-1][0])


def test_residues_that_no_tap_reaches() -> None:
    x, w, bias = integers(2, 8, 40), integers(8, 12, 1), integers(12)
    want = reference(x, w, bias=bias.double(), stride=3)
    for _ in range(2):  # by the operator, and by launches, of which an ending is the kernel's
        got = lc.conv_transpose1d(x, w, bias, stride=3)
        assert ran or torch.equal(got, want)
    assert len(ran) == 3
    assert [view.k for view, _, _ in ran] == [8, 0, 0]


# -- sparse --------------------------------------------------------------------------------------


def cloud(rows: int, seed: int) -> Coordinates:
    generator = torch.Generator().manual_seed(seed)
    return Coordinates.of_keys(torch.randperm(6**3, generator=generator)[:rows], (6,) * 3, 1)


@pytest.mark.parametrize("groups", [1, 2])
def test_sparse_gradients(groups: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's, those of warm calls, and those of another cloud of the kind."""
    w = integers(8, 3, 3, 3, 8 // groups, seed=2)
    maps = [submanifold_map(cloud(rows, rows)) for rows in (60, 64, 31)]

    def gradient(found: Any) -> Tensor:
        features = integers(len(found.inputs), 8).requires_grad_()
        x = lc.SparseTensor(features, found.inputs)
        y = subm_conv(x, w, kernel_map=found, groups=groups).features
        return torch.autograd.grad((y * y).sum(), features)[0]

    def forget() -> None:
        for module in (sparse_calls, map_views):
            module.forget()
        for found in maps:
            found.views.clear()

    torch.backends.cudnn.allow_tf32 = False
    want = []
    for found in maps:
        want.append(gradient(found))
        forget()
    torch.backends.cudnn.allow_tf32 = True
    for _ in range(3):
        assert torch.equal(gradient(maps[0]), want[0])
    assert is_k_major(ran[-1][0])
    ran.clear()
    gradient(maps[1])
    assert [b.stride() for _, _, b in ran] == [w.stride(), (1, 72, 24, 8, 216)]
    forget()
    for _ in range(3):
        assert torch.equal(gradient(maps[2]), want[2])
    assert ran[-1][1] == w.data_ptr()  # for too few rows


def test_the_sparse_operator() -> None:
    found = submanifold_map(cloud(60, 0))
    maps = operators.tables(found, (8, 8), gradients=True)
    y, w = integers(60, 8), integers(8, 3, 3, 3, 8, seed=3)
    got = operators.conv(y, w, *maps, 60, 1, True, found.mirrored)
    views = [v for v in operators.kept_of(found).views.values() if is_k_major(v)]
    torch.backends.cudnn.allow_tf32 = False
    assert torch.equal(got, operators.conv(y, w, *maps, 60, 1, True, found.mirrored))
    assert len(views) == 1
    assert len(operators.kept_of(found).views) == 2


# -- tuning --------------------------------------------------------------------------------------


def test_what_is_tuned_is_what_runs(dense_execute: Any, copied_from: Any) -> None:
    problem = ConvProblem((2, 8, 8, 16), (32, 3, 3), 2, 1)
    seen: list[GemmView] = []
    dense_execute(lambda view, *_, **__: seen.append(view))
    y, w = (integers(*shape).movedim(-1, 1) for shape in (problem.output, (32, 3, 3, 16)))
    dense_passes.dgrad(y, w, [8, 8], [2, 2], [1] * 4, [1, 1])
    tf32, fp32 = (
        multiplied_on(torch.float32, MACHINES["sm_90a"], name) for name in ("tf32", "fp32")
    )
    assert all(map(is_k_major, views_of(problem, "dgrad", tf32)))
    plain = views_of(problem, "dgrad", fp32)
    assert not any(map(is_k_major, plain))
    for direction in ("fprop", "wgrad"):
        assert views_of(problem, direction, tf32) == views_of(problem, direction, fp32)
    copied_from(33, 1 << 12)
    assert views_of(problem, "dgrad", tf32) == plain
    assert len(seen) == 4
