"""The pages in a headless Chromium: typed, pointed at, touched, and gone through by keys."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from layoutconv import Layout, mma_atom
from layoutconv.cli import main
from layoutconv.drawing.api import draw
from layoutconv.drawing.serve import EXAMPLES, Server
from layoutconv.drawing.steps import steps

playwright = pytest.importorskip("playwright.sync_api", reason="wants pip install playwright")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="wants Chromium")

COMPOSITION, DIVIDE = "(6,2):(8,2) @ (4,3):(3,1)", "zipped_divide((4,8):(8,1), (2,4))"
WRONG = "(4,3):(1,8) @ 6:1"


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        # Containers have no user namespaces for the sandbox; the pages are our own.
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def tab(chromium: Any) -> Iterator[Any]:
    """A function that opens a page; whatever that complains about fails the test."""
    complaints: list[str] = []
    opened: list[Any] = []

    def open(url: str, **options: Any) -> Any:
        page = chromium.new_page(**{"viewport": {"width": 1280, "height": 900}, **options})
        opened.append(page)
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "request",
            lambda request: (
                complaints.append(request.url)
                if (not request.url.startswith((url.partition("?")[0], "data:")))
                else None
            ),
        )
        page.goto(url)
        return page

    yield open
    for page in opened:
        page.close()
    # The status of an expression that has no layout is told by the browser, too.
    assert [c for c in complaints if "422" not in c] == []


def facts(cell: Any) -> dict[str, str]:
    return dict(json.loads(cell.get_attribute("data-facts")))


def lit(page: Any, panel: int) -> list[dict[str, str]]:
    return [facts(cell) for cell in page.locator(f"figure >> nth={panel}").locator(".lit").all()]


def cell_of(page: Any, panel: int, index: int) -> Any:
    for cell in page.locator(f"figure >> nth={panel}").locator("[data-facts]").all():
        if facts(cell)["index"] == str(index):
            return cell
    raise AssertionError(f"no cell {index}")


def forward(page: Any, times: int) -> None:
    for _ in range(times):
        page.get_by_role("button", name="Next").click()


def test_what_is_typed_is_drawn(server: Server, tab: Any) -> None:
    page = tab(server.url)
    assert page.locator(".notation").inner_text() == EXAMPLES[0]
    box = page.get_by_label("A layout, or an expression of layouts")
    assert box.evaluate("box => box === document.activeElement")
    box.fill("(3,5):(7,1)")
    playwright.expect(page.locator(".notation")).to_have_text("(3,5):(7,1)")
    assert page.locator(".said").inner_text().split() == [
        "shape", "(3,5)", "stride", "(7,1)", "size", "15", "cosize", "19"
    ]  # fmt: skip
    assert page.locator("figure [data-facts]").count() == 15
    assert "expression=%283%2C5%29" in page.url
    box.fill("(4,2):(1,4) ]")
    playwright.expect(page.get_by_role("alert")).to_contain_text("expected the end, found ']'")
    page.locator(".examples a").nth(1).click()
    playwright.expect(page.locator(".notation")).to_have_text("((2,4),(2,2)):((8,1),(16,4))")
    assert box.input_value() == EXAMPLES[1]


def test_pointing_tells_coordinate_and_offset(server: Server, tab: Any) -> None:
    page = tab(server.address_of("(4,8):(8,1)"))
    L, tip = Layout((4, 8), (8, 1)), page.locator("#tip")
    for index in (0, 13, 31):
        cell_of(page, 0, index).hover()
        told = tip.inner_text().split()
        assert told == ["coordinate", f"({index % 4},{index // 4})", "index", str(index),
                        "offset", str(L(index))]  # fmt: skip
        box = tip.bounding_box()
        assert 0 <= box["x"] <= box["x"] + box["width"] <= 1280
    page.mouse.move(2, 2)
    assert not tip.is_visible()
    # Cells of one offset light up together.
    page = tab(server.address_of("(4,2):(0,1)"))
    cell_of(page, 0, 1).hover()
    assert [told["coordinate"] for told in lit(page, 0)] == ["(0,0)", "(1,0)", "(2,0)", "(3,0)"]


@pytest.mark.parametrize("expression", [COMPOSITION, DIVIDE, "S<3,0,3> @ (8,8):(8,1)"])
def test_a_coordinate_is_followed_through_a_step(server: Server, tab: Any, expression: str) -> None:
    page = tab(server.address_of(expression))
    found = steps(expression)
    forward(page, len(found))
    assert page.locator(".steps output").inner_text() == f"step {len(found)} of {len(found)}"
    assert page.get_by_role("heading").all_inner_texts() == [found[-1].title]
    for panel in (0, 2, 1):  # from P, from R and from A it is the same way
        cell_of(page, panel, 5).hover()
        (through,), (at,), (result,) = (lit(page, i) for i in range(3))
        assert through["index"] == result["index"]
        assert through["position"] == at["inner" if "S<" in expression else "index"]
        assert at["offset"] == result["offset"]
        assert page.locator(".ways path").count() == 2
        names = "".join(found[-1].panels[i].name for i in range(3))
        told = page.locator(".readout").inner_text()
        assert re.fullmatch(r"(\w)\(.*\) = .*→ A\(.*\) = (\S+)\s+→\s+R\(.*\) = \2", told)
        assert told[0] + "AR" == names
    # The ways begin and end at the cells.
    way = page.locator(".ways path").first
    start = way.evaluate(
        "p => { const q = p.getPointAtLength(0), o = p.ownerSVGElement"
        ".getBoundingClientRect(); return [q.x + o.left, q.y + o.top] }"
    )
    box = page.locator("figure >> nth=0").locator(".lit").bounding_box()
    assert box["x"] < start[0] < box["x"] + box["width"]
    assert box["y"] < start[1] < box["y"] + box["height"]
    page.mouse.move(2, 2)
    assert page.locator(".lit, .ways path").count() == 0


def test_next_and_previous(server: Server, tab: Any) -> None:
    page = tab(server.address_of(DIVIDE))
    back, ahead = (page.get_by_role("button", name=name) for name in ("Previous", "Next"))
    seen = []
    assert back.is_disabled()
    while ahead.is_enabled():
        ahead.click()
        seen.append(page.get_by_role("heading").inner_text())
    assert seen == [step.title for step in steps(DIVIDE)]
    assert back.evaluate("button => button === document.activeElement")  # the other is at its end
    back.click()
    assert page.get_by_role("heading").inner_text() == seen[-2]
    page = tab(server.address_of("(4,2)"))
    assert not page.get_by_role("button", name="Next").is_visible()


def test_a_witness_is_shown(server: Server, tab: Any) -> None:
    page = tab(server.address_of(WRONG))
    assert "At 4 it is 8, but the closest layout, 6:1, gives 4" in page.locator("main").inner_text()
    forward(page, 3)
    assert "where it goes wrong" in page.get_by_role("heading").inner_text()
    cell_of(page, 0, 4).hover()
    assert [lit(page, i)[0]["offset"] for i in range(3)] == ["4", "8", "4"]


def test_a_witness_is_one_click_away(server: Server, tab: Any) -> None:
    page = tab(server.address_of(WRONG))
    page.get_by_role("button", name="Show the witness").click()
    assert "where it goes wrong" in page.get_by_role("heading").inner_text()
    assert [lit(page, i)[0]["offset"] for i in range(3)] == ["4", "8", "4"]
    assert page.locator(".ways path").count() == 2
    for expression in ("(4,3):(1,8) @ 6:1 ]", COMPOSITION):  # no layout to show, and one that is
        page = tab(server.address_of(expression))
        assert not page.get_by_role("button", name="Show the witness").is_visible()


@pytest.mark.parametrize("expression", [COMPOSITION, DIVIDE])
def test_steps_are_played(server: Server, tab: Any, expression: str) -> None:
    """Coordinate by coordinate: the result has those cells that were reached, in their order."""
    page = tab(server.address_of(expression))
    page.clock.install(time=0)
    page.clock.pause_at(60)
    forward(page, len(steps(expression)))
    count = page.locator("figure >> nth=0").locator("[data-facts]").count()
    known = page.locator("figure >> nth=2").locator("[data-facts]:not(.coming)")
    assert known.count() == count  # until it is played
    page.get_by_role("button", name="Play").click()
    for index in range(count):
        way, at, result = (lit(page, i)[0] for i in range(3))
        assert way["index"] == result["index"] == str(index)
        assert way["position"] == at["index"]
        assert known.count() == index + 1
        page.clock.run_for(900 if count < 13 else 375)
    assert page.get_by_role("button", name="Play").is_visible()  # it has come to its end
    slider = page.get_by_label("Coordinate that is followed")
    slider.press("Home")
    slider.press("ArrowRight")
    assert lit(page, 0)[0]["index"] == "1"
    assert known.count() == 2
    page.locator("h2").click()
    assert page.locator(".lit, .coming, .ways path").count() == 0


def test_by_keys_alone(server: Server, tab: Any) -> None:
    page = tab(server.address_of("(4,8):(8,1)"))
    press = page.keyboard.press
    for _ in range(30):
        press("Tab")
        if page.evaluate("!!document.activeElement.dataset.facts"):
            break
    active = "document.activeElement.getAttribute('aria-label')"
    assert page.evaluate(active) == "coordinate (0,0), index 0, offset 0"
    for key in ("ArrowRight", "ArrowRight", "ArrowDown", "ArrowLeft"):
        press(key)
    assert page.evaluate(active) == "coordinate (1,1), index 5, offset 9"
    assert page.locator("#tip").inner_text().split()[-1] == "9"
    press("ArrowUp")
    press("ArrowUp")  # there is nothing above
    assert page.evaluate(active) == "coordinate (0,1), index 4, offset 1"
    press("Escape")
    assert not page.locator("#tip").is_visible()
    press("Tab")  # the picture is one stop
    assert not page.evaluate("!!document.activeElement.dataset.facts")


def test_on_a_telephone_by_touch_in_the_dark(server: Server, tab: Any) -> None:
    page = tab(
        server.address_of(COMPOSITION), viewport={"width": 390, "height": 800},
        has_touch=True, is_mobile=True, color_scheme="dark",
    )  # fmt: skip
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.get_by_role("button", name="Next").tap()
    page.get_by_role("button", name="Next").tap()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    cell_of(page, 0, 6).tap()
    assert lit(page, 0)[0]["offset"] == lit(page, 1)[0]["index"]
    dark = "getComputedStyle(document.body).backgroundColor"
    red, green, blue = map(int, re.findall(r"\d+", page.evaluate(dark)))
    assert max(red, green, blue) < 64
    card = page.locator("figure svg > rect").first.evaluate("r => getComputedStyle(r).fill")
    assert max(map(int, re.findall(r"\d+", card))) < 64


@pytest.mark.parametrize("expression", ["(4,400):(400,1)", "logical_divide(4000, 4:2)"])
def test_wide_layouts_scroll_inside_their_frame(server: Server, tab: Any, expression: str) -> None:
    page = tab(server.address_of(expression), viewport={"width": 700, "height": 700})
    for _ in range(len(steps(expression)) + 1):
        assert page.evaluate("document.documentElement.scrollWidth") <= 700
        if page.get_by_role("button", name="Next").is_visible():
            forward(page, 1) if page.get_by_role("button", name="Next").is_enabled() else None
    # What another panel leads to is brought into sight.
    if "divide" in expression:
        cell_of(page, 1, 3990).hover()
        frame = page.locator("figure >> nth=0")
        inside = frame.bounding_box()
        box = frame.locator(".lit").bounding_box()
        assert inside["x"] <= box["x"] <= inside["x"] + inside["width"] - box["width"]


def test_without_a_script_everything_is_there(server: Server, chromium: Any) -> None:
    page = chromium.new_page(java_script_enabled=False)
    page.goto(server.url)
    page.get_by_label("A layout, or an expression of layouts").fill(COMPOSITION)
    page.get_by_role("button", name="Draw").click()
    headings = page.get_by_role("heading").all_inner_texts()
    assert headings == [step.title for step in steps(COMPOSITION)]
    page.close()


def test_a_file_needs_no_server(tab: Any, tmp_path: Path) -> None:
    path = tmp_path / "steps.html"
    assert main(["draw", DIVIDE, "--steps", "-o", str(path)]) == 0
    page = tab(path.as_uri())
    assert page.get_by_role("heading").first.inner_text() == DIVIDE
    forward(page, 3)
    cell_of(page, 0, 9).hover()
    assert [lit(page, i)[0]["offset"] for i in range(3)] == ["(3,0)", "24", "24"]
    # And one picture alone: an atom, where a thread's elements belong together.
    draw(mma_atom("m16n8k8.f16"), path)
    page = tab(path.as_uri())
    page.locator("[data-facts]").first.hover()
    keys = {cell.get_attribute("data-key") for cell in page.locator(".lit").all()}
    assert len(keys) == 1
    assert page.locator(".lit").count() > 1
