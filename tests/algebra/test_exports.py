"""The names that the folder exports, and the little that it imports."""

from __future__ import annotations

import ast
import doctest
import importlib
import inspect
import subprocess
import sys
import types
from pathlib import Path

import pytest

import layoutconv
from layoutconv import algebra


def test_every_exported_name_is_the_thing_and_not_a_module():
    for name in algebra.__all__:
        value = getattr(algebra, name)
        assert not isinstance(value, types.ModuleType), name
        assert getattr(layoutconv, name) is value


def seen_by_the_type_checker(module: types.ModuleType) -> dict[str, str | None]:
    """The names that a package imports for the type checker alone, and where from."""
    tree = ast.parse(Path(module.__file__).read_text())
    guarded = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: node.module
        for node in guarded.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_what_is_loaded_later_is_what_the_type_checker_sees():
    seen = seen_by_the_type_checker(algebra)
    assert seen == algebra._HOME
    assert set(seen) <= set(algebra.__all__)


def test_every_top_level_name_is_there_and_seen_by_the_type_checker():
    pytest.importorskip("torch")
    seen = set(seen_by_the_type_checker(layoutconv)) - {"*"}
    assert seen == {*layoutconv._ROOMS, *layoutconv._HOME}
    assert len(set(layoutconv.__all__)) == len(layoutconv.__all__)
    for name in layoutconv.__all__:
        assert getattr(layoutconv, name) is not None


def test_the_algebra_imports_the_standard_library_alone():
    code = (
        "import sys, layoutconv.algebra as a; [getattr(a, n) for n in a.__all__];"
        "print(*sorted({m.split('.')[0] for m in sys.modules}))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert not {"numpy", "torch", "cutlass"} & set(loaded)
    assert "layoutconv" in loaded


def executed(module: str) -> set[str]:
    """The names whose examples tests/test_docstrings.py runs when it comes to a module."""
    found = doctest.DocTestFinder().find(importlib.import_module(module))
    return {test.name for test in found if test.examples}


@pytest.mark.parametrize("room", ["algebra", "testing", "testing.strategies", "testing.problems"])
def test_every_public_name_has_an_example_that_is_executed(room):
    module = importlib.import_module(f"layoutconv.{room}")
    here = executed(module.__name__)
    of_room = doctest.DocTestParser().get_examples(module.__doc__ or "")
    for name in module.__all__:
        value = inspect.unwrap(getattr(module, name))
        if f"{module.__name__}.{name}" in here:
            continue
        if not isinstance(value, type | types.FunctionType):
            if any(name in example.source for example in of_room):
                continue  # a constant has no docstring of its own
            value = type(value)
        assert f"{value.__module__}.{value.__qualname__}" in executed(value.__module__), name


def test_no_name_that_is_found_late_is_that_of_its_module():
    """Importing such a module would put it where the function is looked for."""
    assert not [name for name, home in algebra._HOME.items() if name == home]
