"""Time each operation of the layout algebra beside the libraries that are installed.

    python benchmarks/bench_algebra.py [--rows PATTERN] [--json FILE] [--plot FILE] [--quick]

Peers are timed in the same process, interleaved, best of several rounds; a peer that is not
installed has no column: ``pycute`` (put ``python/`` of a CUTLASS checkout on PYTHONPATH),
``tensor_layouts`` (pip), torch's variant of pycute (which counts coordinates the other way round),
and the CuTe DSL while it traces. The last column is the fastest eager peer's time over ours: above
1 we are faster. Ours validates, they mostly do not.
"""

from __future__ import annotations

import importlib
import json
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bars import plot
from benchmark_options import program

import layoutconv.algebra as lc
from layoutconv.base.progress import Progress

HIERARCHICAL = ((4, 8), (2, 16)), ((1, 4), (32, 64))
IM2COL = ((8, 8, 4, 2), (16, 3, 3, 3)), ((256, 2048, 16384, 65536), (1, 16, 128, 1024))
ROW_MAJOR = (64, 64), (64, 1)
SMEM = ((8, 8), (8, 8)), ((8, 512), (1, 64))
OFFSETS = [f"offsets of 1,024 coordinates, {of}" for of in ("offsets()", "NumPy array")]
CONSTRUCT = "construct ((4,8),(2,16))"
BLOCK, TILER = ((8, 8), (8, 1)), ((4, 4), (4, 1))


def peers() -> dict[str, Any]:
    """The eager libraries that can be imported, under the names of pycute's functions."""
    found = {}
    for label, module_name in (
        ("pycute", "pycute"),
        ("torch _pycute", "torch.distributed._pycute"),
        ("tensor-layouts", "tensor_layouts"),
    ):
        try:
            module = importlib.import_module(module_name)
        except ImportError:
            continue
        if hasattr(module, "composition") or hasattr(module, "compose"):
            found[label] = module
    return found


def operations(lib: Any) -> dict[str, Callable[[], Any]]:
    """The rows of the table for one library; what it does not have is left out."""

    def layout(shape: Any, stride: Any) -> Any:
        return lib.Layout(shape, stride)

    def fn(*names: str) -> Any:
        return next((getattr(lib, n) for n in names if hasattr(lib, n)), None)

    compose = fn("composition", "compose")
    hierarchical, im2col = layout(*HIERARCHICAL), layout(*IM2COL)
    row_major, smem = layout(*ROW_MAJOR), layout(*SMEM)
    line, tile = layout(4096, 1), layout(128, 2)
    block, tiler = layout(*BLOCK), layout(*TILER)
    complement, coalesce = fn("complement"), fn("coalesce")
    right, left = fn("right_inverse"), fn("left_inverse")
    divide, zipped, product = fn("logical_divide"), fn("zipped_divide"), fn("logical_product")
    cut = fn("slice_and_offset")
    rows: dict[str, Callable[[], Any] | None] = {
        CONSTRUCT: lambda: layout(*HIERARCHICAL),
        "call, 1-D index, hierarchical": lambda: hierarchical(777),
        "call, (i, j), hierarchical": lambda: hierarchical(7, 13),
        "call, 1-D index, rank-8 im2col": lambda: im2col(77777),
        "slice_and_offset ((None, 5), 3)": cut and (lambda: cut(((None, 5), 3), hierarchical)),
        "coalesce, rank-8 im2col": coalesce and (lambda: coalesce(im2col)),
        "composition, row-major 64x64 o smem order": compose and (lambda: compose(row_major, smem)),
        "complement (smem, 16384)": complement and (lambda: complement(smem, 16384)),
        "right inverse": right and (lambda: right(smem)),
        "left inverse": left and (lambda: left(smem)),
        "logical_divide 4096:1 / 128:2": divide and (lambda: divide(line, tile)),
        "zipped_divide row-major 64x64 / (8,16)": zipped and (lambda: zipped(row_major, (8, 16))),
        "logical_product": product and (lambda: product(block, tiler)),
    }
    return {name: row for name, row in rows.items() if row is not None}


