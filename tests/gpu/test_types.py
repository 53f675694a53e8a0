"""Types, memory and ways of adding on a GPU, against float64 on the CPU; outputs are poisoned."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv import execute
from layoutconv.algebra import Layout
from layoutconv.conv import ConvProblem, dgrad_views, fprop_view, wgrad_view
from layoutconv.conv.stored_layouts import interleaved
from layoutconv.tensors.epilogue_in_torch import convert
from layoutconv.view.epilogue import Bias, Epilogue, Residual, Scale
from layoutconv.view.gemm_view import GemmView, stages

from .. import precision

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

PROBLEMS = {
    "whole vectors": ConvProblem((2, 9, 11, 64), (96, 3, 3), padding=1),
    "odd": ConvProblem(
        (2, 5, 7, 6, 5), (7, 3, 2, 3), stride=(1, 2, 1), padding=((1, 0), 1, (0, 2))
    ),
    "groups": ConvProblem((2, 9, 11, 24), (48, 3, 3), padding=1, groups=3),
}
PASSES = {
    "fprop": lambda p: [fprop_view(p)],
    "dgrad": lambda p: [view for view in dgrad_views(p) if view.k],
    "wgrad": lambda p: [wgrad_view(p)],
}
each_problem = pytest.mark.parametrize("problem", PROBLEMS)
each_pass = pytest.mark.parametrize("direction", PASSES)
TYPES = [
    (torch.int8, torch.int32, {}),
    (torch.int8, torch.int8, {}),
    (torch.float8_e4m3fn, torch.float16, {}),
    (torch.float8_e5m2, torch.float32, {}),
    (torch.float8_e5m2, torch.float8_e4m3fn, {}),
    (torch.float64, torch.float64, {}),
    (torch.float32, torch.float32, {"precision": "fp32"}),
    (torch.float32, torch.bfloat16, {"precision": "tf32"}),
    (torch.float16, torch.float32, {}),
    (torch.bfloat16, torch.int8, {}),
]


def stored(layout: Any) -> Any:
    return stages(layout)[-1].layout


def shape(layout: Any) -> tuple[int, ...]:
    return tuple(map(int, stored(layout).shape))


def integers(layout: Any, dtype: torch.dtype, seed: int) -> Tensor:
    """Small integers, which every dtype holds and whose sums are exact, where the view has them."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randint(-3, 4, shape(layout), generator=generator)
    memory = stored(layout)
    out = torch.empty_strided(shape(layout), tuple(map(int, memory.stride)), dtype=dtype)
    return out.copy_(values.to(dtype))


def poisoned(view: GemmView, dtype: torch.dtype, device: str) -> Tensor:
    memory = stored(view.d)
    out = torch.empty_strided(
        shape(view.d), tuple(map(int, memory.stride)), dtype=dtype, device=device
    )
    poison = torch.nan if dtype.is_floating_point else torch.iinfo(dtype).max
    return out.copy_(torch.full((), poison, dtype=torch.float32).to(dtype).to(device))


def check_exact(view: GemmView, dtype: torch.dtype, out: torch.dtype, **options: Any) -> None:
    a, b = integers(view.a, dtype, 0), integers(view.b, dtype, 1)
    want = execute(view, a.double(), b.double(), poisoned(view, torch.float64, "cpu"))
    got = poisoned(view, out, "cuda")
    execute(view, a.cuda(), b.cuda(), got, **options)
    written = ~want.isnan()
    assert torch.equal(got.cpu()[written].double(), convert(want[written], out).double())
    if out.is_floating_point:
        assert got.cpu().float()[~written].isnan().all()


@each_problem
@each_pass
@pytest.mark.parametrize(("dtype", "out", "options"), TYPES)
def test_types(problem: str, direction: str, dtype: Any, out: Any, options: Any) -> None:
    if "float8" in str(dtype) and torch.cuda.get_device_capability() < (8, 9):
        pytest.skip("no float8 before compute capability 8.9")
    for view in PASSES[direction](PROBLEMS[problem]):
        check_exact(view, dtype, out, **options)


