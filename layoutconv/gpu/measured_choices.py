"""Choices that were measured: a file for each in the cache folder, and a table in the package.

A choice belongs to a GPU by name, a kernel but for its tile, a class of sizes, and a version of the
package. It is written with the version of its format (``planning/tile_json.py``): older ones are
migrated, and what cannot be read is measured again, with a warning. Its file is named by a digest
of that, written beside and moved into place: who reads sees all of it or nothing, and processes
that write at once do not disturb each other.
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
from ..planning.cost_model import Problem, suits
from ..planning.kernel_key import signature
from ..planning.machine import Machine
from ..planning.tile import TileConfig
from ..planning.tile_json import FORMAT, tile_from_json, tile_to_json
from ..view.gemm_view import GemmView

VARIABLE = "LAYOUTCONV_TUNE"
MOST_BYTES = 1 << 20  # of a file: choices have about 500


@dataclass(frozen=True)
class Choice:
    """A tile, the number of parts of a sum, and the race that they won.

    Attributes:
        problem: the sizes of the race, in words.
        microseconds: of the winner; ``model_microseconds`` of what the cost model had picked.
    """

    tile: TileConfig
    splits: int
    problem: str
    microseconds: float
    model_microseconds: float


def wanted() -> bool:
    """Return whether first calls are measured: the environment variable LAYOUTCONV_TUNE."""
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
    """Return what a choice is known by: the kernel but for its tile, and the class of its sizes.

    Sizes are of one class if they round to the same power of two.
    """
    classes = tuple(size_class(extent) for extent in (problem.m, problem.n, problem.k))
    kernel = signature(view, along), problem.dtype, out_dtype, vectors, along
    rest = problem.channels, problem.staged_bytes, problem.groups
    flags = problem.splittable, problem.skips_taps
    return hashlib.sha256(repr((kernel, classes, rest, flags)).encode()).hexdigest()


def size_class(extent: int) -> int:
    """The power of two that is nearest, as its exponent.

    >>> [size_class(extent) for extent in (1, 90, 91, 128, 181, 182)]
    [0, 6, 7, 7, 7, 8]
    """
    return round(log2(max(1, extent)))


_noted: ContextVar[dict[str, tuple[TileConfig, int]] | None] = ContextVar("noted", default=None)


@contextmanager
def noting_found() -> Iterator[dict[str, tuple[TileConfig, int]]]:
    """The choices that are found in this context, by their keys: a pack takes them along."""
    noted: dict[str, tuple[TileConfig, int]] = {}
    with setting(_noted, noted):
        yield noted


def find(key: str, problem: Problem, machine: Machine) -> tuple[TileConfig, int] | None:
    """The tile and the number of parts that are remembered: on disk, or in the package's table.

    What cannot run here, as after a change of the family, is not found.
    """
    name = machine.name or machine.arch
    choice = None
    if usable_folder() is not None:
        choice = _parse(_read(_folder(name) / f"{key}.json"))
    choice = choice or _parse(_shipped().get(name, {}).get(key))
    if choice is None:
        return None
    if not suits(problem, choice.tile, choice.splits, machine):
        return None
    found = choice.tile, choice.splits
    noted = _noted.get()
    if noted is not None:
        noted[key] = found
    return found


def remember(key: str, machine: Machine, choice: Choice) -> None:
    """Keep a choice on disk, in place of the one before. Raises ``OSError`` where that fails."""
    path = _folder(machine.name or machine.arch) / f"{key}.json"
    make_folder(cache_directory())
    path.parent.mkdir(parents=True, exist_ok=True)
    content = {"gpu": machine.name or machine.arch, **_as_json(choice)}
    write_file(path, json.dumps(content, indent=1).encode())


def add_to_table(path: Path, gpu: str, choices: Mapping[str, Choice]) -> int:
    """Add choices of a GPU, by their keys, to a table such as the package's; how many there are.

    Those that the model picks by itself are left out: where it learns, a table would hold it back.
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


def kept() -> Iterator[tuple[str, Choice]]:
    """The choices on disk of this version of the package, each with its GPU's name."""
    for path in sorted(folder().glob("*/*.json")):
        content = _read(path)
        choice = _parse(content)
        if choice is not None:
            yield str(content.get("gpu", path.parent.name)), choice


def shipped_count() -> int:
    """Return how many choices come with the package."""
    return sum(map(len, _shipped().values()))


def folder() -> Path:
    """Where the choices of this version are kept."""
    return cache_directory() / "tuned" / __version__


def _folder(gpu: str) -> Path:
    return folder() / re.sub(r"[^\w.-]+", "-", gpu)


def _read(path: Path) -> Any:
    """Return what a file says; None of what is not there, or damaged: it is measured again."""
    content = read_file(path, most=MOST_BYTES)
    try:
        return None if content is None else json.loads(content)
    except (ValueError, RecursionError):
        return None


def _as_json(choice: Choice) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "tile": tile_to_json(choice.tile),
        "splits": choice.splits,
        "problem": choice.problem,
        "microseconds": choice.microseconds,
        "model_microseconds": choice.model_microseconds,
    }


def _parse(content: Any) -> Choice | None:
    """A choice of any format that can be read; of another, a warning and None."""
    if not isinstance(content, dict):
        return None
    version = content.get("format", 1)
    try:
        return Choice(
            tile_from_json(content["tile"], version),
            int(content["splits"]),
            str(content["problem"]),
            float(content["microseconds"]),
            float(content["model_microseconds"]),
        )
    except (KeyError, OverflowError, TypeError, ValueError) as error:
        warnings.warn(
            f"a tuned choice of format {version} is ignored, and may be tuned again: "
            f"{type(error).__name__}: {error}",
            stacklevel=2,
        )
        return None


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """The table of the package: by GPU's name, then by key."""
    text = (files("layoutconv.gpu") / "shipped.json").read_text()
    table: dict[str, dict[str, Any]] = json.loads(text)
    return table
