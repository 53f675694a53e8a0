"""The examples in the simulator's docstrings are true, and it imports nothing of what it tests."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CASES = "cases", "snippets", "tensor_cases"  # beside the tests, with examples of their own
MODULES = [m.name for m in pkgutil.iter_modules([str(HERE.parent)]) if m.name != "tests"]


@pytest.mark.parametrize("name", sorted([*MODULES, *(f"tests.{case}" for case in CASES)]))
def test_examples(name: str) -> None:
    module = importlib.import_module(f"tools.ptx_sim.{name}")
    assert doctest.testmod(module).failed == 0


def test_the_simulator_needs_only_numpy() -> None:
    path = f"import sys; sys.path.insert(0, {str(HERE.parents[1])!r}); import ptx_sim;"
    code = path + "print(*sorted({'torch', 'cutlass', 'tvm_ffi', 'layoutconv'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
