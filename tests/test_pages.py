"""The pages render: tables, links, anchors and pictures; and they use the words of the field."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise
from pathlib import Path

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

import layoutconv

from .sources import statements

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
MARKDOWN = MarkdownIt("commonmark").enable("table")
MOST_LINES = {"README.md": 200, "performance.md": 150}
# Words that this project once made up, and the words of the field in their place.
HOME_MADE = {
    r"CTAs that last|lasting CTAs?": "persistent kernel",
    r"takes? tiles in turn|\bteams\b": "ping-pong",
    r"tensor maps?": "TMA descriptor",
    r"(?<!streaming )multiprocessors?": "SM",
    r"room for (one|two|three) CTAs?": "CTAs per SM",
    r"those who (copy|multiply)|who copies": "producer, consumer warps",
    r"B is held|hold(s|ing) B": "B resident in shared memory",
    r"taps share rows|widened view": "halo reuse",
    r"zeros? left out": "zero-tile skipping",
    r"folded lines|lines? folded": "stride folding",
    r"residues? side by side": "stride phases",
    r"a filter that one launch turned|turned filter": "k-major filter",
    r"what follows the sums": "epilogue",
    r"the host's time|waits? for the host": "host overhead, device-to-host sync",
    r"times as long as (we|ours)": "speed-up",
    r"starts? early": "programmatic dependent launch",
}


def tokens(page: Path) -> list[Token]:
    return MARKDOWN.parse(page.read_text("utf-8"))


def inline(page: Path) -> Iterator[Token]:
    """Links, pictures and texts of a page."""
    for token in tokens(page):
        yield from token.children or ()


def prose(page: Path) -> str:
    """A page less its code, fenced or within a line."""
    return " ".join(
        "\n" if token.type in ("softbreak", "hardbreak") else token.content
        for token in inline(page)
        if token.type in ("text", "softbreak", "hardbreak")
    )


def headings(page: Path) -> Iterator[str]:
    for opening, content in zip(tokens(page), tokens(page)[1:], strict=False):
        if opening.type == "heading_open":
            yield content.content


def anchors(page: Path) -> set[str]:
    """The ids of headings, as GitHub and MyST make them."""
    plain = (re.sub(r"[`*]|\]\(.*?\)|\[", "", heading) for heading in headings(page))
    return {re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", "-") for text in plain}


each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


@each_page
def test_tables_are_tables(page: Path) -> None:
    """No paragraph of pipes, and as many cells in a row as in its header."""
    found = tokens(page)
    paragraphs = [b.content for a, b in pairwise(found) if a.type == "paragraph_open"]
    assert [text[:60] for text in paragraphs if text.lstrip().startswith("|")] == []
    lines = page.read_text("utf-8").splitlines()
    for token in found:
        if token.type == "table_open":
            assert token.map is not None
            rows = [line for line in lines[slice(*token.map)] if line.strip()]
            widths = [len(re.split(r"(?<!\\)\|", row.strip().strip("|"))) for row in rows]
            assert [
                row for row, width in zip(rows, widths, strict=True) if width != widths[0]
            ] == []


@each_page
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    for token in inline(page):
        target = str(token.attrGet("href") or token.attrGet("src") or "")
        if not target or re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file), target
        if token.type == "image":
            assert len(token.content) > 20, f"{target}: say what the picture shows"


@pytest.mark.parametrize("picture", sorted(DOCS.rglob("images/**/*.svg")), ids=lambda p: p.stem)
def test_pictures_are_read_at_the_width_of_a_page(picture: Path) -> None:
    """The column of a page has 736 pixels; letters of 11 are at least 8 there."""
    width, points = re.findall(r'<svg[^>]*? width="([\d.]+)(pt)?"', picture.read_text("utf-8"))[0]
    assert float(width) * (4 / 3 if points else 1) <= 736 * 11 / 8


@pytest.mark.parametrize("name", MOST_LINES)
def test_pages_that_are_read_at_once_are_short(name: str) -> None:
    (page,) = (page for page in PAGES if page.name == name)
    assert len(page.read_text("utf-8").splitlines()) <= MOST_LINES[name]


@pytest.mark.parametrize("page", sorted(DOCS.rglob("*.md")), ids=lambda page: page.name)
def test_a_page_opens_with_what_its_reader_can_do(page: Path) -> None:
    _, first = page.read_text("utf-8").split("\n\n")[:2]
    assert first.startswith(("After this page you can ", "After this page you know "))


def test_each_picture_of_the_gallery_has_one_sentence_of_insight() -> None:
    found = [(t.type, t.content) for t in tokens(DOCS / "gallery.md") if t.type == "inline"]
    after = [below for (_, text), (_, below) in pairwise(found) if text.startswith("![")]
    assert len(after) == len(list((DOCS / "images" / "gallery").iterdir()))
    assert [text for text in after if not re.fullmatch(r"[A-Zi][^.!\[]+\.", text)] == []


@each_page
def test_headings_are_noun_phrases_or_verbs(page: Path) -> None:
    assert [h for h in headings(page) if re.match(r"(What|Whether|How|Of|Those)\b", h)] == []


@each_page
def test_words_are_those_of_the_field(page: Path) -> None:
    told = prose(page)
    found = {match[0]: word for pattern, word in HOME_MADE.items()
             for match in re.finditer(pattern, told)}  # fmt: skip
    assert found == {}, "the left is home-made, the right is the field's"


@pytest.mark.parametrize("room", ["layoutconv", "kernels"])
def test_docstrings_use_the_words_of_the_field(room: str) -> None:
    found = {}
    for path in sorted((ROOT / room).rglob("*.py")):
        for node in statements(ast.parse(path.read_text("utf-8"))):
            if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                continue
            told = re.sub(r"(?m)^ *>>>.*(\n *\S.*)*", "", ast.get_docstring(node) or "")
            for pattern, word in HOME_MADE.items():
                for match in re.finditer(pattern, " ".join(told.split())):
                    found[f"{path.relative_to(ROOT)}: {match[0]}"] = word
    assert found == {}, "the left is home-made, the right is the field's"


def is_there(name: str) -> bool:
    """A module, or an attribute of one, of the package by its dotted name."""
    _, *parts = name.split(".")
    found: object = layoutconv
    for at, part in enumerate(parts):
        module = ".".join(["layoutconv", *parts[: at + 1]])
        if hasattr(found, part):
            found = getattr(found, part)
        elif find_spec(module):
            found = import_module(module)
        else:
            return False
    return True


@each_page
def test_names_of_the_package_are_there(page: Path) -> None:
    """Names in tables exist too, though no block of code runs them; ``lc.nn.Conv*`` is several."""
    spans = [token.content for token in inline(page) if token.type == "code_inline"]
    dotted = re.compile(r"\b(?:lc|layoutconv)(?:\.\w+)+(?![\w*])")
    names = [name for span in spans for name in dotted.findall(span)]
    names = [name for name in names if not name.endswith((".py", ".ipynb"))]
    assert [name for name in names if not is_there(name)] == []


def entries() -> Iterator[tuple[str, list[Path]]]:
    """The words of a line of the glossary, and the files that it links to."""
    page = DOCS / "glossary.md"
    for line in page.read_text("utf-8").splitlines():
        words = re.match(r"\| \*\*(.+?)\*\* \|", line)
        if words:
            links = re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", line)
            yield words[1], [(page.parent / link).resolve() for link in links]


def test_the_glossary_is_of_words_in_use() -> None:
    """Each word is found in a file, or in a folder, that its line links to: in the code, if that
    is linked to.
    """
    found = list(entries())
    assert len(found) > 50
    assert all(DOCS / "glossary.md" not in files for _, files in found)
    for words, linked in found:
        files = [file for file in linked if file.suffix != ".md"] or linked
        texts = [path.read_text("utf-8") for file in files
                 for path in ([file] if file.is_file() else file.rglob("*.py"))]  # fmt: skip
        text = " ".join(" ".join(texts).split()).lower()
        for word in words.split(", "):
            told = r"\b" + re.sub(r"\\?[- ]", r"[-_ ]?", re.escape(word.lower()))  # b_resident
            assert re.search(told, text), (word, files)


def test_the_speed_of_the_readme_is_that_of_the_page_of_performance() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    page = (DOCS / "performance.md").read_text("utf-8")
    table = readme[readme.index("| workload | peer | speed-up |") :].partition("\n\n")[0]
    ratios = [re.findall(r"\d+\.\d+", row.split("|")[3]) for row in table.splitlines()[2:]]
    assert all(ratios)
    assert [r for row in ratios for r in row if not re.search(rf"(?<![\d.]){r}\b", page)] == []


def test_words_are_spelled_as_in_dictionaries() -> None:
    """Pages, code, comments and tests; ``codespell`` alone in the root says the same."""
    pytest.importorskip("codespell_lib")
    command = [sys.executable, "-m", "codespell_lib", "."]
    said = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert said.returncode == 0, said.stdout + said.stderr
