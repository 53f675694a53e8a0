"""The benchmark of several GPUs, tried out with one process on the CPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import layoutconv as lc

SMALL = [
    "--device",
    "cpu",
    "--size",
    "12",
    "--channels",
    "4",
    "--voxels",
    "2000",
    "--width",
    "2",
    "--clouds",
    "1",
    "--beams",
    "10",
    "--steps",
    "1",
]


@pytest.fixture
def bench(load_benchmark):
    return load_benchmark("bench_distributed")


def test_the_split_pass_is_that_of_one_process(bench):
    split = bench.split(bench._options(SMALL), 1)
    assert (split.job, split.work, split.error) == ("split", 1, 0.0)
    assert min(split.time, split.alone) > 0


def test_what_is_wrong_is_seen(bench, spoiled):
    def wrong(y):
        y[0, 0, -1] += 1  # the last row, as of a halo that did not come

    spoiled(wrong, "conv3d", lc.distributed)
    with torch.no_grad():
        found = bench.split(bench._options(SMALL), 1)
    assert found.error > 10 * bench.TOLERANCE
    assert "WRONG" in bench.report(found, None)


def test_a_cloud_that_is_split_wrongly_is_seen(bench, spoiled):
    found = bench.cloud(bench._options(SMALL), 1)
    assert found.error < bench.TOLERANCE

    def wrong(y):
        y.features[-1] += 1

    spoiled(wrong, "subm_conv", lc.distributed)
    assert bench.cloud(bench._options(SMALL), 1).error > 10 * bench.TOLERANCE


def test_a_job_that_fails_says_so(bench):
    def broken():
        raise RuntimeError("no such kernel")

    options = bench._options(SMALL)
    failed, cloud, ddp = bench.measure(options, bench.jobs_of(options, 1) | {"split": broken})
    assert bench.report(failed, None).endswith("FAILED: RuntimeError: no such kernel")
    for found, job in ((cloud, "cloud"), (ddp, "ddp")):
        assert (found.job, found.work, found.failed) == (job, 1, "")
        assert found.time > 0


def test_speed_up_is_work_done_in_a_time(bench):
    one = bench.Measured("split", 1, 40.0, 1)
    two = bench.Measured("split", 2, 25.0, 1, exchange=1.0, alone=24.0)
    assert two.speed_up(one) == pytest.approx(1.6)
    assert bench.report(two, one).endswith("1.60x one  below 1.8x  exchange 4.0%, 4.0% not hidden")
    ddp = bench.Measured("ddp", 1, 100.0, 4)
    assert replace(ddp, ranks=2, time=105.0, work=8).speed_up(ddp) == pytest.approx(1.905, abs=1e-3)
