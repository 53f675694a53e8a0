"""The command line as a whole: help, errors, interrupts, pipes, completion, examples."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import click
import pytest

import layoutconv
from layoutconv.cli import app, main, text_table
from layoutconv.cli.app import commands

ROOT = Path(__file__).resolve().parents[2]


def every(group: click.Command = commands, *names: str) -> Iterator[tuple[str, ...]]:
    """The names of every command, and of commands below commands."""
    yield names
    for name, command in getattr(group, "commands", {}).items():
        yield from every(command, *names, name)


def command_of(names: tuple[str, ...]) -> click.Command:
    command: Any = commands
    for name in names:
        command = command.commands[name]
    return command


def examples() -> Iterator[list[str]]:
    for names in every():
        for line in (command_of(names).epilog or "").splitlines():
            if line.startswith("  layoutconv ") and "COMMAND" not in line:
                yield shlex.split(line.partition(" > ")[0])[1:]


def test_the_commands() -> None:
    assert set(commands.commands) == {
        "demo", "draw", "compile", "profile", "bench", "tune", "info", "cache"
    }  # fmt: skip
    assert {names[1] for names in every() if names[:1] == ("bench",) and names[1:]} == {
        "dense", "sparse", "algebra", "maps", "network"
    }  # fmt: skip


@pytest.mark.parametrize("names", list(every()), ids=" ".join)
def test_help_says_what_it_does_with_examples(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([*names, "--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(" ".join(["Usage: layoutconv", *names]))
    command = command_of(names)
    assert f"layoutconv {' '.join(names)}".rstrip() in (command.epilog or "") or names == ("cache",)
    for parameter in command.params:
        for option in getattr(parameter, "opts", []):
            assert option in told or isinstance(parameter, click.Argument)


@pytest.mark.parametrize("arguments", list(examples()), ids=" ".join)
def test_examples_of_the_help_are_understood(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Options exist and take these values; what costs nothing is run, and has to succeed."""
    command: click.Command = commands
    rest = list(arguments)
    while isinstance(command, click.Group):
        command = command.commands[rest.pop(0)]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers.json").write_text("{}")  # a file that has to be there
    command.make_context("layoutconv", rest)
    if arguments[0] in ("draw", "info", "cache"):
        monkeypatch.setenv("LAYOUTCONV_CACHE_DIR", str(tmp_path / "cache"))
        assert main(arguments) == 0
        if "-o" in arguments:
            assert (tmp_path / arguments[-1 if arguments[-2] == "-o" else 0]).stat().st_size > 500


