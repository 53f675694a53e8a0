"""Short runs of the fuzzers of what is typed, asked and commanded; and faults that they find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from layoutconv.algebra import Layout, parse

from . import commands, expressions, server
from .expressions import Judged
from .reference import is_notation


def kinds(counts: dict[str, int]) -> set[str]:
    return {name.partition(",")[0] for name in counts}


def test_expressions() -> None:
    report = expressions.campaign(6000)
    assert report.failures == []
    assert kinds(report.counts) == {"notation", "damaged", "hostile", "expression", "page"}
    for outcome in ("damaged, read", "damaged, refused", "hostile, refused", "page, drawn",
                    "expression, layout", "expression, no such layout"):  # fmt: skip
        assert report.counts[outcome] > 0


def test_the_server() -> None:
    report = server.campaign(1000)
    assert report.failures == []
    assert kinds(report.counts) == {"request", "damaged", "garbage", "large", "browser"}
    assert {"request, 200", "request, 403", "large, 431"} <= report.counts.keys()


def test_commands() -> None:
    report = commands.campaign(120)
    assert report.failures == []
    assert {"draw, status 0", "draw, status 2", "tune, status 2"} <= report.counts.keys()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(4,(2,3)):(1,(4,8))", True), ("()", True), ("( 4 , )", True), ("4 : 2 @ 1 + 3@0", True),
        ("S<3, 2,-3> o (1,2) O 4:f5", True), ("_4:_-2", True), ("4:(1,f2)", True),
        ("", False), ("(4", False), ("4)", False), ("4 2", False), ("4:", False), (":4", False),
        ("4:1+2", False), ("4:f1+1@0", False), ("(4:1)", False), ("(f4)", False), ("4 o", False),
        ("1_0", False), ("_ 4", False), ("- 4", False), ("S <1,2,3>", False), ("²", False),
        ("N", False), ("4,2", False), ("f4", False), ("S<1,2>", False), ("4@1", False),
        ("2:f16@1", True), ("(2,2):(f1@0,2@1+f4@0)", True), ("f4@1", False), ("4:f1@f2", False),
        ("cute.make_layout(4, stride=2)", True), ("make_layout(shape=(4,),stride = (f2,))", True),
        ("make_layout(4, order=2)", False), ("make_layout(4:1, stride=2)", False),
        ("cute.4", False),
    ],
)  # fmt: skip
def test_the_recogniser(text: str, expected: bool) -> None:
    """By hand: it is what the parser is judged by."""
    assert is_notation(text) is expected


FAULTS: dict[str, Callable[[str], Any]] = {
    "reads digits across an underscore": lambda text: parse(text.replace("_", "")),
    "forgets an empty mode": lambda text: parse(text.replace(",()", "")),
    "reads other digits": lambda text: parse(text.replace("²", "2")),
    "reads the beginning": lambda text: parse(text.rstrip(") ")+ ")" * text.count("(")),
    "gives any layout": lambda text: Layout(4),
    "raises": lambda text: [][0],
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_of_the_parser_is_found(fault: str) -> None:
    judged = Judged(parse=FAULTS[fault])
    assert expressions.campaign(2000, pages=False, first=True, judged=judged).failures


def test_an_operation_that_is_evaluated_wrongly_is_found() -> None:
    judged = Judged(evaluate=lambda text: Layout(4))
    assert expressions.campaign(100, pages=False, first=True, judged=judged).failures


@pytest.mark.parametrize("name", ["refusal", "send_error"])
def test_a_fault_of_the_server_is_found(name: str) -> None:
    def repeated(self: Any, code: int, message: Any = None, explain: Any = None) -> None:
        self.answer(code, "text/html", f"{code}: {self.requestline}")

    fault = (lambda self: None) if name == "refusal" else repeated

    class Faulty(server.FuzzedServer):
        def __init__(self) -> None:
            super().__init__()
            self.RequestHandlerClass = type("Faulty", (self.RequestHandlerClass,), {name: fault})

    assert server.campaign(200, kind=Faulty).failures


def test_a_command_that_raises_is_found() -> None:
    def raises(arguments: list[str]) -> int:
        raise TypeError(arguments)

    assert commands.campaign(1, main=raises).failures
