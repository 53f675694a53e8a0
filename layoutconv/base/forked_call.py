"""A call in a fork of this process, which has everything that the main module defines."""

from __future__ import annotations

import multiprocessing
import signal
import warnings
from collections.abc import Callable
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection
from typing import Any

from .fork_server import METHOD, packed, unpacked_error

Add = Callable[..., None]


def can_fork() -> bool:
    """Return whether a process of several threads may be forked here.

    >>> can_fork() in (True, False)
    True
    """
    return METHOD == "fork"


def call_in_fork(function: Callable[[Add], None], add: Callable[..., object]) -> None:
    """Call a function in a fork; whatever it adds there is passed to ``add`` here, as it comes.

    No new process can import the main module of a notebook, standard input or ``python -c``, and a
    script without ``if __name__ == "__main__"`` would repeat its work there. A fork has what they
    define. It has one thread and no CUDA context, and the function must start neither.

    Raises the function's error, and ``BrokenProcessPool`` if its process was killed.

    >>> call_in_fork(lambda add: add("abc"), print)
    abc
    """
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_call, args=(function, theirs), daemon=True)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*multi-threaded, use of fork", DeprecationWarning)
        process.start()
    theirs.close()
    try:
        while isinstance(message := _received(ours), tuple):
            add(*message)
    finally:
        process.kill()
        process.join()
        ours.close()
    if (error := unpacked_error(message)) is not None:
        raise error


def _call(function: Callable[[Add], None], caller: Connection) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the caller handles Ctrl-C
    try:
        function(lambda *message: caller.send(message))
    except BaseException as error:
        caller.send(packed(error))
    else:
        caller.send(b"")


def _received(connection: Connection) -> Any:
    try:
        return connection.recv()
    except (EOFError, OSError):
        return packed(BrokenProcessPool("the process that called the function ended"))
