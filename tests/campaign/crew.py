"""Workers in processes of their own, each with one problem at a time.

A worker that ends is a crash of the problem it had, and one that says nothing for ``patience``
seconds a hang, which is killed; another takes its place, and the rest goes on.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from .results import Result, parse

ROOT = Path(__file__).resolve().parents[2]
LOG = 4000  # characters of a log that a result keeps


@dataclass(frozen=True)
class Settings:
    """Options for running workers.

    Args:
        device, tiles: what ``worker`` is told.
        patience: seconds without a word from a worker, before it is killed.
        minutes: after which no problem begins.
        command: what starts a worker, instead of ``python -m tests.campaign.worker``.
    """

    device: str = "cpu"
    workers: int = 1
    patience: float = 120.0
    minutes: float = float("inf")
    command: tuple[str, ...] = ()
    tiles: str = "chosen"

    def start(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        worker = sys.executable, "-m", "tests.campaign.worker", self.device, self.tiles
        command = self.command or worker
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, cwd=ROOT,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


class Worker:
    """A process, started at the first request and again when it is gone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[bytes] | None = None
        self._open = ExitStack()  # its log

    def ask(self, request: dict[str, Any]) -> Result | tuple[str, str, str]:
        """The result of a problem; or what became of the worker, at which stage, and its log."""
        process = self._process
        if process is None or process.poll() is not None:
            self.stop()
            self._log = self._open.enter_context(tempfile.TemporaryFile())  # noqa: SIM115
            process = self._process = self._settings.start(self._log)
            self._rest = b""
        assert process.stdin is not None
        stage = "start"
        try:
            process.stdin.write(json.dumps(request).encode() + b"\n")
            process.stdin.flush()
            while line := self._read(process):
                if not line.startswith('{"stage"'):
                    return parse(line)
                stage = json.loads(line)["stage"]
        except (BrokenPipeError, json.JSONDecodeError):
            line = ""
        if line is None:
            process.kill()
        return "hang" if line is None else "crash", stage, self._end(process)

    def _read(self, process: subprocess.Popen[bytes]) -> str | None:
        """A line; "" where the process has ended, None where it says nothing."""
        assert process.stdout is not None
        stream = process.stdout.fileno()
        limit = time.monotonic() + self._settings.patience
        while b"\n" not in self._rest:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                return None
            more = os.read(stream, 1 << 16)
            if not more:
                return ""
            self._rest += more
        line, self._rest = self._rest.split(b"\n", 1)
        return line.decode(errors="replace")

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        """The end of the log of a process that is gone, and its exit status."""
        status = _ended(process)
        self._log.seek(0)
        text = self._log.read()[-LOG:].decode(errors="replace")
        self.stop()
        return f"{text}\nexit status {status}"

    def stop(self) -> None:
        """Let the process end: it reads no more requests."""
        process, self._process = self._process, None
        if process is not None:
            for stream in (process.stdin, process.stdout):
                with suppress(BrokenPipeError):
                    if stream is not None:
                        stream.close()
            _ended(process)
        self._open.close()


def _ended(process: subprocess.Popen[bytes]) -> int:
    """The exit status of a process that was asked to end, or that is killed now."""
    try:
        return process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def run_crew(
    batches: Iterable[list[dict[str, Any]]],
    settings: Settings,
    failed: Callable[[dict[str, Any], str, str, str], Result],
    take: Callable[[Result], None],
) -> int:
    """Run the requests of all batches, each batch by one worker; how many batches are left.

    Args:
        failed: the result of a request whose worker did not answer: it, status, stage and log.
        take: gets every result, one at a time.
    """
    waiting, lock = deque(batches), threading.Lock()
    limit = time.monotonic() + 60 * settings.minutes

    def work() -> None:
        worker = Worker(settings)
        try:
            while time.monotonic() < limit:
                with lock:
                    if not waiting:
                        return
                    batch = waiting.popleft()
                for request in batch:
                    if time.monotonic() >= limit:
                        break
                    answer = worker.ask(request)
                    if not isinstance(answer, Result):
                        answer = failed(request, *answer)
                    with lock:
                        take(answer)
        finally:
            worker.stop()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(settings.workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(waiting)
