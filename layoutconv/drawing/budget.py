"""Budgets: how much time and memory an expression typed by a stranger may take.

Time is processor time, so that a busy machine refuses nothing that an idle one draws. It is
measured in a process of its own (``worker.py``), prepared by ``limit_process``; elsewhere
``seconds`` measures nothing, and computations may take any time.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import FrameType

from .figure import MOST_CELLS

EVALUATION = 0.5  # seconds, for all operations of an expression; those of our examples take 0.002
_DRAWING = 4.0  # seconds, for a picture of 64 rows and columns; the largest takes 1.3
GRACE = 0.3  # seconds after which a process ends if its C code does not notice the time limit

_announce: Callable[[float], None] | None = None  # set in a limited process


class Exhausted(BaseException):
    """The time of :func:`seconds` is up. Not an ``Exception``, so that no handler swallows it."""


def drawing_seconds(limit: int) -> float:
    """Return how many seconds a picture of this many rows and columns may take.

    >>> drawing_seconds(32), drawing_seconds(64), drawing_seconds(128)
    (1.0, 4.0, 16.0)
    """
    return max(1.0, _DRAWING * min(limit * limit, MOST_CELLS) / 64**2)


@contextmanager
def seconds(limit: float) -> Iterator[None]:
    """Raise :class:`Exhausted` once the block took ``limit`` seconds of processor time."""
    if _announce is None:
        yield
        return
    _announce(limit)
    if not has_timers():
        yield
        return

    def raise_it(signal_number: int, frame: FrameType | None) -> None:
        _stop_timers()
        raise Exhausted(f"more than {limit:g} s")

    signal.signal(signal.SIGPROF, raise_it)
    signal.setitimer(signal.ITIMER_PROF, limit)
    # Python raises between two of its instructions. The signal of this timer has no handler: it
    # ends the process in any state.
    signal.setitimer(signal.ITIMER_VIRTUAL, limit + GRACE)
    try:
        yield
    finally:
        _stop_timers()


def has_timers() -> bool:
    """Tell if this platform can measure a process's own processor time."""
    return hasattr(signal, "setitimer")


def limit_process(memory: int, announce: Callable[[float], None]) -> None:
    """Limit this process from now on: to ``memory`` bytes, to no files, and by :func:`seconds`.

    ``announce`` is called with the seconds that each block may take, before it begins. If a
    platform cannot limit memory, it stays unlimited.
    """
    global _announce
    _announce = announce
    try:
        import resource
    except ImportError:  # Windows
        return
    wanted = {"RLIMIT_AS": memory, "RLIMIT_CORE": 0, "RLIMIT_FSIZE": 0, "RLIMIT_NOFILE": 64}
    for name, limit in wanted.items():
        with suppress(AttributeError, ValueError, OSError):  # macOS takes no RLIMIT_AS
            which = getattr(resource, name)
            hard = resource.getrlimit(which)[1]
            limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
            resource.setrlimit(which, (limit, limit))


def _stop_timers() -> None:
    signal.setitimer(signal.ITIMER_PROF, 0)
    signal.setitimer(signal.ITIMER_VIRTUAL, 0)
