"""Tests of what needs the CuTe DSL."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import pytest

from ..stand_ins import Gpu

collect_ignore_glob = [] if find_spec("cutlass") else ["test_*.py"]  # there is none but for Linux


@pytest.fixture(scope="module")
def launches() -> Iterator[Any]:
    """Launches of kernel maps in the simulator."""
    from .cloud_launcher import launches_of_maps

    with launches_of_maps() as launches:
        yield launches


@pytest.fixture(scope="module")
def simulated() -> Iterator[Any]:
    """Launches of kernels of clouds in the simulator, with all CTAs that they ask for."""
    from .cloud_launcher import in_the_machine

    with in_the_machine() as launches:
        yield launches


@pytest.fixture
def loader(monkeypatch: pytest.MonkeyPatch, gpu: Gpu) -> Iterator[Callable[..., None]]:
    """A function: on an A100 that is not there, ``load`` loads kernels, as a ``name`` of a module.

    ``kept``, which keeps what was loaded, forgets that before and after.
    """
    memories: list[Any] = []

    def stand_in(module: ModuleType, name: str, load: Callable[..., Any], kept: Any) -> None:
        gpu.like("sm_80")
        gpu.says(current_device=-1)
        monkeypatch.setattr(module, name, load)
        memories.append(kept)
        kept.cache_clear()

    yield stand_in
    for kept in memories:
        kept.cache_clear()
