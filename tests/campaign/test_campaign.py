"""The part of the campaigns that runs on a CPU: a bounded number of problems of every family.

``LAYOUTCONV_PROBLEMS=3000`` runs that many of each; ``python -m tests.campaign`` runs more, in
processes, on a GPU. The default is short enough for every commit.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator

import pytest
import torch

from . import __main__ as commands
from . import problems
from .crew import Settings, run_crew
from .results import Result
from .worker import prepare, run

COUNT = os.environ.get("LAYOUTCONV_PROBLEMS")
PROBLEMS = {"dense": 150, "sparse": 50, "views": 150}


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    """Kernels are chosen and launched as on an H200; in the interpreter they run, and are right."""
    found: list[Result] = []
    requests = [{"family": family, "size": size, "seed": seed} for family, seed in some]
    run_crew([requests], Settings(device), commands.failed, found.append)
    assert [(r.family, r.seed, r.status) for r in found] == [(*one, "ok") for one in some], found
    assert {r.device for r in found} == {device}
    assert sum(r.kernels for r in found) > 0
    assert all(bool(r.passes) is (device == "interpreter") for r in found)
