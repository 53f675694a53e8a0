"""Objects of a user's own files, by name: ``FILE.py:NAME`` or ``MODULE:NAME``."""

from __future__ import annotations

import importlib
import runpy
from typing import Any

import click


def load_target(target: str) -> Any:
    """Run or import what is before the colon; return what is there by the name behind it.

    >>> load_target("math:floor")(2.5)
    2

    Raises ``click.UsageError``, one sentence.
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
    if name not in names:
        raise click.UsageError(f"There is no {name} in {place}.")
    return names[name]
