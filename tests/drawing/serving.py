"""A server in a thread, and workers with operations that take for ever."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

from layoutconv.drawing.serve import Server
from layoutconv.drawing.workers import CODE

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


_HEAD, _, _TAIL = CODE.partition("; from")
SLOW = f"{_HEAD}{_OPERATIONS}from{_TAIL}"  # the code of workers with such operations


@contextmanager
def served(code: str = CODE) -> Iterator[Server]:
    """A server that answers."""
    with Server(code=code) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()
