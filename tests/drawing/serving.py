"""A server in a thread, and workers with operations that take for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pytest

from layoutconv.drawing import workers
from layoutconv.drawing.serve import Server

# One runs for ever, one does so where Python looks at no signal, and one takes all memory.
_OPERATIONS = """
from layoutconv import algebra
def spin(a):
    while True:
        pass
algebra.nullspace = spin
algebra.flatten_layout = lambda a: sum(range(10**12))
algebra.make_layout_like = lambda a: bytearray(1 << 40)  # at once: a clock must not come first
"""


@contextmanager
def served() -> Iterator[Server]:
    """A server that answers."""
    with Server() as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def slow_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give them to the workers that are started from now on."""
    head, _, tail = workers._CODE.partition("; from")
    monkeypatch.setattr(workers, "_CODE", f"{head}{_OPERATIONS}from{tail}")
