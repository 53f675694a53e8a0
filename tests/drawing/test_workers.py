"""Workers: what was typed is evaluated where it can be stopped, and the next answers as before."""

from __future__ import annotations

from collections.abc import Iterator
from threading import Thread
from time import monotonic

import pytest

from layoutconv import LayoutError, LayoutTypeError
from layoutconv.algebra import LayoutBudgetError
from layoutconv.drawing.workers import RequestWorker, RequestWorkers
from layoutconv.errors import ArgumentError

from .conftest import Refused
from .serving import SLOW

PICTURE = {"kind": "layout", "limits": [8], "width": 80}


@pytest.fixture(scope="module")
def workers() -> Iterator[RequestWorkers]:
    with RequestWorkers(1) as workers:
        yield workers


def test_the_answer_is_that_of_the_function(workers: RequestWorkers) -> None:
    from layoutconv.drawing.fragment import fragment_of

    for expression in ("(4,8):(8,1)", "(4,3):(1,8) @ 6:1", "(4,2", "", "zipped_divide(8, 2)"):
        found = workers.call("page", {"expression": expression, "limit": 16})
        assert tuple(found) == fragment_of(expression, 16)


# What is too long, too deep, too large, of other characters, or no expression.
HOSTILE = {
    "(" * 1999: "expected ',' or ')', found the end",
    "(" * 900 + "4" + ")" * 900: "at most 64 levels of parentheses",
    "coalesce(" * 100 + "4" + ")" * 100: "at most 64",
    " @ ".join(["4"] * 100): "at most 64 operations",
    "²": "expected an integer, found '²'",
    "1:1@99999999999": "expected an integer from 0 to 63, found '99999999999'",
    "2**2**2**2**2": "expected the end, found '*'",
    "4" * 2001: "expected at most 2000 characters",
    "Swizzle(999999999, 0, 999999999)": "expected integers of at most 64",
    "S<0,999999999,0>": "expected an integer from 0 to 64",
    "4\0": "found '\\x00'",
    "\ud800": "found '\\ud800'",
    "().__class__.__base__": "expected the end, found '.'",
}


@pytest.mark.parametrize(("expression", "message"), HOSTILE.items(), ids=range(len(HOSTILE)))
def test_hostile_text_ends_in_a_sentence_that_points(
    workers: RequestWorkers, expression: str, message: str
) -> None:
    with pytest.raises(LayoutError) as caught:
        workers.call("picture", {**PICTURE, "typed": expression})
    told, *rest = str(caught.value).split("\n")
    assert message in told
    assert [line.strip() for line in rest[1:]] == (["^"] if rest else [])
    assert rest or "characters" in told  # there is a place to point at


@pytest.mark.parametrize(
    "expression",
    ["left_inverse((1000003,1000033):(1000033,7))", "complement((16384,16384):(16392,3))"],
)
def test_an_operation_without_end_ends_in_a_sentence(
    workers: RequestWorkers, expression: str
) -> None:
    with pytest.raises(LayoutError, match=expression.partition("(")[0]):
        workers.call("picture", {**PICTURE, "typed": expression})


@pytest.fixture
def slow() -> Iterator[RequestWorkers]:
    """A worker with operations that take for ever."""
    with RequestWorkers(1, memory=256 << 20, code=SLOW) as slow:
        slow.call("page", {"expression": "4"})
        yield slow


@pytest.mark.parametrize(
    ("operation", "told"),
    [
        ("nullspace", "nullspace: this operation takes more than 0.5 s\n{line}\n    ^"),
        ("make_layout_like", "make_layout_like: this operation takes more memory than"),
        ("flatten_layout", "this takes more time or memory than is allowed"),
    ],
)
def test_an_operation_has_a_budget(slow: RequestWorkers, operation: str, told: str) -> None:
    line = f"4 @ {operation}(8:2)"
    started = monotonic()
    with pytest.raises(LayoutBudgetError) as caught:
        slow.call("page", {"expression": line})
    assert str(caught.value).startswith(told.format(line=line))
    assert monotonic() - started < 20  # one second on an idle machine
    # What was interrupted is not asked again; another answers.
    assert slow.call("page", {"expression": "4:1"})[0]


