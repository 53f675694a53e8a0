"""The contents of an installation, and the cost of importing it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from pathlib import Path

import pytest

import layoutconv

from .warm_process import run_python

ROOT = Path(__file__).resolve().parents[1]


def python(code: str, folder: Path = ROOT) -> str:
    """Return what ``code`` prints in a new interpreter, started in ``folder``."""
    command = [sys.executable, "-c", code]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout


def test_import_brings_nothing_heavy() -> None:
    heavy = {"torch", "numpy", "cutlass", "tvm_ffi", "layoutconv.conv", "layoutconv.kernels"}
    heavy |= {"click", "layoutconv.cli", "dataclasses", "inspect", "ast"}
    loaded = set(python("import sys, layoutconv; print(*sys.modules)").split())
    assert "layoutconv.algebra.layout" in loaded
    assert loaded & heavy == set()


def test_networks_bring_no_compiler() -> None:
    """``torch._dynamo`` takes as long to import as torch, and ``torch.compile`` imports it."""
    loaded = set(python("import sys, layoutconv.nn; print(*sys.modules)").split())
    assert {"torch", "layoutconv.nn.fuse"} <= loaded
    assert loaded & {"torch._dynamo", "torch._inductor", "cutlass"} == set()


def test_import_takes_a_moment() -> None:
    """60 ms with the interpreter's start, on a machine of our own: twice what some modules of
    the standard library take there, and on a busy machine.
    """
    ours, theirs = (
        min(seconds_to_import(modules) for _ in range(3))
        for modules in ("layoutconv", "argparse, asyncio, decimal, email.message, unittest")
    )
    assert ours < 4 * theirs


def seconds_to_import(modules: str) -> float:
    """CPU time of an interpreter that imports them and ends."""
    code = f"import resource, {modules}; print(resource.getrusage(resource.RUSAGE_SELF).ru_utime)"
    return float(python(code))


def copy_checkout(to: Path) -> None:
    everything = shutil.ignore_patterns("__pycache__", ".*", "*.egg-info", "build", "dist")
    shutil.copytree(ROOT, to, ignore=everything, symlinks=True)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an archive of the sources and a wheel, built from a copy of the checkout."""
    folder = tmp_path_factory.mktemp("built")
    copy_checkout(folder / "checkout")
    build = "from setuptools.build_meta import build_sdist, build_wheel; "
    python(build + "build_wheel('..'); build_sdist('..')", folder / "checkout")
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    """The unpacked files of the wheel."""
    (path,) = built.glob("*.whl")
    zipfile.ZipFile(path).extractall(built / "files")
    return built / "files"


def test_a_wheel_has_the_package_and_nothing_else(wheel: Path) -> None:
    """Folders that the package has links to among them."""
    information = f"layoutconv-{layoutconv.__version__}.dist-info"
    assert {path.name for path in wheel.iterdir()} == {"layoutconv", information}
    package = ROOT / "layoutconv"
    links = package / "kernels", package / "benchmarks"
    files = [p for p in package.rglob("*.py") if not any(link in p.parents for link in links)]
    rooms = {p.relative_to(package) for p in files}
    kernels = {p.relative_to(ROOT) for p in (ROOT / "kernels").rglob("*.py")}
    benchmarks = {p.relative_to(ROOT) for p in (ROOT / "benchmarks").rglob("*.py")}
    packed = {p.relative_to(wheel / "layoutconv") for p in wheel.rglob("*.py")}
    assert packed == rooms | kernels | benchmarks
    assert (wheel / "layoutconv" / "gpu" / "shipped.json").is_file()
    assert (wheel / "layoutconv" / "py.typed").is_file()
    assert (wheel / information / "licenses" / "LICENSE").is_file()