@pytest.mark.parametrize("names", [(), ("bench",), ("cache",)])
def test_without_a_command_there_is_help(
    names: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(names) == 0
    alone = capsys.readouterr().out
    assert main([*names, "--help"]) == 0
    told = capsys.readouterr().out
    assert alone.endswith(told)
    assert (alone == told) is (names != ("cache",))  # which says first how full it is


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"layoutconv {layoutconv.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["drw"], "No such command 'drw'"),
        (["draw", "--colur", "(2,2)"], "No such option"),
        (["demo", "--dtype", "int4"], "'int4' is not one of 'float32', 'float16', 'bfloat16'"),
        (["tune"], "Expected --conv with --filter, or --rows, or --zoo."),
        (["tune", "--conv", "2,8,8,16"], "Expected --conv with --filter, or --rows, or --zoo."),
        (["tune", "--conv", "2;8", "--filter", "3,3"], "expected extents such as 2,32,64,64,64"),
        (["tune", "--conv", "2,8,8,4", "--filter", "4,3,3,3"], "argument `filter`: expected"),
        (
            ["tune", "--rows", "nothing like it"],
            "No row of the benchmark matches 'nothing like it'.",
        ),
        (["bench", "algebra", "--rows", "nothing like it"], "no row matches 'nothing like it'"),
        (["cache", "clear", "--only", "all"], "'all' is not one of 'kernels', 'tuned'"),
        (["bench", "algebra", "--rows", "("], "expected a regular expression, got '(': missing )"),
        (["bench", "algebra", "--rows", "a{99999999999}"], "the repetition number is too large"),
        (["bench", "maps", "--rows", "(?i)x"], "lags not at the start"),
        (["bench", "algebra", "--plot", "a.bmp"], "expected a name that ends in .png, .svg, .pdf"),
        (["bench", "algebra", "--plot", "no/such/a.png"], "there is no folder 'no/such'"),
        (["bench", "dense", "--repeats", "0"], "0 is not in the range x>=1"),
        (["tune", "--rows", "["], "expected a regular expression, got '['"),
        (["tune", "--conv", "²,2", "--filter", "3,3"], "expected extents such as"),
        (["demo", "--channels", "-1"], "-1 is not in the range 1<=x<=4096"),
        (["demo", "--voxel-size", "nan"], "'--voxel-size': expected a finite number, got 'nan'"),
        (["profile", "m:f", "--seconds", "inf"], "expected a finite number, got 'inf'"),
        (["profile", "m:f", "--seconds", "nan"], "expected a finite number, got 'nan'"),
        (["demo", "--channels", "9" * 5000], "999..."),
        (["demo", "--output", "no/such/a.png"], "there is no folder 'no/such'"),
        (["draw", "--tv", "1_0,8", "(4,2)"], "expected two extents such as 16,8, got '1_0,8'"),
        (["\x1b[31m"], "No such command '"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_one_line_and_status_2(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    out, error = capsys.readouterr()
    assert out == ""
    assert message in error
    assert error.startswith(("layoutconv: error: ", "bench_algebra: error: "))
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("error", "status"), [(KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 2)]
)
def test_interrupts_and_the_system(
    error: BaseException, status: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def stop(**options: Any) -> None:
        raise error

    monkeypatch.setattr(app.draw, "callback", stop)
    assert main(["draw"]) == status
    told = capsys.readouterr()
    assert told.out == ""
    assert "Traceback" not in told.err
    assert ("No space left on device; make room, or" in told.err) is (status == 2)


def run(script: str, **variables: str) -> subprocess.CompletedProcess[str]:
    ours = {"PYTHONPATH": str(ROOT), "PYTHON": sys.executable, "PYTHONUNBUFFERED": ""}
    environment = {**os.environ, **ours, **variables}
    return subprocess.run(
        ["bash", "-c", f"set -o pipefail; {script}"],
        env=environment,
        capture_output=True,
        text=True,
    )


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ('draw "(200,200)" --limit 200 | head -1', "(200,200):(1,200)\n"),
        ('draw "(2,2)" | true', ""),  # nothing is written before the command ends
        ("bench | true", ""),
        ('draw "(2,2)" >&-', ""),  # as of a service that has none
        ('draw "(2,2)" >&- 2>&-', ""),
    ],
)
def test_a_pipe_that_closes_is_no_error(command: str, told: str) -> None:
    done = run(f'"$PYTHON" -m layoutconv {command}')
    assert (done.returncode, done.stderr, done.stdout) == (0, "", told)


def complete(line: str) -> list[str]:
    words = line.split(" ")
    done = run(
        '"$PYTHON" -m layoutconv',
        _LAYOUTCONV_COMPLETE="bash_complete", COMP_WORDS=line, COMP_CWORD=str(len(words) - 1),
    )  # fmt: skip
    return [word.partition(",")[2] for word in done.stdout.split()]


def test_tab_completion() -> None:
    assert complete("layoutconv d") == ["demo", "draw"]
    assert complete("layoutconv bench a") == ["algebra"]
    assert complete("layoutconv demo --device c") == ["cpu", "cuda"]
    assert complete("layoutconv draw --atom ldmatrix.x4") == ["ldmatrix.x4", "ldmatrix.x4.trans"]


def test_the_line_that_turns_completion_on() -> None:
    """The page of the command line has it; what it evaluates is a script that bash takes."""
    line = 'eval "$(_LAYOUTCONV_COMPLETE=bash_source layoutconv)"'
    assert line in (ROOT / "docs" / "command_line.md").read_text()
    done = run(f'layoutconv() {{ "$PYTHON" -m layoutconv "$@"; }}; {line}; complete -p layoutconv')
    assert done.returncode == 0, done.stderr
    assert done.stdout.rstrip().endswith("layoutconv")


class Terminal(StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_on_a_terminal_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert text_table.styled("us", bold=True) == "us"
    with redirect_stdout(Terminal()):
        assert text_table.styled("us", bold=True) == "\x1b[1mus\x1b[0m"
        monkeypatch.setenv("NO_COLOR", "1")
        assert text_table.styled("us", bold=True) == "us"
