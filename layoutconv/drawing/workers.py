"""Workers: processes that evaluate typed text, and are ended if that takes too long.

A worker is started once and used many times. One that was ended is replaced at once: the next
request goes to another, or waits a moment for the new one.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from queue import Empty, Queue
from threading import Timer
from typing import Any

from ..algebra import LayoutBudgetError, LayoutTypeError, LayoutValueError
from ..errors import ArgumentError

STARTUP = 30.0  # seconds; it takes 0.1 on an idle machine
SLACK = 5.0  # seconds that may pass per second of processor time, on a busy machine
MEMORY = 1 << 30  # bytes, for a picture of 512 rows and columns
CODE = "import sys; sys.path.append({root!r}); from {package}.worker import main; main({memory})"
_ERRORS: dict[str, type[Exception]] = {
    "budget": LayoutBudgetError,
    "layout": LayoutValueError,
    "layout type": LayoutTypeError,
    "argument": ArgumentError,
    "value": ValueError,
    "fault": RuntimeError,
}


class RequestWorker:
    """A process for one request at a time; ``memory`` is the most bytes that it may take.

    ``code`` is the program it runs, with the root, the package and the memory filled in.
    """

    def __init__(self, memory: int, code: str = CODE) -> None:
        root = str(Path(__file__).resolve().parents[2])
        code = code.format(root=root, package=__package__, memory=memory)
        # Isolated, without site packages, it starts in half the time. In a session of its own it
        # gets no Ctrl-C, which the caller handles. It reads no environment, so `-B` is passed.
        bytecode = ["-B"] if sys.dont_write_bytecode else []
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", *bytecode, "-c", code],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=os.name == "posix",
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),
        )
        self._timers: bool | None = None  # does it stop itself in time? Known once it answered
        self.usable = True

    def call(self, task: str, arguments: dict[str, Any]) -> Any:
        """Return the result of a task of ``tasks.py``.

        Raises the task's error, and ``LayoutBudgetError`` if the process was ended. Afterwards,
        ``usable`` tells if it can be called again.
        """
        self.usable = False
        if self._timers is None:
            self._timers = self._started()
        try:
            answer = self._answer({"task": task, "arguments": arguments})
        except (EOFError, OSError):
            raise LayoutBudgetError("this takes more time or memory than is allowed") from None
        self.usable = not answer.get("ended")
        if "error" in answer:
            raise _ERRORS[answer["error"]](*answer["why"])
        return answer["result"]

    def close(self) -> None:
        """End the process, whatever it is doing."""
        self.usable = False
        self._process.kill()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):  # unsent data can no longer be sent
                pipe.close()
        self._process.wait()

    def _started(self) -> bool:
        try:
            with self._deadline(STARTUP):
                return bool(self._read()["timers"])
        except (EOFError, OSError):
            raise OSError(f"{sys.executable} did not start, to evaluate what was typed") from None

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, after the announcements of how long it may take."""
        assert self._process.stdin is not None
        allowed = STARTUP
        with self._deadline(allowed):
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        while True:
            with self._deadline(allowed):
                message = self._read()
            if "within" not in message:
                return message
            allowed = message["within"]
            if self._timers:  # it ends itself earlier, by processor time
                allowed = SLACK * allowed + 1

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line.endswith(b"\n"):
            raise EOFError
        message: dict[str, Any] = json.loads(line)
        return message

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        """End the process if the block takes longer; its output then ends."""
        timer = Timer(seconds, self._process.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()


class RequestWorkers:
    """Several workers, which several threads may call.

    Args:
        count: the number of processes.
        memory: the bytes that each may take.
        code: the program of each, by default that of ``worker.py``.

    >>> with RequestWorkers(1) as workers:
    ...     workers.call("page", {"expression": "(4,2)(", "limit": 8})[0]
    False
    """

    def __init__(self, count: int, memory: int = MEMORY, code: str = CODE) -> None:
        self._start = partial(RequestWorker, memory, code)
        self._free: Queue[RequestWorker] = Queue()
        self._all = [self._start() for _ in range(count)]
        self._closed = False
        for worker in self._all:
            self._free.put(worker)

    def call(self, task: str, arguments: dict[str, Any], patience: float | None = None) -> Any:
        """Call :meth:`RequestWorker.call` of the worker that has been free for longest.

        Raises ``TimeoutError`` if none becomes free within ``patience`` seconds.
        """
        try:
            worker = self._free.get(timeout=patience)
        except Empty:
            raise TimeoutError("every worker is busy; try again in a moment") from None
        try:
            return worker.call(task, arguments)
        finally:
            self._free.put(worker if worker.usable else self._replaced(worker))

    def close(self) -> None:
        """End all workers."""
        self._closed = True
        for worker in self._all:
            worker.close()

    def _replaced(self, worker: RequestWorker) -> RequestWorker:
        worker.close()
        if self._closed:
            return worker
        fresh = self._start()
        self._all[self._all.index(worker)] = fresh
        return fresh

    def __enter__(self) -> RequestWorkers:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@cache
def own_worker() -> RequestWorkers:
    """Return the one worker of this process, which ends with it."""
    workers = RequestWorkers(1)
    atexit.register(workers.close)
    return workers
