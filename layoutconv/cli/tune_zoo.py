"""``layoutconv tune --zoo``: races over layers of real networks, and statistics of tiles."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from . import bench
from .text_table import print_json, print_table

if TYPE_CHECKING:
    from ..conv import ConvProblem
    from ..tuning.race import Race, Tuned

TURNED = {"fprop": "dgrad", "dgrad": "fprop", "wgrad": "wgrad"}  # of transposed convolutions


def races_of(
    file: Path, count: int, seed: int, dtypes: Sequence[str], passes: Sequence[str]
) -> list[tuple[ConvProblem, str, str]]:
    """Return passes of a sample of a file's core layers, not depthwise, at the training batch."""
    zoo = bench.load("zoo_layers")
    try:
        layers = [x for x in zoo.read(file) if x.core and x.family != "depthwise"]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--zoo") from error
    found = []
    for layer in zoo.sample(layers, count, seed):
        problem = layer.problem(layer.batches[0])
        for direction in layer.passes:
            if direction in passes:
                turned = TURNED[direction] if layer.transposed else direction
                found += [(problem, turned, dtype) for dtype in dtypes]
    return found


def raced(
    made: Sequence[tuple[Any, Race]], minutes: float, processes: int | None
) -> list[tuple[Any, Race, Tuned]]:
    """Compile the kernels of all races, and run as many races as there is time for.

    Winners are not kept: later measurements shall show the cost model's own picks.
    """
    from ..base.progress import Progress
    from ..tuning.precompile import compile_kernels

    progress, found = Progress(), []
    with progress.step("Compiling kernels") as step:
        compile_kernels([need for _, race in made for need in race.needs], processes, step.tick)
    end = time.monotonic() + 60 * minutes
    with progress.step("Racing") as step:
        for at, (of, race) in enumerate(made):
            if time.monotonic() >= end:
                progress.print(f"{at} of {len(made)} races; the time is up")
                break
            step.tick(at, len(made))
            try:
                found.append((of, race, race.run(None, lambda done, total: None, keep=False)))
            except RuntimeError as error:  # no memory, or no tile: continue
                progress.print(f"{race.words}: {error}")
    return found


def show(found: Sequence[tuple[Any, Race, Tuned]], out: Path | None, *, as_json: bool) -> None:
    """Print the share of races that each tile wins, per type; write all trials to ``out``."""
    from ..tuning.tile_shares import table_row, tile_shares

    types = list(dict.fromkeys(of[2] for of, _, _ in found))
    shares = {
        dtype: tile_shares(
            [(race.problem, tuned) for of, race, tuned in found if of[2] == dtype],
            found[0][1].machine,
        )
        for dtype in types
    }
    if out:
        rows = [
            {
                "problem": race.words, "pass": of[1], "dtype": of[2], "tile": table_row(trial.tile),
                "mma": trial.tile.mma, "stages": trial.tile.stages, "splits": trial.splits,
                "us": trial.microseconds,
            }
            for of, race, tuned in found
            for trial in tuned.trials
            if isfinite(trial.microseconds)
        ]  # fmt: skip
        tiles = {dtype: [asdict(share) for share in some] for dtype, some in shares.items()}
        machine = asdict(found[0][1].machine) if found else {}
        told = {"gpu": machine.get("name", ""), "machine": machine, "tiles": tiles, "trials": rows}
        out.write_text(json.dumps(told, indent=1))
    if as_json:
        print_json({dtype: [asdict(share) for share in some] for dtype, some in shares.items()})
        return
    for dtype, some in shares.items():
        click.echo(f"{dtype}: tiles, those that are within 2% of the best most often first")
        names = ["tile", "races", "best", "within 2%", "model / measured"]
        print_table(
            names,
            [[s.kind, s.races, f"{s.best:.0%}", f"{s.near:.0%}", f"{s.speed:.2f}"] for s in some],
        )
