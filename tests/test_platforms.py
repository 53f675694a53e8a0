"""Platforms other than Linux: what runs there does without POSIX and without the CuTe DSL.

First-day programs are run so by ``test_packaging.py``, from a wheel.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from .warm_process import run_python

ROOT = Path(__file__).resolve().parents[1]
HIDDEN = f"import sys; sys.path.insert(0, {str(ROOT / 'tests')!r}); "
HIDDEN += "from without_posix import hide; hide(); "
IMPORTS = """
import layoutconv, pkgutil
from importlib import import_module
for module in pkgutil.walk_packages(layoutconv.__path__, "layoutconv."):
    if not module.name.startswith("layoutconv.benchmarks.") and "__main__" not in module.name:
        try:
            import_module(module.name)
        except ImportError as error:
            print(module.name, error.name)
"""
# A process for all of them: it takes two seconds to hide what Windows has none of.
RUN_EACH = """
from layoutconv.cli import main
for command in sys.argv[1:]:
    sys.argv = ["layoutconv", *command.split(" ")]
    try:
        main()
    except SystemExit as end:
        assert not end.code, (command, end.code)
    print(end="\\f")
"""
COMMANDS = {
    "draw (4,8):(8,1)": "8   9  10  11",
    "draw (4,8):(8,1) -o picture.svg": "",
    "draw zipped_divide((4,8):(8,1),(2,4)) --steps -o steps.html": "",
    "info": "CPU (",
    "cache list": "kernels",
}


def run(code: str, *arguments: str, folder: Path = ROOT) -> str:
    """Return what ``code`` prints where there is neither POSIX nor the DSL."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    said = run_python(["-c", HIDDEN + code, *arguments], folder, environment)
    assert said.returncode == 0, said.stderr
    return said.stdout


def test_only_kernels_want_the_dsl_and_nothing_wants_posix() -> None:
    refused = dict(line.split() for line in run(IMPORTS).splitlines())
    assert len(refused) > 30
    assert all(name.startswith("layoutconv.kernels.") for name in refused)
    assert not any(name.startswith("layoutconv.kernels.maps") for name in refused)  # of packs
    assert {wanted.partition(".")[0] for wanted in refused.values()} == {"cutlass"}


def test_commands(tmp_path: Path) -> None:
    told = run(RUN_EACH, *COMMANDS, folder=tmp_path).split("\f")
    assert len(told) == len(COMMANDS) + 1
    for (command, said), printed in zip(COMMANDS.items(), told, strict=False):
        assert said in printed, command
        if "-o" in command:
            assert (tmp_path / command.split()[-1]).stat().st_size > 1000


WITHOUT_TORCH = """
import sys

sys.modules["torch"] = None  # whoever imports it is refused
import layoutconv as lc
from layoutconv.cli import main
from layoutconv.conv import ConvProblem, fprop_view

assert str(lc.zipped_divide(lc.Layout((4, 8), (8, 1)), (2, 4))) == "((2,4),(2,2)):((8,1),(16,4))"
view = fprop_view(ConvProblem((1, 5, 5, 4), (8, 3, 3), padding=1))
assert all(o._repr_svg_() for o in (view, lc.mma_atom("m16n8k8.f16"), lc.Layout(8)))
for command in (
    "draw (4,8):(8,1)", "draw --view fprop:5x5,3x3 -o view.svg", "draw --gallery steps",
    "draw zipped_divide((4,8):(8,1),(2,4)) --steps -o steps.html", "cache list",
):
    assert main(command.split(" ")) == 0, command
for command in ("info", "demo", "compile --conv 1,8,8,8 --filter 8,3,3"):
    assert main(command.split(" ")) == 2, command
"""


def test_layouts_are_computed_and_drawn_without_torch(tmp_path: Path) -> None:
    """On Macs with Intel's processors and Windows on Arm there is none."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", WITHOUT_TORCH]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    wanted = "layoutconv: error: this needs torch, which is not installed: pip install torch\n"
    assert done.stderr == 3 * wanted
