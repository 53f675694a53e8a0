"""Expressions: what is typed is what the functions of the algebra give, and nothing else is run."""

from __future__ import annotations

from typing import Any

import pytest

import layoutconv as lc
from layoutconv import Layout, LayoutError, Swizzle, parse
from layoutconv.drawing.expression import Applied, evaluate, operations
from layoutconv.drawing.grammar import LONGEST

A, B = Layout((4, 8), (8, 1)), Layout((2, 4), (1, 4))


@pytest.mark.parametrize(
    "notation",
    [
        "(4,8)", "4:2", "6", "()", "(4)", "((2,2),(4,2)):((1,8),(2,16))", "4:f5", "_4:_2", "7:-1",
        "S<3,2,3>", "S<3,2,3> o 0 o (8,32):(32,1)", "(6):(10) o (-1) o (4,3):(1@0,1@0)",
        "(3,4):(1@0,2@1+1@0)", "4:2@1", "4:2@1@0",
    ],
)  # fmt: skip
def test_all_notation_is_an_expression(notation: str) -> None:
    assert evaluate(notation) == evaluate(f" {notation} ") == parse(notation)
    if ":" in notation or "<" in notation:  # around a shape they are part of it
        assert evaluate(f"( {notation} )") == parse(notation)


# Every operation that can be named, and what the call gives.
CALLS: dict[str, Any] = {
    "composition((4,8):(8,1), (2,4))": A @ (2, 4),
    "complement(4:2, 24)": lc.complement(Layout(4, 2), 24),
    "logical_divide((4,8):(8,1), (2,_))": lc.logical_divide(A, (2, None)),
    "zipped_divide((4,8):(8,1), (2:2, 4))": lc.zipped_divide(A, (Layout(2, 2), 4)),
    "tiled_divide((4,8):(8,1), (2,None))": lc.tiled_divide(A, (2, None)),
    "flat_divide((4,8):(8,1), (2,4))": lc.flat_divide(A, (2, 4)),
    "logical_product(4, 3:2)": lc.logical_product(Layout(4), Layout(3, 2)),
    "zipped_product((2,4):(1,4), (3,2))": lc.zipped_product(B, (3, 2)),
    "tiled_product((2,4):(1,4), (3,2))": lc.tiled_product(B, (3, 2)),
    "flat_product((2,4):(1,4), (3,2))": lc.flat_product(B, (3, 2)),
    "blocked_product((2,5):(5,1), (3,4):(1,3))": lc.blocked_product(
        Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))
    ),
    "raked_product((2,5):(5,1), (3,4):(1,3))": lc.raked_product(
        Layout((2, 5), (5, 1)), Layout((3, 4), (1, 3))
    ),
    "tile_to_shape((2,2):(1,2), (4,8), (1,0))": lc.tile_to_shape(
        Layout((2, 2), (1, 2)), (4, 8), (1, 0)
    ),
    "coalesce((4,(2,3)))": lc.coalesce(Layout((4, (2, 3)))),
    "filter((4,2):(1,0))": lc.filter(Layout((4, 2), (1, 0))),
    "flatten_layout(((2,3),4))": lc.algebra.flatten_layout(Layout(((2, 3), 4))),
    "flatten((4,(2,3)):(1,(4,8)))": lc.flatten(Layout((4, (2, 3)), (1, (4, 8)))),
    "group_modes((2,3,4), 0, 2)": lc.group_modes(Layout((2, 3, 4)), 0, 2),
    "right_inverse((4,8):(8,1))": lc.right_inverse(A),
    "left_inverse(4:2)": lc.left_inverse(Layout(4, 2)),
    "nullspace((4,2):(1,0))": lc.nullspace(Layout((4, 2), (1, 0))),
    "max_common_layout((4,8):(8,1), (4,8):(16,1))": lc.max_common_layout(
        A, Layout((4, 8), (16, 1))
    ),
    "make_ordered_layout((4,8), (1,0))": A,
    "make_identity_layout((2,3))": lc.make_identity_layout((2, 3)),
    "make_layout_like((4,8):(9,1))": lc.make_layout_like(Layout((4, 8), (9, 1))),
    "make_layout(4:2, 3:8, (2,2))": lc.make_layout(Layout(4, 2), Layout(3, 8), Layout((2, 2))),
    "layout_add(4:1, 4:2)": lc.algebra.layout_add(Layout(4, 1), Layout(4, 2)),
    "upcast((8,4):(1,8), 2)": lc.upcast(Layout((8, 4), (1, 8)), 2),
    "downcast((8,4):(1,8), 2)": lc.downcast(Layout((8, 4), (1, 8)), 2),
    "recast((8,4):(1,8), 16, 32)": lc.recast(Layout((8, 4), (1, 8)), 16, 32),
    "Layout((4,8), (8,1))": A,
    "Swizzle(3,0,3)": Swizzle(3, 0, 3),
}


@pytest.mark.parametrize("expression", CALLS)
def test_a_call_is_the_function(expression: str) -> None:
    applied: list[Applied] = []
    assert evaluate(expression, applied) == CALLS[expression]
    assert [a.name for a in applied] == [expression.partition("(")[0]]
    assert applied[0].result == CALLS[expression]


