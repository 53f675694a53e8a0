"""A short run of the fuzzer of point files, and what it finds when something is wrong."""

from __future__ import annotations

import os
import re
import time
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from layoutconv.errors import PointFileError
from layoutconv.sparse.coords.points import read_points

from ..warm_process import run_python
from . import points, pool

ROOT = Path(__file__).resolve().parents[2]
COUNT = int(os.environ.get("LAYOUTCONV_FUZZ", "4000"))


def test_damaged_files_are_read_as_strict_parsers_do_or_refused():
    """Half of the cases or more are refused, a tenth is read, and nothing else comes of any."""
    for package in ("laspy", "laszip", "lazrs"):
        pytest.importorskip(package)
    command = ["-m", "tests.fuzz.points", "--count", str(COUNT)]
    if "LAYOUTCONV_FUZZ" not in os.environ:
        command += ["--seconds", "12"]
    done = run_python(command, ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    counts = re.findall(r"^ *([0-9,]+) (\.\w+ .*)$", done.stdout, re.M)
    counts = {name: int(count.replace(",", "")) for count, name in counts}
    total = sum(counts.values())
    assert {name.split()[0] for name in counts} == {*points.PARSERS}
    assert total > 400
    assert sum(count for name, count in counts.items() if "refused" in name) > total / 2
    assert sum(count for name, count in counts.items() if "read, damaged" in name) > total / 20
    assert sum(count for name, count in counts.items() if "can be read" in name) < total / 50


def outcomes(reader, count=80):
    """Return the outcomes of some cases of one file, read in another way."""
    case = points.Case(read=partial(reader, read_points))
    return [case(number) for number in range(count)]


def test_wrong_numbers_are_found():
    def reader(whole, path, *arguments):
        rows = whole(path, *arguments)
        return rows + np.where(rows == rows[0, 0], 1e-6, 0)

    found = outcomes(reader)
    assert "other numbers" in found[0][1]
    assert not any("read, " in name for name, _ in found)


def test_files_that_are_read_and_should_not_be_are_found():
    def reader(whole, path, *arguments):
        try:
            return whole(path, *arguments)
        except PointFileError:
            return np.zeros((1, 3))

    assert any("was read, but" in str(line) for _, line in outcomes(reader))


def test_whole_files_that_are_refused_are_found():
    def reader(whole, path, *arguments):
        raise PointFileError(f"{path}: no")

    found = outcomes(reader)
    assert "a whole file is refused" in found[0][1]
    assert found[points.OF_ONE][0] == "wrong"


def test_messages_without_a_path_are_found():
    def reader(whole, path, *arguments):
        raise PointFileError("no")

    assert "without the path" in outcomes(reader, 1)[0][1]


def test_slow_files_are_found():
    assert points.Case(seconds=0.0)(0)[0] == "slow"


def planted():
    """Cases of which the third ends the process, the sixth hangs, the ninth raises."""

    def case(number):
        if number == 3:
            os.abort()
        if number == 6:
            time.sleep(60)
        if number == 9:
            raise RuntimeError("planted")
        return ("wrong", "planted") if number == 12 else ("fine", None)

    return case


def test_processes_that_end_or_hang_are_findings_and_others_go_on():
    found = pool.run(planted, 1000, processes=2, limit=0.2)
    assert found.counts["abort"] == found.counts["hang"] == found.counts["raw exception"] == 1
    assert found.counts["wrong"] == 1
    # What a process had done when it ended, and had not reported yet, is not counted.
    assert 900 < found.counts["fine"] < 1000
    assert sorted(int(line.split()[1].rstrip(":")) for line in found.wrong) == [3, 6, 9, 12]


def test_memory_beyond_the_limit_is_an_error():
    def hungry():
        return lambda number: ("fine", str(len(bytearray(1 << 30))))

    found = pool.run(hungry, 1, processes=1, memory=1 << 28)
    assert found.counts == {"raw exception": 1}
    assert "MemoryError" in found.wrong[0]
