"""The fork server of :mod:`.processes`: it imports once, and forks the worker processes.

A new interpreter imports torch and the CuTe DSL in seconds; sixteen at once take three times as
long. The server does so once. It is a new process with one thread and no CUDA context, so it may
fork, while its caller may not. Without ``fork``, its processes are spawned.
"""

from __future__ import annotations

import gc
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from heapq import heappop, heappush
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeAlias, cast

IDLE = 60.0  # seconds without a request after which a server ends
# Apple's libraries start threads on import, so "fork" is not safe there.
METHOD = "fork" if hasattr(os, "fork") and sys.platform != "darwin" else "spawn"
STOP, CLOSE = "stop", "close"  # drop waiting items; expect no more items
# For an item: its number and its error. For an item that another one added: -1 and None when it
# comes, -1 and its error when it is done. For the function: its error, if it cannot be loaded. For
# the end: None. Errors are pickled; an empty one means success.
Answer: TypeAlias = "tuple[int, bytes | None] | bytes | None"
ADDED = -1  # the number of an item that another one added


def serve(caller: Connection, idle: float = IDLE) -> None:
    """Run as a server for one function after another, until the caller ends or is idle."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    # Importing tvm_ffi asks torch for GPUs, which would start CUDA; no fork survives that.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    with suppress(EOFError, OSError):
        while caller.poll(idle):
            message = caller.recv()
            if message == STOP:  # for the previous function, which was done already
                continue
            begun, processes, forks = message
            try:
                function, ready = pickle.loads(begun)  # imports the function's module
                if ready is not None:
                    ready()
            except Exception as error:
                _drain(caller)
                caller.send(packed(error))
                continue
            _Dispatch(caller, function, processes, METHOD if forks else "spawn").run()
            caller.send(None)
        return
    os._exit(1)  # also ends the worker processes, for which a normal exit would wait


def _drain(caller: Connection) -> None:
    """Drop the items of a function that could not be loaded."""
    while caller.recv() not in (STOP, CLOSE):
        pass


class _Dispatch:
    """The items of one function: waiting ones, the heaviest first, and running ones."""

    def __init__(
        self, caller: Connection, function: Callable[..., object], most: int, method: str
    ) -> None:
        self._caller, self._function, self._most = caller, function, most
        self._context: Any = multiprocessing.get_context(method)
        self._waiting: list[tuple[float, int, bytes]] = []
        self._processes: dict[Connection, BaseProcess] = {}
        self._running: dict[Connection, int] = {}
        self._open, self._dropped, self._added = True, False, 0

    def run(self) -> None:
        """Process all items."""
        while self._open or self._waiting or self._running:
            for ready in wait([self._caller, *self._running]):
                if ready is self._caller:
                    while self._caller.poll():  # everything that came while the server imported
                        self._hear(self._caller.recv())
                else:
                    self._listen(cast("Connection", ready))
            self._begin()
        for connection in self._processes:
            with suppress(OSError):
                connection.send_bytes(b"")
        for process in self._processes.values():
            process.join()

    def _hear(self, message: Any) -> None:
        """Receive an item, or the message that there are no more."""
        if message in (STOP, CLOSE):
            self._open = False
            if message == STOP:
                self._dropped = True
                self._waiting.clear()
            return
        number, weight, item = message
        heappush(self._waiting, (-weight, number, item))

    def _begin(self) -> None:
        """Give each idle process an item, and start more processes."""
        while self._waiting and len(self._running) < self._most:
            idle = next((one for one in self._processes if one not in self._running), None)
            connection = idle or self._started()
            _, number, item = heappop(self._waiting)
            self._running[connection] = max(number, ADDED)
            with suppress(OSError):  # a process that ended is noticed when it does not answer
                connection.send_bytes(item)

    def _started(self) -> Connection:
        gc.freeze()  # so that a collection does not copy memory that processes share
        ours: Connection
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._function))
        process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def _listen(self, connection: Connection) -> None:
        """Receive items that an item adds; report results, and a process that ended."""
        try:
            said = connection.recv()
        except (EOFError, OSError):
            process = self._processes.pop(connection)
            process.join()
            said = packed(BrokenProcessPool(f"a process ended, exit code {process.exitcode}"))
        if isinstance(said, bytes):
            self._caller.send((self._running.pop(connection), said))
            return
        weight, item = said
        self._caller.send((ADDED, None))
        if self._dropped:
            self._caller.send((ADDED, b""))
        else:
            self._added += 1
            heappush(self._waiting, (-weight, -self._added, item))


def _work(server: Connection, function: Callable[..., object]) -> None:
    """Run as a worker process: call the function for each item."""
    global _server
    _server = server
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_the_server, daemon=True).start()
    while item := server.recv_bytes():
        error = b""
        try:
            function(pickle.loads(item))
        except BaseException as raised:
            error = packed(raised)
        server.send(error)


_server: Connection | None = None  # of this process, if it is a worker of a server


def add_item(item: object, weight: float = 0.0) -> None:
    """Queue one more item for the function, from within the function, in a worker process.

    The caller counts it from now on; if the caller drops waiting items, it is dropped, too.
    """
    assert _server is not None
    _server.send((weight, pickle.dumps(item)))


def _end_with_the_server() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def packed(error: BaseException) -> bytes:
    """Pickle an error, with the text of its traceback.

    >>> unpacked_error(packed(ValueError("a number")))
    ValueError('a number')
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # an error whose class cannot be rebuilt from its arguments
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps((error, text))


def unpacked_error(packed: bytes) -> BaseException | None:
    """Return the packed error, with its traceback as its cause; None for empty bytes.

    >>> unpacked_error(b"")
    """
    if not packed:
        return None
    error: BaseException
    error, text = pickle.loads(packed)
    error.__cause__ = RuntimeError(f"in another process:\n{text}")
    return error
