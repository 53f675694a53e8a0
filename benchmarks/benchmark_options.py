"""The command line of a benchmark: a parser, and the options that several have."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from layoutconv.cli.options import pattern
from layoutconv.cli.script_options import new_file as new_file
from layoutconv.cli.script_options import positive_int as positive_int

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
