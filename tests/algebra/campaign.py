"""The campaign: every operation on every operand over every stride, many random cases a cell.

    python -m tests.algebra.campaign [--cases 2000] [--only NAME] [--seed N] [--out FILE]

It prints a table: in each cell how many cases gave an exact result, how many were rightly refused,
and what went wrong. A cell that does not exist (a swizzle of coordinates, a string of an index
buffer) is left blank. A case to which the operation does not apply, as a slice of an integer shape,
is drawn again. Below come the operations that were run, and how often; with ``--out`` each cell is
kept in a file as it is done, and a later run goes on from there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from laws import CALLED, LAWS, VOID, LawError

from layoutconv.testing.random_layouts import OPERAND_KINDS, STRIDE_KINDS

# Operands that a law does not take, beside those that do not exist.
_LAYOUTS_ONLY = {"layout_add": ("layout",), "call": ("layout", "swizzled", "offset", "tensor")}


def is_cell(law, kind, strides):
    """Tell if there are such cases."""
    if kind == "string" and strides not in ("int", "basis", "F2", "strided"):
        return False
    if kind == "shape" and strides != "int":
        return False
    if kind == "swizzled" and strides == "basis":
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


def drawn(law, rng, kind, strides):
    """The outcome of the first case, of at most 100, to which the operation applies."""
    outcomes = (law(rng, kind, strides) for _ in range(100))
    return next((outcome for outcome in outcomes if outcome != VOID), VOID)


def play(law, kind, strides, cases, seed=0, found=None):
    """The outcomes of a cell: counts by name, and the first thing that went wrong."""
    counts, first = {}, None
    for case in range(cases):
        rng = random.Random(f"{law} {kind} {strides} {seed} {case}")
        try:
            outcome = drawn(LAWS[law], rng, kind, strides)
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
    parser.add_argument("--out", type=Path, help="a file that keeps the cells that are done")
    options = parser.parse_args(arguments)
    started = time.perf_counter()
    done = kept(options.out)
    for cell in cells(options.only):
        if cell in done:
            continue
        before = dict(CALLED)
        counts, first = play(*cell, options.cases, options.seed)
        calls = {name: n - before.get(name, 0) for name, n in CALLED.items()}
        done[cell] = {"counts": counts, "first": first, "calls": calls}
        if first:
            print(f"{' '.join(cell)}: {counts['broken']} of {options.cases}: {first}", flush=True)
        if options.out:
            with options.out.open("a") as lines:
                lines.write(json.dumps({"cell": cell, **done[cell]}) + "\n")
    report(done)
    print(f"{time.perf_counter() - started:.0f} s")
    return any(cell["first"] for cell in done.values())


def kept(out):
    """The cells of an earlier run."""
    if not out or not out.exists():
        return {}
    return {tuple(cell.pop("cell")): cell for cell in map(json.loads, out.read_text().splitlines())}


def report(done):
    """Print the table, the operations that were run, and the sums."""
    rows, calls, total = {}, {}, {}
    for (law, kind, strides), cell in done.items():
        rows.setdefault((law, kind), {})[strides] = cell["counts"]
        for name, n in cell["calls"].items():
            calls[name] = calls.get(name, 0) + n
        for outcome, n in cell["counts"].items():
            total[outcome] = total.get(outcome, 0) + n
    print(
        f"\n| operation | operand | {' | '.join(STRIDE_KINDS)} |\n"
        f"|{' --- |' * (2 + len(STRIDE_KINDS))}"
    )
    for (law, kind), row in rows.items():
        print(f"| {law} | {kind} | {' | '.join(shown(row.get(s)) for s in STRIDE_KINDS)} |")
    ran = ", ".join(f"{name} {n}" for name, n in sorted(calls.items()) if n)
    print(f"\ncalls: {ran}")
    broken = sum(bool(cell["first"]) for cell in done.values())
    print(
        f"{sum(total.values())} cases in {len(done)} cells, {broken} cells broken: "
        + ", ".join(f"{n} {outcome}" for outcome, n in sorted(total.items()))
    )


def shown(counts):
    """A cell in short: exact / refused, and what is broken."""
    if counts is None:
        return ""
    text = str(counts.get("exact", 0))
    text += f" + {counts['refused']} refused" if counts.get("refused") else ""
    text += f" + {counts['void']} void" if counts.get("void") else ""
    return text + (f" **{counts['broken']} broken**" if counts.get("broken") else "")


if __name__ == "__main__":
    raise SystemExit(main())
