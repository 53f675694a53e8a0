"""The command line of an example: a parser with the options that most have, and their types."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

from layoutconv.base.devices import choose_device
from layoutconv.cli.script_options import new_file as new_file
from layoutconv.cli.script_options import positive_int as positive_int
from layoutconv.drawing.figure import format_of
from layoutconv.errors import ArgumentError


def program(
    file: str,
    docstring: str | None,
    example: str = "",
    *,
    run: str = "python",
    device: str | None = None,
    picture: str | None = None,
) -> argparse.ArgumentParser:
    """Return the parser of an example, whose help ends with a command to try.

    Args:
        file: ``__file__`` of the example.
        docstring: of the example, whose first line says what it is.
        example: the options of that command.
        run: what starts it.
        device: the default of ``--device``, "cpu" or "auto"; None: it has no such option.
        picture: the default of ``--output``, or its suffix behind the name of the example; None: it
            draws nothing.
    """
    name = Path(file).stem
    parser = argparse.ArgumentParser(
        description=(docstring or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        epilog=f"example: {run} examples/{name}.py {example}",
    )
    if device is not None:
        choices = ("cpu", "cuda") if device == "cpu" else ("auto", "cpu", "cuda")
        parser.add_argument("--device", choices=choices, default=device, help="where it runs")
    if picture is not None:
        default = Path(f"{name}{picture}" if picture.startswith(".") else picture)
        parser.add_argument(
            "--output",
            type=drawing if default.suffix == ".svg" else new_file,
            default=default,
            metavar="FILE",
            help="the picture",
        )
    return parser


def parsed(parser: argparse.ArgumentParser, arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the options; an error says why there is no GPU where ``--device`` asks for one."""
    options = parser.parse_args(arguments)
    choose_device(options.device)
    return options


def whole_int(text: str) -> int:
    """Read an integer from 0 on."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"expected an integer >= 0, got {text!r}")
    return int(text)


def positive_float(text: str) -> float:
    """Read a finite number above 0."""
    try:
        number = float(text)
    except ValueError:
        number = math.nan
    if not 0 < number < math.inf:
        raise argparse.ArgumentTypeError(f"expected a finite number > 0, got {text!r}")
    return number


def drawing(text: str) -> Path:
    """Read the name of a file that a figure can be written to: its suffix is that of a format."""
    try:
        format_of(text)
    except ArgumentError as error:
        raise argparse.ArgumentTypeError(f"expected {error.expected}, got {text!r}") from None
    return new_file(text)
