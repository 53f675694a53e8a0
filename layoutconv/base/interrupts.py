"""Defer Ctrl-C until a block that must not be interrupted has ended."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Delay Ctrl-C: note it inside the block, and raise ``KeyboardInterrupt`` at its end.

    If a compiler calls Python from C++ and that call raises, the process ends. Nothing changes if
    something else handles the signal, or outside the main thread, the only one interrupted.

    >>> try:
    ...     with interrupted_afterwards():
    ...         signal.raise_signal(signal.SIGINT)
    ...         print("finished")
    ... except KeyboardInterrupt:
    ...     print("interrupted")
    finished
    interrupted
    """
    own = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not own or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)

    signal.signal(signal.SIGINT, note)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if came:
            raise KeyboardInterrupt
