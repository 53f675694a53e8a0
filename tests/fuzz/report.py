"""A report of fuzzing: how many cases ended how, what is wrong, and the slowest."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from time import perf_counter, process_time


class WrongError(AssertionError):
    """A law does not hold for a case."""


@dataclass
class Report:
    """Cases by their kind and outcome, those that are wrong, and the slowest of each kind."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    slowest: dict[str, tuple[float, str]] = field(default_factory=dict)

    def text(self, seconds: float) -> str:
        """The report in lines."""
        lines = [f"{name:28}{count:>10,}" for name, count in sorted(self.counts.items())]
        slow = ", ".join(f"{at} {1000 * taken:.0f} ms" for taken, at in self.slowest.values())
        lines.append(f"{sum(self.counts.values()):,} cases in {seconds:.0f} s; slowest: {slow}")
        return "\n".join([*lines, f"{len(self.failures)} wrong", *self.failures[:20]])


def parser_of(about: str | None, count: int) -> argparse.ArgumentParser:
    """A parser of how many cases there are, ``count`` if nobody says, and of which seed."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--count", type=int, default=count)
    parser.add_argument("--seed", type=int, default=0)
    return parser


def parser_of_range(about: str | None, count: int) -> argparse.ArgumentParser:
    """As :func:`parser_of`, and of the first case and the seconds that there are."""
    parser = parser_of(about, count)
    parser.add_argument("--first", type=int, default=0, help="number of the first case")
    parser.add_argument("--seconds", type=float, help="stop after so long")
    return parser


def main_of(
    about: str | None,
    count: int,
    campaign: Callable[[int, int], Report],
    again: Callable[[str, int, int], Report],
    arguments: Sequence[str] | None = None,
) -> int:
    """Fuzz as the command line asks, and print what came of it; 1 if something is wrong.

    ``campaign`` takes a count, ``count`` if none is asked for, and a seed; ``again`` the parts of
    the name of one case.
    """
    parser = parser_of(about and about.splitlines()[0], count)
    parser.add_argument("--case", metavar="KIND:SEED:NUMBER", help="one case alone")
    options = parser.parse_args(arguments)
    started = perf_counter()
    if options.case:
        kind, seed, at = options.case.split(":")
        report = again(kind, int(seed), int(at))
    else:
        report = campaign(options.count, options.seed)
    print(report.text(perf_counter() - started))
    return 1 if report.failures else 0


def run(
    kind: str,
    check: Callable[[Random], str],
    seed: int,
    at: int,
    report: Report,
    seconds: float = 0.0,
) -> None:
    """Run the case of a name, and report it.

    Args:
        kind: the first part of its name.
        check: gives its outcome, or raises what is wrong.
        seed: the second part.
        at: the third part.
        report: where it goes.
        seconds: that it may take by the clock; by default one of this process.
    """
    name = f"{kind}:{seed}:{at}"
    started, used = perf_counter(), process_time()
    try:
        outcome = check(Random(name))
    except Exception as error:
        outcome = "WRONG"
        told = str(error) if isinstance(error, WrongError) else f"{type(error).__name__}: {error}"
        report.failures.append(f"{name} {told[:1000]}")
    taken = perf_counter() - started if seconds else process_time() - used
    if taken > (seconds or 1.0):
        report.failures.append(f"{name} took {taken:.1f} s")
    report.counts[f"{kind}, {outcome}"] += 1
    report.slowest[kind] = max((taken, name), report.slowest.get(kind, (0.0, "")))
