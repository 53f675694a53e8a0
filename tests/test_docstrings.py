"""The examples in the docstrings of the package are true."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest


def modules(package: str) -> set[str]:
    path = import_module(package).__path__
    return {package, *(m.name for m in pkgutil.walk_packages(path, f"{package}."))}


NAMES = modules("layoutconv") | modules("layoutconv.kernels")


@pytest.mark.usefixtures("spconv_not_imported")
@pytest.mark.parametrize("name", sorted(NAMES - {"layoutconv.__main__"}))
def test_examples(name: str) -> None:
    if name.startswith("layoutconv.kernels."):
        pytest.importorskip("cutlass", reason="the CuTe DSL is not installed")
    assert doctest.testmod(import_module(name)).failed == 0
