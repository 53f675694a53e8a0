"""Work in several processes at once, which Ctrl-C ends in order."""

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

from .fork_server import ADDED, CLOSE, IDLE, STOP, Answer, packed, serve, unpacked

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
    """Call a function of each item, in new processes; what went wrong with each, None if nothing.

    Arguments as of :class:`Workers`, whose items are all there are. ``tick(done, total)`` is called
    before the first and after every one.

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
    """Processes that call a function of items, which may come while others are at work.

    Results are not brought back: the function is called for what it leaves behind. It and the items
    have to be picklable. A process has the imports of the function's module, and runs nothing of
    the program that called, unless the function is of its main module, or items are: ``main``.

    The processes are forks of a server, which imports once, and waits a minute for more work, of
    this process in an environment like the one that it was started in.

    On Ctrl-C, calls that have begun are finished, so that nothing is left half done, and no more
    begin. Where the caller is killed, its processes end with it. Where one of them is killed, its
    item has a ``BrokenProcessPool``, and another process takes its place.

    Args:
        function: of one item.
        processes: the most that are at work at once.
        main: run the caller's main module in the processes.
        ready: a function without arguments, of some module. The server calls it before it forks:
            for imports that the function makes.
        forks: False for a function that uses a GPU, whose processes have to be new ones.

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
        """Start the server, which imports while the caller goes on; the first item does that, too.

        >>> with Workers(len, 1) as workers:
        ...     workers.start()
        """
        if self._server is None:
            self._server = _Server.for_caller(self._main)
            self._messages.put(self._begin)
            for of in self._send, self._hear:  # as both sides are at work, neither waits for room
                threading.Thread(target=of, args=(self._server,), daemon=True).start()

    def _send(self, server: _Server) -> None:
        with suppress(OSError):  # the server ended, of which the other thread hears
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
        """Have the function called of an item; of items that wait, the heaviest is the first."""
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
        """The items so far."""
        return len(self._errors)

    def finish(self, tick: Tick | None = None) -> list[BaseException | None]:
        """Wait for all items; what went wrong with each, None if nothing.

        ``tick(done, total)`` is called now, and after every one. Raises what the function's import
        raised, ``BrokenProcessPool`` where the server was killed, and ``SystemExit`` where it ended
        with the program, as a daemon thread waited: that ends the thread, and prints nothing.
        """
        if self._server is None:
            return self._errors  # there are none
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
                    self._errors.append(unpacked(error))
                else:
                    self._errors[number] = unpacked(error)
                self._unanswered -= 1
            if tick:
                tick(total - self._unanswered, total)
        self._over(answer)
        failed = unpacked(answer or b"")
        if failed is not None:
            raise failed
        return self._errors

    def _over(self, answer: Answer) -> None:
        """Give the server back, if it said that all is done."""
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
        """Finish what has begun, and no more."""
        if self._server is None:
            return
        answer: Answer = b""
        if self._errors:  # else it may be at imports, which nobody wants
            self._messages.put(STOP)
            while isinstance(answer := self._answers.get(), tuple):
                pass
        self._over(answer)


class _Server:
    """A fork server of this process, and what it was started in."""

    def __init__(self, main: bool) -> None:
        self._begun_in, self._since = _surroundings(), 0.0
        context = multiprocessing.get_context("spawn")
        self.connection, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs,))
        with _no_main_module(main):
            self._process.start()
        theirs.close()
        # Before multiprocessing waits for its processes, as it does when this one ends; whatever it
        # is at, for a thread that does not keep this process from ending.
        self._program_ends = False
        self._finalizer = Finalize(None, self._end_with_program, exitpriority=100)

    @classmethod
    def for_caller(cls, main: bool) -> _Server:
        """A server that waits, or a new one, in which the main module ran, if that is wanted."""
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
        """Return the error of who waits for an answer of it."""
        if self._program_ends:
            return SystemExit("the program ends")
        return BrokenProcessPool("the fork server of layoutconv ended")

    def give_back(self) -> None:
        """Keep it for who comes next, if there is none yet."""
        self._since = time.monotonic()
        if _idle:
            self.end()
        else:
            _idle.append(self)

    def end(self) -> None:
        """Have it end, and whatever it does."""
        self._finalizer.cancel()
        self._process.terminate()
        self._process.join()


_idle: list[_Server] = []  # one at most


def _surroundings() -> tuple[dict[str, str], list[str], str]:
    """Return what a new process would find as it is here."""
    return dict(os.environ), list(sys.path), os.getcwd()


# Of what "__main__" is: a fork waits for it, so that no child finds it held.
_main_module = threading.RLock()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # they are the parent's
    os.register_at_fork(
        before=_main_module.acquire,
        after_in_parent=_main_module.release,
        after_in_child=_main_module.release,
    )


@contextmanager
def _no_main_module(needed: bool) -> Iterator[None]:
    """Processes that start in this context do not run the main module again, if not ``needed``.

    They would, to find what is defined there, and a script without ``if __name__ == "__main__"``
    would do all of its work in each of them. Threads that pickle meanwhile find it all the same.
    """
    with _main_module:
        main = sys.modules["__main__"]
        if needed:
            yield
            return
        nowhere = ModuleType("__main__")
        known = dict(vars(main))  # at once, as its globals may change
        vars(nowhere).update(known | {"__file__": None, "__spec__": None})
        sys.modules["__main__"] = nowhere
        try:
            yield
        finally:
            sys.modules["__main__"] = main
