"""Processes that run numbered cases: one that ends or hangs is a finding, and another goes on."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import re
import resource
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

_SLICE = 200  # cases that a process reports at a time


@dataclass
class Found:
    """The outcomes of the cases: how many of each, and a line on each that went wrong."""

    counts: Counter = field(default_factory=Counter)
    wrong: list = field(default_factory=list)

    def __str__(self):
        counts = "\n".join(f"{count:10,} {name}" for name, count in sorted(self.counts.items()))
        return "\n".join([counts, *self.wrong[:100]])


def run(make_case, count, processes=2, limit=2.0, memory=None, first=0, seconds=None):
    """Run cases ``first`` to ``first + count``, and return what was :class:`Found`.

    Args:
        make_case: called once in each process; what it returns is called with the number of a case
            and returns its outcome, (name, None), or (name, a line that says what went wrong).
        limit: seconds that a case may take.
        memory: bytes that a process may have beyond what it starts with.
        seconds: when to stop, however many there are left.
    """
    context = multiprocessing.get_context("fork")
    found = Found()
    stop = None if seconds is None else time.monotonic() + seconds
    workers = [
        _Worker(context, make_case, range(first + at, first + count, processes), memory)
        for at in range(processes)
    ]
    try:
        while any(worker.process is not None for worker in workers):
            time.sleep(0.02)
            for worker in workers:
                worker.look(found, limit)
                if stop is not None and time.monotonic() > stop:
                    worker.end()
    finally:
        for worker in workers:
            worker.end()
    return found


class _Worker:
    """A process, and the numbers that it has not done."""

    def __init__(self, context, make_case, numbers, memory):
        self.context, self.make_case, self.memory = context, make_case, memory
        self.left = numbers
        # The case that runs, and when it began: what a process leaves that ends without a word.
        self.at = context.RawArray("d", [-1, 0])
        self.folder = tempfile.TemporaryDirectory()
        self.trace = Path(self.folder.name, "trace")
        self.start()

    def start(self):
        self.pipe, theirs = self.context.Pipe(duplex=False)
        arguments = self.make_case, self.left, theirs, self.at, self.memory, self.trace
        self.at[0] = -1
        self.process = self.context.Process(target=_work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def look(self, found, limit):
        if self.process is None:
            return
        number, began = int(self.at[0]), self.at[1]
        late = number >= 0 and time.monotonic() - began > 3 * limit
        if late:
            self.process.kill()
        if late or not self.process.is_alive():
            self.process.join()
            self.take(found)
            code = self.process.exitcode
            if number >= 0 and (late or code):
                name = "hang" if late else "abort"
                found.counts[name] += 1
                where = " < ".join(re.findall(r"line (\d+ in \w+)", self.trace.read_text())[:8])
                found.wrong.append(f"case {number}: {name}, exit code {code}, {where}")
                self.left = self.left[self.left.index(number) + 1 :]
                if self.left:
                    return self.start()
            elif code:
                found.wrong.append(f"a process ended with {code} and no case")
            self.process = None
        else:
            self.take(found)

    def take(self, found):
        while self.pipe.poll():
            try:
                counts, wrong = self.pipe.recv()
            except EOFError:
                return
            found.counts.update(counts)
            found.wrong += wrong

    def end(self):
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.process = None
        self.folder.cleanup()


def _work(make_case, numbers, pipe, at, memory, trace):
    faulthandler.enable(trace.open("w"), all_threads=False)

    # Messages of packages that panic say nothing that is not in the report.
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    if memory is not None:
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + memory, used + memory))
    case = make_case()
    counts, wrong = Counter(), []
    for done, number in enumerate(numbers, 1):
        at[1] = time.monotonic()
        at[0] = number
        try:
            name, line = case(number)
        except BaseException:
            name, line = "raw exception", traceback.format_exc().strip()
        counts[name] += 1
        if line is not None:
            wrong.append(f"case {number}: {name}: {line}")
        if done % _SLICE == 0:
            pipe.send((counts, wrong))
            counts, wrong = Counter(), []
    at[0] = -1
    pipe.send((counts, wrong))
    pipe.close()
