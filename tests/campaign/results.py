"""Results as lines of JSON, which add up over runs by their seeds, and their summary."""

from __future__ import annotations

import json
import re
import textwrap
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

STATUSES = ("ok", "wrong", "crash", "hang", "refused")


@dataclass(frozen=True)
class Result:
    """The outcome of a problem.

    Args:
        family, size, seed, tiles: which it is; the same four are the same run of a problem.
        kind, type: words on it.
        status: "ok"; "wrong", a result is not what it should be; "crash", a call raised what is no
            error about an argument, or took the process with it; "hang"; "refused", an error about
            an argument, of a problem that is within what is promised.
        passes: the worst error over its limit of every result that was compared, 0 of an exact one.
        seconds: how long it took, with what was compiled.
        kernels: how many were compiled.
        stage: where it was when it failed.
        problem: it, as ``problems.to_json`` writes it, where it failed.
        smallest: code that repeats the smallest problem that fails the same way.
    """

    family: str
    size: str
    seed: int
    kind: str
    type: str
    status: str
    device: str = ""
    passes: dict[str, float] = field(default_factory=dict)
    exact: bool = False
    seconds: float = 0.0
    kernels: int = 0
    stage: str = ""
    message: str = ""
    problem: dict[str, Any] | None = None
    smallest: str = ""
    tiles: str = "chosen"

    @property
    def key(self) -> tuple[str, str, int, str]:
        return self.family, self.size, self.seed, self.tiles


def write(result: Result) -> str:
    """A line; what is at its default is left out."""
    plain = asdict(Result("", "", 0, "", "", ""))
    always = ("family", "size", "seed", "kind", "type", "status")
    return json.dumps({
        name: value for name, value in asdict(result).items()
        if name in always or value != plain[name]
    })  # fmt: skip


def parse(line: str) -> Result:
    """The result that a line was written for."""
    return Result(**json.loads(line))


def read(paths: Iterable[Path]) -> Iterator[Result]:
    """Every result of some files, in order; half a line, of a run that was killed, is no result."""
    for path in paths:
        for line in path.read_text().splitlines():
            with suppress(json.JSONDecodeError):
                yield parse(line)


def added_up(results: Iterable[Result]) -> list[Result]:
    """Each problem once: the last of its results counts."""
    return list({result.key: result for result in results}.values())


def summary(results: Iterable[Result]) -> str:
    """Counts by family, type and pass, the worst errors over their limits, and what failed."""
    results = list(results)
    lines: list[str] = []
    for name in dict.fromkeys((r.family, r.size) for r in results):
        some = [r for r in results if (r.family, r.size) == name]
        lines += [_headline(*name, some), ""]
        lines += _table("type", defaultdict(list, _by(some, lambda r: r.type)))
        lines += _table("kind", defaultdict(list, _by(some, lambda r: r.kind)))
        lines += _passes(some)
    return "\n".join([*lines, *failures(results)])


def _headline(family: str, size: str, results: list[Result]) -> str:
    counts = Counter(r.status for r in results)
    exact = sum(r.exact for r in results)
    devices = ", ".join(sorted({r.device for r in results if r.device}))
    return (
        f"{family} ({size}, on {devices or '?'}): {len(results)} problems, {exact} of them exact; "
        + ", ".join(f"{counts[s]} {s}" for s in STATUSES)
        + f"; {sum(r.seconds for r in results):.0f} s of work, "
        f"{sum(r.kernels for r in results)} kernels compiled"
    )


def _by(results: list[Result], key: Any) -> dict[str, list[Result]]:
    found: dict[str, list[Result]] = {}
    for result in sorted(results, key=key):
        found.setdefault(key(result), []).append(result)
    return found


def _table(title: str, groups: dict[str, list[Result]]) -> list[str]:
    """Problems, those that failed, the worst error over its limit, and seconds, by group."""
    rows = [(title, "problems", "failed", "worst error/limit", "seconds", "kernels")]
    for name, some in groups.items():
        worst = max((v for r in some if r.status == "ok" and not r.exact
                     for v in r.passes.values()), default=0.0)  # fmt: skip
        failed = sum(r.status != "ok" for r in some)
        seconds, kernels = sum(r.seconds for r in some), sum(r.kernels for r in some)
        rows.append((name, str(len(some)), str(failed), f"{worst:.3f}", f"{seconds:.0f}",
                     str(kernels)))  # fmt: skip
    return [*_aligned(rows), ""]


def _passes(results: list[Result]) -> list[str]:
    """Lines that count comparisons of each result, with its worst error over the limit, by type."""
    count: Counter[str] = Counter()
    worst: dict[tuple[str, str], float] = defaultdict(float)
    types = sorted({r.type for r in results})
    for result in results:
        count.update(result.passes.keys())
        if result.status == "ok" and not result.exact:
            for name, value in result.passes.items():
                worst[name, result.type] = max(worst[name, result.type], value)
    rows = [("result", "compared", *types)]
    rows += [(name, str(count[name]), *(
        f"{worst[name, kind]:.3f}" if (name, kind) in worst else "" for kind in types))
        for name in sorted(count)]  # fmt: skip
    return [*_aligned(rows), ""]


def _aligned(rows: list[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(
            zip(row, widths, strict=True))).rstrip()
        for row in rows
    ]  # fmt: skip


def failures(results: Iterable[Result], few: int = 3) -> Iterator[str]:
    """Yield the failures, a ``few`` of each sort."""
    count: Counter[str] = Counter()
    for result in results:
        if result.status != "ok":
            count[sort_of(result)] += 1
            if count[sort_of(result)] <= few or result.smallest:
                yield failure(result)
    for sort, times in count.items():
        if times > few:
            yield f"... {times} in all: {sort}"


def sort_of(result: Result) -> str:
    """Failures that may have one cause: of a status, with a message that differs in numbers."""
    return f"{result.status}: " + re.sub(r"[-+]?\d[\d.e]*", "#", _text(result))


def failure(result: Result) -> str:
    """A line on what failed, and code that repeats it."""
    where = f" at {result.stage}" if result.stage else ""
    tiles = "" if result.tiles == "chosen" else f" --tiles {result.tiles}"
    about = f"{result.family} {result.seed}{tiles} ({result.kind}, {result.type}){where}"
    line = f"{result.status}: {about}: {_text(result)}"
    return line + ("\n" + textwrap.indent(result.smallest, "    ") if result.smallest else "")


def _text(result: Result) -> str:
    """The line of a message that says most."""
    lines = result.message.strip().splitlines() or [""]
    return lines[0] if result.status == "wrong" else lines[-1]
