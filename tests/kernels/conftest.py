"""Tests of what needs the CuTe DSL."""

from __future__ import annotations

from collections.abc import Iterator
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
