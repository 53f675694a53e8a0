"""Commands: run problems of a family, compile their kernels, report what runs came to.

python -m tests.campaign dense --count 10000 --minutes 8 --workers 16 --out dense.jsonl
python -m tests.campaign dense --resume --count 10000 --minutes 8 --workers 16 --out dense.jsonl
python -m tests.campaign dense --case 4711
python -m tests.campaign report dense.jsonl sparse.jsonl
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import results
from .budget import BUDGETS, kind_of
from .crew import Settings, Worker, run_crew
from .results import Result

FAMILIES = ("dense", "sparse", "views", "networks", "sparse_networks")
SIZES = {"cuda": "gpu", "cpu": "cpu", "interpreter": "tiny", "compile": "gpu", "count": "gpu"}
SHRUNK = 8  # kinds of failures that are made smaller


def main(arguments: list[str] | None = None, *, worker: tuple[str, ...] = ()) -> int:
    """Run workers, by another command than theirs if ``worker`` is one.

    Returns: exit status 1 if something failed.
    """
    options = parse(arguments)
    if options.family == "report":
        found = results.added_up(results.read(options.files))
        print(results.summary(found))
        return int(any(r.status != "ok" for r in found))
    if options.case is not None:
        return repeat(options)
    return campaign(options, worker)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    plain = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m tests.campaign", None, __doc__, formatter_class=plain
    )
    families = parser.add_subparsers(dest="family", required=True, metavar="COMMAND")
    for name in FAMILIES:
        one = families.add_parser(name, help=f"run {name} problems")
        add = one.add_argument
        add("--count", type=int, default=1000, help="how many seeds, from --seed on")
        add("--seed", type=int, default=0, help="the first seed")
        add("--minutes", type=float, default=8.0, help="no problem begins after that")
        add("--workers", type=int, default=1, help="processes")
        add("--out", type=Path, help="lines of JSON, one for each problem; added to, if there")
        add("--resume", action="store_true", help="pass over the seeds that --out has")
        add("--device", choices=SIZES, default="", help="cuda where there is a GPU, else cpu; "
            "interpreter: kernels in tools/ptx_sim; compile: compile kernels, keep them, run none; "
            "count: say how many kernels there are")  # fmt: skip
        add("--size", choices=tuple(BUDGETS), help="how large; by default as suits --device")
        add(
            "--tiles",
            choices=("chosen", "any"),
            default="chosen",
            help="of the template's kernels: the model's choice, or any legal one at random",
        )
        add("--case", type=int, metavar="SEED", help="run one problem here, and say all of it")
        add("--patience", type=float, default=120.0, help="seconds until a worker hangs")
        add("--shrink", type=float, default=1.0, metavar="MINUTES",
            help="how long failures are made smaller afterwards; 0: not at all")  # fmt: skip
    report = families.add_parser("report", help="add results up by seed, the last one counts")
    report.add_argument("files", type=Path, nargs="+")
    options = parser.parse_args(arguments)
    if options.family != "report":
        if not options.device:
            import torch

            options.device = "cuda" if torch.cuda.is_available() else "cpu"
        options.size = options.size or SIZES[options.device]
        if options.resume and options.out is None:
            parser.error("--resume wants --out")
    return options


def repeat(options: argparse.Namespace) -> int:
    """One problem, in this process."""
    from . import problems
    from .worker import Kernels, prepare, run

    problem = problems.family(options.family).draw(options.case, options.size)
    print(problems.code(problem, options.tiles))
    kernels = Kernels(options.device, lambda stage: None, options.tiles)
    bench = prepare(options.device, lambda stage: print(f"  {bench.seconds:7.2f} s  {stage}"))
    found = run(problem, options.size, bench)
    print(f"{found.status} in {found.seconds:.1f} s, {kernels.count} kernels\n{found.message}")
    for name, worst in found.passes.items():
        print(f"  {name}: error {worst:.3g} of its limit")
    return int(found.status != "ok")


def campaign(options: argparse.Namespace, worker: tuple[str, ...] = ()) -> int:
    """All seeds, by workers; prints a summary."""
    done = set()
    if options.resume and options.out.exists():
        done = {r.key for r in results.read([options.out])}
    seeds = [s for s in range(options.seed, options.seed + options.count)
             if (options.family, options.size, s, options.tiles) not in done]  # fmt: skip
    settings = Settings(
        options.device, options.workers, options.patience, options.minutes, worker, options.tiles
    )
    note = Notebook(options.out, len(seeds), options.tiles)
    begun = time.monotonic()
    left = run_crew(batches(options, seeds), settings, failed, note.take)
    seconds = time.monotonic() - begun
    smallest(note.results, settings, options.shrink, note.take)
    every = results.added_up([*_before(options), *note.results])
    print(results.summary(every))
    ran = len({r.key for r in note.results})
    print(f"{ran} problems in {seconds:.0f} s by {options.workers} workers"
          + (f"; time is up, about {len(seeds) - ran} are left" if left else ""))  # fmt: skip
    return int(any(r.status != "ok" for r in every))


def batches(options: argparse.Namespace, seeds: list[int]) -> Iterator[list[dict[str, Any]]]:
    """The requests of each kind."""
    kinds: dict[int, list[int]] = {}
    for seed in seeds:
        kinds.setdefault(kind_of(seed), []).append(seed)
    for some in kinds.values():
        yield [{"family": options.family, "size": options.size, "seed": s} for s in some]


def failed(request: dict[str, Any], status: str, stage: str, log: str) -> Result:
    """The result of a problem whose worker did not answer."""
    from . import problems

    if "problem" in request:
        problem = problems.from_json(request["problem"])
    else:
        problem = problems.family(request["family"]).draw(request["seed"], request["size"])
    return Result(
        problem.family, request["size"], problem.seed, problem.kind, problem.type, status,
        stage=stage, message=log, problem=problems.to_json(problem),
    )  # fmt: skip


class Notebook:
    """Results as they come: in a file, and a word on how far it is."""

    def __init__(self, path: Path | None, total: int, tiles: str) -> None:
        self.results: list[Result] = []
        self._sorts: Counter[str] = Counter()
        self._file = path.open("a") if path else None
        self._total, self._begun, self._said = total, time.monotonic(), 0.0
        self._tiles = tiles

    def take(self, result: Result) -> None:
        result = replace(result, tiles=self._tiles)
        self.results.append(result)
        if self._file:
            print(results.write(result), file=self._file, flush=True)
        if result.status != "ok":
            sort = results.sort_of(result)
            self._sorts[sort] += 1
            if self._sorts[sort] <= 3 or result.smallest:
                print(results.failure(result), flush=True)
        if time.monotonic() - self._said > 15:
            self._said = time.monotonic()
            counts = Counter(r.status for r in self.results)
            seconds = self._said - self._begun
            print(f"{len(self.results)} of {self._total} in {seconds:.0f} s: {dict(counts)}",
                  flush=True)  # fmt: skip


def smallest(found: list[Result], settings: Settings, minutes: float, take: Any) -> None:
    """Make one failure of each sort smaller, and take its result again with the code."""
    from . import problems
    from .shrink import shrink

    sorts: dict[Any, Result] = {}
    for result in found:
        if result.status != "ok" and result.problem is not None:
            sorts.setdefault(results.sort_of(result), result)
    limit = time.monotonic() + 60 * minutes
    lock = threading.Lock()

    def work(result: Result) -> None:
        worker = Worker(settings)

        def attempt(problem: Any) -> Result:
            if time.monotonic() > limit:
                return replace(result, status="ok")
            request = {"problem": problems.to_json(problem), "size": result.size}
            answer = worker.ask(request)
            return answer if isinstance(answer, Result) else failed(request, *answer)

        least, count = shrink(problems.from_json(result.problem or {}), result.status, attempt)
        worker.stop()
        code = f"# {count} smaller ones tried\n{problems.code(least, settings.tiles)}"
        with lock:
            take(replace(result, smallest=code))

    some = list(sorts.values())[:SHRUNK] if minutes else []
    threads = [threading.Thread(target=work, args=(result,)) for result in some]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _before(options: argparse.Namespace) -> list[Result]:
    """Return the results of this family that ``--out`` has from other runs."""
    if options.out is None:
        return []
    return [r for r in results.read([options.out]) if r.family == options.family]


if __name__ == "__main__":
    sys.exit(main())