def microseconds(
    calls: dict[str, Callable[[], Any]], rounds: int, tick: Callable[[int, int], None] | None = None
) -> dict[str, float]:
    """The best time of each call, the calls taking turns; what a library refuses is left out."""
    best: dict[str, float] = {}
    for done in range(rounds):
        if tick:
            tick(done, rounds)
        for name, call in calls.items():
            try:
                started = time.perf_counter()
                count = 0
                while count < 50 or time.perf_counter() - started < 0.004:
                    call()
                    count += 1
                    if time.perf_counter() - started > 0.05:
                        break
                elapsed = (time.perf_counter() - started) / count * 1e6
            except (AssertionError, ValueError, TypeError, NotImplementedError):
                continue
            best[name] = min(best.get(name, elapsed), elapsed)
    return best


def offsets_of_1024(libraries: dict[str, Any], rounds: int) -> dict[str, dict[str, float]]:
    """The whole table of 1,024 coordinates: ours at once, theirs one call after the other."""
    shape, stride = HIERARCHICAL
    ours = lc.Layout(shape, stride)
    loops: dict[str, Callable[[], Any]] = {"layoutconv": ours.offsets}
    for label, lib in libraries.items():
        theirs = lib.Layout(shape, stride)
        loops[label] = lambda theirs=theirs: [theirs(i) for i in range(1024)]  # type: ignore[misc]
    table = {OFFSETS[0]: microseconds(loops, rounds)}
    try:
        import numpy as np
    except ImportError:
        return table
    coordinates = np.arange(1024)
    loops["layoutconv"] = lambda: ours(coordinates)
    table[OFFSETS[1]] = microseconds(loops, rounds)
    return table


