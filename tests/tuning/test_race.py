"""Races between tiles with a clock that the tests hold; kernels are stand-ins but in one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import layoutconv as lc
from layoutconv.conv import ConvProblem, fprop_view
from layoutconv.conv.depthwise_views import depthwise_fprop_view
from layoutconv.errors import ArgumentError, ArgumentTypeError
from layoutconv.gpu import dry_run, measured_choices, select
from layoutconv.gpu import plan as gpu_plan
from layoutconv.gpu.packing_choice import multiplied_on
from layoutconv.gpu.phase_choice import MORE_COLUMNS
from layoutconv.kernels.compile import store
from layoutconv.planning.cost_model import Problem, choose, shortlist
from layoutconv.planning.machine import MACHINES
from layoutconv.planning.tile import TileConfig
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.sparse.views import kernel_map_view
from layoutconv.tuning import race
from layoutconv.tuning.precompile import compile_kernels
from layoutconv.tuning.tuned_problems import PASSES, views_of

from ..stand_ins import Clock, Gpu

MACHINE = MACHINES["sm_90a"]
HALF = multiplied_on(torch.float16, MACHINE)
PROBLEM = ConvProblem((2, 16, 16, 64), (64, 3, 3), padding=1)
SILENT: Any = {"device": -1, "tick": lambda done, total: None}


@pytest.fixture(autouse=True)
def no_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("LAYOUTCONV_TUNE", raising=False)


def view() -> Any:
    """A new one: plans are kept with a view."""
    return replace(fprop_view(PROBLEM))


def slow_but(tile: tuple[int, int], fast: float, rest: float = 10.0) -> race.Measure:
    return lambda plan: fast if (plan.tile.m, plan.tile.n) == tile else rest


def test_the_fastest_wins_and_is_what_runs_from_then_on() -> None:
    before = gpu_plan.Plan(view(), torch.float16, -1)
    tuned = lc.tune(view(), torch.float16, measure=slow_but((256, 128), 1.0), **SILENT)
    assert (
        (tuned.choice.tile.m, tuned.choice.tile.n) == (256, 128) != (before.tile.m, before.tile.n)
    )
    assert tuned.choice.microseconds == 1.0
    assert tuned.choice.model_microseconds == 10.0
    assert tuned.choice.problem == "m=512 n=64 k=576 float16"
    after = gpu_plan.Plan(view(), torch.float16, -1)
    assert (after.tile, after.splits) == (tuned.choice.tile, tuned.choice.splits)
    like = fprop_view(ConvProblem((1, 20, 24, 64), (64, 3, 3), padding=1))  # 480 rows
    assert gpu_plan.Plan(like, torch.float16, -1).tile == tuned.choice.tile
    assert gpu_plan.Plan(view(), torch.bfloat16, -1).tile == before.tile
    larger = fprop_view(ConvProblem((2, 64, 64, 64), (64, 3, 3), padding=1))
    assert gpu_plan.Plan(larger, torch.float16, -1).tile != tuned.choice.tile


def test_a_view_that_has_run_takes_the_winner_too() -> None:
    one = view()
    of: Any = (torch.float16, -1, torch.float16, None, False, "", select.ALIGNED)
    before = gpu_plan.plan_of(one, *of)
    assert gpu_plan.plan_of(one, *of) is before
    tuned = lc.tune(one, torch.float16, measure=slow_but((256, 128), 1.0), **SILENT)
    assert gpu_plan.plan_of(one, *of).tile == tuned.choice.tile != before.tile


def test_every_tile_that_fits_runs_and_parts_are_tried() -> None:
    seen: list[tuple[TileConfig, int]] = []

    def measure(plan: gpu_plan.Plan) -> float:
        seen.append((plan.tile, plan.splits))
        return 10.0

    tall = fprop_view(ConvProblem((1, 4, 8, 8, 512), (64, 3, 3, 3), padding=1))
    lc.tune(tall, torch.float16, measure=measure, **SILENT)
    chooser = gpu_plan.Plan(tall, torch.float16, -1, bind=False)
    pairs = shortlist(chooser.problem, MACHINE, far=float("inf"))
    assert pairs[0] == choose(chooser.problem, MACHINE)
    assert len(set(pairs)) == len(pairs) == len(seen)
    assert {tile for tile, _ in seen} == {tile for tile, _ in pairs}
    assert len({splits for _, splits in seen}) > 2


@pytest.mark.parametrize(("fast", "model_stays"), [(9.9, True), (9.7, False)])
def test_what_is_hardly_faster_is_noise(fast: float, model_stays: bool) -> None:
    picked = gpu_plan.Plan(view(), torch.float16, -1).tile
    tuned = lc.tune(view(), torch.float16, measure=slow_but((256, 128), fast), **SILENT)
    assert (tuned.choice.tile == picked) is model_stays


def test_tiles_that_fail_are_out_of_the_race() -> None:
    def measure(plan: gpu_plan.Plan) -> float:
        if plan.tile.m != 96:
            raise RuntimeError("too many resources requested\nfor launch")
        return 3.0

    tuned = lc.tune(view(), torch.float16, measure=measure, **SILENT)
    assert tuned.choice.tile.m == 96
    assert tuned.trials[0].error == ""
    for trial in tuned.trials:
        assert trial.error == ("" if trial.tile.m == 96 else "too many resources requested")
    assert tuned.trials[-1].error

    def none(plan: gpu_plan.Plan) -> float:
        raise RuntimeError("out of memory")

    other = views_of(PROBLEM, "wgrad", HALF)[0]
    with pytest.raises(RuntimeError, match=r"no tile runs m=64 n=576 k=512 float16: out of memory"):
        lc.tune(other, torch.float16, measure=none, **SILENT)
    assert len(list(measured_choices.kept())) == 1


def test_ctrl_c_leaves_what_was_there() -> None:
    lc.tune(view(), torch.float16, measure=slow_but((256, 128), 1.0), **SILENT)
    kept = list(measured_choices.kept())
    calls: Iterator[int] = iter(range(3))

    def measure(plan: gpu_plan.Plan) -> float:
        if next(calls, None) is None:
            raise KeyboardInterrupt
        return 0.5

    with pytest.raises(KeyboardInterrupt):
        lc.tune(view(), torch.float16, measure=measure, **SILENT)
    assert list(measured_choices.kept()) == kept


def test_the_environment_variable_tunes_at_first_need(
    monkeypatch: pytest.MonkeyPatch, gpu: Gpu, clock: Clock
) -> None:
    measured: list[TileConfig] = []

    def timed(*of: Any) -> race.Measure:
        def measure(plan: gpu_plan.Plan) -> float:
            measured.append(plan.tile)
            return 1.0 if plan.tile.m == 96 else 10.0

        return measure

    clock.measures(timed)
    assert gpu_plan.Plan(view(), torch.float16, -1).tile.m != 96
    assert measured == []
    monkeypatch.setenv("LAYOUTCONV_TUNE", "1")
    assert gpu_plan.Plan(view(), torch.float16, -1, structure="bias:float16").tile.m == 96
    count = len(measured)
    assert count > 1
    assert gpu_plan.Plan(view(), torch.float16, -1, structure="bias:float16").tile.m == 96
    assert len(measured) == count
    gpu.says(is_current_stream_capturing=True)
    gpu_plan.Plan(view(), torch.bfloat16, -1)  # in a graph: the model
    assert len(measured) == count


def test_a_race_that_cannot_be_held_at_first_need_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    def fails(*of: Any) -> race.Measure:
        raise torch.OutOfMemoryError("no memory for another tensor")

    model = gpu_plan.Plan(view(), torch.float16, -1).tile
    clock.measures(fails)
    monkeypatch.setenv("LAYOUTCONV_TUNE", "1")
    with pytest.warns(UserWarning, match="not tuned: no memory for another tensor"):
        plan = gpu_plan.Plan(view(), torch.float16, -1)
    assert plan.tile == model


def test_a_cache_that_cannot_be_written_is_a_warning(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match="a tuned choice cannot be kept, and will be measured again: "
    ):
        tuned = lc.tune(view(), torch.float16, measure=slow_but((256, 128), 1.0), **SILENT)
    assert tuned.choice.microseconds == 1.0


def test_sparse_views_race_too() -> None:
    index = torch.arange(2000, dtype=torch.int32)[:, None].expand(2000, 27).contiguous()
    sparse = kernel_map_view(index, 32, 32)
    tuned = lc.tune(sparse, torch.float16, measure=slow_but((256, 32), 1.0), **SILENT)
    assert tuned.choice.problem.endswith("float16 sparse")
    other = kernel_map_view(index[:1900].contiguous(), 32, 32)
    assert gpu_plan.Plan(other, torch.float16, -1).tile == tuned.choice.tile


def test_a_tile_of_ones_own_races_too() -> None:
    """And is what runs from then on, if it wins; one that cannot run says why."""
    own = TileConfig((64, 48, 32), (2, 1), 5)
    with pytest.raises(UnsupportedViewError, match="a power of two for columns of a tile"):
        lc.tune(view(), torch.float16, tiles=[own], measure=slow_but((64, 48), 1.0), **SILENT)
    own = TileConfig((32, 32, 32), (2, 1), 5)
    tuned = lc.tune(view(), torch.float16, tiles=[own], measure=slow_but((32, 32), 1.0), **SILENT)
    assert tuned.choice.tile == own
    assert gpu_plan.Plan(view(), torch.float16, -1).tile == own
    with pytest.raises(ArgumentTypeError, match="`tiles`: expected a sequence of TileConfig"):
        lc.tune(view(), torch.float16, tiles=[(64, 64, 32)], **SILENT)  # type: ignore[list-item]


def test_bad_arguments() -> None:
    with pytest.raises(ArgumentError, match="`dtype`: expected types that `execute` takes"):
        lc.tune(view(), torch.int64, **SILENT)
    depthwise = depthwise_fprop_view(ConvProblem((1, 8, 8, 4), (4, 3, 3), groups=4))
    with pytest.raises(ArgumentError, match="`view`: expected a view of matrix products"):
        lc.tune(depthwise, torch.float16, **SILENT)
    with pytest.raises(ArgumentError, match="`precision`"):
        lc.tune(view(), torch.float16, precision="tf64", **SILENT)
    with pytest.raises(ArgumentError, match="`direction`: expected fprop, dgrad or wgrad"):
        views_of(PROBLEM, "up", HALF)
    with pytest.raises(ArgumentError, match="`groups`: expected fewer groups than the 4 chan"):
        views_of(ConvProblem((1, 8, 8, 4), (4, 3, 3), groups=4), "fprop", HALF)
    few = ConvProblem((2, 128, 128, 128, 1), (32, 1, 1, 1))
    with pytest.raises(ArgumentError, match="`problem`: expected a convolution of more channels"):
        views_of(few, "fprop", HALF)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"view": None}, "`view`: expected a GemmView, got NoneType"),
        ({"view": PROBLEM}, "`view`: expected a GemmView, got ConvProblem"),
        ({"dtype": "float16"}, "`dtype`: expected a torch.dtype, got 'float16'"),
        ({"dtype": [torch.float16]}, "`dtype`: expected a torch.dtype"),
        ({"out_dtype": np.ones(2)}, "`out_dtype`: expected a torch.dtype, got ndarray of shape"),
        ({"device": "cuda:0"}, "`device`: expected the number of a GPU, or None, got 'cuda:0'"),
        ({"device": [0]}, "`device`: expected the number of a GPU"),
        ({"precision": np.ones(2)}, "`precision`: expected None, 'tf32' or 'fp32'"),
        (
            {"structure": None},
            "`structure`: expected the structure of an Epilogue, a str",
        ),
        ({"aligned": None}, "`aligned`: expected 3 numbers of bytes >= 1"),
        ({"aligned": 16}, "`aligned`: expected 3 numbers of bytes >= 1"),
        ({"aligned": (16, 16)}, "`aligned`: expected 3 numbers of bytes >= 1"),
        ({"aligned": (16, 16, 0)}, "`aligned`: expected 3 numbers of bytes >= 1"),
        ({"tiles": None}, "`tiles`: expected a sequence of TileConfig, got None"),
        ({"tiles": 3}, "`tiles`: expected a sequence of TileConfig, got 3"),
        ({"processes": 0}, "`processes`: expected an int >= 1, or None, got 0"),
        ({"measure": "x"}, "`measure`: expected a function, or None, got 'x'"),
        ({"tick": 3}, "`tick`: expected a function, or None, got 3"),
    ],
)
def test_what_is_no_argument_of_a_race_is_named(arguments: Any, message: str) -> None:
    right = {"view": view(), "dtype": torch.float16, "measure": lambda plan: 1.0, **SILENT}
    with pytest.raises(ArgumentError, match=message):
        lc.tune(**{**right, **arguments})


def test_alignments_are_any_sequence() -> None:
    for aligned in ([16, 16, 16], np.array([16, 16, 16])):
        tuned = lc.tune(
            view(),
            torch.float16,
            aligned=aligned,  # type: ignore[arg-type]
            measure=slow_but((256, 128), 1.0),
            **SILENT,
        )
        assert tuned.choice.microseconds == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so() -> None:
    with pytest.raises(ArgumentError, match="`device`: expected a GPU to measure on"):
        lc.tune(view(), torch.float16)


@pytest.mark.parametrize("stride", [1, 2])
def test_the_passes_of_a_problem_are_those_that_run(stride: int) -> None:
    from layoutconv.ops.dense_passes import dgrad_pass

    problem = ConvProblem((2, 8, 8, 16), (32, 3, 3), stride, 1)
    numbers = [stride] * 2, [1] * 4, [1, 1], 1
    dgrad = dgrad_pass(problem.output, (32, 3, 3, 16), (8, 8), numbers, columns=MORE_COLUMNS)
    assert views_of(problem, "dgrad", HALF) == dgrad.views
    for direction in PASSES:
        products = sum(v.m * v.n * v.k for v in views_of(problem, direction, HALF))
        assert products >= views_of(problem, "fprop", HALF)[0].m * 32 * 9 * 16 / stride**2


def test_kernels_are_compiled_in_processes_and_kept() -> None:
    """Two real ones, of a view with an index buffer, which does not travel."""
    index = torch.arange(600, dtype=torch.int32)[:, None].expand(600, 27).contiguous()
    sparse = kernel_map_view(index, 16, 16)
    specs = [
        store.KernelSpec.of(sparse, "float16", "float16", TileConfig((m, 32, 32), (4, 1)), "sm_80")
        for m in (64, 128)
    ]
    request = dry_run.dumped((sparse, specs[0]))
    assert len(request) < 6000 < index.numel()
    ticks: list[tuple[int, int]] = []
    needs = [(sparse, spec) for spec in specs]
    compile_kernels(needs, 2, lambda *tick: ticks.append(tick))
    assert ticks == [(0, 2), (1, 2), (2, 2)]
    assert all(store.is_kept(sparse, spec) for spec in specs)
    compile_kernels(needs, 2, lambda *tick: ticks.append(tick))
    assert len(ticks) == 3  # nothing was missing


def test_a_shortlist_leaves_out_what_the_model_takes_for_much_slower() -> None:
    problem = Problem(65536, 256, 6912, 256, "float16", 2, splittable=True)
    every = shortlist(problem, MACHINE, far=float("inf"))
    some = shortlist(problem, MACHINE)
    assert every[: len(some)] == some
    assert 1 < len(some) < len(every) / 3


def test_a_shortlist_fits_and_starts_with_the_choice() -> None:
    problem = Problem(64, 1728, 10**6, 0, "float16", 4, splittable=True)
    for machine in MACHINES.values():
        pairs = shortlist(problem, machine)
        assert pairs[0] == choose(problem, machine)
        for tile, splits in pairs:
            assert tile.smem_bytes(2, 4) <= machine.smem_per_cta
            assert splits >= 1
