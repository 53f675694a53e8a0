"""Tests of what needs the CuTe DSL; those marked ``slow`` run when asked for, ``-m slow``."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("cutlass") else ["test_*.py"]  # there is none but for Linux


@pytest.fixture(scope="module")
def launches() -> Iterator[Any]:
    """Of kernel maps, in the machine."""
    from .cloud_launcher import launches_of_maps

    with launches_of_maps() as launches:
        yield launches


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "slow: minutes; runs when asked for with -m slow")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in config.getoption("markexpr"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    config.hook.pytest_deselected(items=slow)
    items[:] = [item for item in items if not item.get_closest_marker("slow")]