def test_a_picture_has_a_budget_of_memory() -> None:
    asked = {**PICTURE, "typed": "(512,512)", "limits": [512], "format": "html"}
    with (
        RequestWorkers(1, memory=48 << 20) as workers,
        pytest.raises(LayoutBudgetError, match="memory"),
    ):
        workers.call("picture", asked)


def test_of_one_worker_two_cannot_have_the_answer_at_once(slow: RequestWorkers) -> None:
    def ask() -> None:
        with pytest.raises(LayoutBudgetError):
            slow.call("page", {"expression": "nullspace(4)"})

    other = Thread(target=ask)
    other.start()
    while not slow._free.empty():
        pass
    with pytest.raises(TimeoutError, match="busy"):
        slow.call("page", {"expression": "4"}, 0.01)
    other.join()


def stand_in(*lines: str) -> RequestWorker:
    """A worker that writes these lines when it is asked, and then nothing any more."""
    code = "import sys, time\nprint('{\"timers\": false}', flush=True)\nsys.stdin.readline()\n"
    code += "".join(f"print({line!r}, flush=True)\n" for line in lines) + "time.sleep(60)\n"
    return RequestWorker(0, code.replace("{", "{{").replace("}", "}}"))


def test_where_a_process_cannot_limit_itself_the_clock_does() -> None:
    worker = stand_in('{"within": 5}', '{"within": 0.2}')
    started = monotonic()
    with pytest.raises(LayoutBudgetError, match="more time or memory than is allowed"):
        worker.call("page", {})
    assert not worker.usable
    assert monotonic() - started < 5
    worker.close()


def test_half_an_answer_is_none() -> None:
    worker = stand_in('{"within": 1}')
    worker._process.kill()
    with pytest.raises((LayoutBudgetError, OSError)):
        worker.call("page", {})
    assert not worker.usable
    worker.close()


def test_errors_keep_their_class(workers: RequestWorkers) -> None:
    with pytest.raises(ArgumentError, match="argument `limit`: expected an int >= 4, got 1"):
        workers.call("picture", {**PICTURE, "typed": "4:1", "limits": [1]})
    with pytest.raises(LayoutTypeError):
        workers.call("picture", {**PICTURE, "typed": "(4,2):(1)"})
    with pytest.raises(RuntimeError, match="KeyError"):  # a fault of ours, with where it is
        workers.call("no such task", {})


def test_a_warm_page_is_there_at_once(workers: RequestWorkers) -> None:
    times = []
    for _ in range(10):
        started = monotonic()
        workers.call("page", {"expression": "zipped_divide((4,8):(8,1), (2,4))", "limit": 32})
        times.append(monotonic() - started)
    assert min(times) < 0.05


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["(100000,10000)", "--limit", "1000000000"], "argument `limit`: expected at most"),
        (["(1000,1000)", "--limit", "1000"], "one that shows at most 262144 cells, got"),
        (["(99999,99999)", "--tv", "99999,99999"], "expected at most 262144"),
        (["--view", "fprop:9x9,999x999,padding=999", "--row", "1"], "argument `row`: expected"),
        (["--view", "fprop:²x5,3x3"], "expected a number in place of '²'"),
        (["--view", f"fprop:5x5,3x3,padding={'9' * 5000}"], "expected a number in place of '999"),
        (["--atom", f"m64n{'9' * 5000}k16"], "argument `atom`: expected a name"),
        (["(4,\x1b[31m)"], "expected an integer, found '\\x1b'\n(4,�[31m)\n   ^"),
        (["1:1@99999999999"], "\n1:1@99999999999\n    ^"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else "",
)
def test_the_command_draws_within_bounds(
    arguments: list[str], message: str, refused: Refused
) -> None:
    error = refused(arguments)
    assert message in error
    assert len(error) < 5000
    assert error.replace("\n", "").isprintable()
