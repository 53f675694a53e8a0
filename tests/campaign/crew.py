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
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TextIO

from .results import Result, parse

ROOT = Path(__file__).resolve().parents[2]
LOG = 4000  # characters of a log that a result keeps


@dataclass
class Settings:
    """How workers are run.

    Args:
        patience: seconds without a word from a worker, before it is killed.
        command: starts a worker.
    """

    device: str = "cpu"
    workers: int = 1
    patience: float = 180.0
    minutes: float = float("inf")
    command: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, log: TextIO) -> subprocess.Popen[str]:
        command = self.command or (sys.executable, "-m", "tests.campaign.worker", self.device)
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **self.environment}
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True,
            cwd=ROOT, env=environment, bufsize=1,
        )  # fmt: skip


class Worker:
    """A process, started at the first request and again when it is gone."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None
        self._log: Any = None

    def ask(self, request: dict[str, Any]) -> Result | tuple[str, str, str]:
        """The result of a problem; or what became of the worker, at which stage, and its log."""
        if self._process is None or self._process.poll() is not None:
            self.stop()
            self._log = tempfile.TemporaryFile("w+")
            self._process = self._settings.start(self._log)
            self._rest = ""
        assert self._process.stdin is not None
        stage = "starts"
        try:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            while True:
                line = self._read()
                if line is None:
                    self._process.kill()
                    return "hang", stage, self._end()
                if not line:
                    return "crash", stage, self._end()
                if not line.startswith('{"stage"'):
                    return parse(line)
                stage = json.loads(line)["stage"]
        except (BrokenPipeError, json.JSONDecodeError):
            return "crash", stage, self._end()

    def _read(self) -> str | None:
        """A line; nothing where the process has ended, None where it says nothing."""
        assert self._process is not None
        assert self._process.stdout is not None
        stream = self._process.stdout.fileno()
        limit = time.monotonic() + self._settings.patience
        while "\n" not in self._rest:
            left = limit - time.monotonic()
            if left <= 0 or not select.select([stream], [], [], left)[0]:
                return None
            more = os.read(stream, 1 << 16)
            if not more:
                return ""
            self._rest += more.decode(errors="replace")
        line, self._rest = self._rest.split("\n", 1)
        return line

    def _end(self) -> str:
        """Wait for the end of the process; its exit status, and the end of its log."""
        assert self._process is not None
        try:
            status = self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        self._log.flush()
        self._log.seek(0)
        text = self._log.read()[-LOG:]
        self.stop()
        return f"{text}\nexit status {status}"

    def stop(self) -> None:
        if self._process is not None:
            for stream in (self._process.stdin, self._process.stdout):
                if stream is not None:
                    try:
                        stream.close()
                    except BrokenPipeError:
                        pass
            try:
                self._process.wait(20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            self._log.close()
            self._process = None


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
