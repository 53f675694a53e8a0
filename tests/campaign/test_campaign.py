"""The part of the campaigns that runs on a CPU: a bounded number of problems of every family.

``LAYOUTCONV_PROBLEMS=3000`` runs that many of each; ``python -m tests.campaign`` runs more, in
processes, on a GPU. The default is short enough for every commit.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from layoutconv.conv import ConvProblem, fprop_view, wgrad_view
from layoutconv.gpu import select
from layoutconv.gpu.select import choose_kernel
from layoutconv.planning.channel_padding import has_padded_channels
from layoutconv.planning.cost_model import ranked
from layoutconv.planning.cost_problem import Problem
from layoutconv.planning.machine import MACHINES

from . import __main__ as commands
from . import problems, results
from .any_tile import shuffled
from .crew import Settings, run_crew
from .dense import Dense
from .ending import Ending
from .operand import Operand
from .results import Result
from .views import View
from .worker import Kernels, prepare, run

COUNT = os.environ.get("LAYOUTCONV_PROBLEMS")
PROBLEMS = {"dense": 150, "sparse": 50, "views": 150, "networks": 16, "sparse_networks": 8}


@pytest.mark.parametrize("family", PROBLEMS)
def test_random_problems_on_the_cpu(family: str) -> None:
    count = int(COUNT or PROBLEMS[family])
    step = 1 if COUNT else 6  # of other kinds
    draw = problems.family(family).draw
    statuses: Counter[str] = Counter()
    failed: list[Result] = []
    for seed in range(0, count * step, step):
        result = run(draw(seed, "cpu"), "cpu", prepare("cpu", lambda stage: None))
        statuses[result.status] += 1
        if result.status != "ok":
            failed.append(result)
    found = [f"{r.status}: {r.family} {r.seed}: {r.message[-400:]}" for r in failed[:5]]
    assert statuses == {"ok": count}, "\n".join(found)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh"])
def test_slopes_may_be_those_before_a_result_is_converted(activation: str) -> None:
    """As those of a depthwise sparse layer are: of float32, though its result is float16."""
    problem = problems.family("sparse").draw(732926, "cpu")
    problem = replace(problem, ending=replace(problem.ending, activation=activation))
    found = run(problem, "cpu", prepare("cpu", lambda stage: None))
    assert found.status == "ok", found.message
    assert problem.ending.out_dtype == "float16"


# What a campaign on a GPU found, made smaller.
DEPTHWISE = Dense(
    seed=1652, dtype="float16", N=1, C=2, K=2, spatial=(2, 4), taps=(2, 2), stride=(2, 2),
    dilation=(1, 1), padding=((0, 0), (0, 0)), groups=2, output_padding=(0, 0), numbers="exact",
)  # fmt: skip
FOUND: dict[str, Dense | View] = {
    "an epilogue of phases, each a part of D": replace(
        DEPTHWISE, transposed=True, ending=Ending(bias="float16", residual="float16")
    ),
    "channels that are not the first loop": replace(
        DEPTHWISE, K=8, stride=(1, 1), ending=Ending(bias="float16", out_dtype="float8_e5m2")
    ),
    "sums over no images": replace(DEPTHWISE, N=0, stride=(1, 1), gradients=("x", "w")),
    "float64 as int8": replace(
        DEPTHWISE, dtype="float64", K=1, groups=1, ending=Ending(out_dtype="int8")
    ),
    "rows outside, of an operand whose rows run along memory": View(
        seed=1381,
        dtype="float16",
        out_dtype="float16",
        a=Operand((((2, 0, 1), (9, 1, 1)), ((1, 2, 1),)), (2, -3, 0), (4, 6, 1), (1, 4, 1)),
        b=Operand((((6, 0, 1),), ((1, 1, 1),)), (0, 0), (6, 1), (1, 1)),
        d=Operand((((2, 0, 1), (9, 1, 1)), ((6, 2, 1),)), (0, 0, 0), (2, 9, 6), (54, 6, 1)),
    ),
}


@pytest.mark.parametrize(
    ("device", "size", "some"),
    [
        ("count", "gpu", (("dense", 0), ("dense", 5), ("sparse", 90), ("views", 0))),
        ("interpreter", "tiny", (("dense", 95),)),
    ],
)
def test_a_cpu_stands_in_for_a_gpu(
    device: str, size: str, some: tuple[tuple[str, int], ...]
) -> None:
    """Kernels are chosen and launched as on an H200; in the interpreter they run, and are right.

    So are those that were found: one worker runs all.
    """
    found: list[Result] = []
    requests: list[dict[str, Any]] = [
        {"family": family, "size": size, "seed": seed} for family, seed in some
    ]
    if device == "interpreter":
        requests += [{"problem": problems.to_json(p), "size": size} for p in FOUND.values()]
    run_crew([requests], Settings(device), commands.failed, found.append)
    assert [r.status for r in found] == ["ok"] * len(requests), found
    found = found[: len(some)]
    assert [(r.family, r.seed) for r in found] == list(some), found
    assert {r.device for r in found} == {device}
    assert sum(r.kernels for r in found) > 0
    assert all(bool(r.passes) is (device == "interpreter") for r in found)


def test_any_legal_tile_takes_the_place_of_the_choice() -> None:
    """The same tiles in an order that the problem decides, in every run."""
    machine, chosen = MACHINES["sm_90a"], []
    for rows in (1000, 2000, 3000):
        problem = Problem(rows, 128, 1728, 64, "float16", 2)
        pairs = list(shuffled(problem, machine))
        assert pairs == list(shuffled(problem, machine))
        assert sorted(map(repr, pairs)) == sorted(map(repr, ranked(problem, machine)))
        chosen.append(pairs[0] == next(ranked(problem, machine)))
    assert not all(chosen)
    found: list[Result] = []
    request = {"family": "dense", "size": "gpu", "seed": 5}
    run_crew([[request]], Settings("count", tiles="any"), commands.failed, found.append)
    assert [r.status for r in found] == ["ok"], found


def test_a_worker_that_is_told_so_takes_any_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ranked", "padded_lines", "GAIN_OF_LINES"):  # as they are afterwards
        monkeypatch.setattr(select, name, getattr(select, name))
    machine, views = (
        MACHINES["sm_90a"],
        [fprop_view(ConvProblem((1, n, n, 64), (64, 3, 3))) for n in (20, 40, 80)],
    )
    gradients = [wgrad_view(ConvProblem((8, n, n, 160), (64, 3, 3))) for n in range(20, 30)]

    def tiles() -> list[Any]:
        return [choose_kernel(view, torch.float16, machine).spec.tile for view in views]

    def padded() -> list[bool]:
        chosen = [choose_kernel(view, torch.float16, machine).view for view in gradients]
        return list(map(has_padded_channels, chosen))

    before = tiles()
    assert all(padded())
    Kernels("cpu", lambda stage: None, "any")
    assert tiles() != before
    assert tiles() == tiles()
    assert set(padded()) == {False, True}


def test_runs_of_any_tile_are_others_and_say_so(tmp_path: Path) -> None:
    path = tmp_path / "lines"
    for tiles in ("chosen", "any", "any"):
        note = commands.Notebook(path, 1, tiles)
        note.take(Result("dense", "cpu", 7, "a kind", "float16", "wrong", message="off"))
    found = results.added_up(results.read([path]))
    assert [r.tiles for r in found] == ["chosen", "any"]
    assert "dense 7 --tiles any (" in results.failure(found[1])
    problem = problems.family("dense").draw(7, "cpu")
    assert problems.code(problem, "any").endswith(", tiles='any')")
