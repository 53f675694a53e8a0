"""Work in several processes at once, which Ctrl-C ends in order."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from multiprocessing.connection import wait
from types import ModuleType
from typing import TypeVar

Item = TypeVar("Item")
Tick = Callable[[int, int], None]


def in_processes(
    function: Callable[[Item], object],
    items: Sequence[Item],
    processes: int,
    tick: Tick | None = None,
    *,
    main: bool = False,
) -> list[BaseException | None]:
    """Call a function of each item, in new processes; what went wrong with each, None if nothing.

    Results are not brought back: the function is called for what it leaves behind. It and the items
    have to be picklable. A process has the imports of the function's module, and runs nothing of
    the program that called, unless the function is of its main module, or items are: ``main``.

    ``tick(done, total)`` is called before the first and after every one. On Ctrl-C, calls that
    have begun are finished, so that nothing is left half done, and no more begin. Where the caller
    is killed, its processes end with it.

    >>> in_processes(bool, [], 2)
    []
    """
    if not items:
        return []
    tick = tick or (lambda done, total: None)
    context = multiprocessing.get_context("spawn")
    count = max(1, min(processes, len(items)))
    pool = ProcessPoolExecutor(count, context, initializer=_belong_to_the_caller)
    errors: list[BaseException | None] = [None] * len(items)
    waiting = iter(enumerate(items))
    running: dict[Future[object], int] = {}
    try:
        tick(0, len(items))
        for done in range(1, len(items) + 1):
            # A pool queues what it is given, and what is queued cannot be taken back: so no more
            # than there are processes.
            with _no_main_module(
                main or function.__module__ == "__main__"
            ):  # processes start when work is submitted
                for at, item in islice(waiting, count - len(running)):
                    running[pool.submit(function, item)] = at
            finished = next(as_completed(running))
            errors[running.pop(finished)] = finished.exception()
            tick(done, len(items))
        return errors
    finally:
        pool.shutdown(cancel_futures=True)


def _belong_to_the_caller() -> None:
    """Leave Ctrl-C to the caller, and end when it does, even where it had no time to say so."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_caller, daemon=True).start()


def _end_with_the_caller() -> None:
    caller = multiprocessing.parent_process()
    if caller is not None:
        wait([caller.sentinel])
        os._exit(1)


@contextmanager
def _no_main_module(needed: bool) -> Iterator[None]:
    """Processes that start in this context do not run the main module again, if not ``needed``.

    They would, to find what is defined there, and a script without ``if __name__ == "__main__"``
    would do all of its work in each of them.
    """
    main = sys.modules["__main__"]
    if needed:
        yield
        return
    sys.modules["__main__"] = ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
