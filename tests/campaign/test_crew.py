"""Workers that end, hang or lose their GPU are findings, and the rest goes on."""

from __future__ import annotations

import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from . import __main__ as commands
from . import results
from .crew import Settings, run_crew
from .results import Result

# Of seeds 2 and 3 the worker ends and says nothing more; all else is right.
FAKE = """
import json, os, sys, time
for line in sys.stdin:
    request = json.loads(line)
    seed = request["seed"]
    print(json.dumps({"stage": f"stage of {seed}"}), flush=True)
    if seed == 2:
        print("a kernel aborts", file=sys.stderr, flush=True)
        os._exit(134)
    if seed == 3:
        time.sleep(60)
    print(json.dumps({"family": "dense", "size": "cpu", "seed": seed, "kind": "k", "type": "t",
                      "status": "wrong" if seed == 4 else "ok"}), flush=True)
"""


WORKER = sys.executable, "-c", FAKE


def settings(**more: Any) -> Settings:
    return Settings(patience=1.5, command=WORKER, **more)


def failed(request: dict[str, Any], status: str, stage: str, log: str) -> Result:
    seed = request["seed"]
    return Result("dense", "cpu", seed, "k", "t", status, stage=stage, message=log)


@pytest.mark.parametrize("workers", [1, 3])
def test_what_becomes_of_every_problem(workers: int) -> None:
    found: list[Result] = []
    batches = [[{"seed": seed} for seed in some] for some in ((0, 1, 2), (3, 4), (5, 6))]
    assert run_crew(batches, settings(workers=workers), failed, found.append) == 0
    status = {r.seed: r.status for r in found}
    assert status == {0: "ok", 1: "ok", 2: "crash", 3: "hang", 4: "wrong", 5: "ok", 6: "ok"}
    [crash] = (r for r in found if r.status == "crash")
    assert crash.stage == "stage of 2"
    assert "a kernel aborts" in crash.message
    assert crash.message.endswith("exit status 134")


def test_no_problem_begins_when_time_is_up() -> None:
    found: list[Result] = []
    left = run_crew([[{"seed": 0}]] * 5, settings(minutes=0.0), failed, found.append)
    assert (left, found) == (5, [])


def test_commands_add_up_over_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = partial(commands.main, worker=WORKER)
    out = tmp_path / "results.jsonl"
    given = ["dense", "--device", "cpu", "--out", str(out), "--shrink", "0", "--patience", "1.5"]
    assert main([*given, "--count", "3"]) == 1
    assert "crash: dense 2" in capsys.readouterr().out
    assert main([*given, "--count", "7", "--resume"]) == 1
    assert [r.seed for r in results.read([out])] == [0, 1, 2, 3, 4, 5, 6]
    printed = capsys.readouterr().out
    assert "7 problems" in printed
    assert "4 ok, 1 wrong, 1 crash, 1 hang, 0 refused" in printed
    assert main([*given, "--count", "2", "--seed", "5"]) == 1  # once more
    assert commands.main(["report", str(out), str(out)]) == 1
    assert "7 problems" in capsys.readouterr().out


def test_the_last_result_of_a_problem_counts(tmp_path: Path) -> None:
    first = Result("dense", "gpu", 1, "k", "t", "wrong", passes={"y": float("inf")}, message="a\nb")
    again = Result("dense", "gpu", 1, "k", "t", "ok", passes={"y": 0.5})
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(results.write, (first, again))) + '\n{"family": "de')
    assert list(results.read([path])) == [first, again]
    assert results.added_up(results.read([path])) == [again]
    text = results.summary([first, Result("dense", "gpu", 2, "k", "t", "ok", passes={"y": 0.25})])
    assert "2 problems, 0 of them exact; 1 ok, 1 wrong" in text
    assert "0.250" in text
    assert "wrong: dense 1 (k, t): a" in text
