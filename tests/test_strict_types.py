"""The rooms that ``mypy --strict`` holds in: what it refuses is refused in each of them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
STRICT = [
    "algebra", "base", "conv", "cpu", "deploy", "drawing", "gpu", "kernels/common",
    "kernels/compile", "kernels/gemm", "kernels/maps", "kernels/pointwise", "ops", "planning",
    "tensors", "tuning", "view",
]  # fmt: skip

# By line, what it breaks.
LAX = """\
from typing import Any, Generic, TypeVar
T = TypeVar("T")
class Box(Generic[T]): pass
def untyped(x): return x
def half(x: int, y): return None
def calls() -> None: untyped(1)
def any_of(x: Any) -> int: return x
def bare(x: Box) -> None: pass
def never(x: int) -> bool: return x == "a"
def unused() -> int: return 1  # type: ignore[no-any-return]
@untyped
def decorated() -> None: pass
"""
BROKEN = {
    (4, "no-untyped-def"), (5, "no-untyped-def"), (6, "no-untyped-call"), (7, "no-any-return"),
    (8, "type-arg"), (9, "comparison-overlap"), (10, "unused-ignore"), (11, "untyped-decorator"),
}  # fmt: skip


def test_rooms_are_strict(tmp_path: Path) -> None:
    """A file of each is read as if it had these lines, by the settings of the project."""
    pytest.importorskip("mypy")
    lax, empty = tmp_path / "lax.py", tmp_path / "empty.py"
    lax.write_text(LAX)
    empty.write_text("")
    package = ROOT / "layoutconv"
    files = [min((package / room).glob("*.py")) for room in STRICT]
    above = {package / "__init__.py", package / "kernels" / "__init__.py"}
    above |= {file.with_name("__init__.py") for file in files} - set(files)
    shadows = [(file, lax) for file in files] + [(file, empty) for file in above if file.is_file()]
    command = [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path), "--no-pretty"]
    command += [word for pair in shadows for word in ("--shadow-file", *map(str, pair))]
    said = subprocess.run([*command, *map(str, files)], cwd=ROOT, capture_output=True, text=True)
    found: dict[str, set[tuple[int, str]]] = {}
    for line in said.stdout.splitlines():
        place, error, why = line.partition(": error: ")
        if error:
            name, _, number = place.rpartition(":")
            code = (
                why.rpartition("[")[2].rstrip("]").replace("misc", "untyped-decorator")
            )  # of 1.15
            found.setdefault(name, set()).add((int(number), code))
    assert found == {str(file.relative_to(ROOT)): BROKEN for file in files}, said
