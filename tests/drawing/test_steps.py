"""Steps: whoever follows a cell through the panels finds that R(c) = A(P(c))."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from layoutconv import LayoutError
from layoutconv.drawing import Cell
from layoutconv.drawing.expression import Applied, evaluate, operations
from layoutconv.drawing.fragment import fragment_of
from layoutconv.drawing.html import page
from layoutconv.drawing.static_gallery import GALLERY, write_gallery
from layoutconv.drawing.step import DrawnStep, steps_text
from layoutconv.drawing.steps import steps, summary
from layoutconv.drawing.tasks import walk_through

from .figures import cells

FOLLOWED = [
    "(4,8):(8,1) @ (2,4):(2,8)",
    "(6,2):(8,2) @ (4,3):(3,1)",
    "(4,8):(8,1) @ (2,4)",
    "(4,8):(8,1) @ (2:2,4)",
    "((2,2),(4,2)):((1,8),(2,16)) @ 8",
    "(4,2,3):(1,8,16) @ (2,2,3):(2,4,8)",
    "(3,4):(1@0,1@1) @ (4,3):(3,1)",
    "(4,8):(8,1) @ (3,4):(1@0,2@1)",
    "S<2,0,3> @ (8,4):(4,1)",
    "(S<2,0,3> @ (8,4):(4,1)) @ (4,4):(8,2)",
    "logical_divide(24, 4:2)",
    "logical_divide((4,2,3):(2,1,8), 4:2)",
    "logical_divide((4,8):(8,1), (2,_))",
    "logical_divide(10, 4)",
    "zipped_divide((4,8):(8,1), (2,4))",
    "zipped_divide((5,7):(7,1), (2:2,3))",
    "zipped_divide(((2,2),(4,2)):((1,8),(2,16)), (2,4))",
    "tiled_divide((4,8):(8,1), (2,4))",
    "flat_divide((4,8):(8,1), (2,4))",
    "zipped_divide(S<2,0,3> @ (8,8):(8,1), (4,2))",
    "zipped_divide((4,6):(0,1), (2,3))",
]


def by(name: str, step: DrawnStep, panel: int) -> dict[str, list[Cell]]:
    """The cells of a panel by a fact."""
    found: dict[str, list[Cell]] = {}
    for cell in cells(step.panels[panel].figure):
        told = dict(cell.facts)
        if name in told:
            found.setdefault(told[name], []).append(cell)
    return found


@pytest.mark.parametrize("expression", FOLLOWED)
def test_links_lead_from_a_coordinate_to_its_offset(expression: str) -> None:
    last = steps(expression)[-1]
    (p, position, a, entry), (_, index, r, same) = last.links
    assert [panel.name for panel in last.panels][1:] == ["A", "R"]
    assert (position, index, same, p, a, r) == ("position", "index", "index", 0, 1, 2)
    of_p, of_a, of_r = by(index, last, p), by(entry, last, a), by(same, last, r)
    assert of_p.keys() == of_r.keys()
    followed = 0
    for key, (result,) in of_r.items():
        (through,) = of_p[key]
        at = dict(through.facts).get(position)
        if at is None or at not in of_a:
            continue  # beyond A
        (cell,) = of_a[at]
        followed += 1
        assert dict(cell.facts)["offset"] == dict(result.facts)["offset"]
        assert cell.fill == through.fill == result.fill != ""
    # Nothing of A is left out by a division; a composition stays inside here.
    total = len(of_a) if "divide" in expression else len(of_r)
    assert followed == total
    assert str(evaluate(expression)) in last.panels[2].figure.title


@pytest.mark.parametrize(
    ("expression", "tile", "count"),
    [
        ("logical_divide(24, 4:2)", 4, 6),
        ("zipped_divide((4,8):(8,1), (2,4))", 8, 4),
        ("flat_divide((4,8):(8,1), (2,4))", 8, 4),
        ("zipped_divide((4,6):(0,1), (2,3))", 6, 4),
    ],
)
def test_each_tile_has_a_colour(expression: str, tile: int, count: int) -> None:
    for panel in steps(expression)[-1].panels:
        fills = [cell.fill for cell in cells(panel.figure)]
        assert sorted(fills.count(fill) for fill in set(fills)) == [tile] * count


def test_what_lies_beyond_has_no_colour() -> None:
    first, second = steps("logical_divide(10, 4)")[-2:]
    for step, panel in ((first, 0), (second, 0), (second, 2)):
        assert sum(not cell.fill for cell in cells(step.panels[panel].figure)) == 2
        assert "beyond A" in step.sentence


@pytest.mark.parametrize(
    "expression",
    [
        "(4,3):(1,8) @ 6:1",
        "(6,2):(1,7) @ (3,2):(2,3)",
        "logical_divide((6,2):(7,6), 2:4)",
        "coalesce((4,3):(1,8) @ 6:1)",
    ],
)
def test_the_witness_is_marked_where_it_goes_wrong(expression: str) -> None:
    applied: list[Applied] = []
    with pytest.raises(LayoutError) as caught:
        evaluate(expression, applied)
    error = caught.value
    last = steps(expression)[-1]
    assert last.title.endswith("where it goes wrong")
    marked = [[cell for cell in cells(panel.figure) if cell.mark] for panel in last.panels]
    (through,), (best,) = marked[0], marked[2]
    assert dict(through.facts)["index"] == dict(best.facts)["index"]
    assert dict(best.facts)["offset"] == str(error.best(error.witness)) != str(error.exact)
    for cell in marked[1]:  # none where the witness lies beyond A
        assert dict(cell.facts)["offset"] == str(error.exact)
        assert dict(cell.facts)["index"] == dict(through.facts)["position"]
    assert f"it is {error.exact}, but the closest layout, {error.best}, gives" in last.sentence
    good, fragment = fragment_of(expression)
    assert not good
    assert last.sentence.partition(" The cells")[0] in fragment


def test_steps_of_nested_expressions_come_innermost_first() -> None:
    inner, outer = "(4,8):(8,1) @ (4,8):(1,4)", "zipped_divide((4,8):(8,1), (2,4))"
    both = steps("zipped_divide((4,8):(8,1) @ (4,8):(1,4), (2,4))")
    assert both == [*steps(inner), *steps(outer)]
    assert steps("(4,8):(8,1)") == []


@pytest.mark.parametrize(
    ("expression", "fact", "other"),
    [
        ("coalesce((4,(2,3)):(1,(4,8)))", "index", "index"),
        ("right_inverse((4,8):(8,1))", "offset", "index"),
        ("left_inverse((4,8):(1,5))", "offset", "index"),
    ],
)
def test_other_operations_show_operand_and_result(expression: str, fact: str, other: str) -> None:
    (step,) = steps(expression)
    assert [panel.name for panel in step.panels] == ["A", "R"]
    assert step.links == ((0, fact, 1, other),)
    assert step.sentence == summary(expression.partition("(")[0])
    back = by(other, step, 1)
    for key, (cell,) in by(fact, step, 0).items():
        for image in back.get(key, []):
            ends = ("offset", "offset") if fact == "index" else ("index", "offset")
            assert dict(cell.facts)[ends[0]] == dict(image.facts)[ends[1]]


def test_text_and_page_have_every_step() -> None:
    expression = "logical_divide(24, 4:2)"
    found = steps(expression)
    told, whole = steps_text(found), page("", fragment_of(expression)[1])
    for number, step in enumerate(found, 1):
        assert f"{number}. {step.title}" in told
        assert f"<h2>{step.title}</h2>" in whole
    assert "`" not in told
    assert whole.count("<section") - page("", "").count("<section") == 1 + len(found)


def test_large_layouts_take_no_time_and_no_tile_has_a_colour() -> None:
    last = steps("zipped_divide((100000,100000):(100000,1), (256,128))", limit=8)[-1]
    assert all(len(list(cells(panel.figure))) <= 81 for panel in last.panels)
    assert "colour" not in last.sentence


def test_a_walk_is_never_empty() -> None:
    """Each operation, of operands that it takes and of others: text, or an error that is raised."""
    operands = ["4:2", "(4,8):(8,1)", "(2,4)", "6:1", "S<1,0,1>", "3", "_"]
    walked = 0
    for name in operations():
        for one, other in [("", ""), *product(operands, repeat=2)]:
            expression = f"{name}({', '.join(filter(None, (one, other)))})"
            try:
                told, _ = walk_through(expression, 8, html=False)
            except LayoutError:
                continue
            walked += 1
            assert all(part.strip() for part in told.split("\n\n")), expression
    assert walked > 300


def test_a_gallery_is_files_that_lead_to_each_other(tmp_path: Path) -> None:
    """And nowhere else: no server, no other site; every page has the steps of its expression."""
    written = write_gallery(tmp_path / "new" / "folder")
    assert [path.stem for path in written] == ["index", *(exhibit.name for exhibit in GALLERY)]
    pages = {path.name: path.read_text("utf-8") for path in written}
    for html in pages.values():
        leads_to = set(re.findall(r'(?:href|src)="([^"]*)"', html))
        assert leads_to <= set(pages)
        assert "index.html" in leads_to or leads_to == set(pages) - {"index.html"}
    for exhibit in GALLERY:
        html, found = pages[f"{exhibit.name}.html"], steps(exhibit.expression)
        assert found
        assert html.partition("<script>")[0].count("<section") == 1 + len(found)
        refused = "There is no such layout" in html
        assert refused == (exhibit.name == "no-such-layout")
    reached = set(re.findall(r'<a href="([^"]*)">After', "".join(pages.values())))
    assert reached == {f"{exhibit.name}.html" for exhibit in GALLERY[1:]}
