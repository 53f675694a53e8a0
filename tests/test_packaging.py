"""What is installed, and what importing it costs."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import layoutconv

ROOT = Path(__file__).resolve().parents[1]


def python(code: str, folder: Path = ROOT) -> str:
    """What ``code`` prints in a new interpreter, started in ``folder``."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_import_brings_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "cutlass", "tvm_ffi", "layoutconv.conv", "layoutconv.kernels"}
    heavy |= {"click", "layoutconv.cli"}
    loaded = set(python("import sys, layoutconv; print(*sys.modules)").split())
    assert "layoutconv.algebra.layout" in loaded
    assert loaded & heavy == set()


def test_import_takes_a_moment() -> None:
    """60 ms with the interpreter's start, on a machine of our own; the bound is for a busy one."""
    code = "import resource, layoutconv; print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)"
    assert min(float(python(code)) for _ in range(3)) < 0.12


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The unpacked files of a wheel, built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("wheel")
    checkout, files = folder / "checkout", folder / "files"
    everything = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, checkout, ignore=everything)
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(folder)!r})"
    python(build, checkout)
    (path,) = folder.glob("*.whl")
    zipfile.ZipFile(path).extractall(files)
    return files


def test_a_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    """A room that someone adds has to be named in pyproject.toml, or it is missed here."""
    information = f"layoutconv-{layoutconv.__version__}.dist-info"
    assert {path.name for path in wheel.iterdir()} == {"layoutconv", information}
    rooms = {p.relative_to(ROOT / "layoutconv") for p in (ROOT / "layoutconv").rglob("*.py")}
    kernels = {p.relative_to(ROOT) for p in (ROOT / "kernels").rglob("*.py")}
    benchmarks = {p.relative_to(ROOT) for p in (ROOT / "benchmarks").rglob("*.py")}
    packed = {p.relative_to(wheel / "layoutconv") for p in wheel.rglob("*.py")}
    assert packed == rooms | kernels | benchmarks
    assert (wheel / "layoutconv" / "tuning" / "shipped.json").is_file()
    assert (wheel / "layoutconv" / "py.typed").is_file()
    assert (wheel / information / "licenses" / "LICENSE").is_file()


def test_a_wheel_is_used_from_anywhere(wheel: Path) -> None:
    code = "import layoutconv.kernels.structure as s, layoutconv.algebra as a; "
    code += "from layoutconv.cli import bench; b = bench.load('bench_algebra'); "
    printed = python(code + "print(s.__file__, a.__file__, b.__file__)", wheel).split()
    found = [Path(name).relative_to(wheel).parts[1] for name in printed]
    assert found == ["kernels", "algebra", "benchmarks"]
