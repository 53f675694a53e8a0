"""The command ``draw``: text, a picture in the format of a file's suffix, or a page to type on."""

from __future__ import annotations

import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..algebra import LayoutValueError
from ..errors import ArgumentError
from .figure import format_of
from .files import write
from .plain_text import printable, to_ascii
from .workers import own_worker

LIMIT, STEPS_LIMIT = 64, 32  # rows and columns to show; fewer if there are several layouts


@dataclass(frozen=True)
class DrawOptions:
    """Options of ``layoutconv draw``; the command line describes each.

    Exactly one of ``layout``, ``atom`` and ``view`` is given.
    """

    layout: str | None = None
    atom: str | None = None
    view: str | None = None
    output: Path | None = None
    format: str | None = None
    tv: tuple[int, int] | str | None = None
    row: int | None = None
    element_bits: int | None = None
    limit: int | None = None
    title: str | None = None
    ascii: bool = False
    colour: bool = False
    steps: bool = False


def run(options: DrawOptions) -> None:
    """Draw into the requested file or on standard output.

    Typed text is evaluated in another process, within a budget of time and memory; if that is not
    enough, this raises :class:`~layoutconv.algebra.LayoutBudgetError`.
    """
    if options.steps:
        _run_steps(options)
        return
    typed = {name: getattr(options, name) for name in ("layout", "atom", "view")}
    [(kind, asked)] = [(kind, text) for kind, text in typed.items() if text is not None]
    given = {name: getattr(options, name) for name in ("tv", "row", "element_bits", "title")}
    arguments: dict[str, Any] = {"kind": kind, "typed": asked, **given}
    if options.output is None and options.format is None:
        arguments |= {"limits": _limits(options.limit), "colour": options.colour}
        arguments["width"] = shutil.get_terminal_size().columns
        _print(own_worker().call("picture", arguments) + "\n", options.ascii)
        return
    if options.output is None:
        raise ArgumentError("--output", f"a file for {options.format}", None)
    arguments["format"] = options.format or format_of(options.output)
    arguments["limits"] = [LIMIT if options.limit is None else options.limit]
    write(options.output, own_worker().call("picture", arguments))


def _run_steps(options: DrawOptions) -> None:
    """Write every operation of an expression, as a page to step through or all of them as text.

    This includes the operations of an expression without a result, before its error is raised.
    """
    format = options.format or ("text" if options.output is None else format_of(options.output))
    if format not in ("html", "text"):
        raise ArgumentError("--output", "a .html or .txt file beside --steps", options.output)
    arguments = {
        "expression": options.layout,
        "limit": STEPS_LIMIT if options.limit is None else options.limit,
        "html": format == "html",
    }
    content, why = own_worker().call("steps", arguments)
    content = content if format == "html" else content + "\n"
    if options.output is not None:
        write(options.output, content)
    else:
        _print(content, ascii=False)
    if why:
        raise LayoutValueError(why)


def serve(expression: str | None, port: int, limit: int | None) -> None:
    """Serve the page on which users type expressions, until Ctrl-C."""
    from .serve import Server

    if limit is not None and limit < 4:
        raise ArgumentError("--limit", "an int >= 4", limit)
    with Server(port, limit=STEPS_LIMIT if limit is None else limit) as server:
        print(f"{server.address_of(expression)}  (Ctrl-C ends it)", flush=True)
        with suppress(KeyboardInterrupt):
            server.serve_forever()


def _limits(asked: int | None) -> list[int]:
    """Return the limits to try until the picture fits the terminal; else only one."""
    if asked is not None:
        return [asked]
    return [LIMIT, 48, 32, 24, 20, 16, 12, 10, 8] if sys.stdout.isatty() else [LIMIT]


def _print(text: str, ascii: bool) -> None:
    """Print a drawing, without box-drawing characters if standard output cannot write them."""
    print(to_ascii(text) if ascii else printable(text), end="")
