"""The kernels of depthwise convolutions in the machine: all passes, odd everything."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor

from layoutconv import pointwise as pw
from layoutconv.conv import ConvProblem
from layoutconv.conv.depthwise_views import (
    depthwise_dgrad_views,
    depthwise_fprop_view,
    depthwise_wgrad_view,
)
from layoutconv.kernels.pointwise.depthwise import build as build_dot
from layoutconv.kernels.pointwise.reduce import OPERATIONS
from layoutconv.kernels.pointwise.reduce import build as build_reduction
from layoutconv.planning.depthwise_schedule import DotSchedule, DotShape, fuses, schedule_dot
from layoutconv.planning.filter_gradient_schedule import FilterGradientShape
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.planning.window_schedule import WindowShape
from layoutconv.tensors.epilogue_in_torch import apply_steps
from layoutconv.tensors.tensor_checks import columns_of
from layoutconv.view.epilogue import Activation, Bias, Clamp, Epilogue, Pointwise, Residual, Scale
from layoutconv.view.gemm_view import GemmView, locate
from tools.ptx_sim import DeviceTensor, Memory, Stats, launch_of, run

from ..grid_cover import with_deep
from .launcher import integers, storage
from .simulated import simulated


def read(layout: Any, x: Tensor, k: int, l: int) -> Tensor:
    """An operand as (k, l) in float64, by the definition of a view."""
    offset, valid = locate(layout, 0, torch.arange(k)[:, None], torch.arange(l)[None])
    offset, valid = (torch.as_tensor(t).expand(k, l) for t in (offset, valid))
    memory = torch.cat([x.double().flatten(), torch.zeros(1, dtype=torch.float64)])
    return torch.where(valid, memory[offset], 0.0)


def launch(memory: Memory, kernel: Any, tensors: list[Any], *rest: Any) -> Stats:
    function, program = kernel
    asked = launch_of(program, function, *tensors, *rest)
    return run(program, memory, asked.arguments, asked.grid, shared_bytes=asked.shared_bytes)


def on_device(memory: Memory, name: str, x: Tensor, written: bool = False) -> DeviceTensor:
    address = memory.add(
        x.view(-1).view(torch.uint8).numpy(), name, writable=written, output=written
    )
    return DeviceTensor(address, (x.numel(),), str(x.dtype)[6:])


def check(
    views: tuple[GemmView, ...],
    dtype: torch.dtype,
    out_dtype: Any = None,
    aligned: tuple[int, int, int] = (16, 16, 16),
    sm_count: int = 1,
    infinite: str = "",
    epilogue: Epilogue | None = None,
) -> list[DotSchedule]:
    """Run the views of one result; all that they write is right, and nothing else is written.

    Of the operand ``infinite`` the last row of channels is infinite.
    """
    epilogue = Epilogue() if epilogue is None else epilogue
    a, b = (
        integers(storage(layout), dtype, i) for i, layout in enumerate((views[0].a, views[0].b))
    )
    if infinite:
        {"a": a, "b": b}[infinite].view(-1, a.shape[-1])[-1] = torch.inf
    out = torch.full(storage(views[0].d), torch.nan, dtype=out_dtype or dtype)
    want, plans = out.double().flatten(), []
    for view in views:
        names = str(dtype)[6:], str(out.dtype)[6:]
        plan = schedule_dot(view, *names, aligned, sm_count, epilogue.structure)
        plans.append(plan)
        memory = Memory()
        tensors = [on_device(memory, "a", a), on_device(memory, "b", b)]
        to = out
        if plan.workspace:
            kind = getattr(torch, plan.products.shape.accumulator)
            to = torch.full((plan.workspace,), torch.nan, dtype=kind)
        tensors.append(on_device(memory, "d", to, True))
        kernel = simulated(build_dot, plan.products.shape, "sm_80")
        vectors, sources = (
            tuple(on_device(memory, f"{name} {i}", x).address for i, x in enumerate(found)) or None
            for name, found in (("vector", epilogue.vectors), ("source", epilogue.sources))
        )
        numbers = epilogue.numbers or None
        launch(memory, kernel, tensors, plan.products.integers, numbers, vectors, sources)
        for finish in plan.finish:
            memory = Memory()
            tensors = [on_device(memory, "w", to), on_device(memory, "d", out, True)]
            kernel = simulated(build_reduction, finish.shape, OPERATIONS["sum"], 0, False, "sm_80")
            launch(memory, kernel, tensors, finish.integers)
        offset, valid = locate(view.d, 0, 0, torch.arange(view.l))
        offset, valid = (torch.as_tensor(t).expand(view.l) for t in (offset, valid))
        sums = (read(view.a, a, view.k, view.l) * read(view.b, b, view.k, view.l)).sum(0)
        columns = columns_of(view)
        like_d = [x.double().flatten()[offset * valid].view(-1, columns) for x in epilogue.sources]
        rows = torch.zeros(1, dtype=torch.int64)
        values = sums.view(-1, columns)
        values = apply_steps(epilogue.steps, values, slice(None), like_d, rows).flatten()
        want[offset[valid]] = values[valid]
    got = out.double().flatten()
    torch.testing.assert_close(got, want.to(out.dtype).double(), rtol=0, atol=0, equal_nan=True)
    return plans


def problem(
    C: int, *spatial: int, K: int = 0, taps: Any = 3, N: int = 2, **more: Any
) -> ConvProblem:
    taps = (taps,) * len(spatial) if isinstance(taps, int) else taps
    return ConvProblem((N, *spatial, C), (K or C, *taps), groups=C, **more)


def passes(p: ConvProblem) -> dict[str, tuple[GemmView, ...]]:
    return {
        "fprop": (depthwise_fprop_view(p),),
        "dgrad": depthwise_dgrad_views(p),
        "wgrad": (depthwise_wgrad_view(p),),
    }


PROBLEMS = {
    "1d": problem(16, 19, padding=1),
    "2d": problem(8, 6, 9, padding=1),
    "3d": problem(8, 3, 4, 5, padding=1),
    "unpadded": problem(8, 5, 6),
    "strided": problem(8, 7, 8, padding=1, stride=2),
    "uneven": problem(8, 8, 7, padding=((0, 1), (2, 1)), stride=(1, 3), dilation=(2, 1)),
    "dilated": problem(8, 9, 10, padding=2, dilation=2),
    "far": problem(8, 5, 5, padding=((0, 3), (4, 0))),
    "pointwise": problem(8, 4, 5, taps=1),
    "one voxel": problem(8, 3, 3, N=1),
    "one voxel, one tap": problem(3, 2, taps=1, stride=2, N=1),
    "gaps": problem(8, 7, 7, taps=1, stride=2),
    "multiplied": problem(8, 4, 6, K=24, padding=1),
    "five": problem(4, 6, 11, taps=5, padding=2),
    "many": problem(4, 3, 20, taps=(3, 9), padding=(1, 4), N=1),
}


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", with_deep(PROBLEMS, "1d", "2d", "unpadded", "far", "one voxel"))
@pytest.mark.chessboard
def test_passes(name: str, kind: str) -> None:
    check(passes(PROBLEMS[name])[kind], torch.float32)


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("C", [1, 3, 5, 12, 64])
@pytest.mark.chessboard
def test_channels(C: int, kind: str) -> None:
    views = passes(problem(C, 5, 6, padding=1, N=1))[kind]
    (plan,) = check(views, torch.float16)
    assert plan.products.shape.vector == {12: 4, 64: 8}.get(C, 1)


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_types(kind: str) -> None:
    views = passes(problem(8, 5, 6, padding=1, N=1))[kind]
    check(views, torch.bfloat16)
    # The machine has no fma of f64: it is a matter of types alone.
    (plan,) = (schedule_dot(view, "float64", "float64") for view in views)
    _, program = simulated(build_dot, plan.products.shape, "sm_80")
    opcodes = {instruction.opcode for instruction in program.instructions}
    assert "fma.rn.f64" in opcodes
    assert not any(opcode.startswith("fma") and opcode.endswith("f32") for opcode in opcodes)


@pytest.mark.parametrize("kind", ["fprop", "wgrad"])
def test_results_of_another_type(kind: str) -> None:
    views = passes(problem(8, 5, 6, padding=1, N=1))[kind]
    check(views, torch.float16, torch.float32)
    check(views, torch.float32, torch.float16)


@pytest.mark.parametrize("aligned", [(4, 16, 16), (16, 2, 16), (16, 16, 2), (8, 8, 4)])
@pytest.mark.parametrize("kind", ["fprop", "wgrad"])
@pytest.mark.chessboard
def test_what_memory_starts_at(aligned: tuple[int, int, int], kind: str) -> None:
    views = passes(problem(16, 5, 6, padding=1, N=1))[kind]
    (plan,) = check(views, torch.float16, aligned=aligned)
    read_in_vectors = aligned[: 2 if kind == "wgrad" else 1]
    assert plan.products.shape.vector == min(8, min(read_in_vectors) // 2)


def test_more_channels_than_a_cta_takes() -> None:
    check(passes(problem(132, 5, padding=1, N=1))["fprop"], torch.float32)
    check(passes(problem(270, 3, padding=1, N=1))["fprop"], torch.float16)


def test_more_taps_than_are_unrolled() -> None:
    views = passes(problem(4, 75, taps=(70,), padding=2, N=1))["fprop"]
    (plan,) = check(views, torch.float32)
    assert not plan.products.shape.sums
    views = passes(problem(4, 9, 12, K=8, taps=(8, 9), padding=2, N=1))["fprop"]
    (plan,) = check(views, torch.float32)
    assert not plan.products.shape.sums


# Images large enough for tiles of several outputs on a GPU of one multiprocessor.
WINDOWS = {
    "7x7": (problem(4, 10, 53, taps=7, padding=3), (4, 8, 14)),
    "31": (problem(4, 300, taps=31, padding=15, N=3), (4, 8, 38)),
    "5x5, strided": (problem(12, 13, 42, taps=5, padding=2, stride=2), (4, 7, 17)),
    "3x3x3": (problem(8, 4, 6, 22, padding=1), (8, 4, 6)),
    "dilated": (problem(6, 9, 50, taps=(5, 4), padding=(2, 3), dilation=(1, 2)), (2, 8, 14)),
    "odd": (problem(7, 9, 25, taps=(2, 6), padding=((1, 0), (2, 5)), stride=(1, 3)), (1, 5, 18)),
    "along H": (problem(4, 70, 9, taps=(5, 1), padding=(2, 0)), (4, 8, 12)),
    "unpadded": (problem(4, 19, 41, taps=9, N=1), (4, 5, 13)),
    "far apart": (problem(8, 20, 24, padding=12, dilation=12), (8, 4, 12)),
}


@pytest.mark.parametrize("kind", ["fprop", "dgrad"])
@pytest.mark.parametrize("name", with_deep(WINDOWS, "31", "along H", "unpadded"))
@pytest.mark.chessboard
def test_sliding_windows(name: str, kind: str) -> None:
    check(passes(WINDOWS[name][0])[kind], torch.float16, torch.float32)


@pytest.mark.parametrize("name", WINDOWS)
def test_tiles_of_sliding_windows(name: str) -> None:
    p, expected = WINDOWS[name]
    types = "float16", "float32", (16, 16, 16)
    shape = schedule_dot(passes(p)["fprop"][0], *types, 1).products.shape
    assert isinstance(shape, WindowShape)
    assert (shape.vector, shape.tile, len(shape.places)) == expected


def epilogue_of(view: GemmView, dtype: torch.dtype) -> Epilogue:
    """Steps of every kind, exact on small integers."""
    columns = columns_of(view)
    like_d = integers(storage(view.d), dtype, 7)

    def function(x: Any, skip: Any, weight: Any, column: Any, row: Any, by: Any) -> Any:
        return pw.maximum(x + column % 5, skip * by) + weight * (row + 1)

    named = {"columns": {}, "rows": {"weight": integers((1,), torch.float32, 8)}}
    steps = (
        Scale(0.5),
        Scale(integers((columns,), torch.float16, 9)),
        Bias(integers((columns,), torch.float32, 10)),
        Residual(like_d, 2.0),
        Activation("relu"),
        Clamp(-8.0, 200.0),
        Pointwise(function, **named, sources={"skip": like_d.float()}, values={"by": 0.5}),
    )
    return Epilogue(steps)


@pytest.mark.parametrize(
    ("p", "kind", "dtype"),
    [
        (problem(24, 5, 9, padding=1), "fprop", torch.float16),
        (problem(7, 3, 30, taps=(2, 5), padding=2, stride=2, N=1), "fprop", torch.float32),
        (problem(8, 4, 6, K=16, padding=1), "fprop", torch.float16),  # no window
        (problem(24, 4, 5, K=72, padding=1), "fprop", torch.float16),  # tiles of filters
        (problem(10, 6, taps=1, K=20), "fprop", torch.float32),
        (problem(8, 7, 8, padding=1, stride=2), "dgrad", torch.float16),  # residues
        (problem(8, 4, 5, taps=1), "fprop", torch.bfloat16),
    ],
)
def test_epilogues(p: ConvProblem, kind: str, dtype: torch.dtype) -> None:
    views = passes(p)[kind]
    assert all(map(fuses, views))
    check(views, dtype, torch.float32, epilogue=epilogue_of(views[0], dtype))


def test_an_epilogue_of_long_sums_is_refused() -> None:
    (view,) = passes(problem(8, 20, 20))["wgrad"]
    assert not fuses(view)
    with pytest.raises(UnsupportedViewError, match="sum over taps before an epilogue"):
        schedule_dot(view, "float16", "float16", epilogue="relu")


@pytest.mark.parametrize("infinite", ["a", "b"])
@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
@pytest.mark.chessboard
def test_what_is_infinite_stays_with_its_products(kind: str, infinite: str) -> None:
    for p in (problem(8, 5, 15, padding=1), problem(4, 501, taps=2, N=1)):
        check(passes(p)[kind], torch.float32, infinite=infinite)
    if kind == "wgrad":  # in pieces, the last of which is not full
        (view,) = passes(problem(5, 2500, taps=2, N=1))[kind]
        check((view,), torch.float32, infinite=infinite)


@pytest.mark.parametrize(
    ("p", "pieces"),
    [
        (problem(5, 2500, taps=1, N=1), 5),  # a last one that is not full
        (problem(3, 1000, taps=1, N=2), 0),  # warps alone
        (problem(2, 40, 13, K=4, stride=2, padding=2, N=7), 0),
    ],
)
def test_long_sums_are_cut(p: ConvProblem, pieces: int) -> None:
    (plan,) = check(passes(p)["wgrad"], torch.float32)
    assert isinstance(plan.products.shape, DotShape)
    assert plan.workspace == pieces * p.C * prod(p.taps)
    assert len(plan.finish) == (pieces > 0)


# (vector, taps of a thread, outputs of a run, of which the last have fewer), pieces.
GRADIENTS = {
    "7x7": (problem(4, 10, 16, taps=7, padding=3), (4, 7, 8, (False, False)), 1),
    "7x7, ragged": (problem(4, 10, 19, taps=7, padding=3), (4, 7, 7, (False, True)), 1),
    "31": (problem(4, 300, taps=31, padding=15, N=3), (4, 8, 6, (True, False)), 1),
    "5x5, strided": (
        problem(12, 13, 42, taps=5, padding=2, stride=2), (4, 5, 7, (False, False)), 1
    ),
    "3x3x3": (problem(8, 4, 6, 22, padding=1), (4, 3, 8, (False, True)), 3),
    "odd": (
        problem(7, 9, 25, taps=(2, 6), padding=((1, 0), (2, 5)), stride=(1, 3)),
        (1, 6, 3, (False, False)), 1,
    ),
    "dilated": (
        problem(6, 9, 50, taps=(5, 4), padding=(2, 3), dilation=(1, 2)),
        (2, 4, 5, (False, False)), 5,
    ),
    "along H": (
        problem(4, 30, 9, taps=(5, 1), padding=(2, 0)), (4, 5, 6, (False, False)), 1
    ),
    "taps as many as channels": (
        problem(4, 60, taps=4, padding=2), (4, 4, 8, (False, True)), 1
    ),
    "one image": (problem(5, 2500, taps=2, N=1), (1, 2, 7, (False, False)), 1),
}  # fmt: skip


@pytest.mark.parametrize("name", with_deep(GRADIENTS, "7x7, ragged", "31", "along H"))
def test_gradients_of_rows_of_taps(name: str) -> None:
    p, expected, pieces = GRADIENTS[name]
    dtype = torch.float32 if name == "3x3x3" else torch.float16
    infinite = "a" if name == "7x7, ragged" else "b" if name == "one image" else ""
    (plan,) = check(passes(p)["wgrad"], dtype, torch.float32, sm_count=8, infinite=infinite)
    shape = plan.products.shape
    assert isinstance(shape, FilterGradientShape)
    assert (shape.vector, shape.tile, shape.run, shape.ragged) == expected
    assert plan.workspace == (pieces > 1) * pieces * p.C * prod(p.taps)


def test_windows_that_overlap_are_read_once() -> None:
    p = problem(64, 56, 56, K=128, padding=1, N=32)
    shape = schedule_dot(passes(p)["fprop"][0], *["float16"] * 2)
    shape = shape.products.shape
    assert (shape.vector, shape.tile, shape.depth) == (8, 2, 3)  # both filters of a channel
    assert len(shape.sharers[0]) == 3  # of 6 products


@pytest.mark.parametrize("kind", ["fprop", "dgrad", "wgrad"])
def test_one_kernel_serves_all_sizes(kind: str) -> None:
    def shapes(*size: int) -> list[Any]:
        N, *spatial = size
        views = passes(problem(64, *spatial, padding=1, N=N))[kind]
        plans = [schedule_dot(view, "float16", "float16") for view in views]
        return [plan.products.shape for plan in plans]

    assert shapes(32, 56, 56) == shapes(64, 112, 56) == shapes(17, 300, 200)
