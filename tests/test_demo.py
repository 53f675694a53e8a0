"""The main job, from the command line to the picture."""

from __future__ import annotations

import re
import struct

import numpy as np
import pytest
import torch

import layoutconv.ops.execute
from layoutconv import demo
from layoutconv.base.progress import Progress
from layoutconv.cli import main

needs_execute = pytest.mark.skipif(
    not hasattr(layoutconv.ops.execute, "execute"), reason="there is no executor yet"
)


@pytest.fixture
def small_cloud(tmp_path):
    """A corner of walls and floor: 1,500 points, intensity by wall."""
    u, v = np.random.default_rng(0).uniform(0, 4, (2, 500))
    walls = [(u, v, 0 * u), (u, 0 * u, v), (0 * u, u, v)]
    points = np.concatenate([np.stack([*xyz, u], axis=1) for xyz in walls]).astype("<f4")
    path = tmp_path / "corner.bin"
    path.write_bytes(points.tobytes())
    return path


def png_size(path):
    data = path.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    return struct.unpack(">II", data[16:24])


@pytest.fixture(autouse=True)
def small_crop(monkeypatch):
    monkeypatch.setattr(demo, "_CROP", (8, 8, 8))


@needs_execute
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_demo_checks_itself_and_draws(small_cloud, tmp_path, capsys, dtype):
    picture = tmp_path / "out.png"
    command = ["demo", str(small_cloud), "--channels", "8", "--dtype", dtype, "--device", "cpu"]
    assert main([*command, "--output", str(picture)]) == 0
    told = capsys.readouterr()
    assert told.err == ""  # not a terminal, so no progress
    assert re.search(r"points +1,500 x 4 float32", told.out)
    assert re.search(r"executor +CPU", told.out)
    assert re.search(r"neighbours per voxel", told.out)
    assert len(re.findall(r"max error \d\.\d\de[-+]\d\d, .* ok", told.out)) == 3
    assert png_size(picture)[0] == 2000


@needs_execute
def test_a_wrong_result_fails_the_demo(small_cloud, tmp_path, capsys, spoiled):
    def wrong(y):
        y.view(-1)[y.numel() // 2] += 0.5

    spoiled(wrong, owner=demo)
    command = ["demo", str(small_cloud), "--channels", "8", "--device", "cpu"]
    assert main([*command, "--output", str(tmp_path / "out.png")]) == 1
    assert "FAILED" in capsys.readouterr().out


@needs_execute
def test_demo_on_the_real_sweep(shared_cloud, tmp_path, capsys):
    path = shared_cloud("lidar_sweep.bin")
    command = ["demo", str(path), "--channels", "8", "--output", str(tmp_path / "out.png")]
    assert main(command) == 0
    assert "17,238 x 4" in capsys.readouterr().out


def test_a_check_fails_for_what_is_not_a_number(capsys):
    import sys

    report = demo._Report(sys.stdout)
    bound = torch.ones(2)
    report.check("fine", torch.tensor([0.0, 1.0]), bound)
    report.check("nothing", bound[:0], bound[:0])
    assert report.passed
    report.check("nan", torch.tensor([0.0, torch.nan]), bound)
    assert not report.passed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["demo", "nowhere.bin"], "nowhere.bin: No such file"),
        (["demo", "cloud.xyz"], "known are .bin, .npy, .ply"),
        (["demo", "CLOUD", "--columns", "7"], "not a whole number of points of 7"),
        (["demo", "CLOUD", "--columns", "2"], "'--columns': 2 is not in the range 3<=x"),
        (["demo", "CLOUD", "--voxel-size", "nan"], "'--voxel-size': expected a finite"),
        (["demo", "CLOUD", "--voxel-size", "-1"], "'--voxel-size': -1.0 is not in the range x>0"),
        (["demo", "CLOUD", "--channels", "1"], "`channels`: expected 4 or more"),
    ],
)
def test_what_makes_no_sense_is_one_line_and_status_2(small_cloud, capsys, arguments, message):
    assert main([str(small_cloud) if a == "CLOUD" else a for a in arguments]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.startswith("layoutconv: error: ")
    assert error.count("\n") == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_asking_for_a_gpu_where_there_is_none_is_an_error(small_cloud, capsys):
    assert main(["demo", str(small_cloud), "--device", "cuda"]) == 2
    assert "`device`: expected a GPU" in capsys.readouterr().err


def test_info_names_the_executor(capsys):
    assert main(["info"]) == 0
    assert re.search(r"executor +\S", capsys.readouterr().out)


class _Terminal:
    def __init__(self, shown: bool) -> None:
        self.shown, self.written = shown, ""

    def isatty(self) -> bool:
        return self.shown

    def write(self, text: str) -> None:
        self.written += text

    def flush(self) -> None:
        pass


def test_progress_is_one_line_that_goes_away_and_nothing_off_a_terminal():
    for shown in (True, False):
        terminal = _Terminal(shown)
        with Progress(terminal).step("Counting") as step:  # type: ignore[arg-type]
            step.tick(1, 2)
        lines = terminal.written.split("\r\x1b[2K")
        if shown:
            assert lines[0] == lines[-1] == ""
            assert "Counting" in lines[1]
            assert lines[2].endswith(" 1/2")
        else:
            assert terminal.written == ""
