"""Output of commands: tables, JSON, and colours on terminals."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from math import isfinite
from typing import Any

import click
from tabulate import tabulate

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")


def coloured() -> bool:
    """Return whether standard output is a terminal and NO_COLOR is not set."""
    return sys.stdout.isatty() and not os.environ.get("NO_COLOR")


def styled(text: str, **style: Any) -> str:
    """Style text as ``click.style`` does, if colours are shown; else leave it plain."""
    return click.style(text, **style) if coloured() else text


def print_table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns under their names, with numbers aligned right.

    >>> print_table(["tile", "us"], [["64x64", 12.34], ["128x64", 9.0]])
    tile      us
    64x64   12.3
    128x64   9.0
    """
    # Keep text as it is: tabulate would take a digest such as 12e4 for a number.
    texts = [at for at in range(len(columns)) if any(isinstance(row[at], str) for row in rows)]
    table = tabulate(rows, columns, "plain", floatfmt=".1f", disable_numparse=texts)
    names, *lines = table.splitlines()
    click.echo("\n".join([styled(names, bold=True), *lines]))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Print names, each with its value.

    >>> print_pairs([("python", "3.12"), ("layoutconv", "0.1.0")])
    python      3.12
    layoutconv  0.1.0
    """
    named = [(styled(name, bold=True), value) for name, value in pairs]
    click.echo(tabulate(named, tablefmt="plain", disable_numparse=True))


def print_json(content: Any) -> None:
    """Print JSON that every parser reads: infinities and NaN become null.

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
