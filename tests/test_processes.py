"""Work in processes: all of it, with its errors; Ctrl-C ends it in order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from layoutconv.base.processes import in_processes


def test_everything_is_called_and_errors_come_back(tmp_path: Path) -> None:
    ticks: list[tuple[int, int]] = []
    paths = [tmp_path / "a", tmp_path / "no" / "b", tmp_path / "c"]
    errors = in_processes(Path.mkdir, paths, 2, lambda *tick: ticks.append(tick))
    assert [type(error) for error in errors] == [type(None), FileNotFoundError, type(None)]
    assert [path.exists() for path in paths] == [True, False, True]
    assert ticks == [(0, 3), (1, 3), (2, 3), (3, 3)]


def test_ctrl_c_begins_nothing_more(tmp_path: Path) -> None:
    def interrupt(done: int, total: int) -> None:
        if done:
            raise KeyboardInterrupt

    paths = [tmp_path / str(i) for i in range(500)]
    with pytest.raises(KeyboardInterrupt):
        in_processes(Path.mkdir, paths, 2, interrupt)
    assert 1 <= len(list(tmp_path.iterdir())) <= 2


def test_the_program_that_calls_is_not_run_again(tmp_path: Path) -> None:
    """A script that does not ask whether it is the main module is common."""
    script = tmp_path / "script.py"
    made = tmp_path / "made"
    script.write_text(
        "from pathlib import Path\n"
        "from layoutconv.base.processes import in_processes\n"
        "print('started')\n"
        f"assert in_processes(Path.mkdir, [Path({str(made)!r})], 1) == [None]\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, check=True)
    assert done.stdout == "started\n"
    assert made.is_dir()
