"""Settings of test runs."""

import gc
import os
from collections.abc import Generator
from typing import Any

import pytest

# Workers side by side get a thread each: with more, torch's threads wait for one another's.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    """Collect no garbage while modules are imported, and pass over what they made ever after.

    Every full collection would look through torch, the DSL and 14,000 tests, 850,000 objects that
    live as long as the run.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