def test_every_operation_is_called_above() -> None:
    assert {expression.partition("(")[0] for expression in CALLS} == set(operations())


def test_at_composes_from_the_left_and_groups() -> None:
    x, y, z = "(4,8):(8,1)", "(8,4):(4,1)", "(2,4):(2,8)"
    X, Y, Z = map(parse, (x, y, z))
    left: list[Applied] = []
    right: list[Applied] = []
    assert evaluate(f"{x} @ {y} @ {z}", left) == (X @ Y) @ Z
    assert evaluate(f"{x}@({y} @ {z})", right) == X @ (Y @ Z)
    assert [a.operands for a in left] == [(X, Y), (X @ Y, Z)]
    assert [a.operands for a in right] == [(Y, Z), (X, Y @ Z)]
    assert evaluate(f"{x} @ 4") == X @ 4
    # Between digits it is that of a scaled basis.
    assert evaluate("(3,4):(1@0,1@1)") == Layout((3, 4), (lc.E(0), lc.E(1)))
    assert evaluate("S<2,0,3> @ (8,4)") == lc.composition(Swizzle(2, 0, 3), Layout((8, 4)))
    applied: list[Applied] = []
    evaluate(f"zipped_divide({x} @ {y}, (2,2))", applied)
    assert [a.name for a in applied] == ["composition", "zipped_divide"]
    assert applied[1].operands == (X @ Y, (2, 2))


@pytest.mark.parametrize(
    ("expression", "message", "at"),
    [
        ("(4,2):(1,4) ]", "expected the end, found ']'", 12),
        ("coalesce((4,2):(1,!))", "expected an integer, found '!'", 18),
        ("4:1 @", "expected a layout, found the end", 5),
        ("4:1 @ @ 3", "expected a layout, found '@'", 6),
        ("(4,2", "expected ',' or ')', found the end", 4),
        ("(4,8) @ complemnt(4:2)", "expected an operation (complement?), found 'complemnt'", 8),
        ("4:1 @ colesce", "expected a layout (coalesce(...)?), found 'colesce'", 6),
        ("eval(4)", "expected an operation, found 'eval'", 0),
        ("Layout.__class__", "expected a layout (Layout(...)?), found 'Layout'", 0),
        ("__import__('os')", "expected an integer, found '_'", 0),
        ("(4).real", "expected the end, found '.'", 3),
        ("coalesce((4, ²))", "expected an integer, found '²'", 13),
        ("4:1 @ upcast((4,8), 4:1)", "upcast: expected an integer, got 4:1", 6),
        ("coalesce((2,_))", "expected a layout, got the tiler (2,_)", 0),
        ("4 @ complement()", "complement: expected the operands (a, bound), got 0", 4),
        ("Swizzle(65, 0, 65)", "Swizzle: expected integers of at most 64, got 65", 0),
    ],
)
def test_errors_point_at_what_does_not_fit(expression: str, message: str, at: int) -> None:
    with pytest.raises(LayoutError) as caught:
        evaluate(expression)
    told, line, caret = str(caught.value).split("\n")
    assert message in told
    assert (line, caret) == (expression, " " * at + "^")


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("(2,_)", "expected a layout, got the tiler (2,_)"),
        ("(4:1, 2:1)", "expected a layout, got the tiler (4:1,2:1)"),
        ("complement()", "complement: expected the operands (a, bound), got 0"),
        ("upcast((4,8), 4:1)", "upcast: expected an integer, got 4:1"),
        ("composition((4,3):(1,8), 6:1)", "the mode 6:1 crosses a mode boundary at 4"),
        ("(" * 1500 + ")" * 400, "found the end"),
        ("(" * 950 + "4:1" + ")" * 950, "at most 64 levels of parentheses"),
        ("4" * (LONGEST + 1), f"expected at most {LONGEST} characters, found {LONGEST + 1}"),
    ],
    ids=lambda value: value[:40],
)
def test_errors_of_the_algebra_come_through(expression: str, message: str) -> None:
    with pytest.raises(LayoutError) as caught:
        evaluate(expression)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("expression", "message", "at"),
    [
        (" @ ".join(["4"] * 66), "at most 64 operations", 4 * 64 + 2),
        ("(" * 65 + "4:2 @ 2" + ")" * 65, "at most 64 levels of parentheses", 64),
        ("4" * 300 + "!" + "4" * 300, "found '!'", 300),
    ],
    ids=lambda value: str(value)[:20],
)
def test_of_a_long_text_the_place_is_shown(expression: str, message: str, at: int) -> None:
    with pytest.raises(LayoutError) as caught:
        evaluate(expression)
    told, line, caret = str(caught.value).split("\n")
    assert message in told
    assert len(line) <= 126
    assert line.strip(".") in expression
    assert line[caret.index("^")] == expression[at]


def test_an_operation_that_fails_is_told_with_its_operands() -> None:
    applied: list[Applied] = []
    with pytest.raises(LayoutError) as caught:
        evaluate("coalesce((4,3):(1,8) @ (6:1 @ 6:1))", applied)
    assert [(a.name, a.error is None) for a in applied] == [
        ("composition", True),
        ("composition", False),
    ]
    assert applied[1].error is caught.value
    assert applied[1].operands == (Layout((4, 3), (1, 8)), Layout(6))
