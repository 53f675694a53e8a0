"""The campaign: every operation on every operand over every stride, many random cases a cell.

    python -m tests.algebra.campaign [--cases 2000] [--only NAME] [--seed N]

It prints a table: in each cell how many cases gave an exact result, how many were rightly refused,
and what went wrong. A cell that does not exist (a swizzle of coordinates, a string of an index
buffer) is left blank.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from laws import LAWS, LawError

from layoutconv.testing.random_layouts import OPERAND_KINDS, STRIDE_KINDS

# Operands that a law does not take, beside those that do not exist.
_LAYOUTS_ONLY = {"layout_add": ("layout",), "call": ("layout", "swizzled", "offset", "tensor")}


def is_cell(law, kind, strides):
    """Tell if there are such cases."""
    if kind in ("shape", "string") and strides not in ("int", "basis", "F2"):
        return False
    if kind == "shape" and strides != "int":
        return False
    if kind == "swizzled" and strides == "basis":
        return False
    if kind == "string" and strides == "F2" and law in ("questions",):
        return False
    return kind in _LAYOUTS_ONLY.get(law, OPERAND_KINDS)


def cells(only=""):
    """Every cell: the law, the operand and the strides."""
    return [
        (law, kind, strides)
        for law in LAWS
        for kind in OPERAND_KINDS
        for strides in STRIDE_KINDS
        if is_cell(law, kind, strides) and only in f"{law} {kind} {strides}"
    ]


def play(law, kind, strides, cases, seed=0, found=None):
    """The outcomes of a cell: counts by name, and the first thing that went wrong."""
    counts, first = {}, None
    for case in range(cases):
        rng = random.Random(f"{law} {kind} {strides} {seed} {case}")
        try:
            outcome = LAWS[law](rng, kind, strides)
        except Exception as caught:
            error = caught if isinstance(caught, LawError) else f"{type(caught).__name__}: {caught}"
            outcome = "broken"
            first = first or f"case {case}: {error}"
            if found is not None:
                found.append(str(error))
        counts[outcome] = counts.get(outcome, 0) + 1
    return counts, first


def main(arguments=None):
    """Play all cells and print the table; 1 if anything is broken."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000, help="cases a cell")
    parser.add_argument("--only", default="", help="cells whose name has this in it")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    started, broken, total = time.perf_counter(), [], 0
    rows = {}
    for law, kind, strides in cells(options.only):
        counts, first = play(law, kind, strides, options.cases, options.seed)
        total += sum(counts.values())
        rows.setdefault((law, kind), {})[strides] = counts
        if first:
            broken.append(f"{law} {kind} {strides}: {counts['broken']} of {options.cases}: {first}")
            print(broken[-1], flush=True)
    print(
        f"\n| operation | operand | {' | '.join(STRIDE_KINDS)} |\n"
        f"|{' --- |' * (2 + len(STRIDE_KINDS))}"
    )
    for (law, kind), row in rows.items():
        print(f"| {law} | {kind} | {' | '.join(shown(row.get(s)) for s in STRIDE_KINDS)} |")
    seconds = time.perf_counter() - started
    print(
        f"\n{total} cases in {sum(map(len, rows.values()))} cells, {len(broken)} cells broken, "
        f"{seconds:.0f} s"
    )
    return bool(broken)


def shown(counts):
    """A cell in short: exact / refused, and what is broken."""
    if counts is None:
        return ""
    text = str(counts.get("exact", 0))
    text += f" + {counts['refused']} refused" if counts.get("refused") else ""
    return text + (f" **{counts['broken']} broken**" if counts.get("broken") else "")


if __name__ == "__main__":
    raise SystemExit(main())
