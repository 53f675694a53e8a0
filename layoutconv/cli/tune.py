"""``layoutconv tune``: measure the tiles of convolutions, and remember the fastest."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import bench, tune_zoo
from .cache import tile_text
from .options import ExtentsParam, Finite, Pattern
from .text_table import as_json, print_json, print_table

if TYPE_CHECKING:
    from ..conv import ConvProblem
    from ..gpu.packing_choice import Multiplied
    from ..tuning.race import Race, Tuned

PASSES = ("fprop", "dgrad", "wgrad")
# By ``--dtype``: the torch dtype, and the precision of fp32 products.
DTYPES = {
    "float16": ("float16", None),
    "bfloat16": ("bfloat16", None),
    "tf32": ("float32", "tf32"),
    "float32": ("float32", "fp32"),
    "int8": ("int8", None),
    "float8_e4m3fn": ("float8_e4m3fn", None),
    "float8_e5m2": ("float8_e5m2", None),
}
_SHORT = {
    "fp16": "float16", "bf16": "bfloat16", "tf32": "tf32", "fp32": "float32", "int8": "int8",
    "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
}  # fmt: skip


_SHAPE = ExtentsParam("extents such as 2,32,64,64,64", 2, 5)


@click.command(
    short_help="Measure tiles on this GPU, and remember the fastest.",
    epilog="""\b
examples:
  layoutconv tune --conv 2,32,64,64,64 --filter 64,3,3,3 --padding 1
  layoutconv tune --conv 8,56,56,64 --filter 64,3,3 --filter 128,1,1 --dtype tf32 --pass fprop
  layoutconv tune --rows "unet.* fprop fp16" --json
  layoutconv tune --zoo layers.json --sample 30 --minutes 1 --out rates.json

