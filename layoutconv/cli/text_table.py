"""How commands print: tables, JSON, and colours where someone sees them."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any

import click

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def coloured() -> bool:
    """Whether standard output takes colours: a terminal, and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def styled(text: str, **style: Any) -> str:
    """Text in a colour, or in bold, of ``click.style``; plain where colours are not seen."""
    return click.style(text, **style) if coloured() else text


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Columns of equal width under their names; numbers are on the right.

    >>> print_table(["tile", "us"], [["64x64", 12.34], ["128x64", 9]])
    tile      us
    64x64   12.3
    128x64     9
    """
    texts = [[_text(cell) for cell in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(columns, *texts, strict=True)]
    right = [
        bool(rows) and all(isinstance(row[at], int | float) for row in rows)
        for at in range(len(columns))
    ]

    def line(cells: Sequence[str]) -> str:
        padded = (
            cell.rjust(width) if to_right else cell.ljust(width)
            for cell, width, to_right in zip(cells, widths, right, strict=True)
        )
        return "  ".join(padded).rstrip()

    click.echo(styled(line(columns), bold=True))
    for row in texts:
        click.echo(line(row))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names, and what belongs to each.

    >>> print_pairs([("python", "3.12"), ("layoutconv", "0.1.0")])
    python      3.12
    layoutconv  0.1.0
    """
    width = max(len(name) for name, _ in pairs)
    for name, value in pairs:
        click.echo(f"{styled(name.ljust(width), bold=True)}  {value}".rstrip())


def print_json(content: Any) -> None:
    """JSON that every parser takes: what is no number is null.

    >>> print_json({"us": float("inf")})
    {
     "us": null
    }
    """
    click.echo(json.dumps(_finite(content), indent=1, default=str))


def _finite(content: Any) -> Any:
    if isinstance(content, dict):
        return {key: _finite(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_finite(value) for value in content]
    return None if isinstance(content, float) and not isfinite(content) else content


def _text(cell: object) -> str:
    return f"{cell:.1f}" if isinstance(cell, float) else str(cell)
