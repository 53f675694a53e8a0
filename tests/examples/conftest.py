"""Examples are files, not modules of the package: tests load them by path."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pictures are written where the tests run: in a folder that goes away."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Callable[..., ModuleType]:
    """The module of ``examples/NAME.py``, loaded anew; it may import its neighbours.

    Names of it that are given are what is given: each test has a module of its own.
    """
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name: str, **given: Any) -> ModuleType:
        spec = importlib.util.spec_from_file_location(f"example_{name}", EXAMPLES / f"{name}.py")
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
        assert given.keys() <= vars(module).keys()
        vars(module).update(given)
        return module

    return load
