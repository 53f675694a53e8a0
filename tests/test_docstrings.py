"""The examples in the docstrings of the package are true."""

from __future__ import annotations

import doctest
import inspect
import linecache
import pkgutil
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType

import pytest


def modules(package: str) -> set[str]:
    path = import_module(package).__path__
    return {package, *(m.name for m in pkgutil.walk_packages(path, f"{package}."))}


NAMES = modules("layoutconv") | modules("layoutconv.kernels")


def examples(module: ModuleType) -> Iterator[doctest.DocTest]:
    """The examples of a module, of each public name too, which may be loaded when it is asked for.

    A package may wrap functions of its modules: their examples know what their home knows.
    """
    for name in getattr(module, "__all__", ()):
        getattr(module, name)
    for test in doctest.DocTestFinder().find(module):
        own = vars(module).get(test.name.rpartition(".")[2])
        if hasattr(own, "__wrapped__"):
            home = getattr(inspect.unwrap(own), "__globals__", {})
            test.globs = {**home, **test.globs}
        yield test


@pytest.mark.usefixtures("spconv_not_imported")
@pytest.mark.parametrize("name", sorted(NAMES - {"layoutconv.__main__"}))
def test_examples(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if name.startswith("layoutconv.kernels."):
        pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    module, runner = import_module(name), doctest.DocTestRunner()
    # Each example has a debugger, which looks whether any file that was ever quoted has changed.
    monkeypatch.setattr(linecache, "cache", {})
    for test in examples(module):
        runner.run(test)
    assert runner.summarize(verbose=False).failed == 0
