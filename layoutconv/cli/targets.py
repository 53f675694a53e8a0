"""Load objects from a user's files by name: ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import runpy
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

_PACKAGE = str(Path(__file__).parents[1])


def load_target(target: str) -> Any:
    """Run the file, or import the module, before the colon; return its object of the name after it.

    >>> load_target("math:floor")(2.5)
    2

    Raises ``click.UsageError`` with a one-sentence message.
    """
    place, _, name = target.rpartition(":")
    if not place or not name.isidentifier():
        raise click.UsageError(f"Expected FILE.py:NAME or MODULE:NAME, got {target!r}.")
    try:
        if place.endswith(".py"):
            names = runpy.run_path(place, run_name="layoutconv.target")
        else:
            names = vars(importlib.import_module(place))
    except (ImportError, SyntaxError) as error:
        raise click.UsageError(f"{place} cannot be imported: {error}.") from error
    except OSError:  # has a readable message already
        raise
    except Exception as error:
        raise _told(place, error) from error
    if name not in names:
        raise click.UsageError(f"{place} has no {name}.")
    return names[name]


def called(target: str, function: Callable[..., Any], *args: Any) -> Any:
    """Call a user's function; turn its error into one sentence, with the line that raised it.

    >>> called("math:sqrt", __import__("math").sqrt, -1.0)
    Traceback (most recent call last):
    click.exceptions.ClickException: math:sqrt raised ValueError: math domain error
    """
    try:
        return function(*args)
    except Exception as error:
        raise _told(target, error) from error


def _told(target: str, error: Exception) -> click.ClickException:
    """Return an error for a user's exception, with its last line outside installed packages."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if _PACKAGE not in f.filename and "site-packages" not in f.filename]
    line = f" ({own[-1].filename}, line {own[-1].lineno})" if own else ""
    return click.ClickException(f"{target} raised {type(error).__name__}: {error}{line}")
