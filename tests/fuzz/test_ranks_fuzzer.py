"""A short run of the fuzzer of ranks that disagree, and what it finds when something is wrong."""

from __future__ import annotations

import os

import pytest

from . import ranks

COUNT = int(os.environ.get("LAYOUTCONV_FUZZ_RANKS", "80"))


def test_what_ranks_disagree_on_is_one_error_on_all(capfd):
    """The ranks are forked from the process that this one has for programs: it has torch."""
    limit = [] if "LAYOUTCONV_FUZZ_RANKS" in os.environ else ["--seconds", "10"]
    with pytest.raises(SystemExit) as ended:
        ranks.main(["--count", str(COUNT), *limit])
    printed = capfd.readouterr()
    assert not ended.value.code, printed.out + printed.err
    assert " conv, otherwise" in printed.out


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
