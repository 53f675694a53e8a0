"""The kernels of reductions in the machine: every branch, against the CPU executor's definition."""

from __future__ import annotations

import operator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import layoutconv as lc
from layoutconv.algebra import ComposedLayout, E, Layout
from layoutconv.gpu.reduction_plan import _alignment, _operation
from layoutconv.gpu.user_functions import function_key
from layoutconv.kernels.compile import store
from layoutconv.kernels.pointwise import reduce as reduce_module
from layoutconv.kernels.pointwise.loaders import load_reduction
from layoutconv.kernels.pointwise.reduce import OPERATIONS, build
from layoutconv.planning import reduction_schedule as schedule_module
from layoutconv.planning.loop_nest import make_nest
from layoutconv.planning.reduction_schedule import Launch, schedule
from layoutconv.view.operands import row_major
from tools.ptx_sim import DeviceTensor, Memory, Stats, launch_of, run

from ..watched import Watch
from .simulated import simulated


def compiled(launch: Launch, operation: Any, neutral: float, mean: bool, arch: str) -> Any:
    """A kernel and its parsed PTX, once per kernel."""
    combine = OPERATIONS[operation] if isinstance(operation, str) else operation
    return simulated(build, launch.shape, combine, neutral, mean, arch)


@dataclass
class Ran:
    launches: list[Launch]
    stats: list[Stats]


def check(
    view: Any,
    x: Tensor,
    op: Any = "sum",
    *,
    initial: Any = None,
    out_dtype: Any = None,
    aligned: tuple[int, int] = (16, 16),
    sm_count: int = 1,
    arch: str = "sm_80",
) -> Ran:
    """Run the launches of a reduction; every element of the result, and none beside them."""
    want = lc.reduce(view, x, op, initial=initial, out_dtype=out_dtype)
    what = _operation(op, initial, x.dtype)
    nest = make_nest([("source", view.source, 1), ("target", view.target, None)])
    names = [str(t)[6:] for t in (x.dtype, what.accumulator, want.dtype)]
    launches = schedule(nest, *names, aligned, sm_count)
    out = torch.full_like(want, 77)
    source, stats = x, []
    for launch in launches:
        last = not launch.workspace
        to = out if last else torch.empty(launch.workspace, dtype=what.accumulator)
        mean = last and op == "mean"
        function, program = compiled(launch, op, what.neutral, mean, arch)
        memory = Memory()
        tensors = []
        for name, tensor in (("source", source), ("target", to)):
            flat = tensor.as_strided((span(tensor),), (1,))
            address = memory.add(
                flat.view(torch.uint8).numpy(), name, writable=tensor is to, output=tensor is to
            )
            tensors.append(DeviceTensor(address, tuple(flat.shape), str(tensor.dtype)[6:]))
        asked = launch_of(program, function, *tensors, launch.integers)
        stats.append(
            run(program, memory, asked.arguments, asked.grid, shared_bytes=asked.shared_bytes)
        )
        source = to
    torch.testing.assert_close(out, want, rtol=1e-6 if op == "mean" else 0, atol=0, equal_nan=True)
    return Ran(launches, stats)


def span(tensor: Tensor) -> int:
    return 1 + sum((s - 1) * d for s, d in zip(tensor.shape, tensor.stride(), strict=True))


def integers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randint(-9, 10, shape).to(dtype)


def partials(pieces: int, results: int) -> Any:
    return lc.ReductionView(Layout((results, pieces), (1, results)), Layout(results))


# -- rows side by side: the end of split-K --------------------------------------------------------