With LAYOUTCONV_TUNE=1 in the environment, any program tunes what it runs at the first call.
""",
)
@click.option(
    "--conv", "convs", type=_SHAPE, multiple=True, metavar="N,D,H,W,C",
    help="Shape of the input, channels last, of one to three spatial modes. May be repeated.",
)  # fmt: skip
@click.option(
    "--filter", "filters", type=_SHAPE, multiple=True, metavar="K,T,R,S",
    help="Output channels, and the taps in each mode. May be repeated: each goes with each input.",
)  # fmt: skip
@click.option("--stride", type=click.IntRange(1), default=1, show_default=True)
@click.option("--padding", type=click.IntRange(0), default=0, show_default=True)
@click.option("--dilation", type=click.IntRange(1), default=1, show_default=True)
@click.option("--groups", type=click.IntRange(1), default=1, show_default=True)
@click.option(
    "--dtype", "dtypes", type=click.Choice(list(DTYPES)), multiple=True, default=["float16"],
    show_default=True, help="Data type; tf32 and float32 are fp32 data. May be repeated.",
)  # fmt: skip
@click.option(
    "--pass", "passes", type=click.Choice(PASSES), multiple=True, default=PASSES,
    show_default=True, help="Pass to tune. May be repeated.",
)  # fmt: skip
@click.option(
    "--rows", type=Pattern(), metavar="PATTERN",
    help='Tune the convolutions of the rows of "bench dense" that match this.',
)  # fmt: skip
@click.option(
    "--table", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Add what is faster than the model's pick to a table like layoutconv/gpu/shipped.json.",
)  # fmt: skip
@click.option(
    "--zoo", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
    help="Layers of networks, as for bench_dense.py --zoo; prints where each tile is fastest.",
)  # fmt: skip
@click.option(
    "--sample",
    type=click.IntRange(1),
    default=30,
    metavar="N",
    help="Number of layers to take from the zoo.",
)
@click.option("--seed", type=int, default=0, metavar="S", help="Seed of the sample.")
@click.option(
    "--minutes", type=Finite(0), default=1.0, metavar="M", help="Time limit for races over the zoo."
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE",
    help="Write every trial of the zoo here, as JSON, to send or to keep.",
)  # fmt: skip
@click.option(
    "--processes",
    type=click.IntRange(1, 256),
    metavar="N",
    help="Number of processes that compile kernels.",
)
@as_json
def tune(
    convs: tuple[tuple[int, ...], ...],
    filters: tuple[tuple[int, ...], ...],
    dtypes: tuple[str, ...],
    passes: tuple[str, ...],
    rows: str | None,
    table: Path | None,
    processes: int | None,
    as_json: bool,
    **numbers: Any,
) -> None:
    """Measure the tiles of convolutions on this GPU, and remember the fastest of each.

    Kernels that were not compiled yet are compiled first, in several processes. Ctrl-C keeps what
    was found so far.
    """
    zoo = {name: numbers.pop(name) for name in ("zoo", "sample", "seed", "minutes", "out")}
    if zoo["zoo"]:
        races = tune_zoo.races_of(zoo["zoo"], zoo["sample"], zoo["seed"], dtypes, passes)
        made = _made([of for of in races if _has_tiles(*of)])
        raced = tune_zoo.raced(made, zoo["minutes"], processes)
        tune_zoo.show(raced, zoo["out"], as_json=as_json)
        return
    if bool(convs) != bool(filters) or not (convs or rows is not None):
        raise click.UsageError("Expected --conv with --filter, or --rows, or --zoo.")
    races = [
        (problem, direction, dtype)
        for problem in _problems(convs, filters, numbers)
        for dtype in dtypes
        for direction in passes
    ]
    if rows is not None:
        races += _of_benchmark(rows)
    found = _measured(races, processes, table)
    if as_json:
        print_json(found)
        return
    names = ["input", "filter", "pass", "dtype", "tile", "parts", "us", "model_us", "gain"]
    print_table(names, [[row[name] for name in names] for row in found])


def _problems(
    convs: tuple[tuple[int, ...], ...], filters: tuple[tuple[int, ...], ...], numbers: Any
) -> list[ConvProblem]:
    from ..conv import ConvProblem

    return [ConvProblem(conv, taps, **numbers) for conv in convs for taps in filters]


def _of_benchmark(pattern: str) -> list[tuple[ConvProblem, str, str]]:
    jobs = bench.load("dense_workloads").jobs()
    chosen = {
        (job.workload.problem, job.direction, _SHORT[job.dtype])
        for job in jobs
        if re.search(pattern, job.name) and not job.workload.depthwise
    }
    if not chosen:
        raise click.UsageError(f"No row of the benchmark matches {pattern!r}.")
    return sorted(chosen, key=str)


def _made(
    races: list[tuple[ConvProblem, str, str]],
) -> list[tuple[tuple[ConvProblem, str, str], Race]]:
    """Make the races of passes: one each, or for strided dgrad one per stride phase."""
    from ..tuning.race import Race
    from ..tuning.tuned_problems import views_of

    made = []
    for of in races:
        problem, direction, dtype = of
        products = _products(dtype)
        for view in views_of(problem, direction, products):
            if view.k:
                made.append((of, Race(view, products.dtype, precision=DTYPES[dtype][1])))
    return made


def _has_tiles(problem: ConvProblem, direction: str, dtype: str) -> bool:
    """Return whether tiles compute a pass, not threads that sum its few channels."""
    from ..tuning.tuned_problems import pass_on

    return not pass_on(problem, direction, _products(dtype)).by_threads


def _products(dtype: str) -> Multiplied:
    """Return the kind of products on this GPU; on an A100 if there is none, as races will say."""
    import torch

    from ..gpu.machines import machine_of
    from ..gpu.packing_choice import multiplied_on
    from ..planning.machine import MACHINES

    there, (name, precision) = torch.cuda.is_available(), DTYPES[dtype]
    machine = machine_of(torch.cuda.current_device()) if there else MACHINES["sm_80"]
    return multiplied_on(getattr(torch, name), machine, precision)


def _measured(
    races: list[tuple[ConvProblem, str, str]], processes: int | None, table: Path | None
) -> list[dict[str, Any]]:
    """Return the rows of the table. All kernels are compiled first; then the races run in turn."""
    from ..base.progress import Progress
    from ..gpu.measured_choices import add_to_table
    from ..tuning.precompile import compile_kernels

    progress, made = Progress(), _made(races)
    if table:  # fail before anything is measured
        try:
            add_to_table(table, made[0][1].machine.name, {})
        except (OSError, ValueError, AttributeError) as error:
            expected = f"a table of choices that can be written, such as the package's: {error}"
            raise click.BadParameter(f"expected {expected}", param_hint="--table") from error
    with progress.step("Compiling kernels") as step:
        compile_kernels([need for _, race in made for need in race.needs], processes, step.tick)
    found = []
    for at, (of, race) in enumerate(made, 1):
        with progress.step(f"Tuning {at} of {len(made)}, {of[1]}") as step:
            tuned = race.run(None, step.tick)
        if table:
            add_to_table(table, race.machine.name, {race.key: tuned.choice})
        found.append(_row(*of, tuned))
    return found


def _row(problem: ConvProblem, direction: str, dtype: str, tuned: Tuned) -> dict[str, Any]:
    choice = tuned.choice
    return {
        "input": ",".join(map(str, problem.activation)),
        "filter": ",".join(map(str, (problem.K, *problem.taps))),
        "pass": direction,
        "dtype": dtype,
        "tile": tile_text(choice.tile),
        "parts": choice.splits,
        "us": choice.microseconds,
        "model_us": choice.model_microseconds,
        "gain": f"{choice.model_microseconds / choice.microseconds:.2f}x",
        "trials": len(tuned.trials),
    }
