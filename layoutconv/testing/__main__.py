"""``python -m layoutconv.testing --library pycute``: the conformance suite, and its table."""

from __future__ import annotations

import argparse

from ..algebra import LayoutError
from .conformance import conformance, table


def main(arguments: list[str] | None = None) -> int:
    """Run the suite on a library and print its table; return 1 if a result was wrong."""
    parser = argparse.ArgumentParser(prog="python -m layoutconv.testing", description=__doc__)
    parser.add_argument("--library", default="layoutconv", help="a module with a class Layout")
    parser.add_argument("--cases", type=int, default=2000, help="random cases of each operation")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--skip", default="", help="operations to leave out, with commas")
    options = parser.parse_args(arguments)
    skip = [name for name in options.skip.split(",") if name]
    try:
        outcomes = conformance(options.library, options.cases, options.seed, skip)
    except (ModuleNotFoundError, LayoutError) as error:
        parser.error(str(error))
    print(table(outcomes))
    return int(any(outcome.wrong + outcome.crashed for outcome in outcomes.values()))


if __name__ == "__main__":
    raise SystemExit(main())
