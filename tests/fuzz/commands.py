"""Fuzz the command line: every command, with options and values that make no sense.

    python -m tests.fuzz.commands --count 10000 [--seed 0]
    python -m tests.fuzz.commands --case draw:0:4711

Whatever is typed, the exit status is a documented one, nothing is raised, and what is said of a
mistake is a bounded, printable sentence on standard error. Commands run in a folder of their own.
GPUs and the scripts of benchmarks are not there: ``bench`` is only asked to call them.
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from functools import partial
from io import StringIO
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import click
import numpy as np

from layoutconv.cli import bench, main
from layoutconv.cli import draw as draw_command
from layoutconv.cli.app import commands

from .report import Report, WrongError, main_of, run
from .typed import damaged, expression, heavy, hostile, notation

Main = Callable[[list[str]], int]
SECONDS = 60.0  # for one command on a busy machine; those that compute take one
LONGEST = 5000  # characters that a mistake is answered with
NUMBERS = (
    "0", "1", "2", "3", "4", "8", "16", "-1", "-0", "+3", "1_0", "²", "٣", "1e9", "1e-30", "nan",
    "inf", "-inf", "0.2", "0x10", "", " ", "3 ", "2147483648", "9" * 19, "9" * 400, "9" * 5000,
)  # fmt: skip
EXTENTS = (
    "2,8,8,16", "16,3,3", "1,4,4,4,8", "8,1,1,1", "2,8,8,16,16,16", "1,1", "0,0,0", "-1,2,3",
    "16x8", "16,8", "²,²", "1,,1", ",", "999999999,999999999,8,8", "1,999999999,999999999,1",
    "a,b", "1.5,2", "8" * 40 + ",1",
)  # fmt: skip
PATTERNS = (
    "(", ")", "[", "a{99999999999}", "(?i)x", "*", "\\", "(?P<a>", "x" * 5000, "(" * 5000, ".*",
    "construct", "unet.* fprop fp16", "(a|b", "(?<=a*)b", "\\1", "[z-a]", "{}", "{0}",
)  # fmt: skip
PATHS = (
    "a.svg", "a.html", "a.tex", "a.txt", "a.png", "a.pdf", "a.bmp", "a", ".", "..", "", "/dev/full",
    "/dev/null/x.svg", "no/such/a.svg", "points.bin", "points.npy", "noise.ply", "noise.las",
    "\0", "\udcff.svg", "x" * 300 + ".svg", "folder.svg", "-", "~",
)  # fmt: skip
# What a command needs, so that it does something.
NEEDED: dict[str, tuple[tuple[str, ...], ...]] = {
    "draw": ((), (), (), ("--atom",), ("--view",)),
    "tune": ((), ("--conv", "2,8,8,16", "--filter", "16,3,3"), ("--conv", "1,4,4,4,8")),
    "demo": ((), ("points.bin",), ("points.npy", "--voxel-size", "1")),
}
SUBJECTS = {"layout", "atom", "view", "served", "port", "points"}  # one is enough
VALID = {
    "limit": ("4", "8", "31", "64"), "tv": ("16,8", "4x8"), "row": ("0", "1"),
    "element_bits": ("8", "16", "32"), "output": PATHS[:5], "format": ("svg", "html", "tikz"),
    "columns": ("3", "4"), "channels": ("1", "8"), "voxel_size": ("0.2", "1"),
}  # fmt: skip
WORDS = ("--", "-", "--no-such", "-o", "--json=1", "\x1b[31m", "\udcff", "é", "--help", "-h")


def arguments_of(rng: Random, command: click.Command) -> list[str]:
    """Options and arguments of a command, some of them with values that they take."""
    made = list(rng.choice(NEEDED.get(str(command.name), ((),))))
    if command.name == "draw":
        made.append(_typed(rng) if not made else _view(rng) if made == ["--view"] else _atom(rng))
    often = rng.choice((0.05, 0.1, 0.3))
    for parameter in command.params:
        if parameter.name in SUBJECTS and rng.random() < 0.95:
            continue
        for _ in range(rng.choice((1, 1, 2)) * (rng.random() < often)):
            if isinstance(parameter, click.Option):
                made.append(rng.choice(parameter.opts))
                if parameter.is_flag:
                    continue
            made.append(_value(rng, parameter))
    if rng.random() < 0.15:
        made.insert(rng.randint(0, len(made)), rng.choice(WORDS))
    return [word for word in made if word not in ("-h", "--help") or rng.random() < 0.05]


def _value(rng: Random, parameter: click.Parameter) -> str:
    name = str(parameter.name)
    if name in VALID and rng.random() < 0.7:
        return rng.choice(VALID[name])
    if rng.random() < 0.1:
        return rng.choice((*NUMBERS, *EXTENTS, *PATTERNS, *PATHS, *WORDS))
    if isinstance(parameter.type, click.Choice):
        return rng.choice((*parameter.type.choices, "none of these"))
    kinds: dict[str, Callable[[], str]] = {
        "layout": lambda: _typed(rng),
        "atom": lambda: _atom(rng),
        "view": lambda: _view(rng),
        "rows": lambda: rng.choice(PATTERNS),
        "convs": lambda: rng.choice(EXTENTS),
        "filters": lambda: rng.choice(EXTENTS),
        "tv": lambda: rng.choice(EXTENTS),
        "title": lambda: _typed(rng),
    }
    if name in kinds:
        return kinds[name]()
    paths = isinstance(parameter.type, click.Path)
    return rng.choice(PATHS if paths else NUMBERS)


def _typed(rng: Random) -> str:
    kinds = (
        lambda: notation(rng).text, lambda: expression(rng).text, lambda: hostile(rng)[:4000],
        lambda: damaged(rng, expression(rng).text), lambda: heavy(rng),
    )  # fmt: skip
    return rng.choice(kinds)()


def _atom(rng: Random) -> str:
    name = rng.choice(("m16n8k16.f16", "SM75_U32x4_LDSM_N", "m64n128k16", "ldmatrix.x4"))
    return name if rng.random() < 0.3 else damaged(rng, name)


def _view(rng: Random) -> str:
    extents = [str(rng.choice((1, 2, 3, 5, 9, 99, 10**9))) for _ in range(rng.randint(1, 4))]
    taps = [str(rng.choice((1, 2, 3, 3, 99, 10**9))) for _ in range(rng.randint(1, 3))]
    more = "".join(
        f",{rng.choice(('stride', 'padding', 'dilation', 'channels', 'x'))}={rng.choice(NUMBERS)}"
        for _ in range(rng.choice((0, 1, 2)))
    )
    text = f"fprop:{'x'.join(extents)},{'x'.join(taps)}{more}"
    return text if rng.random() < 0.7 else damaged(rng, text)


def check(names: tuple[str, ...], main: Main) -> Callable[[Random], str]:
    """A check of the command with these names: it ends as documented."""
    command: Any = commands
    for name in names:
        command = command.commands[name]

    def checked(rng: Random) -> str:
        arguments = [*names, *arguments_of(rng, command)]
        out, err = StringIO(), StringIO()
        with redirect_stdout(out), redirect_stderr(err), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of regular expressions
            try:
                status = main(arguments)
            except Exception as error:
                told = f"{arguments} raises {type(error).__name__}: {error}"
                raise WrongError(told) from error
        told = err.getvalue()
        if status not in (0, 1, 2) or (status == 2 and not told.startswith("layoutconv: error: ")):
            raise WrongError(f"{arguments}: status {status}, {told[:300]!r}")
        if len(told) > LONGEST or (status == 2 and not told.replace("\n", "").isprintable()):
            raise WrongError(f"{arguments}: an error of {len(told)} characters, {told[:300]!r}")
        if status == 0 and "Traceback" in told:
            raise WrongError(f"{arguments}: {told[:1000]}")
        if names == ("draw",) and status == 0 and out.getvalue() and not out.getvalue().strip():
            raise WrongError(f"{arguments}: an empty line")
        return f"status {status}"

    return checked


def _leaves(group: click.Command = commands, *names: str) -> Iterator[tuple[str, ...]]:
    below = getattr(group, "commands", None)
    if below is None:
        yield names
    for name in below or ():
        yield from _leaves(below[name], *names, name)


SHARES = {"draw": 60, "demo": 1, "tune": 10}  # of 100 and a few; of every other command 3


def cases(count: int, main: Main = main) -> Iterator[tuple[str, Callable[[Random], str], int]]:
    """Each command, and how many of about ``count`` cases are of it."""
    for names in _leaves():
        kind = " ".join(names)
        yield kind, check(names, main), max(1, count * SHARES.get(kind, 3) // 100)


@contextmanager
def folder() -> Iterator[Path]:
    """A folder with a few files, in which commands run, and stand-ins for what they call."""
    before = os.getcwd()
    with TemporaryDirectory() as name:
        path = Path(name)
        points = np.random.default_rng(0).random((200, 4), dtype=np.float32) * 8
        (path / "points.bin").write_bytes(points.tobytes())
        np.save(path / "points.npy", points)
        for noise in ("noise.ply", "noise.las"):
            (path / noise).write_bytes(Random(noise).randbytes(300))
        (path / "folder.svg").mkdir()
        cache = {"LAYOUTCONV_CACHE_DIR": str(path / "cache")}
        script = SimpleNamespace(main=lambda arguments: 0)
        real = bench.load

        def load(name: str) -> Any:
            return script if name.startswith("bench_") else real(name)

        with (
            patch.dict(os.environ, cache),
            patch.object(bench, "load", load),
            patch.object(draw_command, "serve", lambda *asked: None),
        ):
            os.chdir(path)
            try:
                yield path
            finally:
                os.chdir(before)


def campaign(count: int, seed: int = 0, main: Main = main) -> Report:
    """All commands, run by ``main``."""
    report = Report()
    with folder():
        for kind, checked, share in cases(count, main):
            for at in range(share):
                run(kind, checked, seed, at, report, SECONDS)
    return report


def again(kind: str, seed: int, at: int) -> Report:
    """One case."""
    report = Report()
    with folder():
        run(kind, {k: c for k, c, _ in cases(1)}[kind], seed, at, report, SECONDS)
    return report


command_line = partial(main_of, __doc__, 1000, campaign, again)


if __name__ == "__main__":
    sys.exit(command_line())
