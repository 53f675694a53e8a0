"""The fork server of :mod:`.processes`: it imports once, and forks the processes that do the work.

A new interpreter imports torch and the CuTe DSL in seconds, sixteen of them at once in three times
as long. The server does so once. It is a new process, of one thread, that has no CUDA context, so
it may be forked, which its caller may not. Where there is no ``fork``, its processes are spawned.
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

IDLE = 60.0  # seconds after which a server that nobody asks anything ends
# Apple's libraries start threads as they are imported, so that "fork" is not safe there.
METHOD = "fork" if hasattr(os, "fork") and sys.platform != "darwin" else "spawn"
STOP, CLOSE = "stop", "close"  # drop what waits; expect no more
# Of an item, its number and its error; of one that another item added, -1 when it came, and when it
# is done; of the function, its error, where it cannot be had; the end. Errors are pickled, and
# nothing is one that is empty.
Answer: TypeAlias = "tuple[int, bytes | None] | bytes | None"
ADDED = -1  # the number of an item that another one added


def serve(caller: Connection, idle: float = IDLE) -> None:
    """Be a server: of one function after another, until the caller ends or asks for nothing."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the caller's
    # torch is asked for GPUs as tvm_ffi is imported, and would start CUDA, which no fork survives.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
    with suppress(EOFError, OSError):
        while caller.poll(idle):
            message = caller.recv()
            if message == STOP:  # of the function before, which was through
                continue
            begun, processes, forks = message
            try:
                function, ready = pickle.loads(begun)  # which imports what it is a function of
                if ready is not None:
                    ready()
            except Exception as error:
                _drain(caller)
                caller.send(packed(error))
                continue
            _Dispatch(caller, function, processes, METHOD if forks else "spawn").run()
            caller.send(None)
        return
    os._exit(1)  # and with it the processes, which it would wait for


def _drain(caller: Connection) -> None:
    """Drop the items of a function that there is not."""
    while caller.recv() not in (STOP, CLOSE):
        pass


class _Dispatch:
    """The items of one function: those that wait, the heaviest first, and those that run."""

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
        """Have all of them done."""
        while self._open or self._waiting or self._running:
            for ready in wait([self._caller, *self._running]):
                if ready is self._caller:
                    while self._caller.poll():  # all that came while the server imported
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
        """Take an item, or that there are no more."""
        if message in (STOP, CLOSE):
            self._open = False
            if message == STOP:
                self._dropped = True
                self._waiting.clear()
            return
        number, weight, item = message
        heappush(self._waiting, (-weight, number, item))

    def _begin(self) -> None:
        """Give each idle process an item, and start more of them."""
        while self._waiting and len(self._running) < self._most:
            idle = next((one for one in self._processes if one not in self._running), None)
            connection = idle or self._started()
            _, number, item = heappop(self._waiting)
            self._running[connection] = max(number, ADDED)
            with suppress(OSError):  # one that ended is noticed by what it does not say
                connection.send_bytes(item)

    def _started(self) -> Connection:
        gc.freeze()  # so that a collection copies no memory that processes share
        ours: Connection
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs, self._function))
        process.start()
        theirs.close()
        self._processes[ours] = process
        return ours

    def _listen(self, connection: Connection) -> None:
        """Take what an item adds; pass on what became of it, and of its process, if that ended."""
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
    """Be a process: call the function of each item."""
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


_server: Connection | None = None  # of this process, if it is one of a server's


def add_item(item: object, weight: float = 0.0) -> None:
    """Have the function called of one more item, by the function, of an item of which this runs.

    The caller counts it from now on; where it drops what waits, that one too.
    """
    assert _server is not None
    _server.send((weight, pickle.dumps(item)))


def _end_with_the_server() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)


def packed(error: BaseException) -> bytes:
    """An error as it travels, with the text of its traceback.

    >>> unpacked(packed(ValueError("a number")))
    ValueError('a number')
    """
    text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:  # of a class whose errors are not made of their arguments
        error = RuntimeError(f"{type(error).__name__}: {error}")
    return pickle.dumps((error, text))


def unpacked(packed: bytes) -> BaseException | None:
    """The error that was packed, with its traceback as its cause; None of nothing.

    >>> unpacked(b"")
    """
    if not packed:
        return None
    error: BaseException
    error, text = pickle.loads(packed)
    error.__cause__ = RuntimeError(f"in another process:\n{text}")
    return error