@pytest.mark.parametrize("out_dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("pieces", "results"), [(2, 1032), (3, 130), (37, 64), (1, 8), (5, 7)])
@pytest.mark.chessboard
def test_partial_sums(pieces: int, results: int, out_dtype: Any) -> None:
    x = integers(pieces, results)
    ran = check(partials(pieces, results), x, out_dtype=out_dtype)
    (launch,) = ran.launches
    vector = 4 if results % 4 == 0 else 2 if results % 2 == 0 else 1
    assert (launch.shape.inner, launch.shape.vector, launch.shape.stored) == (False, vector, True)
    word = {4: "v4.b32", 2: "v2.b32", 1: "b32"}[vector]
    assert ran.stats[0].count("ld.global") == ran.stats[0].count(f"ld.global.{word}")


def test_two_kernels_serve_all_sizes() -> None:
    """One for threads that have few loads, one for those that have more."""
    shapes = {}
    for pieces, results in [(2, 1000), (300, 1000), (24, 10**7), (64, 4096)]:
        view = partials(pieces, results)
        nest = make_nest([("source", view.source, 1), ("target", view.target, None)])
        launches = schedule(nest, "float32", "float32", "float16", (16, 16), 132)
        assert len(launches) == 1
        shapes.setdefault(launches[0].shape, []).append(pieces)
    assert sorted(shapes.values()) == [[2, 300, 64], [24]]


@pytest.mark.parametrize(
    ("pieces", "lanes", "warps", "few"), [(64, 0, 4, True), (300, 1, 4, False), (8, 0, 1, True)]
)
def test_warps_and_lanes_share_long_sums_of_few_results(
    pieces: int, lanes: int, warps: int, few: bool
) -> None:
    """Warps first, whose lanes read one run of memory, then lanes: until each thread has a few
    loads, or there are threads enough.
    """
    (launch,) = check(partials(pieces, 128), integers(pieces, 128)).launches
    assert launch.integers[-4:-2] == (lanes, warps)
    assert (launch.shape.flight == schedule_module.FEW) == few


@pytest.mark.parametrize(
    ("pieces", "results", "op"),
    [(6, 72, "sum"), (98, 8, "max"), (1300, 12, "sum"), (1300, 5, "mean")],
)
def test_a_pass_without_memory_changes_nothing(pieces: int, results: int, op: str) -> None:
    """Hopper's kernels go through all twice, the first time with no more than the neutral."""
    x = integers(pieces, results)
    ran = check(partials(pieces, results), x, op, sm_count=64, arch="sm_90a")
    once = check(partials(pieces, results), x, op, sm_count=64)
    for name, times in (("shfl.sync.bfly", 2), ("ld.global", 1), ("st.global", 1)):
        assert ran.stats[0].count(name) == times * once.stats[0].count(name)


@pytest.mark.parametrize("shift", [0, 1, 2, 3])
def test_what_memory_starts_at(shift: int) -> None:
    at = _alignment(4 * shift)
    for aligned in ((at, 16), (16, max(at // 2, 2))):
        (launch,) = check(partials(3, 64), integers(3, 64), aligned=aligned,
                          out_dtype=torch.float16).launches  # fmt: skip
        assert 4 * launch.shape.vector <= aligned[0]
        if launch.shape.stored:
            assert 2 * launch.shape.vector <= aligned[1]


# -- what is reduced side by side -----------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64, torch.int8])
@pytest.mark.parametrize(("r", "s"), [(3, 64), (70, 8), (5, 13), (9, 1000), (1, 2), (4, 4096)])
@pytest.mark.chessboard
def test_row_sums(r: int, s: int, dtype: torch.dtype) -> None:
    ran = check(lc.reduction_view((r, s), 1), integers(r, s, dtype=dtype))
    assert ran.launches[0].shape.inner


# -- a second launch ------------------------------------------------------------------------------


@pytest.mark.parametrize("op", ["sum", "max", "mean"])
@pytest.mark.parametrize(
    ("shape", "modes"), [((40011,), 0), ((80000,), 0), ((9000, 5), 0), ((3, 80000), 1)]
)
@pytest.mark.chessboard
def test_long_sums_of_few_results(shape: Any, modes: Any, op: str) -> None:
    ran = check(lc.reduction_view(shape, modes), integers(*shape), op, sm_count=3)
    assert len(ran.launches) == 2
    assert ran.launches[0].workspace


# -- any layout -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("modes", [0, 1, 2, (0, 2), (1, 2), (0, 1), (0, 1, 2), ()])
@pytest.mark.chessboard
def test_modes_of_a_tensor(modes: Any, dtype: torch.dtype) -> None:
    check(lc.reduction_view((6, 10, 24), modes), integers(6, 10, 24, dtype=dtype))


def test_few_results_side_by_side_fill_a_warp_with_sums() -> None:
    (launch,) = check(lc.reduction_view((100, 3), 0), integers(100, 3)).launches
    assert not launch.shape.inner
    assert launch.integers[-4] == 3  # 2^3 lanes a result


def test_windows_that_overlap() -> None:
    image = integers(6, 6)
    view = lc.ReductionView(Layout(((4, 4), (3, 3)), ((1, 6), (1, 6))), Layout((4, 4), (4, 1)))
    check(view, image)


def test_a_target_in_another_order() -> None:
    view = lc.ReductionView(Layout(((8, 4), 5), ((1, 8), 32)), Layout((8, 4), (4, 1)))
    (launch,) = check(view, integers(5, 32)).launches
    assert launch.shape.vector == 4
    assert not launch.shape.stored


def test_steps_backwards_and_of_zero() -> None:
    back = ComposedLayout(Layout((20,), (1,)), (19,), Layout((4, 5), (-1 * E(0), -4 * E(0))))
    check(lc.ReductionView(back, Layout(4)), integers(20))
    check(lc.ReductionView(Layout((4, 5), (1, 0)), Layout(4)), integers(4))
    check(lc.ReductionView(Layout((4, 5), (0, 1)), Layout(4)), integers(5))


@pytest.mark.parametrize("op", ["sum", "max", "min", "mean"])
@pytest.mark.parametrize("channels", [8, 3])
@pytest.mark.chessboard
def test_pooling_with_padding(op: str, channels: int) -> None:
    n, h, w = 2, 7, 6
    memory = row_major((n, h, w, channels))
    domain = Layout(((channels, 3, 4, n), (3, 3)), ((E(3), 2 * E(2), 2 * E(1), E(0)), (E(2), E(1))))
    source = ComposedLayout(memory, (0, -1, -1, 0), domain)
    target = row_major((n, 4, 3, channels))
    out = ComposedLayout(target, 0, Layout((channels, 3, 4, n), (E(3), E(2), E(1), E(0))))
    x = integers(n, h, w, channels, dtype=torch.float16)
    (launch,) = check(lc.ReductionView(source, out), x, op).launches
    assert launch.shape.vector == (8 if channels == 8 else 1)


def test_results_outside_the_target_are_not_written() -> None:
    target = ComposedLayout(Layout((9,), (1,)), (-1,), Layout(11, E(0)))
    check(lc.ReductionView(Layout((11, 4), (4, 1)), target), integers(11, 4))


# -- operations -----------------------------------------------------------------------------------

DTYPES = [
    torch.float16, torch.bfloat16, torch.float32, torch.float64,
    torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
]  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("op", ["sum", "max", "min"])
@pytest.mark.chessboard
def test_types(op: str, dtype: torch.dtype) -> None:
    for modes in (0, 1):
        check(lc.reduction_view((24, 16), modes), integers(24, 16, dtype=dtype), op)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("op", ["sum", "max", "min", "mean"])
@pytest.mark.parametrize("modes", [0, 1])
@pytest.mark.chessboard
def test_nan_and_infinity(op: str, dtype: torch.dtype, modes: int) -> None:
    x = integers(40, 40, dtype=dtype)
    x[0, 3] = x[39, 0] = x[7, 8] = torch.nan
    x[5, 11] = torch.inf
    x[6, 12] = -torch.inf
    check(lc.reduction_view((40, 40), modes), x, op)


def test_the_greatest_integers() -> None:
    x = torch.tensor([[2**31 - 1, -(2**31)], [2**31 - 1, -(2**31)]], dtype=torch.int32)
    for modes in (0, 1):
        for op in ("sum", "max", "min"):
            check(lc.reduction_view((2, 2), modes), x, op)
    x = torch.tensor([2**62, 2**62 - 1, -(2**63)])
    check(lc.reduction_view((3,), 0), x)
    check(lc.reduction_view((3,), 0), x, "max")


@pytest.mark.parametrize("modes", [0, 1])
def test_functions_of_two_values(modes: int) -> None:
    view = lc.reduction_view((20, 12), modes)
    x = torch.where(integers(20, 12) > 0, 2.0, -1.0)
    check(view, x, operator.mul, initial=1)
    check(view, integers(20, 12, dtype=torch.int32), lambda a, b: a ^ b, initial=0)
    shift = 3.0
    check(view, integers(20, 12), lambda a, b: a + b - shift, initial=shift)


def test_loops_are_merged_and_those_without_a_refinement_refused() -> None:
    from layoutconv.planning.view_rules import UnsupportedViewError

    nest = make_nest(
        [("x", lc.reduction_view((4, 5, 6), (1, 2)).source, 1), ("o", Layout(4), None)]
    )
    assert (nest.outer, nest.inner) == ((4,), (30,))
    with pytest.raises(UnsupportedViewError, match=r"common refinement, got \(4, 6\) and \(6, 4\)"):
        make_nest([("x", Layout(((4, 6), 1)), 1), ("o", Layout((6, 4)), None)])


def test_constants_are_those_of_the_kernel() -> None:
    assert schedule_module.FLIGHT & (schedule_module.FLIGHT - 1) == 0
    assert schedule_module.FEW & (schedule_module.FEW - 1) == 0
    assert schedule_module.WARPS & (schedule_module.WARPS - 1) == 0


def test_kernels_of_functions_are_kept_by_what_they_compute(
    kernel_folder: Path, watched: Watch
) -> None:
    compilations = watched("build", reduce_module)
    view = partials(3, 8)
    nest = make_nest([("source", view.source, 1), ("target", view.target, None)])
    (launch,) = schedule(nest, "float32", "float32", "float32", (16, 16), 1)

    def loaded(step: float) -> Any:
        function = lambda a, b: a + b - step  # noqa: E731
        name = function_key("op", function)
        return load_reduction(launch.shape, function, name, step, "sm_80")

    assert loaded(1) is loaded(1)
    assert loaded(1) is not loaded(2)
    assert len(compilations) == 2
    store.unload()
    assert callable(loaded(2))
    assert len(compilations) == 2  # from disk
    load_reduction(launch.shape, "sum", "sum", 0, "sm_80")
    load_reduction(launch.shape, "sum", "sum", 0, "sm_90a")
    assert len(compilations) == 4
    assert len(list(kernel_folder.iterdir())) == 4
