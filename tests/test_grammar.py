"""The pages are grammatical, as far as a checker without a network can tell.

harper knows about 900 rules. It was tried beside others on these pages and on thirty sentences
with a mistake each: it finds 12 of the thirty, and the rules that are left alone here say nothing
about the pages that is wrong. proselint finds 2 and says 1,170 things about the pages, all of
typography; vale and LanguageTool load their parts from the network.
"""

from __future__ import annotations

import json
import re
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
# Rules that are no mistakes here, and what they take for one.
LEFT_ALONE = {
    "SpellCheck SplitWords OrthographicConsistency": "words of the field; codespell reads them",
    "SentenceCapitalization UseTitleCase OxfordComma UseEllipsisCharacter LongSentences": "style",
    "ExpandMemoryShorthands ExpandTimeShorthands ExpandControl ExpandPointer": "MB, ms, Ctrl, ptr",
    "ExpandCoordinate ExpandMinimum CapitalizePersonalPronouns": "coord, min, i",
    "RegularIrregulars HelloGreeting CompoundNouns": "strided, halo, a file system",
    "PhrasalVerbAsCompoundNoun MassNouns": "a layout, a dilation",
    "EllipsisLength Spaces": "{0..9}, every .xN",
    "MergeWords TransposedSpace Overall": "TFLOP/s on, `x`s will, sums over all ranks",
    "MissingPreposition MissingTo QuantifierNumeralConflict": "fp8 wants compute capability 8.9",
}
# A word, or two, that a rule is wrong about: the matrix A, letters that begin with a vowel's sound.
RIGHT = {"A", "an mma", "an mbarrier", "a SHA", "uncompiled"}


def mistakes(*pages: Path) -> list[str]:
    """Return lines that say where, which rule, and which words."""
    pytest.importorskip("harper")
    program = Path(sysconfig.get_path("scripts")) / "harper"
    ignored = ",".join(" ".join(LEFT_ALONE).split())
    command = [str(program), "--no-color", "lint", "--quiet", "--dialect", "uk", "--format", "json"]
    said = subprocess.run(
        [*command, "--ignore", ignored, *map(str, pages)], capture_output=True, text=True
    )
    assert said.stdout.startswith("["), said.stderr
    texts = {page.name: page.read_text("utf-8") for page in pages}
    return [
        f"{found['file']}:{lint['line']}: {lint['rule']}: {words}"
        for found in json.loads(said.stdout)
        for lint in found["lints"]
        for words in [matched(texts[found["file"]], lint)]
        if not {words, words.split()[0]} & RIGHT
    ]


def matched(text: str, lint: dict[str, Any]) -> str:
    """Return what a rule is about, with the word after it."""
    start, end = lint["span"]["char_start"], lint["span"]["char_end"]
    after = re.findall(r"\w+", text[end : end + 80])[:1]
    return " ".join([*text[start:end].split(), *after])


def test_pages_are_grammatical() -> None:
    assert mistakes(*PAGES) == []


def test_mistakes_are_found(tmp_path: Path) -> None:
    wrong = """
    The the kernel is fast.
    This is an layout of two modes.
    You could of used a swizzle here.
    It is more faster than before.
    The tile is bigger then the other.
    This allows to run without a GPU.
    Their is no GPU on this machine.
    We suggests another tile.
    Its been measured on an H200.
    A tile is a layout.
    """
    sentences = [line.strip() for line in wrong.strip().splitlines()]
    (tmp_path / "page.md").write_text("\n\n".join(sentences))
    lines = {int(said.split(":")[1]) for said in mistakes(tmp_path / "page.md")}
    assert lines == set(range(1, 2 * len(sentences) - 2, 2))  # all but the last