@pytest.mark.parametrize(
    ("system", "machine", "installed"),
    [
        ("Linux", "x86_64", "kernels"), ("Linux", "aarch64", "kernels"),
        ("Linux", "ppc64le", "torch"), ("Windows", "AMD64", "kernels"), ("Windows", "ARM64", ""),
        ("Darwin", "arm64", "torch"), ("Darwin", "x86_64", ""),
    ],
)  # fmt: skip
def test_dependencies_are_those_of_the_platform(
    wheel: Path, system: str, machine: str, installed: str
) -> None:
    """pip finds no wheel of the DSL or torch elsewhere, and would install nothing at all."""
    requirements = pytest.importorskip("packaging.requirements")
    (metadata,) = wheel.glob("*.dist-info/METADATA")
    lines = re.findall(r"^Requires-Dist: (.*)$", metadata.read_text("utf-8"), re.M)
    environment = {"platform_system": system, "platform_machine": machine, "extra": ""}
    wanted = {
        found.name
        for found in map(requirements.Requirement, lines)
        if found.marker is None or found.marker.evaluate(environment)
    }
    kernels = {"nvidia-cutlass-dsl", "apache-tvm-ffi", "torch"}
    more = {"kernels": kernels, "torch": {"torch"}, "": set()}[installed]
    assert wanted == {"numpy", "click", "tabulate", "matplotlib"} | more


def test_a_wheel_is_built_of_the_source_archive(built: Path, tmp_path: Path) -> None:
    """The archive has all that a wheel takes, and no tests without what they read."""
    (archive,) = built.glob("*.tar.gz")
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path / "archive", filter="data")
    (unpacked,) = (tmp_path / "archive").iterdir()
    assert not (unpacked / "tests").exists()
    build = "from setuptools.build_meta import build_wheel; build_wheel('..')"
    python(build, unpacked)
    one, other = (
        set(zipfile.ZipFile(next(folder.glob("*.whl"))).namelist())
        for folder in (built, unpacked.parent)
    )
    assert one == other


