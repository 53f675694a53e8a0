"""Whatever README.md, CONTRIBUTING.md and docs/ show is true: code, commands, what they print."""

from __future__ import annotations

import doctest
import itertools
import os
import re
import shlex
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

from .warm_process import run_python

ROOT = Path(__file__).resolve().parents[1]
_BESIDE = ("README.md", "CONTRIBUTING.md", "SECURITY.md")
PAGES = [*(ROOT / name for name in _BESIDE), *sorted((ROOT / "docs").rglob("*.md"))]
CI = (ROOT / ".ci" / "run").read_text()
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@dataclass(frozen=True)
class Block:
    """A fenced block, and what the page says it prints: a ``text`` block a paragraph below."""

    language: str
    text: str
    printed: str = ""


def blocks(page: Path) -> Iterator[Block]:
    fences = r"^```(\w*)\n(.*?)^```\n"
    printed = r"(?:\n[^\n`#]+\n\n```text\n(.*?)^```\n)?"
    for match in re.finditer(fences + printed, page.read_text(), re.M | re.S):
        yield Block(match[1], match[2], match[3] or "")


def commands() -> Iterator[tuple[str, str]]:
    for page in PAGES:
        for block in blocks(page):
            if block.language == "sh":
                yield from ((line, block.printed) for line in block.text.splitlines())


@each_page
def test_every_block_is_checked(page: Path) -> None:
    """Python is run, commands too, and text is compared with what a command prints."""
    every = list(blocks(page))
    assert {block.language for block in every} <= {"python", "sh"}
    assert all(block.text.startswith(">>> ") for block in every if block.language == "python")


@pytest.mark.usefixtures("spconv_not_imported")
@each_page
def test_python(page: Path) -> None:
    code = "".join(block.text + "\n" for block in blocks(page) if block.language == "python")
    test = doctest.DocTestParser().get_doctest(code, {}, page.name, str(page), 0)
    assert doctest.DocTestRunner(optionflags=FLAGS).run(test).failed == 0


@pytest.mark.parametrize(("command", "printed"), sorted(set(commands())))
def test_command(command: str, printed: str, tmp_path: Path) -> None:
    """Commands run, but for what ``.ci/run`` runs; what takes long has the options."""
    if all(f'" {part}\n' in CI for part in command.split(" && ")):
        return
    program, *arguments = shlex.split(command.removeprefix("pip install -e . && "))
    if program == "compute-sanitizer":
        module = arguments[arguments.index("-m") + 1]
        assert (ROOT / module.replace(".", "/")).with_suffix(".py").is_file()
        return  # tests/planning/test_covering.py checks what it runs
    assert program == "python", f"how to check {command!r}?"
    if arguments[:2] == ["-m", "sphinx"]:
        return  # tests/test_docs.py builds the site
    if arguments[:2] == ["-m", "pytest"]:
        assert (ROOT / arguments[2]).is_dir()
        return
    # What takes long, or a GPU, is asked for its options: benchmarks, fuzzers, campaigns.
    long = arguments[arguments[0] == "-m"].startswith(("benchmarks/", "tests."))
    words = list(itertools.takewhile(lambda word: not word.startswith("--"), arguments[1:]))
    told = options_of(arguments[0], *words) if long else run(arguments, tmp_path)
    if long:
        assert {a for a in arguments if a.startswith("--")} <= set(re.findall(r"--\w+", told))
    assert not printed or doctest.OutputChecker().check_output(printed, told, FLAGS), told


@cache
def options_of(*words: str) -> str:
    """Return a script's help, cached because pages call some scripts a dozen times."""
    return run([*words, "--help"], ROOT)


def run(arguments: list[str], folder: Path) -> str:
    """Return what Python prints in ``folder``, with the checkout's files and package at hand."""
    paths = [str(ROOT / a) if (ROOT / a).is_file() else a for a in arguments]
    python_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with socket.socket() as free:  # of ranks: tests that run beside this one have others
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "PYTHONPATH": python_path, "PET_MASTER_PORT": port}
    done = run_python(paths, folder, environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_set_up_commands() -> None:
    """The README's two lines; what they install is installed where this runs from ``.ci/run``."""
    lines = [line for line, _ in commands()]
    assert [line for line in lines if line.startswith("pip")][:2] == [
        "pip install -e . && python -m layoutconv demo",
        'pip install -e ".[dev]" && python -m pytest -n 2',
    ]


@each_page
def test_links_lead_somewhere(page: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)\)", page.read_text())
    assert [t for t in targets if not (page.parent / t).exists()] == []
