"""Tests of what needs the CuTe DSL."""

from __future__ import annotations

import gc
from collections.abc import Generator, Iterator
from importlib.util import find_spec
from typing import Any

import pytest

collect_ignore_glob = [] if find_spec("cutlass") else ["test_*.py"]  # there is none but for Linux


@pytest.fixture(scope="module")
def launches() -> Iterator[Any]:
    """Launches of kernel maps in the simulator."""
    from .cloud_launcher import launches_of_maps

    with launches_of_maps() as launches:
        yield launches


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, Any, Any]:
    """Collect no garbage within a test: a kernel that is traced makes objects by the hundred
    thousand, and looking through them takes a tenth of the time.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