def tracing(rounds: int) -> dict[str, float]:
    """The CuTe DSL's time for the rows that it has, inside a function that it traces."""
    try:
        import cutlass.cute as cute
    except ImportError:
        return {}
    result: dict[str, float] = {}

    def trace() -> None:
        def layout(of: Any) -> Any:
            return cute.make_layout(of[0], stride=of[1])

        row_major, smem, im2col = layout(ROW_MAJOR), layout(SMEM), layout(IM2COL)
        line = cute.make_layout(4096)
        tile = cute.make_layout(128, stride=2)
        block, tiler = layout(BLOCK), layout(TILER)
        hierarchical = layout(HIERARCHICAL)
        rows = {
            CONSTRUCT: lambda: layout(HIERARCHICAL),
            "call, 1-D index, hierarchical": lambda: hierarchical(777),
            "call, 1-D index, rank-8 im2col": lambda: im2col(77777),
            "coalesce, rank-8 im2col": lambda: cute.coalesce(im2col),
            "composition, row-major 64x64 o smem order": lambda: cute.composition(row_major, smem),
            "complement (smem, 16384)": lambda: cute.complement(smem, 16384),
            "right inverse": lambda: cute.right_inverse(smem),
            "left inverse": lambda: cute.left_inverse(smem),
            "logical_divide 4096:1 / 128:2": lambda: cute.logical_divide(line, tile),
            "zipped_divide row-major 64x64 / (8,16)": lambda: cute.zipped_divide(
                row_major, (8, 16)
            ),
            "logical_product": lambda: cute.logical_product(block, tiler),
        }
        result.update(microseconds(rows, max(2, rounds // 3)))

    cute.jit(trace)()
    return result


def import_milliseconds(statement: str, rounds: int) -> float:
    """The whole process of an interpreter that imports one thing, best of several."""
    best = float("inf")
    for _ in range(rounds):
        started = time.perf_counter()
        subprocess.run([sys.executable, "-c", statement], check=True)
        best = min(best, time.perf_counter() - started)
    return best * 1e3


@dataclass(frozen=True)
class Row:
    """An operation: microseconds of every library."""

    name: str
    times: dict[str, float]

    @property
    def peer(self) -> str:
        """The fastest eager library but ours; "" if there is none."""
        eager = {k: t for k, t in self.times.items() if k not in ("layoutconv", "CuTe DSL")}
        return min(eager, key=eager.__getitem__, default="")

    @property
    def ratio(self) -> float | None:
        """Its time in ours."""
        return self.times[self.peer] / self.times["layoutconv"] if self.peer else None


def measure(rounds: int, pattern: str, progress: Progress) -> list[Row]:
    """The rows whose names match, every library's time in each."""
    libraries = peers()
    calls = {
        f"{row}|{label}": call
        for label, lib in {"layoutconv": lc, **libraries}.items()
        for row, call in operations(lib).items()
        if re.search(pattern, row)
    }
    table: dict[str, dict[str, float]] = {}
    times = microseconds(calls, rounds, progress.tick)
    for key, value in times.items():
        row, label = key.split("|")
        table.setdefault(row, {})[label] = value
    if any(re.search(pattern, row) for row in OFFSETS):
        progress.say("Measuring offsets of 1,024 coordinates ...")
        whole = offsets_of_1024(libraries, rounds)
        table.update({row: found for row, found in whole.items() if re.search(pattern, row)})
    progress.say("Tracing with the CuTe DSL ...")
    traced = tracing(rounds) if table else {}
    for row in table.keys() & traced.keys():
        table[row]["CuTe DSL"] = traced[row]
    return [Row(name, times) for name, times in table.items()]


def checks_what_it_makes(lib: Any) -> bool:
    """Tell if a library refuses a shape and a stride that are no layout."""
    try:
        lib.Layout((4, 8), (1, 2, 3))
    except (AssertionError, ValueError, TypeError):
        return True
    return False


def notes(rows: Sequence[Row], libraries: dict[str, Any]) -> list[str]:
    """Sentences about ratios that compare different work."""
    return [
        f"{row.name}: {row.peer} checks nothing, and takes (4,8):(1,2,3) for a layout; ours "
        f"does, with 1 us as its goal: {row.times['layoutconv']:.2f} us"
        for row in rows
        if row.name == CONSTRUCT and row.peer and not checks_what_it_makes(libraries[row.peer])
    ]


def show(rows: Sequence[Row]) -> None:
    """Print the table in microseconds, and the ratio of the fastest eager peer to ours."""
    labels = list(dict.fromkeys(label for row in rows for label in row.times))
    print(f"{'microseconds':42}" + "".join(f"{label:>16}" for label in labels) + f"{'ratio':>9}")
    for row in rows:
        ratio = f"{row.ratio:8.2f}x" if row.ratio else ""
        cells = "".join(
            f"{row.times[label]:16.2f}" if label in row.times else " " * 16 for label in labels
        )
        print(f"{row.name:42}{cells}{ratio:>9}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure; 0, or 2 if no row matches."""
    parser = program(__doc__, "rows")
    parser.add_argument("--json", metavar="FILE", help="also write the figures to this file")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="write a chart of the ratios")
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    options = parser.parse_args(arguments)
    rounds = 3 if options.quick else 15
    with Progress().step("Measuring") as progress:
        rows = measure(rounds, options.rows, progress)
    if not rows:
        print(f"bench_algebra: error: no row matches {options.rows!r}", file=sys.stderr)
        return 2
    show(rows)
    for note in notes(rows, peers()):
        print(note)
    with Progress().step("Importing"):
        bare = import_milliseconds("pass", rounds)
        whole = import_milliseconds("import layoutconv, layoutconv.algebra", rounds)
    print(f"import layoutconv, whole process: {whole:.0f} ms (an empty one: {bare:.0f} ms)")
    if options.json:
        content = {
            "microseconds": {row.name: row.times for row in rows},
            "ratio": {row.name: row.ratio for row in rows},
            "import_ms": whole,
            "bare_ms": bare,
        }
        Path(options.json).write_text(json.dumps(content, indent=1))
    if options.plot:
        plot(rows, f"layout algebra, Python {platform.python_version()}", options.plot)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
