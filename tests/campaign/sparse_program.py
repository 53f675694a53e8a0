"""Programs of sparse networks: steps on numbered values, their channels and their levels.

Steps are as in ``network_program``. A *level* is a set of cells: 0 is that of the input; a strided,
transposed or pooling step makes another, and an inverse one goes back.
"""

from __future__ import annotations

from math import prod
from typing import Any, NamedTuple

from .network_program import Program, Step

Cells = tuple[int, ...]
OPTIONS: dict[str, dict[str, Any]] = {
    "subm": {"K": 1, "taps": (), "dilation": (), "groups": 1, "bias": False},
    "down": {"K": 1, "taps": (), "stride": (), "padding": (), "dilation": (), "bias": False},
    "up": {"K": 1, "taps": (), "stride": (), "padding": (), "bias": False},
    "inverse": {"K": 1, "at": 0, "bias": False},
    "pool": {"kind": "max", "taps": (), "stride": (), "padding": ()},
    "linear": {"K": 1, "bias": True},
    "norm": {"affine": True},
    "act": {"kind": "relu", "form": "module"},
    "residual": {"K": 1, "taps": (), "early": False, "last": True},
    "add": {"form": "features"},
    "cat": {"form": "features"},
    "shared": {"at": 0},
    "head": {"kind": "mean"},
}  # fmt: skip
MODULES = "subm", "down", "up", "inverse", "pool", "linear", "norm", "residual"
FRESH = "subm", "down", "up", "inverse", "linear", "norm", "add", "cat"


class Value(NamedTuple):
    """Channels of a value, and the level that its rows are the cells of; -1: a row per image."""

    C: int
    level: int


class Level(NamedTuple):
    """A grid, the step that makes its cells, and the level from which it does."""

    extents: Cells
    made_by: int = -1
    parent: int = -1


def step(op: str, *of: int, **options: Any) -> Step:
    """A step with what differs from the defaults."""
    plain = OPTIONS[op]
    return op, of, tuple(sorted((n, v) for n, v in options.items() if v != plain[n]))


def options_of(one: Step) -> dict[str, Any]:
    """All options of a step."""
    return OPTIONS[one[0]] | dict(one[2])


def has_module(one: Step) -> bool:
    """Return whether a step calls a module of its own."""
    return one[0] in MODULES or (one[0] == "act" and options_of(one)["form"].startswith("module"))


def laid_out(program: Program, C: int, extents: Cells) -> tuple[list[Value], list[Level]] | None:
    """Values and levels; None where a step takes no such values."""
    values, levels = [Value(C, 0)], [Level(extents)]
    for number, one in enumerate(program):
        if any(of > number for of in one[1]) or not _may_write(program, number):
            return None
        made = _made(program, number, values, levels)
        if made is None or made.C < 1:
            return None
        values.append(made)
    return values, levels


def _may_write(program: Program, number: int) -> bool:
    """An activation in place is the only reader of a result that is kept for no gradient."""
    one = program[number]
    if options_of(one).get("form") != "module inplace":
        return True
    target = one[1][0]
    readers = sum(target in other[1] for other in program)
    return readers == 1 and target > 0 and program[target - 1][0] in FRESH


def _made(program: Program, number: int, values: list[Value], levels: list[Level]) -> Value | None:
    one = program[number]
    op, o, of = one[0], options_of(one), [values[v] for v in one[1]]
    x = of[0]
    if x.level < 0:
        return None
    if op in ("add", "cat"):
        other = of[1]
        if x.level != other.level or (op == "add" and x.C != other.C):
            return None
        return x if op == "add" else Value(x.C + other.C, x.level)
    if op == "shared":
        at = o["at"]
        if at >= number or program[at][0] not in ("subm", "norm", "residual"):
            return None
        before = values[program[at][1][0]]
        return values[at + 1] if before == x else None
    if op == "subm":
        return Value(o["K"], x.level) if not (x.C % o["groups"] or o["K"] % o["groups"]) else None
    if op in ("down", "pool", "up"):
        grid = grid_of(op, o, levels[x.level].extents)
        if min(grid) < 1 or prod(grid) > 1 << 16:
            return None
        levels.append(Level(grid, number, x.level))
        return Value(x.C if op == "pool" else o["K"], len(levels) - 1)
    if op == "inverse":
        at = o["at"]
        level = levels[x.level]
        if level.made_by != at or at < 0 or program[at][0] != "down":
            return None
        return None if prod(options_of(program[at])["taps"]) == 1 else Value(o["K"], level.parent)
    if op == "head":
        return Value(x.C, -1)
    return Value(o["K"], x.level) if op in ("linear", "residual") else x


def grid_of(op: str, o: dict[str, Any], extents: Cells) -> Cells:
    """The grid of a level that a step makes."""
    found = []
    for mode, e in enumerate(extents):
        t, s, p = (o[name][mode] for name in ("taps", "stride", "padding"))
        d = o["dilation"][mode] if op == "down" else 1
        if op == "up":
            found.append((e - 1) * s - 2 * p + t)
        else:
            found.append((e + 2 * p - d * (t - 1) - 1) // s + 1)
    return tuple(found)