@each_pass
def test_fp32_is_fp32(direction: str) -> None:
    [view] = PASSES[direction](ConvProblem((4, 12, 30, 30, 48), (64, 3, 3, 3), padding=1))
    a, b = (torch.randn(shape(layout), device="cuda") for layout in (view.a, view.b))
    want = execute(view, a.double().cpu(), b.double().cpu())
    got = execute(view, a, b, precision="fp32").cpu()
    assert (got - want).norm() <= 1e-6 * want.norm()
    rough = execute(view, a, b, precision="tf32").cpu()
    assert (rough - want).norm() >= 1e-4 * want.norm()


def test_allow_tf32_decides() -> None:
    view = fprop_view(ConvProblem((1, 64, 8), (8, 1)))
    a = torch.full((1, 64, 8), 1 + 2**-15, device="cuda")
    eye = torch.eye(8, device="cuda").view(8, 1, 8)
    with precision.restored():
        torch.backends.cudnn.allow_tf32 = False
        assert (execute(view, a, eye) == 1 + 2**-15).all()
        torch.backends.cudnn.allow_tf32 = True
        assert (execute(view, a, eye) == 1).all()


@pytest.mark.skipif(not precision.NEW, reason="this torch has allow_tf32 alone")
def test_fp32_precision_decides_as_it_does_for_torch() -> None:
    """Warm calls obey every setting, forward and backward; torch's own result confirms it."""
    x = torch.full((1, 8, 64), 1 + 2**-15, device="cuda", requires_grad=True)
    eye = torch.eye(8, device="cuda")[..., None]

    def is_exact(convolve: Any) -> tuple[bool, bool]:
        y = convolve(x, eye)
        [grad] = torch.autograd.grad(y, x, torch.full_like(y, 1 + 2**-15))
        return tuple(bool((t == 1 + 2**-15).all()) for t in (y, grad))  # type: ignore[return-value]

    with precision.restored():
        for settings in product(("none", "ieee", "tf32"), repeat=3):
            allowed = precision.decides(*settings)
            for _ in range(2):
                assert is_exact(lc.conv1d) == (not allowed, not allowed), settings
            if not allowed:  # where it may take tf32, cuDNN need not
                assert is_exact(torch.nn.functional.conv1d) == (True, True), settings


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("problem", ["whole vectors", "odd"])
def test_parts_added_with_atomics(problem: str, dtype: torch.dtype) -> None:
    check_exact(wgrad_view(PROBLEMS[problem]), dtype, dtype, atomic=True)
    many = ConvProblem((8, 40, 40, 16), (24, 3, 3), padding=1)  # enough voxels for many parts
    for atomic in (False, True):
        check_exact(wgrad_view(many), dtype, torch.float32, atomic=atomic)


def test_parts_are_added_in_the_same_order_every_time() -> None:
    view = wgrad_view(ConvProblem((8, 40, 40, 16), (24, 3, 3), padding=1))
    a, b = (torch.randn(shape(layout), device="cuda") for layout in (view.a, view.b))
    first = execute(view, a, b)
    assert all(torch.equal(first, execute(view, a, b)) for _ in range(20))


@pytest.mark.parametrize("offset", [0, 1, 2, 4])
@each_pass
def test_slices_of_channels_from_anywhere(offset: int, direction: str) -> None:
    """Channels ``offset`` on of a wider tensor: vectors are as long as the memory allows."""
    problem = ConvProblem((2, 9, 11, 16), (24, 3, 3), padding=1)
    wide = [torch.randn(2, 9, 11, channels + 8) for channels in (16, 24)]
    x, y = (t[..., offset : offset + c] for t, c in zip(wide, (16, 24), strict=True))
    layouts = [Layout(tuple(t.shape), t.stride()) for t in (x, y)]
    w = torch.randn(24, 3, 3, 16)
    named = {"activation_layout": layouts[0], "output_layout": layouts[1]}
    maker = {"fprop": fprop_view, "dgrad": dgrad_views, "wgrad": wgrad_view}[direction]
    view: Any = maker(problem, **named)
    [view] = view if direction == "dgrad" else [view]
    a, b = {"fprop": (x, w), "dgrad": (y, w), "wgrad": (y, x)}[direction]
    on_gpu = {id(w): w.half().cuda()}
    for tensor, whole in zip((x, y), wide, strict=True):
        on_gpu[id(tensor)] = whole.half().cuda()[..., offset : offset + tensor.shape[-1]]
    target = {"fprop": y, "dgrad": x, "wgrad": None}[direction]
    out = base = place = None
    if target is not None:
        place = as_stored(target).zero_()
        base = torch.full((2, 9, 11, target.shape[-1] + 8), torch.nan, device="cuda").half()
        out = base[..., offset : offset + target.shape[-1]]
    want = execute(view, as_stored(a), as_stored(b), place)
    got = execute(view, on_gpu[id(a)], on_gpu[id(b)], out)
    assert (got.cpu().double() - want).norm() <= 2e-3 * want.norm()
    if base is not None and out is not None:
        out.fill_(torch.nan)
        assert base.isnan().all()  # nothing beside the slice was written


