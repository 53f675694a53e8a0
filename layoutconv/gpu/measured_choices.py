"""Measured choices of tiles: one file each in the cache folder, and a table in the package.

A choice belongs to a GPU by name, a kernel without its tile, a size class, and a version of the
package. Its file is named by a digest of the kernel and the size class, and carries the version of
its format (``planning/tile_json.py``): older formats are migrated, and unreadable choices are
measured again, with a warning. A file is written under another name and moved into place, so a
reader sees all of it or nothing, and concurrent writers do not disturb each other.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from math import log2
from pathlib import Path
from typing import Any

from .. import __version__
from ..base.cache_folder import cache_directory, make_folder, read_file, usable_folder, write_file
from ..base.contexts import setting
from ..errors import ArgumentError
from ..planning.cost_model import Problem, expected_ratio, suits
from ..planning.kernel_key import signature
from ..planning.machine import Machine
from ..planning.tile import TileConfig
from ..planning.tile_json import FORMAT, tile_from_json, tile_to_json
from ..view.gemm_view import GemmView

VARIABLE = "LAYOUTCONV_TUNE"
MOST_BYTES = 1 << 20  # per file; choices take about 500


@dataclass(frozen=True)
class MeasuredChoice:
    """A tile, its number of split-K slices, and the race that they won.

    Attributes:
        problem: the sizes of the race, in words.
        microseconds: time of the winner.
        model_microseconds: time of the cost model's pick.
        expected: the model's time of the winner over that of its pick; None if not known.
    """

    tile: TileConfig
    splits: int
    problem: str
    microseconds: float
    model_microseconds: float
    expected: float | None = None

    def gains(self, problem: Problem, machine: Machine) -> bool:
        """Return whether the winner is no slower than the model's pick for another problem, too.

        Tiles fill a GPU's waves at some sizes, and leave most of the last one empty at others of
        the same class. The model is taken to be wrong by as much as in the race.
        """
        if self.expected is None:
            return True
        ratio = expected_ratio(problem, self.tile, self.splits, machine)
        return self.microseconds * ratio <= self.model_microseconds * self.expected


def wanted() -> bool:
    """Return whether first calls race tiles: the environment variable LAYOUTCONV_TUNE."""
    value = os.environ.get(VARIABLE, "0")
    if value not in ("", "0", "1"):
        raise ArgumentError(VARIABLE, "0 or 1", repr(value))
    return value == "1"


def key_of(
    view: GemmView,
    problem: Problem,
    out_dtype: str,
    vectors: tuple[int, int, int],
    along: tuple[int, int],
) -> str:
    """Return the key of a choice: the kernel without its tile, and the class of its sizes.

    Sizes are in one class if they round to the same power of two.
    """
    classes = tuple(size_class(extent) for extent in (problem.m, problem.n, problem.k))
    kernel = signature(view, along), problem.dtype, out_dtype, vectors, along
    rest = problem.channels, problem.staged_bytes, problem.groups
    flags = problem.splittable, problem.skips_taps
    return hashlib.sha256(repr((kernel, classes, rest, flags)).encode()).hexdigest()


def size_class(extent: int) -> int:
    """Return the exponent of the nearest power of two.

    >>> [size_class(extent) for extent in (1, 90, 91, 128, 181, 182)]
    [0, 6, 7, 7, 7, 8]
    """
    return round(log2(max(1, extent)))


_noted: ContextVar[dict[str, tuple[TileConfig, int]] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_found() -> Iterator[dict[str, tuple[TileConfig, int]]]:
    """Collect the choices found in this context, by key, for a pack to include."""
    noted: dict[str, tuple[TileConfig, int]] = {}
    with setting(_noted, noted):
        yield noted


def find(key: str, problem: Problem, machine: Machine) -> tuple[TileConfig, int] | None:
    """Return the remembered tile and number of slices, from disk or from the package's table.

    None if there is none; if it cannot run here, as after a change of the tile family; or if it
    is expected to lose at these sizes.
    """
    name = machine.name or machine.arch
    choice = None
    if usable_folder() is not None:
        choice = _parse(_read(_folder(name) / f"{key}.json"))
    choice = choice or _parse(_shipped().get(name, {}).get(key))
    if choice is None:
        return None
    runs = suits(problem, choice.tile, choice.splits, machine)
    if not runs or not choice.gains(problem, machine):
        return None
    found = choice.tile, choice.splits
    noted = _noted.get()
    if noted is not None:
        noted[key] = found
    return found


def remember(key: str, machine: Machine, choice: MeasuredChoice) -> None:
    """Write a choice to disk, in place of the previous one. Raises ``OSError`` if that fails."""
    path = _folder(machine.name or machine.arch) / f"{key}.json"
    make_folder(cache_directory())
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"gpu": machine.name or machine.arch, **_as_json(choice)}
    write_file(path, json.dumps(content, indent=1).encode())


def add_to_table(path: Path, gpu: str, choices: Mapping[str, MeasuredChoice]) -> int:
    """Add choices of a GPU, by key, to a table such as the package's; return its number of choices.

    Choices that the model picks by itself are left out: a table would freeze them when the model
    improves.
    """
    table = json.loads(path.read_text()) if path.exists() else {}
    own = table.setdefault(gpu, {})
    for key, choice in choices.items():
        own.pop(key, None)
        if choice.microseconds < choice.model_microseconds:
            own[key] = _as_json(choice)
    table[gpu] = dict(sorted(own.items()))
    path.write_text(json.dumps(table, indent=1) + "\n")
    return len(own)


def kept() -> Iterator[tuple[str, MeasuredChoice]]:
    """Yield the choices on disk of this version of the package, each with its GPU's name."""
    for path in sorted(folder().glob("*/*.json")):
        content = _read(path)
        choice = _parse(content)
        if choice is not None:
            yield str(content.get("gpu", path.parent.name)), choice


def shipped_count() -> int:
    """Return the number of choices that ship with the package."""
    return sum(map(len, _shipped().values()))


def folder() -> Path:
    """Return the folder of this version's choices."""
    return cache_directory() / "tuned" / __version__


def _folder(gpu: str) -> Path:
    return folder() / re.sub(r"[^\w.-]+", "-", gpu)


def _read(path: Path) -> Any:
    """Return a file's content; None if missing or damaged, so the choice is measured again."""
    content = read_file(path, most=MOST_BYTES)
    try:
        return None if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return None


def _as_json(choice: MeasuredChoice) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "tile": tile_to_json(choice.tile),
        "splits": choice.splits,
        "problem": choice.problem,
        "microseconds": choice.microseconds,
        "model_microseconds": choice.model_microseconds,
        "expected": choice.expected,
    }


def _parse(content: Any) -> MeasuredChoice | None:
    """Return a choice of any readable format; for another, warn and return None."""
    if not isinstance(content, dict):
        return None
    version, expected = content.get("format", 1), content.get("expected")
    try:
        return MeasuredChoice(
            tile_from_json(content["tile"], version),
            int(content["splits"]),
            str(content["problem"]),
            float(content["microseconds"]),
            float(content["model_microseconds"]),
            None if expected is None else float(expected),
        )
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        warnings.warn(
            f"a tuned choice of format {version} is ignored (tune it again): "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """Return the package's table: by the GPU's name, then by key."""
    text = (files("layoutconv.gpu") / "shipped.json").read_text()
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table
