"""The command line of pictures, where it refuses, and a server of theirs."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from layoutconv.cli import main
from layoutconv.drawing.serve import Server

from .serving import served

Refused = Callable[[list[str]], str]


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Refused:
    """Call ``draw`` with arguments that it refuses with status 2; the error, and no output."""

    def call(arguments: list[str]) -> str:
        assert main(["draw", *arguments]) == 2
        out, error = capsys.readouterr()
        assert out == ""
        return error

    return call


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with served() as server:
        yield server
