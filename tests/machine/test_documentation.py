"""The examples in the machine's docstrings are true, and it imports nothing of what it tests."""

from __future__ import annotations

import doctest
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parent
MODULES = [m.name for m in pkgutil.iter_modules([str(FOLDER)]) if not m.name.startswith("test_")]


@pytest.mark.parametrize(
    "name", sorted(set(MODULES) - {"dsl_kernels", "dsl_hopper", "dsl_im2col", "dsl_multicast"})
)
def test_examples(name: str) -> None:
    module = importlib.import_module(f"{__package__}.{name}")
    assert doctest.testmod(module).failed == 0


def test_the_machine_needs_only_numpy() -> None:
    code = (
        f"import sys; sys.path.insert(0, {str(FOLDER.parent)!r}); import machine;"
        "print(*sorted({'torch', 'cutlass', 'tvm_ffi', 'layoutconv'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