def test_a_registry_takes_what_is_built(built: Path) -> None:
    """The description renders, and the fields of the metadata are ones that there are."""
    pytest.importorskip("twine")
    files = [str(path) for kind in ("*.whl", "*.tar.gz") for path in built.glob(kind)]
    command = [sys.executable, "-m", "twine", "check", "--strict", *files]
    said = subprocess.run(command, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
    assert len(files) == 2


def test_a_wheel_is_used_from_anywhere(wheel: Path) -> None:
    code = "import layoutconv.planning.kernel_key as s, layoutconv.algebra as a; "
    code += "from layoutconv.cli import bench; b = bench.load('bench_algebra'); "
    printed = python(code + "print(s.__file__, a.__file__, b.__file__)", wheel).split()
    found = [Path(name).relative_to(wheel).parts[1] for name in printed]
    assert found == ["planning", "algebra", "benchmarks"]


FIRST_DAY = {
    "layouts": "swizzled  a column is in banks [0, 1, 2, 3, 4, 5, 6, 7]: 8 of 8",
    "cloud": "of the points right",
    "kernel": "equals torch: True",
    "network": "6 of 6 convolutions swapped",
}


@pytest.mark.parametrize("script", FIRST_DAY)
def test_a_first_day(script: str, wheel: Path, tmp_path: Path) -> None:
    """Scripts of four kinds of users run with what a wheel has, far from the checkout, and without
    the CuTe DSL and POSIX, which macOS and Windows have none of.
    """
    own = tmp_path / f"{script}.py"
    shutil.copy(ROOT / "examples" / "first_day" / own.name, own)
    environment = {**os.environ, "PYTHONPATH": str(wheel)}
    hidden = "import runpy, sys, warnings; warnings.simplefilter('error', UserWarning); "
    hidden += f"sys.path.append({str(ROOT / 'tests')!r}); "
    hidden += "from without_posix import hide; hide(); "
    # Torch's threads would wait for each other, on cores that other tests are on.
    hidden += "import torch; torch.set_num_threads(1); "
    hidden += f"import layoutconv; assert layoutconv.__file__.startswith({str(wheel)!r}); "
    hidden += f"runpy.run_path({str(own)!r}, run_name='__main__')"
    run = run_python(["-c", hidden], tmp_path, environment, timeout=60)
    assert run.returncode == 0, run.stderr
    assert FIRST_DAY[script] in run.stdout


def test_a_checkout_without_links(tmp_path: Path) -> None:
    """As git writes it where a file system has none: a small file that names the folder."""
    checkout = tmp_path / "checkout"
    copy_checkout(checkout)
    for name in ("kernels", "benchmarks"):
        link = checkout / "layoutconv" / name
        link.unlink()
        link.write_text(f"../{name}")
    build = f"from setuptools.build_meta import build_wheel; build_wheel({str(tmp_path)!r})"
    python(build, checkout)
    (path,) = tmp_path.glob("*.whl")
    packed = set(zipfile.ZipFile(path).namelist())
    for folder in (ROOT / "kernels", ROOT / "benchmarks"):
        wanted = {f"layoutconv/{p.relative_to(ROOT).as_posix()}" for p in folder.rglob("*.py")}
        assert wanted <= packed


def test_an_editable_install_is_a_plain_path(tmp_path: Path) -> None:
    """Editors and type checkers follow a path, and no import hook."""
    checkout = tmp_path / "checkout"
    copy_checkout(checkout)
    build = "from setuptools.build_meta import build_editable; "
    python(build + f"build_editable({str(tmp_path)!r})", checkout)
    (path,) = tmp_path.glob("*.whl")
    wheel = zipfile.ZipFile(path)
    (named,) = [name for name in wheel.namelist() if name.endswith(".pth")]
    assert wheel.read(named).decode().strip() == str(checkout)


# A user's program, and what type checkers say of it: errors of lines 6 and 7 alone.
SCRIPT = """
import layoutconv as lc
from layoutconv.planning.tile import TileConfig
from layoutconv.kernels.compile.store import load_kernel
tile = TileConfig((64, 64, 64))
tile.no_such_attribute(1)
load_kernel(3, 4, 5, 6, 7)
print(tile.mma_threads + lc.Layout((4, 8)).rank)
"""

# Of an installed package a checker says no errors. Torch's own types, which take most of the time,
# are for the types of the whole project, which mypy checks in every merge.
SETTINGS = """
[mypy]
[mypy-layoutconv.*]
follow_imports = silent
[mypy-torch.*,numpy.*]
follow_imports = skip
"""


@pytest.mark.parametrize("checker", ["mypy"])
def test_type_checkers_see_the_package(checker: str, wheel: Path, tmp_path: Path) -> None:
    """From outside the checkout, in the checkout's own folder and in a wheel's."""
    pytest.importorskip(checker)
    script, settings = tmp_path / "script.py", tmp_path / "mypy.ini"
    script.write_text(SCRIPT)
    settings.write_text(SETTINGS)
    command = [sys.executable, "-m", checker, str(script), str(ROOT / "examples" / "first_day")]
    for place in (ROOT, wheel):
        ways = os.environ | {"MYPYPATH": str(place)}
        said = subprocess.run(command, cwd=tmp_path, env=ways, capture_output=True, text=True)
        errors = [line for line in said.stdout.splitlines() if "error" in line]
        assert {tuple(line.split(":")[:2]) for line in errors[:-1]} == {
            (script.name, "6"), (script.name, "7")
        }, said.stdout  # fmt: skip
        assert "no_such_attribute" in errors[0]
        assert "load_kernel" in errors[1]


def test_a_folder_named_kernels_is_no_package_of_that_name() -> None:
    code = """
        import layoutconv.planning.tile, layoutconv.kernels, kernels
        print(getattr(kernels, "__file__", None), getattr(kernels, "__version__", None))
        print(layoutconv.kernels.__file__ is not None)
        try:
            from kernels import get_kernel
        except ImportError:
            print("no such name")
    """
    assert python(textwrap.dedent(code)) == "None None\nTrue\nno such name\n"


def test_another_package_named_kernels_is_found_behind_a_checkout(tmp_path: Path) -> None:
    (tmp_path / "kernels").mkdir()
    (tmp_path / "kernels" / "__init__.py").write_text("from .hub import get_kernel")
    (tmp_path / "kernels" / "hub.py").write_text("get_kernel = 'theirs'")
    code = f"""
        import sys
        sys.path.append({str(tmp_path)!r})
        import layoutconv.kernels
        from kernels import get_kernel, hub
        print(get_kernel, hub.get_kernel, sys.modules["kernels"].__file__)
    """
    assert python(textwrap.dedent(code)).startswith(f"theirs theirs {tmp_path}")
