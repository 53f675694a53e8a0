"""CuTe's names, who has them, and ours; with what the other libraries gave when they were run.

library_names.txt lists the names of each library, cute_names.txt a row for each of them, or for a
few that mean the same, and cute_differences.txt where the libraries differ among themselves.
``python tests/algebra/cute_names.py`` writes the tables into docs/algebra/names.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
LIBRARIES = {
    "C": "CuTe C++, CUTLASS 4.7.0",
    "D": "CuTe DSL 4.8.1",
    "P": "pycute of CUTLASS",
    "N": "NVlabs/CuTe",
    "T": "tensor-layouts 0.3.2",
}


class Row(NamedTuple):
    """Names of theirs, ours (none for an expression of Python), an example, and what who gave."""

    names: list[str]
    ours: list[str]
    expression: str
    results: list[tuple[str, str]]


class Difference(NamedTuple):
    """Where libraries differ: who does what, what is done here, and an example."""

    what: str
    libraries: str
    here: str
    expression: str
    result: str


def sections() -> dict[str, list[Row]]:
    """The rows of each section."""
    found: dict[str, list[Row]] = {}
    for line in _lines("cute_names.txt"):
        if line.startswith("## "):
            rows = found[line[3:]] = []
            continue
        names, ours, expression, results = line.split(" | ")
        ran = [] if results == "-" else re.findall(r"([CDPNT]) (\S+)", results)
        rows.append(
            Row(names.split(", "), [] if ours == "-" else ours.split(", "), expression, ran)
        )
    return found


def differences() -> list[Difference]:
    """Where the libraries differ."""
    return [Difference(*line.split(" | ")) for line in _lines("cute_differences.txt")]


def library_names() -> tuple[dict[str, set[str]], dict[str, dict[str, set[str]]]]:
    """The names of each library that have to be there, and those that are left out, by reason."""
    kept: dict[str, set[str]] = {letter: set() for letter in LIBRARIES}
    left_out: dict[str, dict[str, set[str]]] = {letter: {} for letter in LIBRARIES}
    text = "\n".join(_lines("library_names.txt")).replace("\n  ", " ")
    for line in text.splitlines():
        head, _, names = line.partition(" | ")
        letter, _, why = head.partition(" ")
        if why.startswith("- "):
            left_out[letter][why[2:]] = set(names.split())
        else:
            kept[letter] |= set(names.split())
    return kept, left_out


def _lines(name: str) -> list[str]:
    lines = (HERE / name).read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("# ")]


def who(row: Row) -> str:
    """The libraries that have one of the names of a row."""
    kept, _ = library_names()
    return "".join(letter for letter, names in kept.items() if names & set(row.names))


def counts() -> str:
    """Return a table of how many names of each library are here, as functions or in Python."""
    kept, left_out = library_names()
    rows = [row for part in sections().values() for row in part]
    named = {name for row in rows if row.ours for name in row.names}
    lines = [
        "| library | names | a function or class here | an expression of Python | left out |",
        "|---|---|---|---|---|",
    ]
    for letter, library in LIBRARIES.items():
        names = kept[letter]
        out = sum(map(len, left_out[letter].values()))
        counted = (len(names), len(names & named), len(names - named), out)
        lines.append(f"| {letter}: {library} | {' | '.join(map(str, counted))} |")
    return "\n".join(lines) + "\n"


def table() -> str:
    """The table of the page, a section after the other."""
    lines = []
    for section, rows in sections().items():
        lines += ["", f"## {section}", "", "| theirs | who | here | an example | ran |"]
        lines.append("|---|---|---|---|---|")
        for row in rows:
            ours = ", ".join(f"`{name}`" for name in row.ours) or "Python"
            ran = "".join(letter for letter, _ in row.results)
            shown = ", ".join(row.names)
            lines.append(f"| {shown} | {who(row)} | {ours} | `{row.expression}` | {ran} |")
    return "\n".join(lines) + "\n"


def differing() -> str:
    """The table of what differs."""
    lines = ["| what | the libraries | here | an example | gives |", "|---|---|---|---|---|"]
    for row in differences():
        example = f"`{row.expression}` | `{row.result}`"
        lines.append(f"| {row.what} | {row.libraries} | {row.here} | {example} |")
    return "\n".join(lines) + "\n"


def omitted() -> str:
    """Return a list of the names left out of each library, by reason."""
    lines = []
    for letter, reasons in library_names()[1].items():
        for why, names in reasons.items():
            few = sorted(names, key=str.lower)
            shown = ", ".join(f"`{n}`" for n in few[:6]) + (", ..." if len(few) > 6 else "")
            lines.append(f"- {letter}, {why}: {shown}")
    return "\n".join(lines) + "\n"


def rewritten(page: str) -> str:
    """The page with the tables as they are now."""
    for part, first in ((counts, "| library"), (differing, "| what"), (omitted, "- C, ")):
        page = _replaced(page, first, part())
    start, end = page.index("\n## Int tuples"), page.index("\n## Left out")
    return page[:start] + table() + page[end:]


def _replaced(page: str, first: str, part: str) -> str:
    """``part`` in the place of the block of lines that begins with ``first``."""
    start = page.index(f"\n{first}") + 1
    end = page.find("\n\n", start)
    return page[:start] + part.rstrip("\n") + (page[end:] if end >= 0 else "\n")


if __name__ == "__main__":
    PAGE = HERE.parents[1] / "docs" / "algebra" / "names.md"
    PAGE.write_text(rewritten(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
