"""A process as on Windows, as far as Linux can play that: without POSIX, and without the CuTe DSL.

Modules of other packages are imported before, with what they found here.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from importlib import import_module

MODULES = "fcntl resource pwd grp termios tty pty curses readline syslog posix cutlass tvm_ffi"
OF_OS = (
    "chown fchmod fchown fork forkpty fstatvfs getegid geteuid getgid getloadavg getpgid getuid "
    "killpg memfd_create mkfifo nice posix_fallocate pread pwrite sched_getaffinity "
    "sched_setaffinity setsid statvfs sysconf uname waitid "
    "O_CLOEXEC O_DIRECTORY O_NOATIME O_NOFOLLOW O_NONBLOCK WNOHANG"
)
# SIGKILL stays: the standard library's own way to end a process is another on Windows.
OF_SIGNAL = (
    "alarm pthread_sigmask setitimer ITIMER_PROF ITIMER_VIRTUAL SIGALRM SIGHUP SIGPIPE SIGPROF "
    "SIGUSR1 SIGUSR2 SIGVTALRM"
)
THEIRS = (
    "torch numpy matplotlib.pyplot click tabulate plotly multiprocessing subprocess http.server "
    "tempfile shutil asyncio runpy"
)


def hide() -> None:
    """Take from this process what Windows has none of."""
    for name in THEIRS.split():
        with suppress(ModuleNotFoundError):  # plotly is an extra
            import_module(name)
    sys.modules.update(dict.fromkeys(MODULES.split()))  # type: ignore[arg-type]
    for module, names in ((os, OF_OS), (signal, OF_SIGNAL)):
        for name in names.split():
            if hasattr(module, name):
                delattr(module, name)
