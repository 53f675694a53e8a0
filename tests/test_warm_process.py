"""Programs in warm processes: as those of ``subprocess``, but for the time that torch takes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .warm_process import run_python

SCRIPT = """
import atexit, os, sys
assert __name__ == "__main__"
atexit.register(print, "the end")
print(sys.argv[1:], os.getcwd(), os.environ["WORD"], os.path.dirname(sys.path[0]) and sys.path[0])
print("what is wrong", file=sys.stderr)
if "fail" in sys.argv:
    sys.exit(3)
if "raise" in sys.argv:
    raise ValueError("on purpose")
"""


@pytest.mark.parametrize("word", ["succeed", "fail", "raise"])
@pytest.mark.parametrize("kind", ["script", "module"])
def test_a_program_sees_and_says_the_same(kind: str, word: str, tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(SCRIPT)
    arguments = ["-m", "program"] if kind == "module" else [str(tmp_path / "program.py")]
    environment = {"WORD": "given", "PATH": "/usr/bin"}
    command = [*arguments, "one", word]
    warm = run_python(command, tmp_path, environment)
    cold = subprocess.run(
        [sys.executable, *command], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert (warm.returncode, warm.stdout) == (cold.returncode, cold.stdout)
    assert warm.stderr.splitlines()[0] == cold.stderr.splitlines()[0] == "what is wrong"
    assert ("ValueError: on purpose" in warm.stderr) == (word == "raise")


def test_nothing_of_ours_is_there_before(tmp_path: Path) -> None:
    code = "import sys; print(*{name.split('.')[0] for name in sys.modules})"
    names = run_python(["-c", code], tmp_path).stdout.split()
    assert "torch" in names
    assert {"layoutconv", "cutlass", "tvm_ffi"}.isdisjoint(names)


def test_one_that_does_not_end_is_ended_and_says_where_it_was(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "import time\nprint('it began', flush=True)\ntime.sleep(60)"
    with pytest.raises(subprocess.TimeoutExpired):
        run_python(["-c", code], tmp_path, timeout=3)
    said = capsys.readouterr().out
    assert said.startswith("it began")
    assert 'File "<string>", line 3 in <module>' in said
