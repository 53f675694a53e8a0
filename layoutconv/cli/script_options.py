"""Types of options of scripts, which parse them by argparse: benchmarks and examples."""

from __future__ import annotations

from argparse import ArgumentTypeError
from pathlib import Path


def positive_int(text: str) -> int:
    """Read an integer from 1 on.

    >>> positive_int("12")
    12
    """
    if not text.isdecimal() or int(text) < 1:
        raise ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    return int(text)


def new_file(text: str) -> Path:
    """Read the name of a file that can be written: an error before minutes of work, not after.

    >>> new_file("no/such/rows.json")
    Traceback (most recent call last):
    argparse.ArgumentTypeError: expected a file in a folder, got 'no/such/rows.json': there is no \
folder no/such
    """
    path = Path(text)
    if not path.absolute().parent.is_dir():
        why = f"there is no folder {path.parent}"
    elif path.is_dir():
        why = "it is a folder"
    else:
        return path
    raise ArgumentTypeError(f"expected a file in a folder, got {text!r}: {why}")
