"""The command line of a benchmark: a parser, and the options that several have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from layoutconv.cli.options import pattern


def positive_int(text: str) -> int:
    """Read an integer from 1 on."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an integer >= 1, got {text!r}")
    return int(text)


def new_file(text: str) -> Path:
    """Read the name of a file in a folder that there is: an error before minutes of measuring."""
    path = Path(text)
    if not path.absolute().parent.is_dir() or path.is_dir():
        raise argparse.ArgumentTypeError(f"expected a file in a folder, got {text!r}")
    return path


SHARED: dict[str, dict[str, Any]] = {
    "rows": {
        "type": pattern, "default": "", "metavar": "PATTERN", "help": "that rows match, as in re"
    },
    "workloads": {
        "type": Path, "default": Path("../shared/bench"), "metavar": "FOLDER",
        "help": "of clouds and networks",
    },
    "repeats": {
        "type": positive_int, "default": 7, "metavar": "N",
        "help": "batches whose median is taken",
    },
    "iterations": {
        "type": positive_int, "default": 50, "metavar": "N", "help": "calls in a batch"
    },
    "json": {"type": new_file, "metavar": "FILE", "help": "write the rows here"},
}  # fmt: skip


def program(docstring: str | None, *shared: str) -> argparse.ArgumentParser:
    """Return the parser of a script that ``docstring`` describes, with these of :data:`SHARED`."""
    parser = argparse.ArgumentParser(
        description=(docstring or "").partition("\n")[0],
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    for name in shared:
        parser.add_argument(f"--{name}", **SHARED[name])
    return parser
