"""pycute's own tests, with this library under its name: a checkout of CUTLASS has them.

Put ``python/`` of the checkout on PYTHONPATH.
"""

from __future__ import annotations

import builtins
import importlib.util
import re
import sys
import textwrap
import unittest
from pathlib import Path
from types import ModuleType

import pytest

import layoutconv.algebra as lc
from layoutconv.testing import WrongResultError

FUNCTIONS = 10  # of the seven files of CUTLASS 4.7


class _Integer(type):
    """pycute's class of integers, of which bool is none."""

    def __instancecheck__(cls, x):
        return cls.__subclasscheck__(type(x))

    def __subclasscheck__(cls, kind):
        return issubclass(kind, int) and kind is not bool


class Integer(metaclass=_Integer):
    """The only name of pycute's that the algebra has no counterpart of."""


def under_its_name():
    """This library as a module ``pycute``; Python's own max, filter and zip stay."""
    module = ModuleType("pycute")
    names = [name for name in lc.__all__ if not hasattr(builtins, name)]
    vars(module).update({name: getattr(lc, name) for name in names}, Integer=Integer)
    return module


def test_the_page_finds_a_fault_in_it():
    pytest.importorskip("pycute")
    page = (Path(__file__).parents[2] / "docs" / "algebra" / "testing.md").read_text()
    program = page[page.index("    import pycute\n") : page.index("It ends in `")]
    said = re.search(r"It ends in `WrongResultError: ([^`]+)`", page)[1]
    with pytest.raises(WrongResultError, match=re.escape(said)):
        exec(textwrap.dedent(program), {})


def test_its_own_tests_pass(monkeypatch):
    pycute = pytest.importorskip("pycute")
    folder = Path(pycute.__file__).parents[2] / "test" / "python" / "pycute"
    files = sorted(folder.glob("test_*.py"))
    if not files:
        pytest.skip("its tests are not beside it")
    monkeypatch.setitem(sys.modules, "pycute", under_its_name())
    suite = unittest.TestSuite()
    for file in files:
        spec = importlib.util.spec_from_file_location(f"pycute_{file.stem}", file)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        suite.addTests(unittest.defaultTestLoader.loadTestsFromModule(module))
    result = unittest.TestResult()
    suite.run(result)
    assert result.testsRun >= FUNCTIONS
    assert not result.failures + result.errors
