"""What tests of several rooms share; those marked ``slow`` run when asked for, ``-m slow``."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture
def spconv_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide spconv's own modules, which tests that compare with it have imported."""
    for name in [name for name in sys.modules if name.split(".")[0] == "spconv"]:
        monkeypatch.delitem(sys.modules, name)


@pytest.fixture
def shared_cloud() -> Callable[[str], Path]:
    """The path of a real point cloud, by name; the test skips where there is none.

    They are not part of the project: they lie beside a checkout, in ``../shared/data``, or where
    the environment variable LAYOUTCONV_DATA says.
    """

    def find(name: str) -> Path:
        path = Path(os.environ.get("LAYOUTCONV_DATA", _BESIDE)) / name
        if not path.is_file():
            pytest.skip(f"no real point cloud at {path}; LAYOUTCONV_DATA may name its folder")
        return path

    return find


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: minutes; runs when asked for with -m slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]
