"""Python programs in processes of their own that need not import torch: that takes 2.7 s of each.

They are forked from a server, one of each test process, that has imported torch and nothing of
ours, and has run nothing. ``torch._dynamo``, which optimizers import too, is 1.2 s of it.
"""

from __future__ import annotations

import atexit
import faulthandler
import gc
import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

WARM = multiprocessing.get_context("forkserver")
WARM.set_forkserver_preload(
    ["torch", "torch.distributed", "torch.multiprocessing", "torch._dynamo"]
)


def run_python(
    arguments: Sequence[str],
    folder: Path | str = ".",
    environment: Mapping[str, str] | None = None,
    timeout: float = 300.0,
) -> subprocess.CompletedProcess[str]:
    """Do as ``subprocess.run([sys.executable, *arguments], capture_output=True, text=True)`` does.

    ``arguments`` are those of a script, ``-m module`` or ``-c code``. Raises ``TimeoutExpired``;
    then prints what the program printed, and where its threads were.
    """
    environment = dict(os.environ if environment is None else environment)
    with tempfile.TemporaryDirectory() as printed:
        paths = [os.path.join(printed, name) for name in ("out", "err")]
        process = WARM.Process(
            target=_run,
            args=(list(arguments), str(folder), environment, paths, 0.9 * timeout),
            daemon=False,
        )
        process.start()
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
            print(*_printed(paths), sep="\n")
            raise subprocess.TimeoutExpired(list(arguments), timeout)
        out, err = _printed(paths)
    return subprocess.CompletedProcess(list(arguments), process.exitcode, out, err)


def _printed(paths: list[str]) -> list[str]:
    return [Path(path).read_text() if os.path.exists(path) else "" for path in paths]


def _run(
    arguments: list[str],
    folder: str,
    environment: dict[str, str],
    printed: list[str],
    patience: float,
) -> None:
    for stream, path in zip((1, 2), printed, strict=True):
        file = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(file, stream)
        os.close(file)
    faulthandler.dump_traceback_later(patience, file=2)
    gc.freeze()  # torch is no garbage
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment)
    first, *rest = arguments
    ways = [way for way in environment.get("PYTHONPATH", "").split(os.pathsep) if way]
    own = str(Path(first).resolve().parent) if not first.startswith("-") else folder
    sys.path[:] = [own, *ways, *(way for way in sys.path if way and way not in ways)]
    try:
        if first == "-m":
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.argv = ["-c", *rest[1:]]
            exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
        else:
            sys.argv = arguments
            runpy.run_path(first, run_name="__main__")
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
