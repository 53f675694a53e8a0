"""Tiles for few columns and few channels: what the cost model expects, and what a GPU takes.

    python benchmarks/race_narrow.py [--rows PATTERN] [--tiles N] [--seconds S] [--json FILE]

Each of the ``narrow`` layers of ``dense_workloads.py`` is run with the tiles that the cost model
likes best, and with all tiles of fewer than 32 columns. A line is a tile, the microseconds that the
model expects and those that were measured, and their ratio: what to put into
``planning/tile_table.py``. Kernels are compiled in parallel first. The copies of packed channels,
which are not part of a kernel's time, have lines of their own. Nothing is remembered.
"""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from benchmark_options import program
from dense_cases import Convolution
from dense_workloads import NARROW, PASSES, Job
from timing import interleaved_microseconds

from layoutconv.gpu.plan import Plan
from layoutconv.gpu.select import KernelChoice, choose_kernel
from layoutconv.planning.cost_model import expected_time, ranked
from layoutconv.planning.tile import TileConfig
from layoutconv.planning.view_rules import UnsupportedViewError
from layoutconv.tuning.precompile import compile_kernels
from layoutconv.view.gemm_view import GemmView

FEW = 32  # columns
BATCH, REPEATS = 400.0, 3  # microseconds of a batch, and how many


class Entry(NamedTuple):
    """A tile of a view, chosen, with the microseconds that are expected of it."""

    choice: KernelChoice
    tile: TileConfig
    splits: int
    expected: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Race; 2 without a GPU."""
    parser = program(__doc__)
    parser.add_argument("--rows", default="narrow", help="a regular expression on layer and pass")
    parser.add_argument("--tiles", type=int, default=3, help="of those that the model likes best")
    parser.add_argument("--seconds", type=float, default=60.0, help="after which no row begins")
    parser.add_argument("--json", type=Path, help="where lines go as well")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("race_narrow: error: it measures a GPU, and torch sees none", file=sys.stderr)
        return 2
    rows = [Job(work, kind, "fp16") for work in NARROW for kind in PASSES]
    rows = [row for row in rows if re.search(options.rows, row.name)]
    found, start = [], time.monotonic()
    raced = [(row, view, entries_of(view, options.tiles)) for row in rows for view in views_of(row)]
    needs = [(e.choice.view, e.choice.spec) for _, _, entries in raced for e in entries]
    compile_kernels(needs)
    print(f"{len(needs)} kernels compiled in {time.monotonic() - start:.0f} s")
    for row, view, entries in raced:
        if time.monotonic() - start > options.seconds:
            print("no time for more")
            break
        found += list(race(row, view, entries))
        torch.cuda.empty_cache()
    if options.json:
        options.json.write_text(json.dumps(found, indent=1), "utf-8")
    return 0


def views_of(row: Job) -> list[GemmView]:
    """The view that a pass runs, packed or not: of several, the first; none if threads sum it."""
    found = Convolution(row, "cuda").run
    if found.by_threads:
        return []
    return [found.views[0] if found.packed is None else found.packed.views[0]]


def entries_of(view: GemmView, most: int) -> list[Entry]:
    """The tiles that race, each with the slices of a sum that suit it best."""
    chosen = choose_kernel(view, torch.float16, 0, measures=False)
    best: dict[TileConfig, int] = {}
    for tile, splits in ranked(chosen.problem, chosen.machine):
        best.setdefault(tile, splits)
    pairs = [*islice(best.items(), most), *(pair for pair in best.items() if pair[0].n < FEW)]
    found = []
    for tile, splits in dict(pairs).items():
        try:
            choice = choose_kernel(view, torch.float16, 0, tile=tile, splits=splits, measures=False)
        except UnsupportedViewError:
            continue
        expected = expected_time(chosen.problem, tile, choice.splits, chosen.machine)
        found.append(Entry(choice, tile, choice.splits, expected))
    return found


def race(row: Job, view: GemmView, entries: Sequence[Entry]) -> Iterator[dict[str, Any]]:
    """Print and yield a line for each tile, and one for the copies."""
    conv = Convolution(row, "cuda")
    packed, (a, b), out = conv.run.packed, conv.operands, conv.out
    if packed is not None:
        out = packed.written(out)
        (copies,) = interleaved_microseconds([lambda: packed.operands(*conv.operands)], BATCH)
        a, b = packed.operands(a, b)
        print(f"{row.name:28s} copies of operands {copies:8.1f} us")
    for entry in entries:
        line: dict[str, Any] = {"row": row.name, "tile": str(entry.tile), "splits": entry.splits}
        line["expected"] = entry.expected
        try:
            plan = Plan(view, torch.float16, 0, tile=entry.tile, splits=entry.splits)
            run = partial(plan, a, b, out)
            (line["measured"],) = interleaved_microseconds([run], BATCH, REPEATS)
        except Exception as error:
            line["error"] = f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"
            print(f"{row.name:28s} {entry.tile}: {line['error']}")
        else:
            ratio = line["measured"] / entry.expected
            print(
                f"{row.name:28s} {line['measured']:8.1f} us, expected {entry.expected:8.1f}, "
                f"{ratio:5.2f}x  {entry.tile}, {entry.splits} slices"
            )
        yield line


if __name__ == "__main__":
    raise SystemExit(main())
