"""Fuzz what is typed: notation and expressions, right, damaged and hostile.

    python -m tests.fuzz.expressions --count 1000000 [--seed 0]
    python -m tests.fuzz.expressions --case damaged:0:4711

Of ``--count`` cases for the parser, nearly half are notation that has to mean what it was made of,
nearly half damaged notation, which a recogniser of another kind judges too, and the rest are made
to break it. A tenth as many expressions have to give what the calls of the functions give. For 200
cases there is one text that goes to a worker, as the page sends it. No text may take more than a
second, and none ends in anything but a layout or a sentence of bounded length.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from functools import partial
from random import Random
from typing import Any, NamedTuple

from layoutconv.algebra import LayoutBudgetError, LayoutError, parse
from layoutconv.drawing.expression import evaluate
from layoutconv.drawing.workers import RequestWorkers

from .reference import is_notation
from .report import Report, WrongError, main_of, run
from .typed import damaged, expression, heavy, hostile, notation

Parse = Callable[[str], Any]


class Judged(NamedTuple):
    """The functions that texts are handed to."""

    parse: Parse = parse
    evaluate: Parse = evaluate


OURS = Judged()
PATIENCE = 10.0  # seconds for a page on a busy machine; its worker has one of the processor
LONGEST = 30_000  # characters of an error that repeats a text of 4,000, twice
# Errors of the parser that are about grammar, not about a bound.
_GRAMMAR = re.compile(r"expected (the end|an integer|a sum of scaled bases|',' or '\)'), found")


def check_notation(rng: Random, parse: Parse) -> str:
    """Notation means what it was made of, and so does what is printed of it."""
    typed = notation(rng)
    found = parse(typed.text)
    if found != typed.value:
        raise WrongError(f"{typed.text!r} is {typed.value!r}, read as {found!r}")
    _read_again(found, parse)
    return "read"


def check_damaged(rng: Random, parse: Parse) -> str:
    """A damaged text is read, or refused, as the recogniser says."""
    text = damaged(rng, notation(rng).text)
    return _check_parser(text, is_notation(text), parse)


def check_hostile(rng: Random, parse: Parse) -> str:
    """A hostile text ends in a layout or in a sentence."""
    return _check_parser(hostile(rng), None, parse)


def _check_parser(text: str, expected: bool | None, parse: Parse) -> str:
    try:
        found = parse(text)
    except LayoutError as error:
        _check_error(error, text)
        if expected and _GRAMMAR.search(str(error)):
            raise WrongError(f"{text!r} is notation, and refused: {error}") from error
        return "refused"
    if expected is False:
        raise WrongError(f"{text!r} is no notation, and read as {found}")
    _read_again(found, parse)
    return "read"


def _read_again(value: Any, parse: Parse) -> None:
    written = str(value)
    if len(written) <= 4000 and parse(written) != value:
        raise WrongError(f"{written!r} is not read as {value!r}")


def _check_error(error: LayoutError, text: str) -> None:
    """It is bounded, printable, and where it has a caret, that is below the text."""
    told = str(error)
    if len(told) > LONGEST or not told.replace("\n", "").isprintable():
        raise WrongError(f"{text[:200]!r}: an error of {len(told)} characters: {told[:200]!r}")
    *_, line, caret = ["", *told.split("\n")]
    if re.fullmatch(" *\\^", caret) and len(caret) > len(line) + 1:
        raise WrongError(f"{text[:200]!r}: a caret beyond the text: {told[:300]}")


def check_expression(rng: Random, evaluate: Parse) -> str:
    """An expression gives what the calls of the functions give, errors too."""
    typed = expression(rng)
    try:
        found = evaluate(typed.text)
    except LayoutError as error:
        _check_error(error, typed.text)
        if typed.error is None:
            raise WrongError(f"{typed.text!r} is {typed.value}, and refused: {error}") from error
        return "no such layout"
    if typed.error is not None:
        raise WrongError(f"{typed.text!r} has no result, and gave {found}")
    if found != typed.value:
        raise WrongError(f"{typed.text!r} is {typed.value}, and gave {found}")
    return "layout"


def page_check(workers: RequestWorkers) -> Callable[[Random], str]:
    """A check that the worker of a page answers any text, within its budget, and escapes it."""

    def check(rng: Random) -> str:
        text = rng.choice((
            lambda: damaged(rng, expression(rng, 3).text),
            lambda: damaged(rng, notation(rng).text),
            lambda: hostile(rng),
            lambda: heavy(rng),
        ))()  # fmt: skip
        try:
            good, fragment = workers.call("page", {"expression": text, "limit": 8})
        except LayoutBudgetError as error:
            _check_error(error, text)
            return "over budget"
        if "<script" in fragment:
            raise WrongError(f"{text!r} is not escaped")
        return "drawn" if good else "refused"

    return check


def cases(
    count: int, workers: RequestWorkers | None, judged: Judged = OURS
) -> Iterator[tuple[str, Any, int]]:
    """The kinds of cases: a name, the check, and how many of ``count`` are of it."""
    yield "notation", partial(check_notation, parse=judged.parse), count * 45 // 100
    yield "damaged", partial(check_damaged, parse=judged.parse), count * 45 // 100
    yield "hostile", partial(check_hostile, parse=judged.parse), count // 10
    yield "expression", partial(check_expression, evaluate=judged.evaluate), count // 10
    if workers is not None:
        yield "page", page_check(workers), count // 200


def campaign(
    count: int, seed: int = 0, *, pages: bool = True, first: bool = False, judged: Judged = OURS
) -> Report:
    """All kinds of cases; ``first``: up to the first failure."""
    report = Report()
    with RequestWorkers(1) as workers:
        for kind, check, share in cases(count, workers if pages else None, judged):
            for at in range(share):
                run(kind, check, seed, at, report, PATIENCE if kind == "page" else 0.0)
                if first and report.failures:
                    return report
    return report


def again(kind: str, seed: int, at: int) -> Report:
    """One case."""
    report = Report()
    with RequestWorkers(1) as workers:
        check = {k: c for k, c, _ in cases(1, workers)}[kind]
        run(kind, check, seed, at, report, PATIENCE)
    return report


main = partial(main_of, __doc__, 100_000, campaign, again)


if __name__ == "__main__":
    sys.exit(main())
