"""The benchmark of streaming, tried out on a CPU."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch

from layoutconv.sparse import Coordinates


@pytest.fixture
def bench(load_benchmark):
    return load_benchmark("bench_stream")


def test_it_measures_what_is_right(bench, tmp_path, capsys):
    file = tmp_path / "rows.json"
    options = ["--device", "cpu", "--most", "1e4", "--channels", "4", "--max-rows", "3000"]
    assert bench.main([*options, "--json", str(file)]) == 0
    (row,) = json.loads(file.read_text())["rows"]
    assert (row["voxels"], row["chunks"]) == (10_000, 4)
    assert 10_000 < row["pairs"] < 90_000
    assert row["error"] < 1e-5
    taken = row["sort"] + row["stream"]
    assert row["ns_per_pair"] == pytest.approx(1e9 * taken / row["pairs"])
    assert f"{row['pairs']:,} pairs" in capsys.readouterr().out


def test_a_surface_is_of_distinct_cells(bench):
    cells, shape = bench.surface(5041, torch.device("cpu"), piece=1000)
    assert len(cells) == 5041
    Coordinates(cells, shape, 1).check()


def test_what_misses_a_figure_is_said(bench):
    row = bench.Measured(10**7, 10**8, 1, 0.1, 0.9, memory=10**9)
    slow = replace(row, voxels=10**8, pairs=10**9, stream=12.4)
    assert bench.verdicts([row, replace(slow, stream=10.4)], torch.float16) == []
    assert "1.25x" in bench.verdicts([row, slow], torch.float16)[0]
    assert "60 wanted" in bench.verdicts([replace(row, memory=61 * 10**9)], torch.float16)[0]
    assert "error" in bench.verdicts([replace(row, error=1e-2)], torch.float16)[0]
    assert bench.verdicts([replace(row, voxels=10**5, stream=90.0), row], torch.float16) == []
