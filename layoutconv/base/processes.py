"""Work in several processes at once, which Ctrl-C stops cleanly."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager, suppress
from multiprocessing.util import Finalize
from queue import SimpleQueue
from types import ModuleType
from typing import Any, Generic, TypeVar

from .fork_server import ADDED, CLOSE, IDLE, STOP, Answer, packed, serve, unpacked_error

Item = TypeVar("Item")
Tick = Callable[[int, int], None]


def in_processes(
    function: Callable[[Item], object],
    items: Sequence[Item],
    processes: int,
    tick: Tick | None = None,
    *,
    main: bool = False,
    ready: Callable[[], object] | None = None,
    forks: bool = True,
) -> list[BaseException | None]:
    """Call a function for each item in new processes; return each item's error, None without one.

    Arguments are as for :class:`Workers`; ``items`` are all items. ``tick(done, total)`` is called
    before the first and after each item.

    >>> in_processes(bool, [], 2)
    []
    """
    if not items:
        return []
    count = max(1, min(processes, len(items)))
    with Workers(function, count, main=main, ready=ready, forks=forks) as workers:
        for item in items:
            workers.add(item)
        return workers.finish(tick)


class Workers(Generic[Item]):
    """Processes that call a function for each item; items may come while others are running.

    No results come back: the function is called for its effects. It and the items must be
    picklable. A process imports the function's module, and runs nothing of the calling program,
    unless the function or items come from its main module: ``main``.

    The processes are forks of a server, which imports once, and waits a minute for more work from
    this process in an environment like the one in which it was started.

    On Ctrl-C, running calls finish, so that nothing is left half done, and no more begin. If the
    caller is killed, its processes end with it. If one of them is killed, its item gets a
    ``BrokenProcessPool``, and another process takes its place.

    Args:
        function: called with one item.
        processes: the most that run at once.
        main: run the caller's main module in the processes.
        ready: a function of a module, without arguments. The server calls it before it forks, for
            imports that the function makes.
        forks: False for a function that uses a GPU, which needs new processes.

    >>> with Workers(len, 2) as workers:
    ...     workers.add("abc")
    ...     workers.add(None, weight=3.0)
    ...     [type(error) for error in workers.finish()]
    [<class 'NoneType'>, <class 'TypeError'>]
    """

    def __init__(
        self,
        function: Callable[[Item], object],
        processes: int,
        *,
        main: bool = False,
        ready: Callable[[], object] | None = None,
        forks: bool = True,
    ) -> None:
        self._main = main or function.__module__ == "__main__"
        self._begin = pickle.dumps((function, ready)), max(1, processes), forks
        self._errors: list[BaseException | None] = []
        self._unanswered = 0
        self._server: _Server | None = None
        self._messages: SimpleQueue[Any] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()

    def start(self) -> None:
        """Start the server, which imports while the caller goes on; the first item also does so.

        >>> with Workers(len, 1) as workers:
        ...     workers.start()
        """
        if self._server is None:
            self._server = _Server.for_caller(self._main)
            self._messages.put(self._begin)
            for of in self._send, self._hear:  # both run at once, so neither side waits for room
                threading.Thread(target=of, args=(self._server,), daemon=True).start()

    def _send(self, server: _Server) -> None:
        with suppress(OSError):  # the server ended, which the other thread reports
            while (message := self._messages.get()) is not None:
                server.connection.send(message)

    def _hear(self, server: _Server) -> None:
        answer: Answer = (0, b"")
        while isinstance(answer, tuple):
            try:
                answer = server.connection.recv()
            except (EOFError, OSError):
                answer = packed(server.why_it_ended())
            self._answers.put(answer)

    def add(self, item: Item, weight: float = 0.0) -> None:
        """Queue an item for the function; of the waiting items, the heaviest starts first."""
        self.start()
        number = len(self._errors)
        self._errors.append(None)
        try:
            message = number, weight, pickle.dumps(item)
        except Exception as error:
            self._errors[number] = error
            return
        self._unanswered += 1
        self._messages.put(message)

    def __len__(self) -> int:
        """Return the number of items so far."""
        return len(self._errors)

    def finish(self, tick: Tick | None = None) -> list[BaseException | None]:
        """Wait for all items; return each item's error, None if it has none.

        ``tick(done, total)`` is called now, and after each item. Raises the error of the function's
        import, ``BrokenProcessPool`` if the server was killed, and ``SystemExit`` if it ended with
        the program while a daemon thread waited: that ends the thread silently.
        """
        if self._server is None:
            return self._errors  # there are no items
        self._messages.put(CLOSE)
        total = len(self._errors)
        if tick:
            tick(total - self._unanswered, total)
        while isinstance(answer := self._answers.get(), tuple):
            number, error = answer
            if error is None:
                self._unanswered += 1
                total += 1
            else:
                if number == ADDED:
                    self._errors.append(unpacked_error(error))
                else:
                    self._errors[number] = unpacked_error(error)
                self._unanswered -= 1
            if tick:
                tick(total - self._unanswered, total)
        self._over(answer)
        failed = unpacked_error(answer or b"")
        if failed is not None:
            raise failed
        return self._errors

    def _over(self, answer: Answer) -> None:
        """Give the server back if it reported the end, else end it."""
        server, self._server = self._server, None
        assert server is not None
        self._messages.put(None)
        if answer is None and not self._main:
            server.give_back()
        else:
            server.end()

    def __enter__(self) -> Workers[Item]:
        return self

    def __exit__(self, *error: object) -> None:
        """Finish the calls that have begun, and begin no more."""
        if self._server is None:
            return
        answer: Answer = b""
        if self._errors:  # else the server may still be importing, which is no longer needed
            self._messages.put(STOP)
            while isinstance(answer := self._answers.get(), tuple):
                pass
        self._over(answer)


class _Server:
    """A fork server of this process, and the environment in which it was started."""

    def __init__(self, main: bool) -> None:
        self._begun_in, self._since = _surroundings(), 0.0
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,))
        with _no_main_module(main):
            self._process.start()
        theirs.close()
        # Runs before multiprocessing waits for its processes at the end of this one, and ends the
        # server whatever it is doing, as a daemon thread may still be using it.
        self._program_ends = False
        self._finalizer = Finalize(None, self._end_with_program, exitpriority=100)

    @classmethod
    def for_caller(cls, main: bool) -> _Server:
        """Return an idle server, or a new one; if ``main``, a new one that ran the main module."""
        with suppress(IndexError):
            while not main:
                server = _idle.pop()
                fresh = time.monotonic() - server._since < IDLE / 2
                if fresh and server._begun_in == _surroundings() and server._process.is_alive():
                    return server
                server.end()
        return cls(main)

    def _end_with_program(self) -> None:
        self._program_ends = True
        self._process.terminate()

    def why_it_ended(self) -> BaseException:
        """Return the error for a caller that waits for an answer."""
        if self._program_ends:
            return SystemExit("the program ends")
        return BrokenProcessPool("the fork server of layoutconv ended")

    def give_back(self) -> None:
        """Keep the server for the next caller, if none is kept yet."""
        self._since = time.monotonic()
        if _idle:
            self.end()
        else:
            _idle.append(self)

    def end(self) -> None:
        """End the server, whatever it is doing."""
        self._finalizer.cancel()
        self._process.terminate()
        self._process.join()


_idle: list[_Server] = []  # at most one


def _surroundings() -> tuple[dict[str, str], list[str], str]:
    """Return the environment, search path and folder that a new process would inherit now."""
    return dict(os.environ), list(sys.path), os.getcwd()


# Guards sys.modules["__main__"]; a fork waits for it, so that no child finds it held.
_main_module = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # the servers belong to the parent
    os.register_at_fork(
        before=_main_module.acquire,
        after_in_parent=_main_module.release,
        after_in_child=_main_module.release,
    )


@contextmanager
def _no_main_module(needed: bool) -> Iterator[None]:
    """Keep processes started in this context from running the main module again, unless ``needed``.

    They would, to find its definitions, and a script without ``if __name__ == "__main__"`` would
    repeat all its work in each of them. Threads that pickle meanwhile still find the definitions.
    """
    with _main_module:
        main = sys.modules["__main__"]
        if needed:
            yield
            return
        nowhere = ModuleType("__main__")
        known = dict(vars(main))  # copied at once, as its globals may change
        vars(nowhere).update(known | {"__file__": None, "__spec__": None})
        sys.modules["__main__"] = nowhere
        try:
            yield
        finally:
            sys.modules["__main__"] = main
