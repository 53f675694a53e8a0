"""Settings of test runs."""

import gc
import os
from collections.abc import Generator
from typing import Any

import pytest

# Workers side by side get a thread each: with more, torch's threads wait for one another's.
if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.hookimpl(optionalhook=True)  # without pytest-xdist there are no workers
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Give every worker a part of the tests in their order, and who is done half of what is left.

    By default a worker is sent thousands of tests at once and keeps them: all kernels, which take
    longer than the rest, were one worker's, and the other was done long before. In their order,
    tests find what others of their file have made.
    """
    if config.getvalue("dist") != "load":
        return None
    from xdist.scheduler import WorkStealingScheduling

    return WorkStealingScheduling(config, log)


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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Collect no garbage within a test, but what it asks for itself.

    A kernel that is traced makes objects by the hundred thousand, and so does a tree of our sources
    that is parsed: looking through them took a tenth of the time of most rooms.
    """
    gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown() -> Generator[None, Any, Any]:
    """Collect the garbage of a test once, and pass over what else it has left ever after.

    Kernels that it compiled are millions of objects that no test frees: every test that collects
    garbage, to see what it holds, looked through them for a second, and so did the collections that
    are due after each test of a file.
    """
    try:
        return (yield)
    finally:
        gc.collect(0)
        gc.freeze()