def as_stored(tensor: Tensor) -> Tensor:
    """A copy in float64 of fp16 values, with the same strides."""
    out = torch.empty_strided(tensor.shape, tensor.stride(), dtype=torch.float64)
    return out.copy_(tensor.half())


def test_interleaved_channels() -> None:
    problem = ConvProblem((2, 9, 11, 64), (96, 3, 3), padding=1)
    view = fprop_view(
        problem,
        activation_layout=interleaved(problem.activation, 32),
        output_layout=interleaved(problem.output, 32),
    )
    check_exact(view, torch.float16, torch.float16)


@pytest.mark.parametrize("offset", [0, 3])
def test_an_epilogue_of_tensors_from_anywhere(offset: int) -> None:
    """Bias and residual that start at no multiple of 16 bytes, of other dtypes than D."""
    problem = ConvProblem((2, 9, 11, 16), (24, 3, 3), padding=1)
    view = fprop_view(problem)
    a, b = integers(view.a, torch.float16, 0).cuda(), integers(view.b, torch.float16, 1).cuda()
    bias = torch.arange(24 + offset, device="cuda", dtype=torch.bfloat16)[offset:]
    size = torch.Size(problem.output).numel()
    flat = torch.arange(size + offset, device="cuda").remainder(7).half()
    residual = flat[offset:].view(problem.output)
    steps = Scale(0.5), Bias(bias), Residual(residual, 2.0)
    got, sums = execute(view, a, b, epilogue=Epilogue(steps, statistics=True))
    plain = execute(view, a.double().cpu(), b.double().cpu())
    want = plain * 0.5 + bias.cpu().double() + 2 * residual.cpu().double()
    assert torch.equal(got.cpu().double(), want)
    columns = want.reshape(-1, 24)
    expected = torch.stack((columns.sum(0), columns.square().sum(0)))
    torch.testing.assert_close(sums.cpu().double(), expected, rtol=1e-5, atol=1e-2)


def test_tensors_beyond_2_to_the_31() -> None:
    """More than 2^31 elements, 2^32 bytes: the last image is computed as alone."""
    free, _ = torch.cuda.mem_get_info()
    if free < 40 << 30:
        pytest.skip("needs 40 GB of device memory")
    problem = ConvProblem((9, 320, 320, 320, 8), (8, 3, 3, 3), padding=1)
    assert torch.Size(problem.activation).numel() > 2**31
    x = torch.zeros(problem.activation, dtype=torch.float16, device="cuda")
    w = torch.randn(8, 3, 3, 3, 8, device="cuda").half()
    x[-1, -8:] = torch.randn(8, 320, 320, 8, device="cuda").half()
    y = execute(fprop_view(problem), x, w)
    small = ConvProblem((1, 9, 320, 320, 8), (8, 3, 3, 3), padding=1)
    last = x[-1:, -9:].contiguous()
    want = execute(fprop_view(small), last, w)
    assert torch.equal(y[-1, -8:], want[0, -8:])
    assert not y[:-1].any()
    [view] = dgrad_views(problem)
    back = execute(view, y, w)
    [view] = dgrad_views(small)
    assert torch.equal(back[-1, -7:], execute(view, want, w)[0, -7:])
    del back
    grad = execute(wgrad_view(problem), y, x, out_dtype=torch.float32)
    alone = execute(wgrad_view(small), y[-1:, -9:].contiguous(), last, out_dtype=torch.float32)
    assert (grad - alone).norm() <= 1e-3 * alone.norm()
