"""CuTe's names, who has them, and ours; with what the other libraries gave when they were run.

The rows are in cute_names.txt. Letters say who has a name: C: CuTe C++ of CUTLASS 4.7.0, D: CuTe
DSL 4.8.1, P: CUTLASS's pycute, N: NVlabs/CuTe, T: tensor-layouts 0.3.2.
``python -m tests.algebra.cute_names`` prints the table of docs/algebra/names.md.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Row(NamedTuple):
    """A name: who has it, our names for it, an expression, and what a library gave for it."""

    name: str
    who: str
    ours: list[str]
    expression: str
    result: str | None


def sections() -> dict[str, list[Row]]:
    """The rows of each section."""
    found: dict[str, list[Row]] = {}
    text = Path(__file__).with_suffix(".txt").read_text(encoding="utf-8")
    for line in text.splitlines()[1:]:
        if line.startswith("## "):
            rows = found[line[3:]] = []
            continue
        name, who, ours, expression, result = line.split(" | ")
        result = None if result == "-" else result
        rows.append(Row(name, who, ours.split(", "), expression, result))
    return found


def table() -> str:
    """The table of the page, a section after the other."""
    lines = []
    for section, rows in sections().items():
        lines += ["", f"## {section}", "", "| name | who | here |", "|---|---|---|"]
        for row in rows:
            lines.append(f"| {row.name} | {row.who} | {', '.join(f'`{n}`' for n in row.ours)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(table(), end="")
