"""A short run of the fuzzer of ranks that disagree, and what it finds when something is wrong."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from . import ranks

ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("LAYOUTCONV_FUZZ_RANKS", "80"))


def test_what_ranks_disagree_on_is_one_error_on_all():
    command = [sys.executable, "-m", "tests.fuzz.ranks", "--count", str(COUNT)]
    if "LAYOUTCONV_FUZZ_RANKS" not in os.environ:
        command += ["--seconds", "10"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " conv, otherwise" in done.stdout


def verdict(case, *outcomes):
    return ranks.verdict(7, case, list(outcomes)) or ""


def test_outcomes_that_are_wrong_are_found():
    spec, other = {"call": "conv", "stride": 1}, {"call": "conv", "stride": 2}
    alike, differs = (spec, None, spec), (spec, 1, other)
    told = "ArgumentError: 1 on ranks 0 and 2, 2 on rank 1"
    assert verdict(alike, None, None, None) == ""
    assert verdict(differs, told, told, told) == ""
    assert verdict(differs, "3 on rank 1", "3", "3 on rank 1") == ""  # what rank 1 found itself
    assert "raw" in verdict(alike, None, "raw", None)
    assert "no error on rank 1" in verdict(differs, told, None, told)
    assert "not the same error" in verdict(differs, told, told, "something else on rank 1")
    assert "no rank is named" in verdict(differs, "wrong", "wrong", "wrong")
    assert "not the rank that it is" in verdict(differs, "3 on rank 2", "3", "3 on rank 2")


def test_cases_are_of_every_kind():
    """All calls, all changes of them, and some that are none."""
    cases = [ranks.case_of(0, number) for number in range(3000)]
    changed = {
        (spec["call"], name)
        for spec, odd, other in cases
        if odd is not None
        for name in other
        if spec.get(name) != other[name]
    }
    kinds = {"conv": ranks.CONV_CHANGES, "cloud": ranks.CLOUD_CHANGES, "mean": ranks.MEAN_CHANGES}
    assert changed == {(call, name) for call, changes in kinds.items() for name in changes}
    assert 300 < sum(odd is None for _, odd, _ in cases) < 1000
