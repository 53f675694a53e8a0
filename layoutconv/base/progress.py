"""Progress of a long step as one line on a terminal; no output elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_BAR = 24


class Progress:
    """A line on ``stream``, by default standard error, that is overwritten until the step is done.

    Nothing is written unless the stream is a terminal, so logs and pipes stay clean.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        self.stream = sys.stderr if stream is None else stream
        self.shown = self.stream.isatty()
        self.name = ""

    @contextmanager
    def step(self, name: str) -> Iterator[Progress]:
        """Show ``name`` while the block runs."""
        self.name = name
        self._write(f"{name} ...")
        try:
            yield self
        finally:
            self._write("")

    def tick(self, done: int, total: int) -> None:
        """Show how much of the step is done, as a bar."""
        filled = _BAR * done // max(1, total)
        bar = "━" * filled + "┄" * (_BAR - filled)
        self._write(f"{self.name} {bar} {done}/{total}")

    def say(self, line: str) -> None:
        """Replace the line by another one."""
        self._write(line)

    def print(self, text: object) -> None:
        """Print on standard output in place of the line; the next ``tick`` shows the line again."""
        self._write("")
        print(text, flush=True)

    def _write(self, line: str) -> None:
        if self.shown:
            self.stream.write("\r\x1b[2K" + line)
            self.stream.flush()
